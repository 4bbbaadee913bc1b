"""Structured logs: one JSON object per line, and the id of a request in its log and its answer."""

from __future__ import annotations

import datetime
import json
import logging
import re
import sys
import uuid
from typing import Any, TextIO

LOGGER = logging.getLogger("keras_tx.serving")
REQUEST_ID = "x-request-id"
_SAFE = re.compile(r"[A-Za-z0-9._-]{1,128}")


def request_id(header: str | None) -> str:
    """The client's own id, if it is short and safe to print; otherwise a new one.

    >>> request_id("abc-1")
    'abc-1'
    """
    return header if header is not None and _SAFE.fullmatch(header) else uuid.uuid4().hex


def log_event(
    event: str, *, level: int = logging.INFO, exception: BaseException | None = None, **fields: Any
) -> None:
    """Logs an event; the traceback of `exception` is a field of it. Contents of requests are not logged."""
    LOGGER.log(level, event, extra={"fields": fields}, exc_info=exception)


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object: time, level, event, and the fields of `log_event`."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        row = {"time": time.isoformat(timespec="milliseconds"), "level": record.levelname.lower()}
        row |= {"event": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=False, default=str)


def write_logs(stream: TextIO | None = None) -> logging.Handler:
    """Writes the log to a stream, by default standard error; returns the handler, which may be removed."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in (LOGGER.name, "uvicorn.error", "py.warnings"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False
    LOGGER.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    logging.captureWarnings(True)
    return handler

"""Bodies of requests: read within limits, in memory only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from keras_tx.serving.http.limits import Limits
from keras_tx.serving.http.request_errors import (
    MalformedRequestError,
    MediaTypeError,
    SlowRequestError,
    TooLargeError,
)

MAX_FIELDS = 100


def media_type(request: Request) -> str:
    """The type of the body, without its parameters: "application/json"."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, limits: Limits) -> bytes:
    """The bytes of a body.

    Raises:
        MediaTypeError: if the body is compressed.
        TooLargeError: if it has more than `max_body` bytes.
        SlowRequestError: if it does not arrive within `body_seconds`.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise MediaTypeError(f"Content-Encoding is {encoding!r:.40}. Send the body without compression.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limits.max_body:
        raise _too_large(length, limits)
    content = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                content += chunk
                if len(content) > limits.max_body:
                    raise _too_large("more", limits)
    except TimeoutError:
        raise SlowRequestError(
            f"The body did not arrive within {limits.body_seconds} seconds. Send it again."
        ) from None
    return bytes(content)


def _too_large(size: str, limits: Limits) -> TooLargeError:
    return TooLargeError(f"The body has {size} bytes, expected at most {limits.max_body}.")


class _InMemoryParser(MultiPartParser):
    """Keeps files in memory, where Starlette's parser writes large ones to a temporary file.

    The fields are UTF-8: Python decodes some charsets, such as punycode, in a time that is quadratic.
    """

    spool_max_size = 0  # without limit: the body is in memory already

    def on_part_begin(self) -> None:
        if self._charset != "utf-8":
            raise MediaTypeError("Content-Type has another charset than utf-8. Omit charset.")
        super().on_part_begin()


async def read_form(
    request: Request, content: bytes, max_files: int
) -> tuple[dict[str, str], dict[str, list[bytes]]]:
    """The fields of multipart/form-data, and the contents of its files.

    Raises:
        MalformedRequestError: if it is not multipart/form-data, or a field occurs twice.
        MediaTypeError: if its charset is not UTF-8.
    """

    async def whole() -> AsyncGenerator[bytes, None]:
        yield content

    parser = _InMemoryParser(
        request.headers,
        whole(),
        max_files=max_files,
        max_fields=MAX_FIELDS,
        max_part_size=max(len(content), 1),
    )
    try:
        form = await parser.parse()
    except (MultiPartException, ValueError, KeyError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise MalformedRequestError(f"The body is not multipart/form-data ({reason}).") from error
    fields: dict[str, str] = {}
    files: dict[str, list[bytes]] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            files.setdefault(name, []).append(await value.read())
            await value.close()
        elif name in fields:
            raise MalformedRequestError(f"The field {name!r:.60} occurs twice, expected once.")
        else:
            fields[name] = value
    return fields, files

"""The files of the page that tries the models, and of the page of the description."""

from __future__ import annotations

import functools
from pathlib import Path

from starlette.responses import Response

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# The pages load nothing from elsewhere, and run no code but that of their own files.
POLICY = """\
default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; \
base-uri 'none'; form-action 'none'; frame-ancestors 'none'"""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@functools.cache
def _content(name: str) -> bytes:
    return (Path(__file__).parent / name).read_bytes()


def asset(name: str) -> Response:
    """A file of this package; its name is never that of a request."""
    return Response(_content(name), media_type=KINDS[Path(name).suffix], headers=HEADERS)

"""Requests of web pages: only those of this server's own page, unless other origins are allowed."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from keras_tx.errors import ConfigError
from keras_tx.serving.http.request_errors import ForbiddenError

LOCAL = ("localhost", "127.0.0.1", "::1")
EXPOSED = "x-request-id, inference-header-content-length, retry-after"


class Origins:
    """The origins (https://example.org) whose pages may send requests, and the server's own host names.

    Args:
        allowed: other origins; "*" for all.
        hosts: host names under which clients may reach the server; any by default. A local server names its
            own, so that a page whose name resolves to this machine cannot reach it (DNS rebinding). Those of
            `allowed` may be used too: a proxy forwards them.

    Raises:
        ConfigError: if an origin is not a scheme and a host.
    """

    def __init__(self, allowed: Sequence[str] = (), hosts: Sequence[str] = ()) -> None:
        for origin in allowed:
            parts = _split(origin)
            if origin not in ("*", "null") and (
                parts is None or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}"
            ):
                raise ConfigError(f"origin is {origin!r}, expected a scheme and a host: https://example.org.")
        self._allowed = frozenset(allowed)
        self._hosts = frozenset(hosts)
        if self._hosts:
            self._hosts |= {host for origin in allowed if (host := urlsplit(origin).hostname)}

    def check(self, request: Request) -> None:
        """Raises a ForbiddenError for a request of a page of another origin, or for another host."""
        host = request.headers.get("host", "")
        own = _split(f"//{host}")
        if self._hosts and (own is None or own.hostname not in self._hosts):
            raise ForbiddenError(
                f"The host is {host!r:.80}, but this server is local: use "
                f"{' or '.join(sorted(self._hosts))}, or pass the origin of a proxy as --cors."
            )
        origin = request.headers.get("origin")
        if origin is not None and not self._is_own(origin, host) and not self._is_allowed(origin):
            raise ForbiddenError(
                f"Pages of {origin!r:.80} may not send requests. Start the server with --cors."
            )

    def _is_own(self, origin: str, host: str) -> bool:
        parts = _split(origin)
        return parts is not None and parts.netloc == host

    def _is_allowed(self, origin: str) -> bool:
        return origin in self._allowed or "*" in self._allowed

    def headers(self, request: Request) -> dict[str, str]:
        """The headers that let a page of an allowed origin read the answer."""
        origin = request.headers.get("origin")
        if origin is None or not self._is_allowed(origin):
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": EXPOSED,
            "vary": "Origin",
        }

    def preflight(self, request: Request, methods: Sequence[str]) -> Response | None:
        """The answer to a browser that asks whether a page may send a request."""
        if request.method != "OPTIONS" or "access-control-request-method" not in request.headers:
            return None
        origin = request.headers.get("origin")
        if origin is None or not self._is_allowed(origin):
            return None
        return Response(
            status_code=204,
            headers={
                "access-control-allow-methods": ", ".join(methods),
                "access-control-allow-headers": request.headers.get("access-control-request-headers", ""),
                "access-control-max-age": "600",
            },
        )


def _split(address: str) -> SplitResult | None:
    """The parts of an address; None if it is not valid, such as `http://[`."""
    try:
        return urlsplit(address)
    except ValueError:
        return None

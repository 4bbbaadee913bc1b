"""The ASGI application: keys, limits, errors, logs and metrics around every request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import Message, Receive, Scope, Send

from keras_tx.serving.http.admission import Admission
from keras_tx.serving.http.api_keys import ApiKeys
from keras_tx.serving.http.call import Call, Operations
from keras_tx.serving.http.folder_watch import FolderWatch
from keras_tx.serving.http.limits import Limits
from keras_tx.serving.http.metrics import Metrics
from keras_tx.serving.http.model_set import ModelOptions, ModelSet
from keras_tx.serving.http.origins import Origins
from keras_tx.serving.http.request_body import read_body
from keras_tx.serving.http.request_errors import (
    RETRY_AFTER,
    MethodError,
    UnavailableError,
    UnknownPathError,
    status_of,
)
from keras_tx.serving.http.request_log import REQUEST_ID, log_event, request_id
from keras_tx.serving.http.routes import all_paths
from keras_tx.serving.http.tracing import span

CLIENT_LEFT = 499  # in the log, as nginx has it; nothing is sent
UNKNOWN = "unknown"  # the path of a request for a path that does not exist, in logs and metrics


class Application:
    """Serves models over HTTP: an ASGI application, whose lifespan loads and closes the models.

    >>> application = Application({"reviews": Path("reviews")})  # doctest: +SKIP
    >>> uvicorn.run(application)  # doctest: +SKIP

    Args:
        folders: the exported folder of each name.
        options: how models are loaded and batched.
        limits: limits of requests.
        keys: keys of clients; without any, every client is served.
        origins: the web pages that may send requests, besides this server's own.
        reload_seconds: interval between checks of the folders, to load new exports; None for never.

    Attributes:
        draining: whether new work is refused.
        in_flight: number of requests that have not been answered.
        failure: the error of a model that could not be loaded.
        failed: an event that is set with `failure`.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        options: ModelOptions | None = None,
        *,
        limits: Limits | None = None,
        keys: ApiKeys | None = None,
        origins: Origins | None = None,
        reload_seconds: float | None = None,
    ) -> None:
        self.metrics = Metrics()
        self.models = ModelSet(
            folders, options, lambda name, size: self.metrics.batches.labels(name).observe(size)
        )
        self.limits = limits or Limits()
        self.keys = keys or ApiKeys()
        self.origins = origins or Origins()
        self.admission = Admission(self.limits)
        self.metrics.observe_admission(lambda: self.admission.running, lambda: self.admission.waiting)
        self._reload_seconds = reload_seconds
        self.draining = False
        self.in_flight = 0
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self.paths = all_paths()
        self._routes = [(Route(path, _not_called), path) for path in self.paths]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            self.in_flight += 1
            try:
                await self._serve(scope, receive, send)
            finally:
                self.in_flight -= 1
        else:  # a WebSocket
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Loads the models while requests are answered with status 503; closes them at the end."""
        await receive()
        loading = asyncio.create_task(self._load())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        loading.cancel()
        await asyncio.wait([loading])
        self.models.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _load(self) -> None:
        """Loads the models, and then their new exports."""
        began = time.monotonic()
        seconds = self._reload_seconds
        watch = None if seconds is None else FolderWatch(self.models, self.metrics, seconds)
        try:
            await self.models.load()
        except Exception as error:
            self.failure = error
            self.failed.set()
            log_event("loading failed", level=logging.ERROR, message=str(error))
        else:
            batching = {served.name: served.batching for served in self.models.loaded}
            took = round(time.monotonic() - began, 3)
            log_event("ready", models=list(self.models.folders), batching=batching, seconds=took)
            if watch is not None:
                await watch.run()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        path = self._find(scope)
        answer = _Answer(send)
        async with contextlib.AsyncExitStack() as resources:
            identity = request_id(request.headers.get(REQUEST_ID))
            call = Call(self, request, identity, time.perf_counter(), resources)
            answer.headers = {REQUEST_ID: identity, **self.origins.headers(request)}
            with span(f"{scope['method']} {path or UNKNOWN}", request.headers) as traced:
                try:
                    response = await self._response(call, path)
                    await response(scope, receive, answer)
                    if call.left:
                        answer.status = CLIENT_LEFT
                except (ClientDisconnect, asyncio.CancelledError):
                    answer.status = CLIENT_LEFT
                except Exception as error:
                    call.problem = error
                    if not answer.started:
                        await _error_response(error, path, call)(scope, receive, answer)
                if traced is not None:
                    traced.set_attribute("http.response.status_code", answer.status)
        self._record(call, path or UNKNOWN, answer.status)

    def _find(self, scope: Scope) -> str | None:
        """The path of a request as in `paths`; its parameters become part of the scope."""
        for route, path in self._routes:
            match, child = route.matches(scope)
            if match is not Match.NONE:
                scope["path_params"] = child["path_params"]
                return path
        return None

    async def _response(self, call: Call, path: str | None) -> Response:
        """The response to a request, after all checks that precede its body."""
        request = call.request
        self.origins.check(request)
        if path is None:
            raise UnknownPathError(f"The path {request.url.path!r:.80} does not exist. GET /docs lists all.")
        operations = self.paths[path]
        preflight = self.origins.preflight(request, list(operations))
        if preflight is not None:
            return preflight
        operation = operations.get("GET" if request.method == "HEAD" else request.method)
        if operation is None:
            raise _wrong_method(request.method, operations)
        if not operation.public:
            self.keys.check(request.headers.get("authorization"))
        if operation.computes:
            if self.draining:
                raise UnavailableError("The server stops. Repeat the request later.")
            with self.admission.reading():
                call.content = await read_body(request, self.limits)
            await call.resources.enter_async_context(self.admission.place(request))
        return await operation.answer(call)

    def _record(self, call: Call, path: str, status: int) -> None:
        """Counts and logs a request that has been answered."""
        seconds = time.perf_counter() - call.began
        metrics, model, problem = self.metrics, call.model, call.problem
        metrics.requests.labels(path, model, str(status)).inc()
        metrics.seconds.labels(path, model).observe(seconds)
        fields: dict[str, Any] = {
            "id": call.id,
            "method": call.request.method,
            "path": path,
            "status": status,
        }
        if model:
            fields["model"] = model
        fields["seconds"] = round(seconds, 6)
        if problem is None:
            log_event("request", **fields)
            return
        code, kind = status_of(problem)
        metrics.errors.labels(kind, type(problem).__name__, model).inc()
        fields["error"] = type(problem).__name__  # without its message, which quotes the request
        if code >= 500 and not isinstance(problem, UnavailableError):
            log_event("request", level=logging.ERROR, exception=problem, **fields)
        else:
            log_event("request", level=logging.WARNING, **fields)


class _Answer:
    """Sends messages with additional headers, and remembers the status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.headers: Mapping[str, str] = {}
        self.status = 0
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            more = [(name.encode(), value.encode("latin-1")) for name, value in self.headers.items()]
            message = {**message, "headers": [*message["headers"], *more]}
        await self._send(message)


def _wrong_method(method: str, operations: Operations) -> MethodError:
    allowed = (*operations, *(["HEAD"] if "GET" in operations else []))
    return MethodError(f"{method} is not allowed here. Use {' or '.join(operations)}.", allowed)


def _error_response(error: Exception, path: str | None, call: Call) -> Response:
    """The error as JSON, in the form that clients of this path read."""
    status, _ = status_of(error)
    body = call.describe_error(error)
    headers = {}
    if status in (429, 503):
        headers["retry-after"] = str(RETRY_AFTER)
    if isinstance(error, MethodError):
        headers["allow"] = ", ".join(error.allowed)
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not read
    if path is not None and path.startswith("/v2"):
        return JSONResponse({"error": body["message"]}, status, headers)
    return JSONResponse({"error": body}, status, headers)


async def _not_called(request: Request) -> Response:
    raise AssertionError("routes only match paths")

"""Runs the application in uvicorn: on a port or a Unix socket, until SIGTERM, after which it drains."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn

from keras_tx.errors import ConfigError
from keras_tx.serving.http.application import Application
from keras_tx.serving.http.request_log import log_event

BACKLOG = 2048
KEEP_ALIVE = 75  # seconds


@contextlib.contextmanager
def listening_socket(host: str, port: int, path: str | os.PathLike[str] | None) -> Iterator[socket.socket]:
    """A socket that listens on a port, or on a path, which is removed at the end.

    Only this user may use the path.

    Raises:
        ConfigError: if the address is in use or cannot be used.
    """
    if path is not None:
        with _unix_socket(Path(path)) as unix:
            yield unix
        return
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"host is {host!r}: {error.strerror}. Pass a name or an address.") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"Port {port} of {host} cannot be used: {error.strerror}. Pass --port."
            ) from error
        yield listener


@contextlib.contextmanager
def _unix_socket(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        _remove_stale(path)
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
            listener.listen(BACKLOG)
        except OSError as error:
            raise ConfigError(f"uds is {str(path)!r}: {error.strerror or error}.") from error
        finally:
            os.umask(mask)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    """Removes the socket of a server that has ended; raises a ConfigError for anything else."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise ConfigError(
            f"uds is {str(path)!r}, a file that is not a socket. Remove it or pass another path."
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise ConfigError(f"uds is {str(path)!r}, on which another server listens. Pass another path.")


class _Server(uvicorn.Server):
    """Answers running requests before it stops: the first signal drains, the second one stops."""

    def __init__(self, config: uvicorn.Config, application: Application, drain_seconds: float) -> None:
        super().__init__(config)
        self._application = application
        self._drain_seconds = drain_seconds
        self._signalled = asyncio.Event()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._application.draining:
            self.force_exit = self.should_exit = True
        self._application.draining = True
        loop = self._loop
        loop.call_soon_threadsafe(self._signalled.set)

    async def run_until_drained(self, listener: socket.socket) -> None:
        """Serves until a signal or a model that cannot be loaded."""
        self._loop = asyncio.get_running_loop()
        watching = [asyncio.create_task(self._drain()), asyncio.create_task(self._stop_on_failure())]
        try:
            await self.serve(sockets=[listener])
        finally:
            for task in watching:
                task.cancel()

    async def _drain(self) -> None:
        await self._signalled.wait()
        log_event("draining", requests=self._application.in_flight)
        until = self._loop.time() + self._drain_seconds
        while self._application.in_flight and self._loop.time() < until:
            await asyncio.sleep(0.02)
        if self._application.in_flight:
            log_event("stopped before all requests were answered", requests=self._application.in_flight)
        self.should_exit = True

    async def _stop_on_failure(self) -> None:
        await self._application.failed.wait()
        self.should_exit = True


def serve(application: Application, listener: socket.socket, *, drain_seconds: float = 30.0) -> None:
    """Serves an application on a socket until SIGINT or SIGTERM.

    Running requests are answered, for at most `drain_seconds`; new ones get the status 503.

    Raises:
        KerasTxError: that of a model that cannot be loaded.
    """
    config = uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing depends on the address of a client
        lifespan="on",
        ws="none",
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=1,  # `_drain` has waited before
        h11_max_incomplete_event_size=64 * 1024,
    )
    server = _Server(config, application, drain_seconds)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(server.run_until_drained(listener))
    if application.failure is not None:
        raise application.failure


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop, where it is installed; it does not exist for Windows."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop

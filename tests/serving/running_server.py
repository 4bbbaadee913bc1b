"""The HTTP application in a real uvicorn, in a thread of the test's process."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 120  # seconds


def until(condition: Callable[[], bool]) -> None:
    """Returns when a condition is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The text of an error."""
        error = self.json["error"]
        return error if isinstance(error, str) else error["message"]


class RunningServer:
    """Sends requests to a server."""

    def __init__(self, application: Any, port: int) -> None:
        self.application = application
        self.port = port
        self.address = f"127.0.0.1:{port}"

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, headers={name.replace("_", "-"): x for name, x in headers.items()})

    def post(self, path: str, value: Any, **headers: str) -> Answer:
        """Sends JSON."""
        fields = {"content-type": "application/json"}
        fields |= {name.replace("_", "-"): x for name, x in headers.items()}
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        return self.send("POST", path, content, fields)

    def metrics(self) -> dict[str, float]:
        """The samples of /metrics by name and labels."""
        lines = self.get("/metrics").body.decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}


@contextlib.contextmanager
def running(folders: Mapping[str, Path], *, wait: bool = True, **options: Any) -> Iterator[RunningServer]:
    """Starts a server, and stops it at the end; `wait` returns when its models are loaded."""
    import uvicorn

    from keras_tx.serving.http.application import Application

    application = Application(folders, **options)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            application, log_config=None, ws="none", lifespan="on", timeout_graceful_shutdown=5
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            until = time.monotonic() + PATIENCE
            while not (server.started and (application.models.ready or not wait)):
                assert time.monotonic() < until and thread.is_alive(), application.failure
                assert application.failure is None, application.failure
                time.sleep(0.005)
            yield RunningServer(application, listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()


def multipart(
    files: list[tuple[str, bytes]], fields: Mapping[str, str] | None = None
) -> tuple[bytes, dict[str, str]]:
    """The body of a form with files and fields, and its headers."""
    boundary = "boundary-of-this-form"
    parts = [
        f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"; filename="{index}.png"\r\n'
        "content-type: image/png\r\n\r\n".encode()
        + content
        + b"\r\n"
        for index, (name, content) in enumerate(files)
    ]
    parts += [
        f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in (fields or {}).items()
    ]
    content = b"".join(parts) + f"--{boundary}--\r\n".encode()
    return content, {"content-type": f"multipart/form-data; boundary={boundary}"}

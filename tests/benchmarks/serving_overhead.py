"""The own time of `keras-tx serve` per request: against a bare uvicorn application that runs the same model.

    python -m tests.benchmarks.serving_overhead FOLDER [--text "The cat sat on the mat."] [--requests 300]

FOLDER is an exported text classifier or embedder. The bare application parses the body, calls
`load(FOLDER)(text)` and returns the answer as JSON: no limits, keys, logs, metrics, batches or threads. Both
servers are processes of their own; a client sends requests one after the other on one connection to each,
interleaved.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.results import quartiles

ROOT = Path(__file__).parents[2]
GOAL = 0.5  # ms
SERVE = "import sys; from keras_tx.cli import main; sys.exit(main(sys.argv[1:]))"
BARE = """
import json, sys, uvicorn
from keras_tx.runtime import load
from keras_tx.runtime.tasks.base import RunOptions

model = load(sys.argv[1], provider="cpu")

async def application(scope, receive, send):
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message.get("more_body"):
            break
    (answer,) = model.task.answer(model, [json.loads(body)["text"]], RunOptions())
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

uvicorn.run(application, port=int(sys.argv[2]), lifespan="off", access_log=False, log_level="error")
"""


def measure(folder: str | os.PathLike[str], *, text: str, requests: int, rounds: int = 5) -> list[float]:
    """Returns the additional ms per request of each round: the difference of the medians of both servers."""
    body = json.dumps({"text": text})
    with _serving(folder) as ours, _bare(folder) as bare:
        differences = []
        for measured in range(-1, rounds):  # the first round warms up
            seconds: tuple[list[float], list[float]] = ([], [])
            for _ in range(requests):
                for times, (connection, path) in zip(seconds, (ours, bare), strict=True):
                    times.append(_ask(connection, path, body))
            if measured >= 0:
                middle = [sorted(times)[len(times) // 2] for times in seconds]
                differences.append(1000 * (middle[0] - middle[1]))
        return differences


def _ask(connection: http.client.HTTPConnection, path: str, body: str) -> float:
    start = time.perf_counter()
    connection.request("POST", path, body, {"content-type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    seconds = time.perf_counter() - start
    assert response.status == 200, content
    return seconds


@contextlib.contextmanager
def _serving(folder: str | os.PathLike[str]) -> Iterator[tuple[http.client.HTTPConnection, str]]:
    port = _free_port()
    arguments = ["serve", f"model={os.fspath(folder)}", "--provider", "cpu", "--port", str(port)]
    with _process(SERVE, arguments, port, "/v2/health/ready") as connection:
        yield connection, "/models/model"


@contextlib.contextmanager
def _bare(folder: str | os.PathLike[str]) -> Iterator[tuple[http.client.HTTPConnection, str]]:
    port = _free_port()
    with _process(BARE, [os.fspath(folder), str(port)], port, None) as connection:
        yield connection, "/"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _process(
    code: str, arguments: list[str], port: int, ready: str | None
) -> Iterator[http.client.HTTPConnection]:
    """Starts a server, and returns a connection to it when it answers."""
    command = [sys.executable, "-c", code, *arguments]
    silent = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, stdout=silent, stderr=silent) as process:
        try:
            with contextlib.closing(_connected(process, port, ready)) as connection:
                yield connection
        finally:
            process.kill()


def _connected(process: subprocess.Popen[bytes], port: int, ready: str | None) -> http.client.HTTPConnection:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"The server on port {port} ended with {process.returncode}.")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.connect()
            if ready is None or _status(connection, ready) == 200:
                return connection
        except OSError:
            pass
        connection.close()
        time.sleep(0.05)
    raise TimeoutError(f"The server on port {port} did not start.")


def _status(connection: http.client.HTTPConnection, path: str) -> int:
    connection.request("GET", path)
    response = connection.getresponse()
    response.read()
    return response.status


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--text", default="The cat sat on the mat.")
    parser.add_argument("--requests", type=int, default=300)
    arguments = parser.parse_args()
    low, middle, high = quartiles(measure(arguments.folder, text=arguments.text, requests=arguments.requests))
    print(f"{middle:.2f} ms more per request ({low:.2f} to {high:.2f}); the goal is at most {GOAL} ms")


if __name__ == "__main__":
    main()

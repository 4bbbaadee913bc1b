"""`keras-tx serve` in a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.serving.running_server import PATIENCE, RunningServer

ROOT = Path(__file__).parents[2]
MAIN = "import sys; from keras_tx.cli import main; sys.exit(main(sys.argv[1:]))"
# Each run of a model lasts a second.
SLOW = """
import time
from keras_tx.serving.http import model_set
run = model_set.ServedModel._run
model_set.ServedModel._run = lambda *arguments: time.sleep(1) or run(*arguments)
"""


class ServerProcess(RunningServer):
    """A server, its standard output and its log, as JSON objects."""

    def __init__(self, process: subprocess.Popen[str], welcome: str, port: int) -> None:
        super().__init__(None, port)
        self.process = process
        self.welcome = welcome
        self.log: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(json.loads(line))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [row for row in self.log if row["event"] == name]

    def wait_for(self, event: str) -> dict[str, Any]:
        """The first record of this event in the log."""
        until = time.monotonic() + PATIENCE
        while not self.events(event):
            assert time.monotonic() < until and self.process.poll() is None, self.log
            time.sleep(0.005)
        return self.events(event)[0]

    def wait(self) -> int:
        """The exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code


@contextlib.contextmanager
def serving(
    *arguments: object, code: str = "", command: Sequence[str] | None = None
) -> Iterator[ServerProcess]:
    """Starts a server on a free port, and kills it at the end; `code` runs before the command."""
    program = [sys.executable, "-c", code + MAIN] if command is None else list(command)
    program += ["serve", *map(str, arguments)]
    if "--uds" not in program and "--port" not in program:
        program += ["--port", "0"]
    process = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    server = None
    try:
        assert process.stdout is not None
        welcome = process.stdout.readline()
        address = welcome.split(" ")[0]
        port = int(address.rpartition(":")[2]) if address.startswith("http") else 0
        server = ServerProcess(process, welcome, port)
        yield server
    finally:
        process.kill()
        process.wait()
        if server is not None:
            server._reader.join(PATIENCE)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stderr.close()

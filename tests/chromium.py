"""A page in headless Chromium, driven through a pipe with the DevTools protocol; no package is needed."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EXECUTABLE = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(
    EXECUTABLE is None, reason="no chromium on the PATH (Debian: apt-get install chromium)"
)
LIMIT = 300  # seconds
FLAGS = (
    "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
    "disable-component-update disable-sync hide-scrollbars remote-debugging-pipe"
).split()
# Chromium reads commands from file descriptor 3 and writes answers to 4.
START = "import os, sys; r, w, *command = sys.argv[1:]; os.dup2(int(r), 3); os.dup2(int(w), 4); "
START += "os.execvp(command[0], command)"


class Page:
    """One page. `problems` lists errors and warnings of its console, and requests to the network."""

    def __init__(self, commands: Any, answers: Any) -> None:
        self._commands, self._answers = commands, answers
        self._calls = 0
        self._session: str | None = None
        self._events: list[str] = []
        self.problems: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the DevTools protocol and returns its result."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while (answer := self._next()).get("id") != self._calls:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        content = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "Chromium ended"
            content += byte
        message = json.loads(content)
        self._events.append(message.get("method", ""))
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.problems.append(details.get("exception", details).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.problems.append(f"{parameters['type']}: {parameters['args']}")
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.problems.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                address = parameters["request"]["url"]
                if not address.startswith(("file:", "data:", "blob:", "about:")):
                    self.problems.append(f"request: {address}")
        return message

    def open(self, path: Path, *, width: int = 1300, height: int = 900, dark: bool = False) -> None:
        """Opens a file in a window of this width, and returns when it is loaded. Clears `problems`."""
        self.visit(path.absolute().as_uri(), width=width, height=height, dark=dark)

    def visit(self, address: str, *, width: int = 1300, height: int = 900, dark: bool = False) -> None:
        """Opens an address like `open`; if only its fragment differs from the last one, loads it again."""
        self.problems.clear()
        if self._session is None:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Runtime", "Log", "Network", "Page"):
                self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        for url in ("about:blank", address):
            self._events.clear()
            self.call("Page.navigate", url=url)
            while "Page.loadEventFired" not in self._events:
                self._next()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Returns when a JavaScript expression is true; fails after 20 seconds."""
        look = f"() => {condition} ? done(true) : tries-- ? setTimeout(look, 10) : done(false)"
        promise = f"new Promise(done => {{ let tries = 2000; const look = {look}; look(); }})"
        assert self.evaluate(promise), f"{condition} is not true. {self.problems}"

    def hover(self, x: float, y: float) -> None:
        """Moves the mouse to a point of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Presses and releases a key by its name; modifiers 2 is Ctrl."""
        code = {"Enter": 13, "Tab": 9, "ArrowRight": 39, "ArrowDown": 40}[key]
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        text = {"text": "\r"} if key == "Enter" and not modifiers else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def screenshot(self, path: Path, *, whole: bool = True) -> Path:
        """Writes a PNG of the whole page, or of the window."""
        content = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(content["data"]))
        return path

    def pdf(self, path: Path) -> Path:
        """Writes the page as it is printed."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))
        return path


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """Starts Chromium, and stops it at the end."""
    assert EXECUTABLE is not None
    to_child, commands = os.pipe()
    answers, from_child = os.pipe()
    # Above 4, so that the first dup2 of START does not replace the other.
    theirs = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (to_child, from_child)]
    profile = tempfile.mkdtemp(prefix="chromium-")
    command = [EXECUTABLE, *(f"--{flag}" for flag in FLAGS), f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [sys.executable, "-c", START, *map(str, theirs), *command],
        pass_fds=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for one in (*theirs, to_child, from_child):
        os.close(one)
    watchdog = threading.Timer(LIMIT, process.kill)  # reads from a pipe have no time limit
    watchdog.start()
    try:
        with open(commands, "wb") as writer, open(answers, "rb") as reader:
            page = Page(writer, reader)
            yield page
            page._session = None
            page.call("Browser.close")
    finally:
        watchdog.cancel()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)

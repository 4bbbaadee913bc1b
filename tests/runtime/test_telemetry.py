"""With keras_tx, onnxruntime sends no data and stores no identifier of the machine."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# onnxruntime 1.31 with telemetry looks its collector up 8 seconds after a session ran.
WATCHED_SECONDS = 12

LOAD_AND_RUN = """
import sys, time, numpy
from keras_tx.runtime import load
with load(sys.argv[1], provider="cpu") as model:
    model(numpy.zeros((4, 6, 3), "uint8"))
time.sleep(float(sys.argv[2]))
"""
OPEN_A_SOCKET = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()"


def start(home: Path, code: str, *arguments: object, tracer: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A Python process without ORT_DISABLE_TELEMETRY, whose caches are below `home`."""
    home.mkdir()
    names = ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.Popen(
        [*tracer, sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**environment, "HOME": str(home)},
        text=True,
    )


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_no_socket_is_opened(make_image_folder, tmp_path):
    def sockets_of(name: str, code: str, *arguments: object) -> list[str]:
        log = tmp_path / f"{name}.trace"
        tracer = ("strace", "-f", "-e", "trace=socket,connect,sendto,sendmsg", "-o", str(log))
        with start(tmp_path / name, code, *arguments, tracer=tracer) as process:
            assert process.wait() == 0
        return [line for line in log.read_text().splitlines() if re.search(r"AF_INET6?\b", line)]

    assert len(sockets_of("control", OPEN_A_SOCKET)) == 1
    assert sockets_of("home", LOAD_AND_RUN, make_image_folder().path, WATCHED_SECONDS) == []


def test_no_machine_identifier_is_stored(make_image_folder, tmp_path):
    with start(tmp_path / "home", LOAD_AND_RUN, make_image_folder().path, 0) as process:
        assert process.wait() == 0
    assert list((tmp_path / "home").rglob("*")) == []


@pytest.mark.parametrize(("own", "expected"), [(None, "1"), ("0", "0"), ("", "")])
def test_user_setting_is_kept(own, expected):
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", "import os, keras_tx; print(os.environ['ORT_DISABLE_TELEMETRY'])"],
        cwd=ROOT,
        env=environment if own is None else {**environment, "ORT_DISABLE_TELEMETRY": own},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{expected}\n"

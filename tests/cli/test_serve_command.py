"""keras-tx serve: starts, drains, and refuses what it cannot serve."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from keras_tx.cli import build_parser
from keras_tx.commands import huge_pages
from keras_tx.commands.serve import LIMITS
from keras_tx.runtime import load
from keras_tx.serving.http.limits import Limits
from tests.serving.running_server import PATIENCE, until
from tests.serving.server_process import MAIN, SLOW, serving

TEXT = {"text": "The cat sat on the mat."}


def test_serves_without_training_packages(exported_folders, without_training_packages):
    folder = exported_folders["bert, classifier"].path
    with serving(f"reviews={folder}", command=without_training_packages(MAIN)) as server:
        ready = server.wait_for("ready")
        assert server.welcome == f"http://{server.address} serves reviews. Ctrl-C stops it.\n"
        with load(folder) as model:
            expected = model(TEXT["text"])
        answer = server.post("/models/reviews", TEXT, x_request_id="first")
        assert [x["label"] for x in answer.json["predictions"]] == [x["label"] for x in expected]
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    assert ready["models"] == ["reviews"]
    (request,) = server.events("request")
    assert request["id"] == "first" and request["status"] == 200 and request["model"] == "reviews"
    assert request["path"] == "/models/{name}" and request["seconds"] > 0
    assert "cat" not in json.dumps(server.log)


PROGRAM = [sys.executable, "-m", "keras_tx.cli"]


@pytest.mark.skipif(not huge_pages.are_on_request(), reason="Linux without huge pages on request")
@pytest.mark.parametrize("own", [None, ""])
def test_weights_are_in_huge_pages(own: str | None, exported_folders, monkeypatch):
    monkeypatch.delenv(huge_pages.VARIABLE, raising=False)
    if own is not None:
        monkeypatch.setenv(huge_pages.VARIABLE, own)
    with serving(exported_folders["bert, classifier"].path, command=PROGRAM) as server:
        server.wait_for("ready")
        variables = Path(f"/proc/{server.process.pid}/environ").read_text().split("\0")
        maps = Path(f"/proc/{server.process.pid}/smaps").read_text()
    value = huge_pages.VALUE if own is None else own
    assert f"{huge_pages.VARIABLE}={value}" in variables
    assert bool(re.search(r"^VmFlags:.* hg\b", maps, re.MULTILINE)) == (own is None)


def test_sigterm_drains(exported_folders):
    with (
        serving(exported_folders["bert, classifier"].path, "--max-batch", 1, code=SLOW) as server,
        ThreadPoolExecutor(1) as clients,
    ):
        server.wait_for("ready")
        name = exported_folders["bert, classifier"].path.name
        running = clients.submit(server.post, f"/models/{name}", TEXT)
        until(lambda: server.metrics()["keras_tx_requests_running"] == 1)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        with contextlib.suppress(
            ConnectionError, http.client.HTTPException
        ):  # on a slow machine it has ended
            assert server.post(f"/models/{name}", TEXT).status == 503
        assert running.result().status == 200
        assert server.wait() == 0


def test_interrupt(exported_folders):
    with serving(exported_folders["vit"].path) as server:
        server.wait_for("ready")
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 0


def test_unix_socket(exported_folders, tmp_path):
    path = tmp_path / "socket"
    for _ in range(2):  # the second time in place of a socket whose server was killed
        with serving(exported_folders["vit"].path, "--uds", path) as server:
            server.wait_for("ready")
            assert path.stat().st_mode & 0o777 == 0o600
            assert answer_on(path).startswith(b"HTTP/1.1 200")
            refused = run("serve", exported_folders["vit"].path, "--uds", path)
            assert refused.returncode == 2 and "another server listens" in refused.stderr
    assert path.exists()
    with serving(exported_folders["vit"].path, "--uds", path) as server:
        server.wait_for("ready")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    assert not path.exists()
    path.write_text("a file")
    refused = run("serve", exported_folders["vit"].path, "--uds", path)
    assert refused.returncode == 2 and "not a socket" in refused.stderr and path.read_text() == "a file"


def answer_on(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(PATIENCE)
        client.connect(str(path))
        client.sendall(b"GET /v2/health/ready HTTP/1.1\r\nhost: x\r\n\r\n")
        return client.recv(4096)


def run(*arguments: object, code: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code + MAIN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


def test_damaged_folder(exported_folders, tmp_path):
    folder = exported_folders.copy("vit", tmp_path / "damaged")
    (folder / "config.json").write_text("{")
    ran = run("serve", folder, "--port", 0)
    assert ran.returncode == 2 and "keras-tx: error:" in ran.stderr.splitlines()[-1]
    assert "config.json" in ran.stderr.splitlines()[-1]
    ran = run("serve", tmp_path / "nothing", "--port", 0)
    assert ran.returncode == 2 and "does not exist" in ran.stderr


def test_port_in_use(exported_folders):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ran = run("serve", exported_folders["vit"].path, "--port", port)
    assert ran.returncode == 2 and f"Port {port}" in ran.stderr


def test_other_machines_without_keys_are_warned_about(exported_folders, tmp_path):
    (tmp_path / "keys").write_text("")
    ran = run("serve", exported_folders["vit"].path, "--keys", tmp_path / "keys")
    assert ran.returncode == 2 and "has no key" in ran.stderr
    ran = run("serve", tmp_path / "nothing", "--host", "0.0.0.0", "--port", 0)
    assert "warning: 0.0.0.0 can be reached from other machines" in ran.stderr


def test_missing_extra(exported_folders):
    code = "import sys; sys.modules['starlette'] = None\n"
    ran = run("serve", exported_folders["vit"].path, code=code)
    assert ran.returncode == 2 and 'pip install "keras-tx[serve]"' in ran.stderr


def test_limits_are_those_of_the_application():
    defaults = {field.name: field.default for field in dataclasses.fields(Limits)}
    assert {name: default for name, (default, _) in LIMITS.items()} == defaults


@pytest.mark.parametrize("port", ["x", "-1", "65536"])
def test_wrong_port(tx, port):
    ran = tx("serve", "folder", f"--port={port}")
    assert ran.code == 2 and port in ran.err


def test_commands_of_the_documentation_parse():
    page = Path(__file__).parents[2] / "docs" / "serve.md"
    commands = re.findall(r"^keras-tx (serve .*?)(?: +#.*)?$", page.read_text("utf-8"), re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        assert build_parser().parse_args(shlex.split(command)).folders


def test_options_of_the_documentation_exist(tx, capsys):
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text("utf-8")
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "--help"])
    known = capsys.readouterr().out
    section = page[page.index("## A server with one command") : page.index("## Load")]
    for option in re.findall(r"`(--[a-z-]+)", section):
        assert option in known, option

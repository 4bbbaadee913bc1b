"""`keras-tx bench --url`: the requests that it sends, what it measures, and its errors."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_tx.cli import main
from keras_tx.errors import ConfigError, RunError
from keras_tx.serving import server_benchmark
from keras_tx.serving.client_benchmark import LEAST, ClientMeasurement
from keras_tx.serving.http.api_keys import ApiKeys
from keras_tx.serving.server_benchmark import plan, recommend, run
from tests.serving.running_server import RunningServer, running
from tests.serving.test_http_tasks import NAMES, sums

FAST = {"seconds": 0.01}
KEY = "a-key"


@pytest.fixture(scope="module")
def server(exported_folders, tmp_path_factory) -> Iterator[RunningServer]:
    names = ("flowers", "poet", "translator", "stories", "classifier", "masked", "span", "sentence")
    folders = {name: exported_folders[NAMES[name]].path for name in names}
    folders["sums"] = sums(tmp_path_factory.mktemp("sums") / "sums")
    with running(folders, keys=ApiKeys([KEY])) as one:
        yield one


def folder_of(server: RunningServer, name: str) -> Path:
    return server.application.models.folders[name]


def url_of(server: RunningServer, name: str) -> str:
    return f"http://{server.address}/models/{name}"


@pytest.mark.parametrize(
    "name", ["flowers", "translator", "stories", "classifier", "masked", "span", "sentence", "sums"]
)
def test_requests_of_each_kind(server, name):
    checked = plan(folder_of(server, name), url_of(server, name), [1, 2], key=KEY, **FAST)
    rows = run(checked)
    assert [row.clients for row in rows] == [1, 2]
    for row in rows:
        assert len(row.latencies) >= LEAST * row.clients and row.throughput > 0
        assert row.first_tokens == [] and row.precision == "fp32"
    metrics = server.get("/metrics", authorization=f"Bearer {KEY}").body.decode()
    lines = [line for line in metrics.splitlines() if line.startswith("keras_tx_requests_total")]
    assert not any('status="200"' not in line for line in lines if f'model="{name}"' in line)


def test_texts_of_a_decoder_are_streamed(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KERAS_TX_KEYS", f"{KEY},other")
    results = tmp_path / "results.json"
    arguments = [
        "bench",
        str(folder_of(server, "poet")),
        "--url",
        url_of(server, "poet"),
        "--clients",
        "2",
        "1",
    ]
    options = ["--length", "8", "--new-tokens", "5", "--seconds", "0.01", "--json", str(results)]
    assert main([*arguments, *options]) == 0
    printed = capsys.readouterr().out
    assert "tokens/s" in printed and "first token" in printed and "model poet: fp32 on cpu" in printed
    content = json.loads(results.read_text())
    assert KEY not in results.read_text()
    for row in content["measurements"]:
        assert len(row["first_tokens"]) == len(row["latencies"]) >= LEAST * row["clients"]
        assert 0 < row["p50"] <= row["p99"] and 0 < max(row["first_tokens"]) <= max(row["latencies"])


def test_tokens_are_those_that_the_server_generated(server):
    checked = plan(
        folder_of(server, "poet"), url_of(server, "poet"), [1], key=KEY, length=8, new_tokens=5, **FAST
    )
    body_of, send = server_benchmark._requests_of(checked)
    client = server_benchmark._Client(checked.url, KEY)
    prompt = np.random.default_rng(7).integers(0, 280, 8).tolist()
    usage = {"model": "poet", "prompt": prompt, "max_tokens": 5, "temperature": 0}
    answer = server.post("/v1/completions", usage, authorization=f"Bearer {KEY}").json
    tokens, first = send(client, body_of(7))
    assert tokens == answer["usage"]["completion_tokens"] and first is not None and first > 0
    client.close()


@pytest.mark.parametrize("name", ["flowers", "poet", "classifier", "sums"])
def test_a_body_is_made_before_the_clock_starts(server, name, monkeypatch):
    """What is timed sends it: nothing is opened, drawn or written there."""
    checked = plan(folder_of(server, name), url_of(server, name), [1], key=KEY, **FAST)
    body_of, send = server_benchmark._requests_of(checked)
    body = body_of(3)
    monkeypatch.setattr(server_benchmark, "open_folder", None)
    monkeypatch.setattr(server_benchmark, "np", None)
    monkeypatch.setattr(server_benchmark, "json", SimpleNamespace(loads=json.loads))
    with contextlib.closing(server_benchmark._Client(checked.url, KEY)) as client:
        tokens, first = send(client, body)
    assert (tokens > 0, first is not None) == (name == "poet", name == "poet")


@pytest.mark.parametrize(
    ("name", "url", "options", "error", "message"),
    [
        ("flowers", "{}", {}, ConfigError, "answered 404.*no model 'vit'"),
        ("flowers", "{}/models/flower", {}, ConfigError, "404.*'flowers'"),
        ("flowers", "{}/models/poet", {}, ConfigError, "has the task 'text-generation'"),
        ("flowers", "{}/models/flowers", {"key": "wrong"}, ConfigError, "401.*key"),
        ("flowers", "ftp://host", {}, ConfigError, "url is 'ftp://host'"),
        ("flowers", "{}/a/b", {}, ConfigError, "expected http://HOST:PORT"),
        ("flowers", "{}", {"clients": [0]}, ConfigError, "clients is 0"),
        ("flowers", "{}", {"length": 3}, ConfigError, "length=3"),
    ],
)
def test_wrong_arguments_raise(server, name, url, options, error, message):
    address = url.format(f"http://{server.address}")
    with pytest.raises(error, match=message):
        plan(folder_of(server, name), address, **{"key": KEY, **options})


def test_server_that_does_not_answer(server):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(RunError, match="does not answer.*keras-tx serve"):
        plan(folder_of(server, "flowers"), f"http://127.0.0.1:{port}")


class OtherServer(BaseHTTPRequestHandler):
    """Answers each GET with `described`, and each POST with `streamed`, which may end before its length."""

    protocol_version = "HTTP/1.1"
    described = b""
    streamed = b""

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer({"content-length": str(len(self.described))}, self.described)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.answer({"transfer-encoding": "chunked"}, self.streamed)
        self.close_connection = True

    def answer(self, headers: dict[str, str], content: bytes) -> None:
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


@contextlib.contextmanager
def other_server(**contents: bytes) -> Iterator[str]:
    handler = type("Handler", (OtherServer,), contents)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{other.server_port}"
        finally:
            other.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "content", [b"<html>", b"{}", b"[]", b'"a"', b'{"task": "text-generation"}', b"\xff"]
)
def test_another_server_raises(server, content):
    with other_server(described=content) as url, pytest.raises(RunError, match=f"{url}/models/gpt answered"):
        plan(folder_of(server, "poet"), url)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"10\r\ndata: {}\n\nda", "IncompleteRead"),
        (b"a\r\ndata: {}\n\n\r\n", "HTTPException.*DONE"),
        (b"9\r\ndata: {\n\n\r\n0\r\n\r\n", "JSONDecodeError"),
        (b"0\r\n\r\n", "HTTPException.*DONE"),
    ],
)
def test_a_stream_that_ends_early_raises(server, content, message):
    described = json.dumps(server.get("/models/poet", authorization=f"Bearer {KEY}").json).encode()
    with other_server(described=described, streamed=content) as url:
        checked = plan(folder_of(server, "poet"), f"{url}/models/poet", [1], length=8, new_tokens=5, **FAST)
        with pytest.raises(RunError, match=f"{url} lost the request POST /v1/completions .{message}"):
            run(checked)


def test_a_refused_request_ends_the_benchmark(server, monkeypatch):
    checked = plan(folder_of(server, "flowers"), url_of(server, "flowers"), [2], key=KEY, **FAST)
    monkeypatch.setattr(server_benchmark, "_images", lambda folder: [b"not an image"])
    with pytest.raises(RunError, match="422.*not an image"):
        run(checked)


@pytest.mark.parametrize("option", ["--precision", "--threads", "--batch-size", "--provider"])
def test_options_of_the_server_are_refused(server, option, capsys):
    value = {"--precision": "fp32", "--provider": "cpu"}.get(option, "2")
    folder = str(folder_of(server, "flowers"))
    assert main(["bench", folder, "--url", url_of(server, "flowers"), option, value]) == 2
    assert option in capsys.readouterr().err


def test_fewest_clients_that_reach_the_throughput():
    rows = [
        ClientMeasurement("fp32", 0, 0, count, rates=[rate]) for count, rate in ((1, 50), (8, 98), (16, 100))
    ]
    assert recommend(rows).clients == 8

"""Limits, keys, origins, disconnections and draining of the HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from keras_tx.errors import BusyError, ConfigError, InputError, KerasTxError, RunError
from keras_tx.serving.http import json_schema, model_set, request_errors
from keras_tx.serving.http.api_keys import VARIABLE, ApiKeys
from keras_tx.serving.http.limits import Limits
from keras_tx.serving.http.model_set import ModelOptions, named_folders
from keras_tx.serving.http.origins import LOCAL, Origins
from keras_tx.serving.http.request_errors import RequestError, status_of
from tests.serving.running_server import PATIENCE, RunningServer, multipart, running, until
from tests.serving.test_http_tasks import png

TEXT = {"text": "The cat sat on the mat."}


class Gate:
    """Holds the runs of all models until it opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrived = threading.Semaphore(0)
        self.open = threading.Event()
        run = model_set.ServedModel._run

        def held(*arguments: Any) -> Any:
            self.arrived.release()
            assert self.open.wait(PATIENCE)
            return run(*arguments)

        monkeypatch.setattr(model_set.ServedModel, "_run", held)

    def wait_for_a_run(self) -> None:
        assert self.arrived.acquire(timeout=PATIENCE)


@pytest.fixture
def gate(monkeypatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open.set()


@pytest.fixture
def serve(exported_folders) -> Iterator[Callable[..., RunningServer]]:
    folders = {"reviews": exported_folders["bert, classifier"].path, "flowers": exported_folders["vit"].path}
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(running(folders, **options))


def test_sizes(serve):
    server = serve(limits=Limits(max_body=2000, max_texts=3, max_characters=50, max_pixels=100))
    body, headers = multipart([("image", png())])
    assert server.send("POST", "/models/flowers", body, headers).status == 200
    answer = server.post("/models/reviews", b" " * 2001)
    assert (
        answer.status == 413
        and "2000" in answer.message
        and answer.json["error"]["type"] == "too_large_error"
    )
    answer = server.send("POST", "/models/flowers", png((20, 20)), {"content-type": "image/png"})
    assert answer.status == 413 and "400 pixels" in answer.message
    answer = server.post("/models/reviews", {"text": ["a"] * 4})
    assert answer.status == 422 and "4 items" in answer.message
    answer = server.post("/models/reviews", {"text": "a" * 51})
    assert answer.status == 422 and "51 characters" in answer.message
    compressed = server.post("/models/reviews", TEXT, content_encoding="gzip")
    assert compressed.status == 415


def test_number_of_ids(exported_folders):
    with running({"poet": exported_folders["gpt"].path}, limits=Limits(max_characters=50)) as server:
        for path, fields in (("/models/poet", {}), ("/v1/completions", {"model": "poet", "max_tokens": 1})):
            answer = server.post(path, {**fields, "prompt": [1] * 51})
            assert answer.status == 422 and "51 items, expected at most 50" in answer.message
        nested = server.post("/v1/completions", {"model": "poet", "prompt": [[1] * 51]})
        assert nested.status == 422 and "prompt[0] has 51 items" in nested.message


@pytest.mark.parametrize("length, in_a_thread", [(10, False), (json_schema.SHORT, True)])
def test_long_bodies_are_read_in_a_thread(serve, monkeypatch, length, in_a_thread):
    """So that other requests are answered meanwhile."""
    threads = []
    read_json = json_schema.read_json

    def read(content: bytes) -> Any:
        threads.append(asyncio._get_running_loop() is None)
        return read_json(content)

    monkeypatch.setattr(json_schema, "read_json", read)
    refused = serve().post("/models/reviews", {"k" * length: 1})
    assert refused.status == 422 and "text" in refused.message
    assert threads == [in_a_thread]


def test_long_unknown_fields_are_not_compared(serve, monkeypatch):
    compared = []
    nearest = json_schema.nearest
    monkeypatch.setattr(json_schema, "nearest", lambda *args: compared.append(args[0]) or nearest(*args))
    assert serve().post("/models/reviews", {"k" * 1000: 1}).status == 422
    assert compared == ["k" * 60]


def test_decoders_share_the_memory(exported_folders, monkeypatch):
    monkeypatch.setattr(model_set, "half_of_the_memory", lambda: 10_000_000)
    names = {"poet": "gpt", "other": "gpt", "reviews": "bert, classifier"}
    folders = {name: exported_folders[export].path for name, export in names.items()}
    for options, expected in ((None, 5_000_000), (ModelOptions(cache_memory=7_000_000), 7_000_000)):
        with running(folders, options=options) as server:
            for name in ("poet", "other"):
                engine = server.application.models.get(name).engine
                assert engine is not None and engine.cache_memory == expected


def test_body_without_a_length_is_limited(serve):
    """A chunked body that never ends."""
    server = serve(limits=Limits(max_body=100_000))
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(
            b"POST /models/reviews HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                client.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 413")


def test_slow_body(serve):
    server = serve(limits=Limits(body_seconds=1))
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(
            b"POST /models/reviews HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 10\r\n\r\n{"
        )
        assert client.recv(4096).startswith(b"HTTP/1.1 408")


def test_queue(serve, gate):
    server = serve(limits=Limits(max_concurrent=1, max_queue=1))
    admission = server.application.admission
    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(server.post, "/models/reviews", TEXT)
        gate.wait_for_a_run()
        second = clients.submit(server.post, "/models/reviews", TEXT)
        until(lambda: admission.waiting == 1)
        refused = server.post("/models/reviews", TEXT)
        assert refused.status == 429 and refused.headers["retry-after"] == "1"
        assert refused.json["error"]["type"] == "busy_error"
        assert server.get("/v2/health/ready").status == 200  # needs no place
        gate.open.set()
        assert first.result().status == second.result().status == 200
    assert (admission.running, admission.waiting) == (0, 0)


def test_slow_bodies_take_no_places(serve):
    """As many sockets as there are places send headers and no body."""
    server = serve(limits=Limits(max_concurrent=2, max_queue=1))
    head = (
        b"POST /models/reviews HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: 10\r\n\r\n"
    )
    admission = server.application.admission
    with contextlib.ExitStack() as stack:
        for number in range(2):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE))
            client.sendall(head)
            until(lambda number=number: admission._reading == number + 1)
        assert admission.running == 0
        assert server.post("/models/reviews", TEXT).status == 200
        client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE))
        client.sendall(head)
        until(lambda: admission._reading == 3)
        refused = server.post("/models/reviews", TEXT)
        assert refused.status == 429 and "bodies of 3 requests" in refused.message
    until(lambda: admission._reading == 0)
    assert server.post("/models/reviews", TEXT).status == 200


def test_client_that_leaves_does_not_wait(serve, gate):
    """Its place in the queue is free for the next client."""
    server = serve(limits=Limits(max_concurrent=1, max_queue=1))
    admission = server.application.admission
    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(server.post, "/models/reviews", TEXT)
        gate.wait_for_a_run()
        leaving = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        leaving.request("POST", "/models/reviews", json.dumps(TEXT), {"content-type": "application/json"})
        until(lambda: admission.waiting == 1)
        leaving.close()
        until(lambda: admission.waiting == 0)
        second = clients.submit(server.post, "/models/reviews", TEXT)
        until(lambda: admission.waiting == 1)
        gate.open.set()
        assert first.result().status == second.result().status == 200
    assert (admission.running, admission.waiting) == (0, 0)


def test_503_while_loading(exported_folders, monkeypatch):
    loading = threading.Event()
    load = model_set.load

    def slow(*arguments: Any, **options: Any) -> Any:
        assert loading.wait(PATIENCE)
        return load(*arguments, **options)

    monkeypatch.setattr(model_set, "load", slow)
    with running({"reviews": exported_folders["bert, classifier"].path}, wait=False) as server:
        try:
            assert server.get("/v2/health/live").status == 200
            for answer in (
                server.get("/v2/health/ready"),
                server.get("/v2/models/reviews/ready"),
                server.post("/models/reviews", TEXT),
            ):
                assert answer.status == 503 and answer.headers["retry-after"] == "1"
        finally:
            loading.set()
        until(lambda: server.get("/v2/health/ready").status == 200)
        assert server.post("/models/reviews", TEXT).status == 200


def test_an_engine_that_stopped_is_not_ready(exported_folders, monkeypatch):
    names = {"poet": "gpt", "reviews": "bert, classifier"}
    folders = {name: exported_folders[export].path for name, export in names.items()}
    probes = ("/v2/health/live", "/v2/health/ready", "/v2/models/poet/ready")
    with running(folders) as server:
        assert [server.get(path).status for path in probes] == [200] * 3
        engine = server.application.models.get("poet").engine
        monkeypatch.setattr(engine._scheduler, "step", lambda: 1 / 0)
        monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
        assert server.post("/models/poet", {"prompt": "the", "max_new_tokens": 2}).status == 500
        until(lambda: engine.failure is not None)
        for path in probes:
            answer = server.get(path)
            assert answer.status == 503 and "poet stopped after an error" in answer.message
        assert server.get("/v2/models/reviews/ready").status == 200


def test_503_while_draining(serve, gate):
    server = serve()
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(server.post, "/models/reviews", TEXT)
        gate.wait_for_a_run()
        server.application.draining = True
        refused = server.post("/models/reviews", TEXT)
        assert refused.status == 503 and refused.headers["retry-after"] == "1"
        assert server.get("/v2/health/ready").status == 503
        gate.open.set()
        assert first.result().status == 200


def test_client_that_leaves_does_not_run(serve, gate):
    """Its request is queued behind another one, and is cancelled."""
    server = serve(options=ModelOptions(max_batch=1))
    application = server.application
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(server.post, "/models/reviews", TEXT)
        gate.wait_for_a_run()
        leaving = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        leaving.request("POST", "/models/reviews", json.dumps(TEXT), {"content-type": "application/json"})
        until(lambda: application.admission.running == 2)
        leaving.close()
        until(lambda: application.admission.running == 1)
        gate.open.set()
        assert first.result().status == 200
    assert server.post("/models/reviews", TEXT).status == 200
    assert not gate.arrived.acquire(blocking=False) or not gate.arrived.acquire(
        blocking=False
    )  # the last one
    statuses = application.metrics.registry.get_sample_value(
        "keras_tx_requests_total", {"route": "/models/{name}", "model": "reviews", "status": "499"}
    )
    assert statuses == 1


def test_keys(serve, tmp_path):
    file = tmp_path / "keys.txt"
    file.write_text("# of the team\nfirst-key\n\nsecond-key\n")
    server = serve(keys=ApiKeys.read(file, {}))
    for key, status in {
        "first-key": 200,
        "second-key": 200,
        "third": 401,
        "": 401,
        "first-key2": 401,
    }.items():
        answer = server.post("/models/reviews", TEXT, authorization=f"Bearer {key}")
        assert answer.status == status
    for header in ("first-key", "Basic first-key", "Bearer", "Bearer \u00e9"):
        assert server.post("/models/reviews", TEXT, authorization=header).status == 401
    missing = server.get("/models")
    assert missing.status == 401 and missing.headers["www-authenticate"] == "Bearer"
    assert server.get("/v2/health/live").status == 200  # probes have no key
    assert server.get("/v2/models/reviews/ready").status == 200
    unknown = server.get("/v2/models/review/ready")
    assert unknown.status == 404 and "reviews" not in unknown.message


def test_keys_of_the_environment():
    assert not ApiKeys.read(None, {})
    ApiKeys.read(None, {VARIABLE: "one,two"}).check("Bearer two")
    with pytest.raises(ConfigError, match=VARIABLE):
        ApiKeys.read(None, {VARIABLE: ""})
    with pytest.raises(ConfigError, match="Key 2"):
        ApiKeys(["one", "with space"])
    with pytest.raises(ConfigError, match=r"none\.txt"):
        ApiKeys.read("none.txt", {})


def test_origins(serve):
    server = serve()
    own = f"http://{server.address}"
    assert server.post("/models/reviews", TEXT, origin=own).status == 200
    refused = server.post("/models/reviews", TEXT, origin="https://example.org")
    assert refused.status == 403 and "--cors" in refused.message
    assert "access-control-allow-origin" not in refused.headers


def test_allowed_origins(serve):
    server = serve(origins=Origins(["https://example.org"], LOCAL))
    headers = {"origin": "https://example.org"}
    answer = server.post("/models/reviews", TEXT, **headers)
    assert answer.status == 200 and answer.headers["access-control-allow-origin"] == "https://example.org"
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "authorization"}
    preflight = server.send(
        "OPTIONS", "/models/reviews", None, headers | {k.replace("_", "-"): v for k, v in asked.items()}
    )
    assert preflight.status == 204 and "POST" in preflight.headers["access-control-allow-methods"]
    assert server.post("/models/reviews", TEXT, origin="https://example.com").status == 403
    assert server.post("/models/reviews", TEXT, host="example.org").status == 200  # of a proxy
    rebound = server.post("/models/reviews", TEXT, host="evil.example:8000")
    assert rebound.status == 403 and "evil.example" in rebound.message
    for invalid in ({"host": "["}, {"host": "[x]:1"}, {"origin": "http://["}, {"origin": "http://[x]"}):
        assert server.post("/models/reviews", TEXT, **invalid).status == 403
    with pytest.raises(ConfigError, match="example"):
        Origins(["example.org"])
    with pytest.raises(ConfigError, match="http"):
        Origins(["http://["])


def test_request_ids(serve):
    server = serve()
    assert server.get("/models", x_request_id="abc-1").headers["x-request-id"] == "abc-1"
    own = server.get("/models", x_request_id="a b\t").headers["x-request-id"]
    assert len(own) == 32 and own != server.get("/models").headers["x-request-id"]


def test_every_error_has_a_documented_status():
    kinds = [RequestError, *RequestError.__subclasses__()]
    for kind in kinds:
        assert str(kind.status) in (kind.__doc__ or "") or kind is RequestError
    assert status_of(InputError("x")) == (422, request_errors.CLIENT)
    assert status_of(RunError("x")) == (500, request_errors.OURS)
    assert status_of(ZeroDivisionError()) == (500, request_errors.OURS)
    assert status_of(BusyError("x")) == (429, request_errors.BUSY)
    known = {kind for kind in KerasTxError.__subclasses__() if kind.__module__ == "keras_tx.errors"}
    assert known - set(request_errors.STATUS) == {__import__("keras_tx.errors", fromlist=["x"]).ExportError}


def test_unexpected_errors_do_not_reach_the_client(serve, monkeypatch):
    server = serve()

    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(model_set.ServedModel, "_run", broken)
    answer = server.post("/models/reviews", TEXT)
    assert answer.status == 500 and answer.json["error"]["code"] == "InternalError"
    assert b"secret" not in answer.body and answer.headers["x-request-id"] in answer.message


def test_messages_have_no_paths_of_the_server(serve):
    server = serve()
    refused = server.post("/v2/models/reviews/infer", {"inputs": [1, 2, 3]})
    assert str(server.application.models.folders["reviews"]).encode() not in refused.body


def test_named_folders(tmp_path):
    assert list(named_folders(["a/reviews", "poet=b/gpt"])) == ["reviews", "poet"]
    with pytest.raises(ConfigError, match="reviews.*twice"):
        named_folders(["a/reviews", "b/reviews"])
    with pytest.raises(ConfigError, match="NAME=FOLDER"):
        named_folders(["a/two words"])

"""Metrics, logs and spans of the HTTP server."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from keras_tx.serving.http import model_set
from keras_tx.serving.http.request_log import LOGGER, log_event, write_logs
from tests.memory import resident
from tests.serving.running_server import RunningServer, running, until

TEXT = {"text": "The cat sat on the mat."}


@pytest.fixture
def server(exported_folders) -> Iterator[RunningServer]:
    with running({"reviews": exported_folders["bert, classifier"].path}) as one:
        yield one


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    loggers = [logging.getLogger(name) for name in (LOGGER.name, "uvicorn.error", "py.warnings")]
    before = [(logger, logger.level, logger.propagate) for logger in loggers]
    handler = write_logs(stream)
    yield stream
    logging.captureWarnings(False)
    for logger, level, propagate in before:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def test_metrics(server, monkeypatch):
    for _ in range(3):
        assert server.post("/models/reviews", TEXT).status == 200
    assert server.post("/models/reviews", {"text": ["a", "b"]}).status == 200
    assert server.post("/models/reviews", {}).status == 422
    assert server.get("/models/secret-path").status == 404
    assert server.get("/nothing/secret-path").status == 404
    monkeypatch.setattr(model_set.ServedModel, "_run", lambda *arguments: 1 / 0)
    assert server.post("/models/reviews", TEXT).status == 500
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"secret-path" not in answer.body  # labels have a bounded number of values
    list(text_string_to_metric_families(answer.body.decode()))
    samples = server.metrics()
    ours = 'model="reviews",route="/models/{name}"'
    assert samples[f'keras_tx_requests_total{{{ours},status="200"}}'] == 4
    assert samples[f'keras_tx_requests_total{{{ours},status="422"}}'] == 1
    assert samples['keras_tx_requests_total{model="",route="/models/{name}",status="404"}'] == 1
    assert samples['keras_tx_requests_total{model="",route="unknown",status="404"}'] == 1
    errors = 'keras_tx_errors_total{error="%s",kind="%s",model="reviews"}'
    assert samples[errors % ("InputError", "invalid_request_error")] == 1
    assert samples[errors % ("ZeroDivisionError", "server_error")] == 1
    assert samples[f"keras_tx_request_seconds_count{{{ours}}}"] == 6
    assert samples['keras_tx_batch_size_sum{model="reviews"}'] == 5
    assert samples["keras_tx_requests_running"] == samples["keras_tx_requests_waiting"] == 0
    memory = samples["process_resident_memory_bytes"]
    assert memory == pytest.approx(resident(), rel=0.5)


def test_log(server, log, monkeypatch):
    assert server.post("/models/reviews", TEXT, x_request_id="one").status == 200
    assert server.post("/models/reviews", {"txt": "a"}, x_request_id="two").status == 422
    monkeypatch.setattr(model_set.ServedModel, "_run", lambda *arguments: 1 / 0)
    assert server.post("/models/reviews", TEXT, x_request_id="three").status == 500
    until(lambda: log.getvalue().count("\n") == 3)  # a request is logged when it has been answered
    rows = {row["id"]: row for row in map(json.loads, log.getvalue().splitlines())}
    assert rows["one"]["level"] == "info" and "error" not in rows["one"]
    assert rows["two"]["error"] == "InputError"
    assert "txt" not in log.getvalue()  # an error quotes the request
    assert rows["three"]["level"] == "error" and "ZeroDivisionError" in rows["three"]["traceback"]
    assert {row["path"] for row in rows.values()} == {"/models/{name}"}
    assert "cat sat" not in log.getvalue()


def test_line_breaks_of_a_client_do_not_forge_a_log(server, log):
    server.post("/models/reviews", {'x\n{"event": "forged"}': 1})
    log_event("x", text='"\n\u2028{')
    assert all(json.loads(line)["event"] != "forged" for line in log.getvalue().split("\n") if line)


def test_spans(server):
    """A request is a span below that of its client."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="pip install opentelemetry-sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert server.post("/models/reviews", TEXT, traceparent=parent).status == 200
    assert server.get("/models/none").status == 404
    first, second = exporter.get_finished_spans()
    assert first.name == "POST /models/{name}"
    assert f"{first.context.trace_id:032x}" == parent.split("-")[1]
    assert first.attributes is not None and first.attributes["http.response.status_code"] == 200
    assert second.attributes is not None and second.attributes["http.response.status_code"] == 404

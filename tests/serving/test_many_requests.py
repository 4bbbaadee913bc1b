"""Many mixed requests, some malformed and some aborted: right answers, no lost request, constant memory.

The slow tests send 100,000 requests, or as many as the variable KERAS_TX_REQUESTS has. The second one first
measures how many requests a second the server answers, and then sends 80 % of it:

    KERAS_TX_REQUESTS=5000 python -m pytest -m slow -s tests/serving/test_many_requests.py
    KERAS_TX_REQUESTS=20000 python -m pytest -m slow -s tests/serving/test_many_requests.py -k load
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.processing import train_byte_bpe
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import redraw
from tests.exported_folders import CORPUS
from tests.memory import resident
from tests.serving.running_server import PATIENCE, RunningServer, running, until
from tests.serving.server_process import serving
from tests.serving.test_http_tasks import assert_same, png

CLIENTS = 8
ALL = int(os.environ.get("KERAS_TX_REQUESTS", "100000"))
TEXTS = ["The cat sat on the mat.", "Ada!", "I love the film, it is very good.", "Paris", "A cat and a mat."]
SOURCES = ["uno due", "tre", "due", "tre uno due"]
PROMPTS = ["the cat", "Ada lives", "on", "London the mat"]
MALFORMED = [b"{", b"{}", b'{"text": 3}', b'{"text": "a", "top_k": 0}', b'{"prompt": ""', b"\xff" * 100]
RARE = 50  # one request of so many is malformed, and one is aborted
GROWTH = 0.01  # of memory in the second half
CONNECTIONS = 32  # of the measurement of latency: more than requests run at the same time
LOAD = 0.8  # of the requests a second that the server answers


@pytest.fixture(scope="module")
def poet(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("many") / "poet"
    model = redraw(keras_tx.gpt("pico", processing=train_byte_bpe(CORPUS, size=280)))
    export_onnx(model, path, cache="shared", verify=False)
    return path


Expected = dict[str, list[tuple[Any, Any]]]  # bodies and answers by path


class Client:
    """Sends requests on one connection, and counts what it receives.

    Args:
        expected: bodies and answers by path.
        rate: the mean of the requests a second, which begin at random times; None for one after the other.

    Attributes:
        seconds: by path, with a rate: from the time at which a request was due to its answer.
    """

    def __init__(
        self, server: RunningServer, expected: Expected, seed: int, rate: float | None = None
    ) -> None:
        self._server = server
        self._expected = expected
        self._random = random.Random(seed)
        self._rate = rate
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        self.counts: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = {path: [] for path in expected}

    def run(self, count: int) -> None:
        due = time.perf_counter()
        for _ in range(count):
            if self._rate is None:
                due = time.perf_counter()
            else:
                due += self._random.expovariate(self._rate)
                time.sleep(max(0.0, due - time.perf_counter()))
            draw = self._random.randrange(RARE)
            path = self._random.choice(list(self._expected))
            if draw == 0:
                self._malformed()
            elif draw == 1:
                self._aborted(path)
            else:
                self._right(path)
                if self._rate is not None:  # the other measurement is that of memory
                    self.seconds[path].append(time.perf_counter() - due)
        self._connection.close()

    def _ask(self, path: str, body: bytes, kind: str) -> tuple[int, Any]:
        self._connection.request("POST", path, body, {"content-type": kind})
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def _right(self, path: str) -> None:
        body, expected = self._random.choice(self._expected[path])
        is_image = isinstance(body, bytes)
        kind = "image/png" if is_image else "application/json"
        status, answer = self._ask(path, body if is_image else json.dumps(body).encode(), kind)
        assert status == 200, answer
        if path.startswith("/v1"):
            answer = answer["choices"][0]["text"]
        assert_same(answer, expected)
        self.counts["right"] += 1

    def _malformed(self) -> None:
        body = self._random.choice(MALFORMED)
        status, answer = self._ask("/models/reviews", body, "application/json")
        assert status in (400, 422) and answer["error"]["message"]
        self.counts["malformed"] += 1

    def _aborted(self, path: str) -> None:
        body, _ = self._random.choice(self._expected[path])
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "image/png" if isinstance(body, bytes) else "application/json"
        with socket.create_connection(("127.0.0.1", self._server.port), timeout=PATIENCE) as client:
            fields = ["host: x", f"content-type: {kind}", f"content-length: {len(content)}"]
            sent = "\r\n".join([f"POST {path} HTTP/1.1", *fields, "", ""]).encode() + content
            client.sendall(sent[: self._random.randrange(1, len(sent) + 1)])
        self.counts["aborted"] += 1


def send(
    server: RunningServer,
    expected: Expected,
    count: int,
    seed: int,
    connections: int = CLIENTS,
    rate: float | None = None,
) -> list[Client]:
    """Sends requests of several clients at the same time; `rate` is that of all together."""
    own = None if rate is None else rate / connections
    clients = [Client(server, expected, seed + number, own) for number in range(connections)]
    errors: list[BaseException] = []

    def run(client: Client) -> None:
        try:
            client.run(count // connections)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return clients


def counted(clients: list[Client]) -> Counter[str]:
    return sum((client.counts for client in clients), Counter())


@pytest.fixture(scope="module")
def folders(exported_folders, poet) -> dict[str, Path]:
    return {
        "flowers": exported_folders["vit"].path,
        "reviews": exported_folders["bert, classifier"].path,
        "translator": exported_folders["translation"].path,
        "poet": poet,
    }


@pytest.fixture(scope="module")
def expected(folders) -> Expected:
    images = [png((8, 8), seed) for seed in range(4)]
    with (
        load(folders["flowers"]) as flowers,
        load(folders["reviews"]) as reviews,
        load(folders["translator"]) as translator,
        load(folders["poet"]) as writer,
    ):
        return {
            "/models/flowers": [(image, {"predictions": flowers(image)}) for image in images],
            "/models/reviews": [({"text": text}, {"predictions": reviews(text)}) for text in TEXTS],
            "/models/translator": [
                ({"text": text, **options}, {"translation_text": translator(text, **options)})
                for text in SOURCES
                for options in ({"max_new_tokens": 5}, {"max_new_tokens": 5, "num_beams": 2})
            ],
            "/v1/completions": [
                (
                    {"model": "poet", "prompt": prompt, "max_tokens": 6, "temperature": 0},
                    writer.generate(prompt, max_new_tokens=6).text,
                )
                for prompt in PROMPTS
            ],
        }


@pytest.mark.parametrize(
    ("count", "bounded"),
    [(1200, False), pytest.param(ALL, True, marks=pytest.mark.slow)],
)
def test_many_requests(folders, expected, count, bounded):
    with running(folders) as server:
        first = counted(send(server, expected, count // 2, 0))
        before = resident()
        second = counted(send(server, expected, count // 2, 100))
        after = resident()
        growth = after / max(before, 1) - 1
        total = first + second
        assert sum(total.values()) == count // 2 // CLIENTS * CLIENTS * 2
        assert min(total.values()) > count / RARE / 3
        until(lambda: server.application.in_flight == 0)
        admission = server.application.admission
        assert (admission.running, admission.waiting) == (0, 0)
        stats = server.application.models.get("poet").engine.stats
        assert stats.running == stats.waiting == 0
    if bounded:
        print(f"{dict(total)}; {before / 2**20:.1f} MiB after the first half, {after / 2**20:.1f} after all")
        assert growth < GROWTH, f"memory has grown by {100 * growth:.1f} % in the second half"


def percentiles(name: str, seconds: list[float]) -> str:
    p50, p99 = 1000 * np.percentile(seconds, [50, 99])
    return f"{name}: {len(seconds)} right answers, p50 {p50:.1f} ms, p99 {p99:.1f} ms, {p99 / p50:.2f}x"


@pytest.mark.parametrize(
    "count",
    [pytest.param(640, marks=pytest.mark.thorough), pytest.param(ALL, marks=pytest.mark.slow)],
)
def test_latency_at_80_percent_load(folders, expected, count):
    """The server is a process of its own. The percentiles are printed: they are for a quiet machine."""
    names = [f"{name}={path}" for name, path in folders.items()]
    with serving(*names) as server:
        server.wait_for("ready")
        send(server, expected, 10 * CONNECTIONS, 0, CONNECTIONS)  # warms up
        part = max(10 * CONNECTIONS, count // 5)
        start = time.perf_counter()
        send(server, expected, part, 100, CONNECTIONS)
        capacity = part // CONNECTIONS * CONNECTIONS / (time.perf_counter() - start)
        clients = send(server, expected, count, 200, CONNECTIONS, LOAD * capacity)
    print(f"\n{capacity:.0f} requests a second; at {100 * LOAD:.0f} % of them:")
    seconds = {path: [x for client in clients for x in client.seconds[path]] for path in expected}
    for path, times in seconds.items():
        print(percentiles(path, times))
    print(percentiles("all", [x for times in seconds.values() for x in times]))
    total = counted(clients)
    assert sum(total.values()) == count // CONNECTIONS * CONNECTIONS
    assert total["right"] == sum(map(len, seconds.values()))

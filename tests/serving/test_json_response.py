"""Large bodies and answers leave the event loop time for other requests."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_tx.contract import TensorSpec
from keras_tx.errors import InputError
from keras_tx.runtime import load
from keras_tx.serving.http import json_response, open_inference, tensors
from keras_tx.serving.http.application import Application
from keras_tx.serving.http.json_response import encode
from keras_tx.serving.http.json_schema import read_checked
from keras_tx_onnx import export_onnx
from tests.drawing import redraw

NUMBERS = 400_000
LEAST = 8  # runs of another coroutine during the work; they are fewer where it is in one piece


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model that answers a number with many."""
    path = tmp_path_factory.mktemp("numbers") / "numbers"
    inputs = keras.Input((1,), name="x")
    export_onnx(
        redraw(keras.Model(inputs, keras.layers.Dense(NUMBERS, name="y")(inputs))), path, verify=False
    )
    return path


def lists_of(value: Any) -> Any:
    """A value with lists instead of arrays."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: lists_of(item) for key, item in value.items()}
    return [lists_of(item) for item in value] if isinstance(value, list | tuple) else value


def drawn(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(6 if depth else 3)
    if kind == 0:
        return chance.choice([None, True, 3, -0.5, 1e30, 'é\n"', ""])
    if kind in (1, 2):
        shape = [chance.randrange(5) for _ in range(chance.randrange(4))]
        return np.arange(np.prod(shape, dtype=int), dtype=chance.choice(["float32", "int64"])).reshape(shape)
    items = [drawn(chance, depth - 1) for _ in range(chance.randrange(9))]
    if kind == 3:
        return {f"key {index}": item for index, item in enumerate(items)}
    return tuple(items) if kind == 4 else items


@pytest.mark.parametrize("piece", [2, 3, 2000])
def test_json_is_that_of_the_standard_library(monkeypatch, piece):
    monkeypatch.setattr(json_response, "PIECE", piece)
    chance = random.Random(0)
    for _ in range(300):
        value = drawn(chance, 4)
        expected = json.dumps(lists_of(value), ensure_ascii=False, separators=(",", ":"))
        assert encode(value).decode() == expected


@pytest.mark.parametrize("piece", [2, 5, 2000])
def test_arrays_are_those_of_numpy(monkeypatch, piece):
    """Whatever the pieces, in which lists are converted."""
    monkeypatch.setattr(json_response, "PIECE", piece)
    monkeypatch.setattr(tensors, "PIECE", piece)
    random = np.random.default_rng(0)
    for shape in ((), (1,), (7,), (4001,), (3, 4), (2, 1, 9), (60, 0), (0,), (1, 300, 2), (5, 5, 5)):
        for dtype in ("float32", "int64", "uint8", "bool"):
            array = (random.random(shape) * 200).astype(dtype)
            actual = tensors.array_of(array.tolist(), TensorSpec("x", dtype, shape))
            assert actual.shape == array.shape and actual.dtype == array.dtype
            np.testing.assert_array_equal(actual, array)
    ragged = ([[1] * 9, [1] * 8], [*range(9), [1]], [[1] * 9, 1], [[*range(9)], [[1]] * 9])
    for wrong in (*ragged, [1] * 9 + ["a"]):
        with pytest.raises(InputError, match="'x' is .*expected nested lists of numbers"):
            tensors.array_of(wrong, TensorSpec("x", "int64", (None,)))
    with pytest.raises(InputError, match="outside of 0 to 255"):
        tensors.array_of([*range(9), 256], TensorSpec("x", "uint8", (None,)))


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 2000])
@pytest.mark.parametrize(
    ("dtype", "values", "valid"),
    [
        ("float32", [0.5, 1], True),
        ("float32", [0.5, 2**63], True),
        ("float32", [-1, 2**63], True),
        ("float32", [0.5, True], False),
        ("float32", [1, False], False),
        ("int64", [1, True], False),
        ("int64", [1, 0.5], False),
        ("int64", [-1, 2**63], False),
        ("uint8", [1, True], False),
        ("uint64", [2**63, 1], True),
        ("uint64", [2**63, -1], False),
        ("bool", [True, False], True),
        ("bool", [True, 1], False),
        ("bool", [True, 0.5], False),
    ],
)
def test_kinds_do_not_depend_on_the_length(monkeypatch, piece, dtype, values, valid):
    monkeypatch.setattr(json_response, "PIECE", piece)
    monkeypatch.setattr(tensors, "PIECE", piece)
    first, second = values
    lists: list[Any] = [values, values[::-1], [first] * 9 + [second] * 9, [second] + [first] * 9]
    lists += [[one] * 3 for one in lists] + [[[first] * 9] * 3 + [[second] * 9]]
    for one in lists:
        spec = TensorSpec("x", dtype, (None,) * np.ndim(one))
        if valid:
            assert np.array_equal(tensors.array_of(one, spec), np.array(one).astype(dtype))
        else:
            with pytest.raises(InputError, match="'x' has .*(expected|outside)"):
                tensors.array_of(one, spec)


class Others:
    """Another coroutine beside some work.

    Attributes:
        runs: how often it has run.
    """

    def __init__(self) -> None:
        self.runs = 0

    async def beside(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Runs the other coroutine every millisecond, if it can run, until the work ends."""

        async def count() -> None:
            while True:
                await asyncio.sleep(0.001)
                self.runs += 1

        counting = asyncio.create_task(count())
        await work()
        counting.cancel()


async def post(application: Application, path: str, body: Any) -> Any:
    """The answer of an application to JSON, without a server."""
    messages: list[Any] = [{"type": "http.request", "body": json.dumps(body).encode()}]
    sent: list[Any] = []
    forever = asyncio.Event()

    async def receive() -> Any:
        if not messages:
            await forever.wait()
        return messages.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    await application(scope, receive, send)
    answer = b"".join(message.get("body", b"") for message in sent[1:])
    assert sent[0]["status"] == 200, answer[:500]
    return answer


def test_a_large_body_is_read_in_pieces():
    numbers = np.random.default_rng(0).normal(size=NUMBERS).tolist()
    content = json.dumps({"x": numbers, "y": list(range(NUMBERS))}).encode()
    bodies: list[Any] = []

    async def read() -> None:
        bodies.append(await read_checked(content, {"type": "object"}))

    others = Others()
    asyncio.run(others.beside(read))
    assert bodies == [json.loads(content)]
    assert others.runs >= LEAST


def test_long_lists_are_converted_in_pieces():
    numbers = np.random.default_rng(0).normal(size=(1, 4 * NUMBERS)).tolist()
    spec = TensorSpec("x", "float32", (None, None))
    others = Others()
    asyncio.run(others.beside(lambda: asyncio.to_thread(tensors.array_of, numbers, spec)))
    assert others.runs >= LEAST


@pytest.mark.parametrize("path", ["/models/numbers", "/v2/models/numbers/infer"])
def test_a_large_answer_is_written_in_pieces(folder, path, monkeypatch):
    if path.startswith("/v2"):
        body: Any = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [0.5]}]}
    else:
        body = {"inputs": {"x": [[0.5]]}}
    answers: list[bytes] = []

    others, runs = Others(), []

    def watched(value: Any) -> bytes:
        before = others.runs
        content = encode(value)
        runs.append(others.runs - before)
        return content

    async def measure() -> None:
        application = Application({"numbers": folder})
        await application.models.load()

        async def request() -> None:
            answers.append(await post(application, path, body))

        try:
            await others.beside(request)
        finally:
            application.models.close()

    for module in (json_response, open_inference):
        monkeypatch.setattr(module, "encode", watched)
    asyncio.run(measure())
    answer = json.loads(answers[0])
    actual = answer["outputs"][0]["data"] if path.startswith("/v2") else answer["y"][0]
    with load(folder, provider="cpu") as model:
        assert actual == model({"x": np.array([[0.5]], "float32")})["y"][0].tolist()
    assert max(runs) >= LEAST

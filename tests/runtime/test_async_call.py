"""Asyncio calls, threads, forks, cancellation and lack of memory."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from keras_tx.errors import ConfigError, InputError, KerasTxError, RunError
from keras_tx.runtime import Session, load
from tests.memory import resident


@pytest.fixture
def expand(tmp_path: Path) -> Path:
    """A graph that expands a number to the requested size and multiplies it many times."""
    nodes = [helper.make_node("Expand", ["x", "shape"], ["v0"])]
    nodes += [helper.make_node("Sin", [f"v{i}"], [f"v{i + 1}"]) for i in range(200)]
    graph = helper.make_graph(
        nodes,
        "expand",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, ["rank"]),
        ],
        [helper.make_tensor_value_info("v200", TensorProto.FLOAT, ["n"])],
    )
    path = tmp_path / "expand.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def feed(size: int) -> dict[str, np.ndarray]:
    return {"x": np.ones(1, "float32"), "shape": np.array([size])}


def test_out_of_memory_raises_run_error(expand: Path, capfd):
    with Session(expand, provider="cpu") as session:
        with pytest.raises(RunError, match=r"expand.onnx.*out of memory with x \[1\], shape \[1\]"):
            session.run(feed(10**13))
        assert capfd.readouterr().err == ""  # onnxruntime does not print the error
        with pytest.raises(RunError, match=r"expand.onnx.* x \[1\], shape \[1\]: .*overflow"):
            session.run(feed(2**62))
        assert session.run(feed(3))["v200"].shape == (3,)


def test_cancelled_call_stops(expand: Path):
    from keras_tx.runtime.async_call import call_async

    async def cancel() -> None:
        task = asyncio.create_task(call_async(session.run, feed(20_000_000)))
        await asyncio.sleep(0.2)
        assert not task.done(), "the graph is too fast for this test"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    def ended() -> bool:
        return not any(t.is_alive() for t in threading.enumerate() if t.name.startswith("asyncio"))

    with Session(expand, provider="cpu") as session:
        asyncio.run(cancel())  # ends with its threads, long before 200 nodes are computed
        assert ended()
        assert session.run(feed(3))["v200"].shape == (3,)


def test_call_async(make_image_folder):
    folder = make_image_folder()
    image = np.full((4, 6, 3), 128, "uint8")
    with load(folder.path, provider="cpu") as model:
        expected = model(image)

        async def several() -> list:
            return await asyncio.gather(*(model.call_async(image) for _ in range(8)))

        assert asyncio.run(several()) == [expected] * 8


def test_concurrent_threads(expand: Path):
    with Session(expand, provider="cpu") as session:
        shapes: dict[int, tuple] = {}

        def run(size: int) -> None:
            for _ in range(20):
                shapes[size] = session.run(feed(size))["v200"].shape

        threads = [threading.Thread(target=run, args=(size,)) for size in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert shapes == {size: (size,) for size in range(1, 9)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_raises(expand: Path):
    with Session(expand, provider="cpu") as session:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # pytest must not run in the child
            try:
                session.run(feed(3))
                answer = "it ran"
            except KerasTxError as error:
                answer = str(error)
            os.write(writing, answer.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        assert "fork" in answer and str(os.getpid()) in answer
        assert session.run(feed(3))["v200"].shape == (3,)


def test_placement(expand: Path):
    with Session(expand, provider="cpu") as session:
        (name,) = session.placement()
        assert name == "cpu"
        assert session.placement()["cpu"] >= 200


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("requests", [1500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_memory_over_requests_of_random_sizes(requests: int, expand: Path):
    random = np.random.default_rng(0)
    with Session(expand, provider="cpu") as session:
        for _ in range(200):
            session.run(feed(int(random.integers(1, 5000))))
        before = resident()
        for _ in range(requests):
            session.run(feed(int(random.integers(1, 5000))))
        assert resident() - before < 20 * 2**20


def test_warm_up(make_image_folder, monkeypatch: pytest.MonkeyPatch):
    with load(make_image_folder().path, provider="cpu") as model:
        seen = []
        monkeypatch.setattr(model.session, "run", lambda inputs: seen.append(inputs))
        model.warm_up(batch_size=3)
        model.warm_up()
        assert [next(iter(inputs.values())).shape[0] for inputs in seen] == [3, 1]
        with pytest.raises(InputError, match="'batch'.*'batch_size'"):
            model.warm_up(batch=3)
        with pytest.raises(ConfigError, match="batch_size is 0"):
            model.warm_up(batch_size=0)

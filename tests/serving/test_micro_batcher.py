"""MicroBatcher: answers, batches, errors and cancellation."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from keras_tx.errors import ConfigError, KerasTxError, TextError
from keras_tx.serving import MicroBatcher


class Model:
    """Doubles numbers and records its batches; each waits until `go` is set."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.go.set()

    def __call__(self, items: list[int], plus: int = 0) -> list[int]:
        self.go.wait(10)
        self.batches.append(list(items))
        for item in items:
            if item < 0:
                raise TextError(f"{item} is negative")
        return [2 * item + plus for item in items]


def test_requests_run_in_batches():
    model = Model()
    with MicroBatcher(model, max_batch=8, max_wait_ms=50, plus=1) as batcher, ThreadPoolExecutor(32) as pool:
        assert list(pool.map(batcher, range(100))) == [2 * n + 1 for n in range(100)]
    assert sorted(n for batch in model.batches for n in batch) == list(range(100))
    assert max(map(len, model.batches)) == 8
    assert len(model.batches) < 50


def test_max_wait_ms():
    model = Model()
    with MicroBatcher(model, max_batch=1000, max_wait_ms=20) as batcher:
        start = time.monotonic()
        assert batcher(3) == 6
        assert time.monotonic() - start < 2  # and not for 999 others


def test_max_wait_ms_0():
    model = Model()
    model.go.clear()
    with MicroBatcher(model, max_batch=4, max_wait_ms=0) as batcher:
        futures = [batcher.submit(n) for n in range(9)]
        model.go.set()
        assert [future.result(5) for future in futures] == [2 * n for n in range(9)]


def test_system_exit_reaches_the_future():
    def model(items: list[int]) -> list[int]:
        if 1 in items:
            raise SystemExit(3)
        return items

    with MicroBatcher(model, max_batch=1) as batcher:
        with pytest.raises(SystemExit):
            batcher.submit(1).result(5)
        assert batcher.submit(2).result(5) == 2


def test_error_affects_only_its_request():
    model = Model()
    model.go.clear()
    with MicroBatcher(model, max_batch=8, max_wait_ms=20) as batcher:
        futures = [batcher.submit(n) for n in (1, -2, 3)]
        model.go.set()
        assert futures[0].result(5) == 2
        with pytest.raises(TextError, match="-2 is negative"):
            futures[1].result(5)
        assert futures[2].result(5) == 6


def test_cancelled_request_does_not_run():
    model = Model()
    model.go.clear()
    with MicroBatcher(model, max_batch=1) as batcher:
        first, second = batcher.submit(1), batcher.submit(2)
        assert second.cancel()
        model.go.set()
        assert first.result(5) == 2
        with pytest.raises(CancelledError):
            second.result(5)
    assert model.batches == [[1]]


def test_answer_with_asyncio():
    async def ask() -> list[int]:
        with MicroBatcher(Model(), max_wait_ms=20) as batcher:
            return await asyncio.gather(*(batcher.answer(n) for n in range(10)))

    assert asyncio.run(ask()) == [2 * n for n in range(10)]


def test_close_answers_queued_requests():
    model = Model()
    model.go.clear()
    batcher = MicroBatcher(model, max_batch=2, max_wait_ms=1000)
    futures = [batcher.submit(n) for n in range(5)]
    threading.Timer(0.05, model.go.set).start()
    batcher.close()
    batcher.close()
    assert [future.result(0) for future in futures] == [0, 2, 4, 6, 8]
    with pytest.raises(KerasTxError, match="closed"):
        batcher.submit(1)


def test_workers_run_concurrently():
    together = threading.Barrier(2, timeout=10)

    def model(items: list[int]) -> list[int]:
        together.wait()  # for ever, if one batch waited for the other
        return [2 * item for item in items]

    with MicroBatcher(model, max_batch=2, max_wait_ms=1000, workers=2) as batcher:
        futures = [batcher.submit(n) for n in range(8)]
        assert [future.result(10) for future in futures] == [2 * n for n in range(8)]
    model_of_one = Model()
    with MicroBatcher(model_of_one, max_batch=4, max_wait_ms=1000, workers=3) as batcher:
        futures = [batcher.submit(n) for n in range(8)]
        [future.result(10) for future in futures]
    assert [len(batch) for batch in model_of_one.batches] == [4, 4]  # nobody takes away from another's batch
    assert not any(thread.name.startswith("keras-tx-batcher") for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"max_batch": 0}, "max_batch is 0"),
        ({"max_wait_ms": -1}, "max_wait_ms is -1"),
        ({"max_wait_ms": float("nan")}, "max_wait_ms is nan"),
    ],
)
def test_invalid_options_raise(options, message):
    with pytest.raises(ConfigError, match=message):
        MicroBatcher(Model(), **options)


def test_wrong_number_of_answers_raises():
    with (
        MicroBatcher(lambda items: [], max_wait_ms=0) as batcher,
        pytest.raises(ConfigError, match="0 answers.* 1 requests"),
    ):
        batcher(1)


def test_unknown_model_options_raise():
    def model(items: list[int], *, top_k: int = 5) -> list[int]:
        return items

    with pytest.raises(ConfigError, match="'topk'.*'top_k'"):
        MicroBatcher(model, topk=1)
    with pytest.raises(ConfigError, match="model is 5"):
        MicroBatcher(5)  # type: ignore[arg-type]
    with MicroBatcher(model, top_k=1) as batcher:
        assert batcher(7) == 7

"""MicroBatcher: answers, batches, errors and cancellation."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from keras_tx import contract
from keras_tx.errors import ConfigError, KerasTxError, TextError
from keras_tx.runtime import load
from keras_tx.runtime.providers import cores
from keras_tx.serving import MicroBatcher, micro_batcher
from keras_tx.serving.micro_batcher import default_workers
from tests.exported_folders import ExportedFolders

TEXTS = ["the cat", "the cat sat on the mat", "the cat sat on the mat " * 3, "London"]


class Model:
    """Doubles numbers and records its batches; each waits until `go` is set."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.started = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def __call__(self, items: list[int], plus: int = 0) -> list[int]:
        self.started.set()
        self.go.wait(30)
        self.batches.append(list(items))
        for item in items:
            if item < 0:
                raise TextError(f"{item} is negative")
        return [2 * item + plus for item in items]


def batches_of(items: list[int], **options: Any) -> list[list[int]]:
    """The batches of requests that arrive while the model is busy with the first one."""
    model = Model()
    model.go.clear()
    with MicroBatcher(model, **options) as batcher:
        first = batcher.submit(items[0])
        model.started.wait(30)
        futures = [first, *(batcher.submit(item) for item in items[1:])]
        model.go.set()
        assert [future.result(30) for future in futures] == [2 * item for item in items]
    return model.batches


def test_requests_of_many_threads():
    model = Model()
    with MicroBatcher(model, max_batch=8, plus=1) as batcher, ThreadPoolExecutor(32) as pool:
        assert list(pool.map(batcher, range(100))) == [2 * n + 1 for n in range(100)]
    assert sorted(n for batch in model.batches for n in batch) == list(range(100))
    assert max(map(len, model.batches)) <= 8


def test_requests_that_arrive_while_the_model_is_busy_run_together():
    assert batches_of([0, 1, 2, 3, 4], max_batch=4) == [[0], [1, 2, 3, 4]]
    assert batches_of([0, 1, 2, 3, 4], max_batch=3) == [[0], [1, 2, 3], [4]]


def test_lone_client_does_not_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(micro_batcher, "PATIENCE", 1e9)
    with MicroBatcher(Model()) as batcher:
        assert [batcher.submit(n).result(30) for n in range(10)] == [2 * n for n in range(10)]


def test_next_batch_waits_for_as_many_requests_as_the_last_one_had(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(micro_batcher, "PATIENCE", 1e9)
    model = Model()
    model.go.clear()
    with MicroBatcher(model) as batcher:
        first = batcher.submit(0)
        model.started.wait(30)
        together = [batcher.submit(n) for n in (1, 2, 3)]
        model.go.set()
        assert [future.result(30) for future in (first, *together)] == [0, 2, 4, 6]
        late = batcher.submit(4)
        with pytest.raises(TimeoutError):
            late.result(0.1)
        late = [late, batcher.submit(5), batcher.submit(6)]
        assert [future.result(30) for future in late] == [8, 10, 12]
    assert model.batches == [[0], [1, 2, 3], [4, 5, 6]]


def test_short_and_long_texts_are_not_in_one_batch():
    batches = batches_of([1, 100, 10, 12, 90, 11, 60], count_tokens=lambda n: n)
    assert batches == [[1], [100, 90, 60], [10, 11, 12]]


def test_max_tokens():
    equal = batches_of([1, *[100] * 5, 700, 100], count_tokens=lambda n: n, max_tokens=300)
    assert equal == [[1], [100] * 3, [100] * 3, [700]]
    padded = batches_of([1, 60, 61, 62, 100], count_tokens=lambda n: n, max_tokens=300)
    assert padded == [[1], [60, 61, 62], [100]]  # 4 x 100 would be more than 300


def test_oldest_request_is_in_the_next_batch():
    batches = batches_of([1, 50, *[10] * 6], count_tokens=lambda n: n, max_batch=3)
    assert batches == [[1], [50], [10] * 3, [10] * 3]


def test_requests_of_different_groups_are_not_in_one_batch():
    batches = batches_of([0, 1, 2, 3, 4, 5], group_of=lambda n: n % 2)
    assert batches == [[0], [1, 3, 5], [2, 4]]


def test_system_exit_reaches_the_future():
    def model(items: list[int]) -> list[int]:
        if 1 in items:
            raise SystemExit(3)
        return items

    with MicroBatcher(model, max_batch=1) as batcher:
        with pytest.raises(SystemExit):
            batcher.submit(1).result(30)
        assert batcher.submit(2).result(30) == 2


@pytest.mark.parametrize("where", ["model", "count_tokens"])
def test_error_affects_only_its_request(where: str):
    def checked(item: int) -> int:
        if item < 0:
            raise TextError(f"{item} is negative")
        return 1

    model = Model()
    model.go.clear()
    with MicroBatcher(model, count_tokens=checked if where == "count_tokens" else None) as batcher:
        first = batcher.submit(0)
        model.started.wait(30)
        futures = [batcher.submit(n) for n in (1, -2, 3)]
        model.go.set()
        assert (first.result(30), futures[0].result(30)) == (0, 2)
        with pytest.raises(TextError, match="-2 is negative"):
            futures[1].result(30)
        assert futures[2].result(30) == 6
    assert ([1, 3] in model.batches) == (where == "count_tokens")


def test_requests_beside_one_that_fails_run_in_few_batches():
    model = Model()
    model.go.clear()
    with MicroBatcher(model) as batcher:
        first = batcher.submit(0)
        model.started.wait(30)
        futures = [batcher.submit(-n if n == 5 else n) for n in range(1, 17)]
        model.go.set()
        assert [future.result(30) for future in futures if future.exception(30) is None][-1] == 32
        assert [n for n, future in enumerate(futures, 1) if future.exception(30)] == [5]
    assert first.result(30) == 0
    assert len(model.batches) == 1 + 1 + 2 * 4  # the first request, all others, and halves of those


def test_cancelled_request_does_not_run():
    model = Model()
    model.go.clear()
    with MicroBatcher(model, max_batch=1) as batcher:
        first, second = batcher.submit(1), batcher.submit(2)
        assert second.cancel()
        model.go.set()
        assert first.result(30) == 2
        with pytest.raises(CancelledError):
            second.result(30)
    assert model.batches == [[1]]


def test_answer_with_asyncio():
    async def ask() -> list[int]:
        with MicroBatcher(Model()) as batcher:
            return await asyncio.gather(*(batcher.answer(n) for n in range(10)))

    assert asyncio.run(ask()) == [2 * n for n in range(10)]


def test_close_answers_queued_requests():
    model = Model()
    model.go.clear()
    batcher = MicroBatcher(model, max_batch=2)
    futures = [batcher.submit(n) for n in range(5)]
    threading.Timer(0.05, model.go.set).start()
    batcher.close()
    batcher.close()
    assert [future.result(0) for future in futures] == [0, 2, 4, 6, 8]
    with pytest.raises(KerasTxError, match="closed"):
        batcher.submit(1)


def test_workers_run_concurrently():
    together = threading.Barrier(2, timeout=30)

    def model(items: list[int]) -> list[int]:
        together.wait()  # for ever, if one batch waited for the other
        return [2 * item for item in items]

    with MicroBatcher(model, max_batch=1, workers=2) as batcher:
        futures = [batcher.submit(n) for n in range(8)]
        assert [future.result(30) for future in futures] == [2 * n for n in range(8)]
    assert not any(thread.name.startswith("keras-tx-batcher") for thread in threading.enumerate())


def test_idle_workers_share_the_requests():
    together, sizes = threading.Barrier(2, timeout=30), list[int]()

    def model(items: list[int]) -> list[int]:
        together.wait()
        sizes.append(len(items))
        return items

    with MicroBatcher(model, workers=2) as batcher:
        with batcher._changed:  # so that all requests arrive together
            while batcher._idle < 2:
                batcher._changed.wait(0.01)
            futures = [batcher.submit(n) for n in range(8)]
        assert [future.result(30) for future in futures] == list(range(8))
    assert sizes == [4, 4]


def test_answers_are_those_of_single_requests(exported_folders: ExportedFolders):
    with (
        load(exported_folders["bert, classifier"].path) as model,
        MicroBatcher(model, max_tokens=64) as batcher,
    ):
        texts = TEXTS * 10
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(batcher, texts))
        for text, answer in zip(texts, answers, strict=True):
            alone = {one["label"]: one["score"] for one in model(text)}
            assert {one["label"]: one["score"] for one in answer} == pytest.approx(
                alone, abs=contract.FLOAT32
            )


def test_tokens_of_loaded_models(exported_folders: ExportedFolders):
    model: Any
    with load(exported_folders["bert, classifier"].path) as model:
        count = model.token_counter
        lengths = [len(row) for row in model.transform.encode(TEXTS)]
        assert [model.transform.count(text) for text in TEXTS] == lengths
        assert model.transform.count("the cat " * 50) == model.transform.max_length == 24
        assert [count(text) for text in TEXTS] == [min(-(-length // 16) * 16, 24) for length in lengths]
        for method in (model, model.classify):
            with MicroBatcher(method) as batcher, pytest.raises(TextError, match="expected a text"):
                batcher(5)
    with load(exported_folders["vit"].path) as model:
        assert model.token_counter(np.zeros((8, 8, 3), "uint8")) == 16
    with (
        load(exported_folders["gpt"].path) as model,
        MicroBatcher(model.generate, max_new_tokens=2) as batcher,
    ):
        assert model.token_counter is None
        assert batcher("the cat").text == model.generate("the cat", max_new_tokens=2).text


@pytest.mark.parametrize(("threads", "workers"), [(None, 1), (1, cores()), (10 * cores(), 1)])
def test_default_workers(threads: int | None, workers: int, exported_folders: ExportedFolders):
    path = exported_folders["bert, classifier"].path
    with load(path, threads=threads, provider="cpu") as model, MicroBatcher(model) as batcher:
        assert batcher.workers == workers
    with load(exported_folders["translation"].path, threads=threads, provider="cpu") as model:
        assert default_workers(model) == max(2, workers)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"max_batch": 0}, "max_batch is 0"),
        ({"max_tokens": 0, "count_tokens": len}, "max_tokens is 0"),
        ({"max_tokens": 100}, "max_tokens is 100.*count_tokens"),
        ({"max_wait_ms": 5}, "'max_wait_ms'"),
    ],
)
def test_invalid_options_raise(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        MicroBatcher(Model(), **options)


def test_wrong_number_of_answers_raises():
    with (
        MicroBatcher(lambda items: []) as batcher,
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

"""TextEngine: the text of each stream is that of its prompt alone, whatever runs beside it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import BusyError, ConfigError, InputError, KerasTxError, RunError
from keras_tx.generation import Generation
from keras_tx.processing import train_byte_bpe
from keras_tx.runtime import TextGenerator, load, machine_memory
from keras_tx.runtime.shared_cache import SharedCache
from keras_tx.serving import TextEngine
from keras_tx.serving.engine.cache_rows import MOST_VIEWS, SharedRows
from keras_tx.serving.engine.prefix_cache import BLOCK, PrefixCache
from keras_tx.serving.engine.prompt_lookup import PromptLookup
from keras_tx.serving.engine.scheduler import CHUNK
from keras_tx_onnx import export_onnx
from tests.drawing import redraw
from tests.export.test_adapters import trained
from tests.exported_folders import CORPUS

CONTEXT = 160
SYSTEM = list(range(110))
LONG = SYSTEM + list(range(30))  # several chunks


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    model = redraw(keras_tx.gpt("pico", max_length=CONTEXT, processing=train_byte_bpe(CORPUS, size=280)))
    path = tmp_path_factory.mktemp("engine") / "poet"
    export_onnx(model, path, cache="shared")
    return path


@pytest.fixture(scope="module")
def poet(folder) -> Iterator[TextGenerator]:
    with opened(folder) as model:
        yield model


def opened(folder: Path, **options: Any) -> TextGenerator:
    model = load(folder, provider="cpu", threads=1, **options)
    assert isinstance(model, TextGenerator)
    return model


def waits_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def random_calls(count: int, seed: int = 0) -> list[tuple[list[int], dict[str, Any]]]:
    """Prompts, some with a common beginning or with repetitions, and options of all kinds."""
    numbers = np.random.default_rng(seed)
    beginning = numbers.integers(0, 280, 70).tolist()
    calls = []
    for index in range(count):
        prompt = numbers.integers(0, 280, int(numbers.integers(1, 90))).tolist()
        if index % 4 == 1:
            prompt = beginning[: int(numbers.integers(16, 70))] + prompt[:10]
        if index % 4 == 2:
            prompt = prompt[:12] * 3
        options: dict[str, Any] = {"max_new_tokens": int(numbers.integers(1, 24))}
        if index % 3 == 1:
            options |= {"seed": index, "top_k": int(numbers.integers(2, 60)), "temperature": 1.3}
        if index % 5 == 2:
            options |= {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}
        if index % 7 == 3:
            options |= {"stop_tokens": numbers.integers(0, 280, 20).tolist()}
        calls.append((prompt, options))
    return calls


class Gate:
    """Lets the engine run only while it is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        run = SharedCache.run

        def waits(*args: Any) -> np.ndarray:
            assert self.open.wait(60)
            return run(*args)

        monkeypatch.setattr(SharedCache, "run", waits)


@pytest.fixture
def slow_runs(monkeypatch) -> None:
    run = SharedCache.run

    def slow(*args: Any) -> np.ndarray:
        time.sleep(0.005)
        return run(*args)

    monkeypatch.setattr(SharedCache, "run", slow)


@pytest.fixture(scope="module")
def thousand(poet) -> list[tuple[list[int], dict[str, Any], Generation]]:
    return [(prompt, options, poet.generate(prompt, **options)) for prompt, options in random_calls(1000)]


@pytest.mark.parametrize(("prefix_cache", "prompt_lookup"), [(0, False), (2**18, False), (None, True)])
def test_a_thousand_streams_equal_each_prompt_alone(poet, thousand, prefix_cache, prompt_lookup):
    """In random order and at random times, one in ten cancelled."""
    chance = random.Random(1)
    order = list(range(len(thousand)))
    chance.shuffle(order)
    options: dict[str, Any] = {"prefix_cache": prefix_cache, "prompt_lookup": prompt_lookup}
    with TextEngine(poet, max_streams=12, max_queue=2000, **options) as engine:
        streams: dict[int, Any] = {}
        for place, index in enumerate(order):
            prompt, options, _ = thousand[index]
            streams[index] = engine.submit(prompt, **options)
            if index % 10 == 9:
                streams[chance.choice(order[: place + 1])].cancel()
            if chance.random() < 0.05:
                time.sleep(chance.random() * 0.02)
        cancelled = 0
        for index, stream in streams.items():
            result, expected = stream.result(120), thousand[index][2]
            if result.finish == "cancelled":
                cancelled += 1
                assert result.ids == expected.ids[: len(result.ids)], thousand[index][:2]
            else:
                assert result == expected, thousand[index][:2]
        assert cancelled < 120
        waits_until(lambda: engine.stats.running == 0)
        assert (engine.stats.prefix_hits > 100) == (prefix_cache != 0)
        if prefix_cache is not None:
            assert engine.stats.prefix_bytes <= prefix_cache


def test_streams_run_in_one_batch(poet, monkeypatch):
    sizes = []
    run = SharedCache.run

    def watched(cache: SharedCache, ids: np.ndarray, *args: Any) -> np.ndarray:
        sizes.append(ids.shape)
        return run(cache, ids, *args)

    monkeypatch.setattr(SharedCache, "run", watched)
    gate = Gate(monkeypatch)
    with TextEngine(poet, max_streams=8) as engine:
        streams = [engine.submit([1, 2, 3], max_new_tokens=40, stop_tokens=[]) for _ in range(8)]
        gate.open.set()
        assert len({stream.result(60).ids for stream in streams}) == 1
    assert max(rows for rows, tokens in sizes if tokens == 3) > 1
    assert (8, 1) in sizes


def test_few_views_of_rows_stay_bound(poet):
    rows = SharedRows(poet.decoder, 20)
    for row in range(20):
        rows.open(row, 9, [0] * row)
    for _ in range(2):
        for count in range(1, 21):
            rows.prefill(0, [[1, 2]] * count)
            assert rows.decode([3] * count, [2] * count).shape == (count, 280)
            rows.run(count - 1, [4], 3)
    single, several = rows._views
    assert len(several) == MOST_VIEWS
    assert len(single) == 21  # of each row, and the first one for decode steps


def test_long_prompt_does_not_stall_streams(poet, monkeypatch):
    sizes: list[tuple[int, int]] = []
    run = SharedCache.run
    submitted = threading.Event()

    def watched(cache: SharedCache, ids: np.ndarray, *args: Any) -> np.ndarray:
        assert ids.shape[1] > 1 or submitted.wait(60)  # decode steps start when both texts are there
        sizes.append(ids.shape)
        return run(cache, ids, *args)

    expected = poet.generate(LONG, max_new_tokens=2)
    with TextEngine(poet, max_streams=4, prompt_lookup=False) as engine:
        monkeypatch.setattr(SharedCache, "run", watched)
        first = engine.submit([1, 2, 3], max_new_tokens=150, stop_tokens=[])
        tokens = iter(first)
        next(tokens)
        second = engine.submit(LONG, max_new_tokens=2)
        submitted.set()
        assert second.result(60) == expected
        first.cancel()
    prefills = [index for index, (_, tokens) in enumerate(sizes) if tokens > 1]
    assert sum(sizes[index][1] for index in prefills) >= len(LONG) - len(sizes)
    assert all(sizes[index][1] <= CHUNK for index in prefills)
    assert all(b - a > 1 for a, b in itertools.pairwise(prefills))  # a decode step between two chunks


def test_beginning_of_a_prompt_is_not_prefilled_again(poet, monkeypatch):
    tokens = []
    run = SharedCache.run

    def watched(cache: SharedCache, ids: np.ndarray, *args: Any) -> np.ndarray:
        tokens.append(ids.shape[1])
        return run(cache, ids, *args)

    expected = poet.generate([*SYSTEM, 7], max_new_tokens=30, stop_tokens=[])
    continued = [*SYSTEM, 7, *expected.ids, 5]
    after = poet.generate(continued, max_new_tokens=2)
    monkeypatch.setattr(SharedCache, "run", watched)
    with TextEngine(poet) as engine:
        assert engine.submit([*SYSTEM, 9], max_new_tokens=1).result(60)
        tokens.clear()
        stream = engine.submit([*SYSTEM, 7], max_new_tokens=30, stop_tokens=[])
        assert stream.result(60) == expected
        assert stream.cached_tokens == len(SYSTEM) // BLOCK * BLOCK
        assert sum(tokens) == len(SYSTEM) % BLOCK + len(expected.ids)
        conversation = engine.submit(continued, max_new_tokens=2)
        assert conversation.result(60) == after
        assert conversation.cached_tokens == (len(continued) - 2) // BLOCK * BLOCK > stream.cached_tokens
        assert engine.submit(SYSTEM[1:], max_new_tokens=1).result(60)
        assert engine.stats.prefix_hits == 2
        assert engine.stats.prefix_bytes >= len(SYSTEM) * poet.decoder.bytes_per_token // 2
    with TextEngine(poet, prefix_cache=0) as engine:
        for _ in range(2):
            stream = engine.submit(LONG, max_new_tokens=1)
            stream.result(60)
            assert stream.cached_tokens == 0
        assert engine.stats.prefix_bytes == engine.stats.prefix_hits == 0


def test_prefix_cache_removes_the_least_recently_used_blocks():
    cache = PrefixCache(4 * BLOCK)

    def read(start: int, end: int) -> list[np.ndarray]:
        return [np.zeros((1, end - start, 1), "uint8")]

    texts = [[n] * (2 * BLOCK) for n in range(3)]
    for text in texts[:2]:
        cache.store(None, text, 1, read)
    assert len(cache.find(None, texts[0])) == 2
    assert cache.find("adapter", texts[0]) == []
    cache.store(None, texts[2], 1, read)  # in the place of the second text
    assert [len(cache.find(None, text)) for text in texts] == [2, 0, 2]
    cache.store(None, texts[0][:BLOCK] + [7] * BLOCK, 1, read)  # in the place of an end, not of a beginning
    assert [len(cache.find(None, text)) for text in texts] == [1, 0, 2]
    cache.store(None, [8] * (9 * BLOCK + 1), 1, read)  # its first four blocks
    assert [len(cache.find(None, text)) for text in texts] == [0, 0, 0]
    assert len(cache.find(None, [8] * (9 * BLOCK))) == 4
    assert cache.num_bytes == 4 * BLOCK


@pytest.mark.parametrize("sampling", [{}, {"seed": 3, "temperature": 0.5}])
def test_guessed_tokens_do_not_change_texts(poet, monkeypatch, sampling):
    """Texts of few tokens repeat themselves. Runs that verify a guess take as long as a decode step."""
    record = PromptLookup.record
    monkeypatch.setattr(
        PromptLookup, "record", lambda self, guessed, accepted, cost: record(self, guessed, accepted, 1.0)
    )
    options: dict[str, Any] = {"max_new_tokens": 100, "stop_tokens": [], "allowed_ids": [5, 6, 9], **sampling}
    prompts = [[5, 6, 9] * 5, [1, 2, 3], list(range(50)) * 2]
    with TextEngine(poet, prompt_lookup=True) as engine:
        for prompt in prompts:
            for most in (1, 2, 7, 50, 100):
                options["max_new_tokens"] = most
                stream = engine.submit(prompt, **options)
                tokens = list(stream)
                assert stream.result(60) == poet.generate(prompt, **options)
                assert len(tokens) == len(stream.ids)
        stats = engine.stats
        assert stats.guessed_tokens > stats.accepted_tokens > stats.tokens // 8
    with TextEngine(poet, prompt_lookup=False) as engine:
        assert engine.submit(prompts[0], **options).result(60)
        assert engine.stats.guessed_tokens == 0


def test_only_a_stream_that_runs_alone_guesses(poet, monkeypatch):
    gate = Gate(monkeypatch)
    with TextEngine(poet) as engine:
        prompt = [5, 6, 9] * 5
        streams = [engine.submit(prompt, max_new_tokens=60, allowed_ids=[5, 6, 9]) for _ in range(2)]
        waits_until(lambda: engine.stats.running + engine.stats.waiting == 2)
        gate.open.set()
        for stream in streams:
            stream.result(60)
        assert engine.stats.guessed_tokens <= 2  # of the last steps, after the other stream


def test_guesses_continue_the_last_occurrence_and_pause_where_they_do_not_pay():
    ids = [1, 2, 3, 4, 1, 2, 3, 5, 6, 7, 8, 9]
    lookup = PromptLookup(ids)
    assert lookup.guess(8) == []
    ids += [1, 2, 3]
    assert lookup.guess(8) == [5, 6, 7]
    assert lookup.guess(2) == [5, 6]
    lookup.record(3, 3, cost=1.5)
    assert lookup.guess(100) == [5, 6, 7, 8, 9, 1]
    lookup.record(6, 4, cost=4.0)
    assert lookup.guess(100) == [5, 6, 7, 8]
    lookup.record(4, 0, cost=2.5)
    assert lookup.guess(100) == [5, 6, 7]
    lookup.record(3, 0, cost=2.5)
    assert lookup.guess(100) == []
    for pause in (64, 128):
        ids += [1, 2, 3] * (pause // 3)
        assert lookup.guess(4) == []
        ids += [1, 2, 3]
        assert lookup.guess(4) == [1, 2, 3]
        lookup.record(3, 0, cost=1.5)


def test_text_ends_where_the_context_is_full(poet):
    with TextEngine(poet) as engine:
        for length in range(CONTEXT - 3, CONTEXT + 1):
            prompt = [*LONG, *SYSTEM][:length]
            stream = engine.submit(prompt, stop_tokens=[])
            assert stream.result(60) == poet.generate(prompt, stop_tokens=[])
            assert stream.finish == "context"
            assert len(stream.ids) == CONTEXT + 1 - length


def test_text_logprobs_and_stop_strings(poet):
    prompt = "the cat sat"
    whole = poet.generate(prompt, max_new_tokens=30, log_probabilities=True)
    stop = whole.text[8:11]
    options: dict[str, Any] = {"max_new_tokens": 30, "stop": stop}
    expected = poet.generate(prompt, **options, log_probabilities=True)
    with TextEngine(poet) as engine:
        stream = engine.submit(prompt, **options, logprobs=3)
        tokens: list[Any] = list(stream)
        result: Any = stream.result()
        assert (result.text, result.ids, result.finish) == (expected.text, expected.ids, "stop")
        np.testing.assert_allclose(result.log_probabilities, expected.log_probabilities, atol=1e-5)
        assert "".join(token.text for token in tokens) == expected.text == stream.text
        assert tuple(token.id for token in tokens) == expected.ids == stream.ids
        assert stream.prompt_tokens == len(poet.tokenizer.encode(prompt).ids)
        first = poet.next(prompt, top_k=3)
        assert [id for id, _ in tokens[0].top_logprobs] == [token.id for token in first]
        np.testing.assert_allclose(
            [value for _, value in tokens[0].top_logprobs], [x.log_probability for x in first], atol=1e-5
        )
        (token,) = engine.submit(prompt, max_new_tokens=1, logprobs=0)
        assert token.logprob is not None
        assert token.top_logprobs == ()
        (token,) = engine.submit(prompt, max_new_tokens=1)
        assert token.logprob is token.top_logprobs is None


def test_wrong_input_raises_before_the_queue(poet):
    with TextEngine(poet) as engine:
        wrong: list[tuple[dict[str, Any], type[KerasTxError], str]] = [
            ({"temperatur": 1.0}, ConfigError, "submit has no option 'temperatur'"),
            ({"samples": 2}, ConfigError, "samples"),
            ({"logprobs": -1}, ConfigError, "logprobs"),
            ({"logprobs": 1000}, ConfigError, "logprobs is 1000, expected at most 280"),
            ({"top_p": 3}, ConfigError, "top_p"),
            ({"adapter": "none"}, ConfigError, "none"),
            ({"deadline": 0}, ConfigError, "deadline"),
        ]
        for options, error, message in wrong:
            with pytest.raises(error, match=message):
                engine.submit([1], **options)
        with pytest.raises(InputError, match="280"):
            engine.submit([280])
        with pytest.raises(InputError, match="context is 160"):
            engine.submit([1] * 161)
        several: Any = [[1], [2]]
        with pytest.raises(InputError, match="one prompt"):
            engine.submit(several)
        assert engine.stats.requests == 0
    function: Any = len
    with pytest.raises(ConfigError, match="expected a loaded decoder"):
        TextEngine(function)
    number: Any = -1
    for option in ("max_streams", "max_queue", "cache_memory", "prefix_cache"):
        with pytest.raises(ConfigError, match=option):
            TextEngine(poet, **{option: number})


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="Linux")
def test_default_memory(poet, monkeypatch):
    monkeypatch.setattr(machine_memory, "LIMITS", ())
    with open("/proc/meminfo") as file:
        (total,) = (int(line.split()[1]) * 1024 for line in file if line.startswith("MemTotal"))
    with TextEngine(poet) as engine:
        assert engine.cache_memory is not None
        assert engine.cache_memory == pytest.approx(total / 2, rel=0.01)


@pytest.mark.parametrize(
    ("contents", "size"), [(["max\n", "8000"], 4000), (["6000\n", None], 3000), ([None, "9" * 19], None)]
)
def test_default_memory_in_a_container(monkeypatch, tmp_path, contents, size):
    monkeypatch.setattr(machine_memory, "LIMITS", ())
    machine = machine_memory.half_of_the_memory()
    paths = [tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"]
    for path, content in zip(paths, contents, strict=True):
        if content is not None:
            path.write_text(content)
    monkeypatch.setattr(machine_memory, "LIMITS", paths)
    assert machine_memory.half_of_the_memory() == (machine if size is None else size)


def test_full_queue_and_memory(poet, monkeypatch):
    gate = Gate(monkeypatch)
    per_token = poet.decoder.bytes_per_token
    trims = []
    trim = SharedRows.trim
    monkeypatch.setattr(SharedRows, "trim", lambda *args: trims.append(1) or trim(*args))
    with TextEngine(poet, max_streams=4, max_queue=2, cache_memory=100 * per_token) as engine:
        with pytest.raises(ConfigError, match="cache_memory is 51200. Pass a smaller max_new_tokens"):
            engine.submit([1, 2], max_new_tokens=99)
        with engine._changed:  # the engine collects all four at once
            streams = [engine.submit([1, 2], max_new_tokens=48, stop_tokens=[]) for _ in range(4)]
        waits_until(lambda: engine.stats.running == 2)  # of 50 tokens each
        assert engine.stats.waiting == 2
        streams += [engine.submit([1, 2], max_new_tokens=48) for _ in range(2)]
        with pytest.raises(BusyError, match="The queue is full: 4 streams wait"):
            engine.submit([1, 2], max_new_tokens=48)
        gate.open.set()
        for stream in streams:
            assert stream.result(60).finish in ("length", "stop")
            assert engine.stats.cache_bytes <= 100 * per_token
        assert not trims  # later streams use the rows of earlier ones
        long = engine.submit([3], max_new_tokens=90, stop_tokens=[])
        expected = poet.generate([3], max_new_tokens=90, stop_tokens=[])
        assert long.result(60) == expected  # in the memory that the others had
        assert len(trims) == 1
        assert engine.stats.cache_bytes <= 100 * per_token


def test_deadline_and_cancellation(poet, monkeypatch):
    gate = Gate(monkeypatch)
    with TextEngine(poet, max_streams=1) as engine:
        first = engine.submit([1, 2, 3], max_new_tokens=50, stop_tokens=[])
        waiting = engine.submit([1, 2, 3], deadline=0.01)
        cancelled = engine.submit([1, 2, 3])
        cancelled.cancel()
        time.sleep(0.02)
        gate.open.set()
        assert waiting.result(60) == Generation("", (), "deadline")
        assert cancelled.result(60) == Generation("", (), "cancelled")
        assert cancelled.finish == "cancelled"
        assert list(cancelled) == []
        assert first.result(60).finish == "length"


@pytest.mark.parametrize("leave", ["break", "delete", "close"])
def test_work_ends_when_the_client_leaves(poet, leave, slow_runs):
    with TextEngine(poet) as engine:
        stream = engine.submit([1, 2, 3], max_new_tokens=150, stop_tokens=[], deadline=60)
        sequence = stream._sequence
        if leave == "break":
            for _ in stream:
                break
        elif leave == "close":
            tokens: Any = iter(stream)
            next(tokens)
            tokens.close()
        else:
            del stream
            gc.collect()
        waits_until(lambda: engine.stats.running + engine.stats.waiting == 0)
        assert sequence.outbox.result.result(60).finish == "cancelled"
        stream = tokens = None
        held = weakref.ref(sequence)
        del sequence
        waits_until(lambda: gc.collect() >= 0 and held() is None)  # nor does the engine keep its tokens


def test_asyncio(poet, slow_runs):
    calls = random_calls(20, seed=3)
    expected = [poet.generate(prompt, **options) for prompt, options in calls]

    async def read(engine: TextEngine, prompt: list[int], options: dict[str, Any]) -> str:
        return "".join([token.text async for token in engine.submit(prompt, **options)])

    async def leave(engine: TextEngine) -> None:
        stream = engine.submit([1, 2, 3], max_new_tokens=150, stop_tokens=[])
        task = asyncio.create_task(read_slowly(stream))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await stream.answer()).finish == "cancelled"
        stream = engine.submit([1, 2, 3], max_new_tokens=150, stop_tokens=[])
        async for _ in stream:
            break
        assert (await stream.answer()).finish == "cancelled"

    async def read_slowly(stream: Any) -> None:
        async for _ in stream:
            await asyncio.sleep(0.1)

    async def all_streams() -> None:
        with TextEngine(poet, max_streams=6) as engine:
            texts = await asyncio.gather(*(read(engine, *call) for call in calls))
            assert texts == [generation.text for generation in expected]
            stream = engine.submit(calls[0][0], **calls[0][1])
            assert await stream.answer() == expected[0]
            await leave(engine)
        assert not engine.stats.running

    asyncio.run(asyncio.wait_for(all_streams(), 120))


def test_close_ends_streams_with_an_error(poet, monkeypatch):
    gate = Gate(monkeypatch)
    engine = TextEngine(poet, max_streams=1)
    streams = [engine.submit([1, 2], max_new_tokens=100) for _ in range(3)]
    threading.Timer(0.05, gate.open.set).start()
    engine.close()
    engine.close()
    for stream in streams:
        with pytest.raises(KerasTxError, match="closed"):
            stream.result(60)
        with pytest.raises(KerasTxError, match="closed"):
            list(stream)
        assert stream.finish is None
    with pytest.raises(KerasTxError, match="closed"):
        engine.submit([1])


def test_failed_run_ends_only_the_stream_that_causes_it(poet, monkeypatch):
    run = SharedCache.run

    def fails_for_7(cache: SharedCache, ids: np.ndarray, *args: Any) -> np.ndarray:
        if 7 in ids:
            raise RunError("out of memory")
        return run(cache, ids, *args)

    only_7 = {"allowed_ids": [7], "suppress_tokens": []}
    calls = [([5, 6], {}), ([5, 7], {}), ([8] * 3, {}), ([9, 10, 11], only_7)]
    options: dict[str, Any] = {"max_new_tokens": 20, "stop_tokens": [], "suppress_tokens": [7]}
    expected = [poet.generate(prompt, **options) for prompt, _ in calls[:3]]
    monkeypatch.setattr(SharedCache, "run", fails_for_7)
    with TextEngine(poet) as engine:
        streams = [engine.submit(prompt, **{**options, **more}) for prompt, more in calls]
        for index in (1, 3):
            with pytest.raises(RunError, match="out of memory"):
                streams[index].result(60)
        assert streams[0].result(60) == expected[0]
        assert streams[2].result(60) == expected[2]
        with pytest.raises(InputError, match="All tokens are excluded"):
            engine.submit([5], allowed_ids=[3], suppress_tokens=[3], stop_tokens=[]).result(60)
        assert engine.submit([5, 6], **options).result(60) == expected[0]


def test_folder_without_shared_cache_runs_one_by_one(tmp_path):
    model = redraw(keras_tx.gpt("pico", max_length=CONTEXT))
    export_onnx(model, tmp_path / "plain")
    calls = random_calls(30, seed=5)
    calls = [([x % 256 for x in prompt], {**options, "stop_tokens": []}) for prompt, options in calls]
    with opened(tmp_path / "plain") as plain, TextEngine(plain, max_streams=4) as engine:
        assert engine.one_by_one is not None
        assert "cache='shared'" in engine.one_by_one
        with pytest.raises(ConfigError, match="prefix_cache=9 is not supported here"):
            TextEngine(plain, prefix_cache=9)
        with pytest.raises(ConfigError, match="prompt_lookup=True is not supported here"):
            TextEngine(plain, prompt_lookup=True)
        streams = [engine.submit(prompt, **options) for prompt, options in calls]
        for stream, (prompt, options) in zip(streams, calls, strict=True):
            assert stream.result(60) == plain.generate(prompt, **options)
        waits_until(lambda: engine.stats.running == 0)
        assert engine.stats.cache_bytes == 0


@pytest.fixture(scope="module")
def quantized(tmp_path_factory) -> Path:
    model = redraw(keras_tx.gpt("pico", width=64, max_length=CONTEXT, vocabulary_size=280))
    path = tmp_path_factory.mktemp("quantized") / "poet"
    export_onnx(model, path, cache="shared", precision=["fp32", "fp16", "int8", "int8-dynamic", "int4"])
    return path


@pytest.mark.parametrize("precision", ["fp16", "int8", "int8-dynamic", "int4"])
def test_precisions(quantized, precision):
    """A range of int8-dynamic would change with the other rows of a batch, and with chunks of a prompt."""
    calls: list[tuple[list[int], dict[str, Any]]] = [
        (prompt, {**options, "stop_tokens": []}) for prompt, options in random_calls(80, seed=7)
    ]
    calls.append((LONG, {"max_new_tokens": 5, "stop_tokens": []}))
    with opened(quantized, precision=precision) as model, TextEngine(model, max_streams=8) as engine:
        assert (engine.one_by_one is None) == (precision in ("int8", "int4"))
        streams = [engine.submit(prompt, **options) for prompt, options in calls]
        for stream, (prompt, options) in zip(streams, calls, strict=True):
            assert stream.result(60) == model.generate(prompt, **options)


def test_adapters(tmp_path):
    base = redraw(keras_tx.gpt("pico", max_length=CONTEXT))
    for seed, name in enumerate(["reviews", "sport"]):
        trained(base, tmp_path, name, seed, targets="dense")
    export_onnx(base, tmp_path / "out", cache="shared", adapters=[tmp_path / "reviews", tmp_path / "sport"])
    options: dict[str, Any] = {"max_new_tokens": 12, "stop_tokens": []}
    prompt = LONG[:50]
    with opened(tmp_path / "out") as model, TextEngine(model, max_streams=6) as engine:
        names = [None, "reviews", "sport"] * 4
        expected = {name: model.generate(prompt, adapter=name, **options) for name in names}
        assert len({generation.ids for generation in expected.values()}) == 3
        streams = [engine.submit(prompt, adapter=name, **options) for name in names]
        for name, stream in zip(names, streams, strict=True):
            assert stream.result(60) == expected[name]
        assert streams[0].cached_tokens == streams[1].cached_tokens == 0
        assert engine.submit(prompt, adapter="sport", **options).result(60) == expected["sport"]

"""TextEngine: throughput of many streams, time to the first token, prefix cache and prompt lookup.

    python -m tests.benchmarks.engine FOLDER [--precision int4] [--rounds 5]
    python -m tests.benchmarks.engine --variant 124M

FOLDER is an exported decoder; with --variant a GPT with random weights is exported first. What is compared is
interleaved, and ratios are those of one round. For prompt lookup the chosen tokens are replaced by scripted
ones, because random weights do not copy; the graph runs all the same.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.benchmarks.decoding_overhead import TimedSession
from tests.benchmarks.results import quartiles

STREAMS = (1, 8, 32)
PROMPT = 16
Samples = dict[str, list[float]]


def measure(
    folder: str,
    *,
    precision: str | None = None,
    tokens: int = 64,
    prefix: int = 512,
    rounds: int = 5,
    threads: int | None = None,
) -> dict[str, Any]:
    """Measures all parts, with `tokens` new tokens of each stream.

    Returns:
        A dict of dicts, each with quartiles by what was measured: `rates`, tokens per second of a stream of
        `load(folder).stream` and of 1, 8 and 32 streams of the engine; `ratios` to the first; `python`,
        milliseconds per token outside of onnxruntime; `first`, seconds to the first token of streams that
        arrive while others run (a list); `prefix`, seconds to the first token after a shared prefix with and
        without cache; `lookup`, how many times as fast as without it.
    """
    from keras_tx.runtime import TextGenerator, load

    with load(folder, provider="cpu", precision=precision, threads=threads) as model:
        assert isinstance(model, TextGenerator)
        prefix = min(prefix, model.context - PROMPT - 2)
        watched: Any = TimedSession(model.session._session)
        model.session._session = watched
        rates, python = _throughput(model, watched, tokens, rounds)
        return {
            "model": repr(model),
            "rates": {name: quartiles(values) for name, values in rates.items()},
            "ratios": _ratios(rates, "stream"),
            "python": {name: quartiles(values) for name, values in python.items()},
            "first": _first_tokens(model, tokens),
            "prefix tokens": prefix,
            "prefix": {name: quartiles(x) for name, x in _shared_prefix(model, prefix, rounds).items()},
            "lookup": _lookup(model, tokens, rounds),
        }


def _ratios(samples: Samples, base: str) -> dict[str, tuple[float, float, float]]:
    return {
        name: quartiles([x / y for x, y in zip(values, samples[base], strict=True)])
        for name, values in samples.items()
        if name != base
    }


def _prompts(model: Any, count: int, length: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, model.decoder.vocabulary_size, length) for _ in range(count)]


def _throughput(model: Any, watched: TimedSession, tokens: int, rounds: int) -> tuple[Samples, Samples]:
    """Tokens per second, and milliseconds of Python per token."""
    from keras_tx.serving import TextEngine

    prompts = _prompts(model, max(STREAMS), PROMPT)
    options: dict[str, Any] = {"max_new_tokens": tokens, "stop_tokens": []}

    def one_stream() -> None:
        for _ in model.stream(prompts[0], as_ids=True, **options):
            pass

    def streams(engine: Any, count: int) -> None:
        for stream in [engine.submit(prompt, **options) for prompt in prompts[:count]]:
            stream.result()

    rates: Samples = {"stream": []}
    python: Samples = {"stream": []}
    with TextEngine(model, max_streams=max(STREAMS), prefix_cache=0, prompt_lookup=False) as engine:
        runs: dict[str, tuple[int, Callable[[], None]]] = {"stream": (1, one_stream)}
        for count in STREAMS:
            runs[f"{count} streams"] = count, lambda count=count: streams(engine, count)
        for turn in range(rounds + 1):
            for name, (count, run) in runs.items():
                watched.seconds = 0.0
                start = time.perf_counter()
                run()
                seconds = time.perf_counter() - start
                if turn:  # the first round is not counted: memory is planned for new shapes
                    rates.setdefault(name, []).append(count * tokens / seconds)
                    outside = 1000 * (seconds - watched.seconds) / (count * tokens)
                    python.setdefault(name, []).append(outside)
    return rates, python


def _first_tokens(model: Any, tokens: int, arrivals: int = 64) -> list[float]:
    """Seconds to the first token of streams that arrive at random, at 80 % of the throughput."""
    from keras_tx.serving import TextEngine

    random = np.random.default_rng(0)
    lengths = random.integers(8, min(256, model.context // 2), arrivals)
    prompts = [_prompts(model, 1, int(length), seed=index)[0] for index, length in enumerate(lengths)]
    options: dict[str, Any] = {"max_new_tokens": tokens, "stop_tokens": []}
    seconds = []
    with TextEngine(model, prefix_cache=0) as engine:

        def client(prompt: np.ndarray) -> None:
            start = time.perf_counter()
            for index, _ in enumerate(engine.submit(prompt, **options)):
                if index == 0:
                    seconds.append(time.perf_counter() - start)

        start = time.perf_counter()
        for stream in [engine.submit(prompt, **options) for prompt in prompts]:
            stream.result()
        pause = (time.perf_counter() - start) / arrivals
        clients = [threading.Thread(target=client, args=(prompt,)) for prompt in prompts]
        for thread in clients:
            thread.start()
            time.sleep(random.exponential(pause / 0.8))
        for thread in clients:
            thread.join()
    return sorted(seconds)


def _in_turn(turn: int, without: Any, others: Any) -> list[tuple[str, Any]]:
    """Both engines by name, in another order in each round."""
    engines = [("without", without), ("with", others)]
    return engines[:: -1 if turn % 2 else 1]


def _shared_prefix(model: Any, length: int, rounds: int) -> Samples:
    """Seconds to the first token of prompts with a common beginning."""
    from keras_tx.serving import TextEngine

    (beginning,) = _prompts(model, 1, length)
    ends = iter(_prompts(model, 2 * rounds + 2, PROMPT // 2, seed=1))
    samples: Samples = {"without": [], "with": []}
    with TextEngine(model, prefix_cache=0) as without, TextEngine(model) as cached:
        for turn in range(rounds + 1):
            for name, engine in _in_turn(turn, without, cached):
                prompt = np.concatenate([beginning, next(ends)])
                start = time.perf_counter()
                engine.submit(prompt, max_new_tokens=1).result()
                if turn:
                    samples[name].append(time.perf_counter() - start)
    return samples


@contextmanager
def _scripted(target: Sequence[int]) -> Iterator[None]:
    """Replaces the tokens that are chosen, at the cost of choosing them."""
    from keras_tx.generation import decoding_loop

    script, choose = iter(target), decoding_loop.choose_token

    def scripted(*args: Any) -> int:
        choose(*args)
        return next(script)

    decoding_loop.choose_token = scripted
    try:
        yield
    finally:
        decoding_loop.choose_token = choose


def _lookup(model: Any, tokens: int, rounds: int) -> dict[str, tuple[float, float, float]]:
    """The speed relative to that without guesses: of a copy in which every 20th token differs, of a text in
    which guesses are mostly wrong, and of a text without repetitions."""
    from keras_tx.serving import TextEngine

    random = np.random.default_rng(2)
    size = model.decoder.vocabulary_size
    (source,) = _prompts(model, 1, tokens, seed=2)
    edited = np.where(np.arange(tokens) % 20 == 19, random.integers(0, size, tokens), source)
    few = random.integers(0, min(8, size), tokens)
    other = random.permutation(size)[:tokens] if size >= tokens else random.integers(0, size, tokens)
    tasks = {
        "copy": (source, edited),
        "wrong guesses": (random.integers(0, min(8, size), tokens), few),
        "no repetition": (source, other),
    }
    ratios = {}
    with (
        TextEngine(model, prefix_cache=0, prompt_lookup=False) as without,
        TextEngine(model, prefix_cache=0, prompt_lookup=True) as guessing,
    ):
        for task, (prompt, target) in tasks.items():
            samples: Samples = {"without": [], "with": []}
            for turn in range(rounds + 1):
                for name, engine in _in_turn(turn, without, guessing):
                    with _scripted(target):
                        start = time.perf_counter()
                        engine.submit(prompt, max_new_tokens=tokens, stop_tokens=[]).result()
                        if turn:
                            samples[name].append(1 / (time.perf_counter() - start))
            ratios[task] = _ratios(samples, "without")["with"]
    return ratios


def describe(measured: dict[str, Any]) -> str:
    """Markdown tables."""
    lines = [measured["model"], "", "| | tokens a second | relative | Python, ms a token |"]
    lines += ["| --- | --- | --- | --- |"]
    for name, rate in measured["rates"].items():
        ratio = measured["ratios"].get(name, (1.0, 1.0, 1.0))
        python = measured["python"][name][1]
        lines.append(f"| {name} | {_spread(rate, '.0f')} | {_spread(ratio, '.2f')} | {python:.3f} |")
    first = [1000 * x for x in measured["first"]]
    p99 = first[min(len(first) - 1, int(0.99 * len(first)))]
    without, cached = (measured["prefix"][name] for name in ("without", "with"))
    lines += [
        "",
        f"Time to the first token at 80 % load: p50 {statistics.median(first):.0f} ms, p99 {p99:.0f} ms.",
        f"After a shared prefix of {measured['prefix tokens']} tokens: {1000 * without[1]:.0f} ms, with "
        f"cache {1000 * cached[1]:.0f} ms: {without[1] / cached[1]:.1f}x.",
        "",
        "| prompt lookup | relative |",
        "| --- | --- |",
    ]
    lines += [f"| {task} | {_spread(ratio, '.2f')} |" for task, ratio in measured["lookup"].items()]
    return "\n".join(lines)


def _spread(values: tuple[float, float, float], form: str) -> str:
    low, middle, high = (format(value, form) for value in values)
    return f"{middle} ({low} to {high})"


def export(variant: str, folder: str) -> None:
    import keras_tx
    from keras_tx_onnx import export_onnx

    export_onnx(keras_tx.gpt(variant), folder, cache="shared", verify=False)


def main(arguments: Sequence[str] | None = None) -> None:
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("folder", nargs="?", help="an exported decoder")
    parser.add_argument("--variant", default="124M", help="without a folder: a GPT (default: 124M)")
    parser.add_argument("--precision", help="which file of the folder (default: fp32)")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of a stream (default: 64)")
    parser.add_argument("--prefix", type=int, default=512, help="tokens of the prefix (default: 512)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    options = vars(parser.parse_args(arguments))
    folder, variant = options.pop("folder"), options.pop("variant")
    with tempfile.TemporaryDirectory() as temporary:
        if folder is None:
            folder = f"{temporary}/model"
            export(variant, folder)
        print(describe(measure(folder, **options)))


if __name__ == "__main__":
    main()

"""Times one case of an adapter, by the kind of the case."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.benchmarks.cases import (
    CLIENTS,
    DECODE,
    EXPORT,
    GENERATE,
    IMAGES,
    OVERHEAD,
    PREFILL,
    RATE,
    STEP,
    STREAMS,
    TEXTS,
    Case,
    prompts_of,
)

LEAST, ENOUGH = 3, 0.3  # runs of a round, and their seconds
STEPS = 32  # tokens of a decoding case, over which their time is averaged
PAIRS = 3  # of a run with these tokens and one without
PROJECTIONS = 16  # numbers that stand for an output when contenders are compared


def measure(adapter: Any, case: Case) -> dict[str, Any]:
    """Seconds of a forward pass, token or step, and a check that must be equal for all contenders."""
    inputs = []
    if case.parts:
        with np.load(adapter.place / "inputs.npz", allow_pickle=False) as arrays:
            inputs = [arrays[f"{case.inputs}.{part}"] for part in case.parts]
    return _KINDS[case.kind](adapter, case, inputs)


def _forward(adapter: Any, case: Case, inputs: list[np.ndarray]) -> dict[str, Any]:
    run = adapter.images if case.kind == IMAGES else adapter.texts
    if adapter.channels_last and case.kind == IMAGES:
        inputs = [np.ascontiguousarray(inputs[0].transpose(0, 2, 3, 1))]
    seconds, output = _timed(case, lambda: run(*inputs))
    real = output if case.kind == IMAGES else output[inputs[1] > 0]
    return {"seconds": seconds, "check": projection(np.asarray(real, "float64"))}


def projection(output: np.ndarray) -> list[float]:
    """Products with fixed random vectors, which also differ where rows are permuted."""
    random = np.random.default_rng(0)
    rows = output.reshape(len(output), -1)
    return [
        float(random.standard_normal(len(rows)) @ rows @ random.standard_normal(rows.shape[1]))
        for _ in range(PROJECTIONS)
    ]


def _prefill(adapter: Any, case: Case, inputs: list[np.ndarray]) -> dict[str, Any]:
    seconds, tokens = _timed(case, lambda: list(adapter.tokens(inputs[0], 1)))
    return {"seconds": seconds, "check": tokens[0]}


def _decode(adapter: Any, case: Case, inputs: list[np.ndarray]) -> dict[str, Any]:
    def run(count: int) -> tuple[list[int], float]:
        seconds, tokens = _stopwatch(lambda: list(adapter.tokens(inputs[0], count)))
        return tokens, seconds

    return time_per_token(run, 1 if case.once else PAIRS)


def _generate(adapter: Any, case: Case, inputs: list[np.ndarray]) -> dict[str, Any]:
    """Runs are long, so none is left out to warm up. The check is the first token of the first target."""
    samples: list[float] = []
    targets: list[list[int]] = []
    while sum(samples) < ENOUGH and not (case.once and samples):
        seconds, targets = _stopwatch(lambda: adapter.generate(*inputs, case.new_tokens, case.beams))
        samples.append(seconds)
        shape = len(targets), {len(target) for target in targets}
        if shape != (case.batch, {case.new_tokens}):
            raise ValueError(
                f"{shape[0]} targets of {shape[1]} tokens, not {case.batch} of {case.new_tokens}"
            )
    return {"seconds": statistics.median(samples), "check": targets[0][0]}


def _streams(adapter: Any, case: Case, inputs: list[np.ndarray]) -> dict[str, Any]:
    """Seconds of a token, over the tokens of all streams, which begin at the same time.

    The check is the tokens of each stream, which `chosen_tokens` compares with the fp32 graph.
    """
    config = json.loads((adapter.place / "huggingface" / "config.json").read_text("utf-8"))
    prompts = prompts_of(case, config["vocab_size"])
    seconds, (made, first) = _stopwatch(lambda: adapter.streams(prompts, case.new_tokens))
    if [len(ids) for ids in made] != [case.new_tokens] * case.batch:
        raise ValueError(f"{[len(ids) for ids in made]} tokens, not {case.batch} times {case.new_tokens}")
    return {
        "seconds": seconds / (case.batch * case.new_tokens),
        "check": made,
        "figures": {f"first token, {case.name}": float(np.percentile(first, 99))},
    }


def _overhead(adapter: Any, case: Case, inputs: list[np.ndarray]) -> dict[str, Any]:
    return {"seconds": adapter.overhead(inputs[0], STEPS)}


def _step(adapter: Any, case: Case, inputs: list[np.ndarray]) -> dict[str, Any]:
    """The check is the loss of the first step."""
    losses: list[float] = []
    seconds, _ = _timed(case, lambda: losses.append(adapter.step(*inputs)))
    return {"seconds": seconds, "check": losses[0]}


def _rate(adapter: Any, case: Case, inputs: list[np.ndarray]) -> dict[str, Any]:
    """Seconds of a billion operations or bytes."""
    seconds, _ = _warm(adapter.multiply)
    return {"seconds": seconds / adapter.billions}


_KINDS: dict[str, Callable[[Any, Case, list[np.ndarray]], dict[str, Any]]] = {
    IMAGES: _forward,
    TEXTS: _forward,
    PREFILL: _prefill,
    DECODE: _decode,
    GENERATE: _generate,
    OVERHEAD: _overhead,
    STEP: _step,
    STREAMS: _streams,
    EXPORT: lambda adapter, case, inputs: adapter.export(),
    RATE: _rate,
    CLIENTS: lambda adapter, case, inputs: adapter.serve(),
}


def _timed(case: Case, run: Callable[[], Any]) -> tuple[float, Any]:
    return _stopwatch(run) if case.once else _warm(run)


def _warm(run: Callable[[], Any]) -> tuple[float, Any]:
    """Median seconds, after a run that is not counted: caches went cold while others ran."""
    output = run()
    samples: list[float] = []
    while len(samples) < LEAST or sum(samples) < ENOUGH:
        seconds, output = _stopwatch(run)
        samples.append(seconds)
    return statistics.median(samples), output


def time_per_token(run: Callable[[int], tuple[list[int], float]], pairs: int = PAIRS) -> dict[str, Any]:
    """Seconds of one token after a prompt: the median difference of warm runs with and without STEPS tokens.

    Some contenders return all tokens at once, so the time of the prompt and the first token is subtracted.
    """
    tokens, _ = run(1)
    samples: list[float] = []
    for _ in range(pairs):
        _, prefill = run(1)
        tokens, seconds = run(1 + STEPS)
        samples.append((seconds - prefill) / STEPS)
    return {"seconds": statistics.median(samples), "check": tokens[0]}


def _stopwatch(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    output = run()
    return time.perf_counter() - start, output

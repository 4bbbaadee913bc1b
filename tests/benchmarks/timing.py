"""What a contender does in its turn, by the kind of case, and how it is timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.cases import (
    CLIENTS,
    DECODE,
    EXPORT,
    IMAGES,
    OVERHEAD,
    PREFILL,
    RATE,
    STEP,
    TEXTS,
    Case,
)

LEAST, ENOUGH = 3, 0.3  # runs of a turn, and their seconds
STEPS = 32  # tokens of a decoding case, over which their time is averaged
PROJECTIONS = 16  # numbers that stand for an output when contenders are compared
PAIRS = 3  # of a run with them and one without


def turn(loaded: Any, place: Path, case: Case) -> dict[str, Any]:
    """Seconds of one forward pass, token or step, and a number that must be the same for all."""
    given = []
    if case.parts:
        with np.load(place / "inputs.npz", allow_pickle=False) as inputs:
            given = [inputs[f"{case.inputs}.{part}"] for part in case.parts]
    return TURNS[case.kind](loaded, case, given)


def _forward(loaded: Any, case: Case, given: list[np.ndarray]) -> dict[str, Any]:
    run = loaded.images if case.kind == IMAGES else loaded.texts
    if getattr(loaded, "channels_last", False) and case.kind == IMAGES:
        given = [np.ascontiguousarray(given[0].transpose(0, 2, 3, 1))]
    seconds, output = _measure(case, lambda: run(*given))
    real = output if case.kind == IMAGES else output[given[1] > 0]
    return {"seconds": seconds, "check": projected(np.asarray(real, "float64"))}


def projected(output: np.ndarray) -> list[float]:
    """Its products with fixed random vectors: rows that are swapped, or signs, give other ones."""
    random = np.random.default_rng(0)
    rows = output.reshape(len(output), -1)
    return [
        float(random.standard_normal(len(rows)) @ rows @ random.standard_normal(rows.shape[1]))
        for _ in range(PROJECTIONS)
    ]


def _prefill(loaded: Any, case: Case, given: list[np.ndarray]) -> dict[str, Any]:
    seconds, made = _measure(case, lambda: list(loaded.tokens(given[0], 1)))
    return {"seconds": seconds, "check": made[0]}


def _decode(loaded: Any, case: Case, given: list[np.ndarray]) -> dict[str, Any]:
    pairs = 1 if case.once else PAIRS
    return token_of(lambda count: _timed_list(loaded.tokens(given[0], count)), pairs)


def _overhead(loaded: Any, case: Case, given: list[np.ndarray]) -> dict[str, Any]:
    return {"seconds": loaded.outside(given[0], STEPS)}


def _step(loaded: Any, case: Case, given: list[np.ndarray]) -> dict[str, Any]:
    """The loss of the first step, which all contenders start with."""
    losses: list[float] = []
    seconds, _ = _measure(case, lambda: losses.append(loaded.step(*given)))
    return {"seconds": seconds, "check": losses[0]}


def _export(loaded: Any, case: Case, given: list[np.ndarray]) -> dict[str, Any]:
    return loaded.export()


def _rate(loaded: Any, case: Case, given: list[np.ndarray]) -> dict[str, Any]:
    """Not seconds of a run but of a billion operations or bytes."""
    seconds, _ = warm(loaded.run)
    return {"seconds": seconds / loaded.billions}


def _clients(loaded: Any, case: Case, given: list[np.ndarray]) -> dict[str, Any]:
    return loaded.serve()


TURNS: dict[str, Callable[[Any, Case, list[np.ndarray]], dict[str, Any]]] = {
    IMAGES: _forward,
    TEXTS: _forward,
    PREFILL: _prefill,
    DECODE: _decode,
    OVERHEAD: _overhead,
    STEP: _step,
    EXPORT: _export,
    RATE: _rate,
    CLIENTS: _clients,
}


def _measure(case: Case, run: Callable[[], Any]) -> tuple[float, Any]:
    return _timed(run) if case.once else warm(run)


def warm(run: Callable[[], Any]) -> tuple[float, Any]:
    """Median seconds, behind a run that nobody counts: while others had their turn, caches went cold."""
    output = run()
    seconds: list[float] = []
    while len(seconds) < LEAST or sum(seconds) < ENOUGH:
        taken, output = _timed(run)
        seconds.append(taken)
    return statistics.median(seconds), output


def token_of(run: Callable[[int], tuple[list[int], float]], pairs: int = PAIRS) -> dict[str, Any]:
    """Seconds of one token behind a prompt: the median of pairs of runs, behind one that nobody counts.

    Some contenders give all their tokens at once: so what the prompt and the first took is subtracted. Both
    runs are warm: a prompt that met cold caches would be taken from one that did not.
    """
    made, _ = run(1)
    tokens: list[float] = []
    for _ in range(pairs):
        _, prefill = run(1)
        made, seconds = run(1 + STEPS)
        tokens.append((seconds - prefill) / STEPS)
    return {"seconds": statistics.median(tokens), "check": made[0]}


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    output = run()
    return time.perf_counter() - start, output


def _timed_list(tokens: Iterator[int]) -> tuple[list[int], float]:
    seconds, made = _timed(lambda: list(tokens))
    return made, seconds

"""The process of one contender: it is told what to do on its standard input, a line of JSON each.

    python -m keras_tx.bench.worker CONTENDER PLACE

It may be the Python of another environment, so only NumPy is imported here, and what the contender
needs.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from keras_tx.bench.cases import IMAGES, PREFILL, TEXTS, case_of, token_of
from keras_tx.bench.field import FIELD

LEAST, ENOUGH = 3, 0.3  # runs of a turn, and their seconds


def main() -> None:
    name, place = sys.argv[1], Path(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    (contender,) = (known for known in FIELD if known.name == name)
    module = importlib.import_module(f"keras_tx.bench.contenders.{contender.module}")
    loaded: Any = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            start = time.perf_counter()
            if order["do"] == "prepare":
                module.prepare(place, **contender.options)
                found: dict[str, Any] = {"seconds": time.perf_counter() - start}
            elif order["do"] == "load":
                loaded = module.load(place, **contender.options)
                found = {"seconds": time.perf_counter() - start, "resident": _resident()}
            else:
                found = _run(loaded, place, order["case"])
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        _answer(answers, found)


def _run(loaded: Any, place: Path, name: str) -> dict[str, Any]:
    """Seconds of one forward pass, or of one token, and a number that must be the same for all."""
    case = case_of(place.name, name)
    with np.load(place / "inputs.npz", allow_pickle=False) as inputs:
        given = [inputs[f"{case.inputs}.{part}"] for part in case.parts]
    if case.kind in (IMAGES, TEXTS):
        seconds, output = warm(lambda: (loaded.images if case.kind == IMAGES else loaded.texts)(*given))
        real = output if case.kind == IMAGES else output[given[1] > 0]
        return {"seconds": seconds, "check": float(np.abs(np.asarray(real, "float64")).mean())}
    if case.kind == PREFILL:
        seconds, made = warm(lambda: list(loaded.tokens(given[0], 1)))
        return {"seconds": seconds, "check": made[0]}
    return token_of(lambda count: _timed(loaded.tokens(given[0], count)))


def warm(run: Callable[[], Any]) -> tuple[float, Any]:
    """Median seconds, behind a run that nobody counts: while others had their turn, caches went cold."""
    output = run()
    seconds: list[float] = []
    while len(seconds) < LEAST or sum(seconds) < ENOUGH:
        start = time.perf_counter()
        output = run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), output


def _timed(tokens: Iterator[int]) -> tuple[list[int], float]:
    start = time.perf_counter()
    made = list(tokens)
    return made, time.perf_counter() - start


def _resident() -> int:
    """Bytes; Linux has them here, and where it does not, nobody is told a number."""
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _answer(answers: TextIO, found: dict[str, Any]) -> None:
    answers.write(json.dumps(found) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()

"""Contenders in processes of their own, run in turns: what slows the machine down slows all of them."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras_tx
from keras_tx.bench.field import Contender

SAME = 0.02  # of what the first contender gives: quantized and bf16 ones are no closer


@dataclasses.dataclass
class Measured:
    """What one contender did on one subject."""

    name: str
    load_seconds: float
    resident: int
    seconds: dict[str, list[float]]  # by case, in the order of the rounds
    checks: dict[str, float]
    prepare_seconds: float = 0.0

    def median(self, case: str) -> float:
        return statistics.median(self.seconds[case])

    def spread(self, case: str) -> float:
        """Half of the middle half of the runs, as a share of the median."""
        if len(self.seconds[case]) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds[case], n=4, method="inclusive")
        return (high - low) / 2 / self.median(case)


def ratios(ours: Measured, peer: Measured, case: str) -> tuple[float, float, float]:
    """How many times as fast we are: lower quartile, median, upper quartile over the rounds."""
    pairs = [b / a for a, b in zip(ours.seconds[case], peer.seconds[case], strict=True)]
    if len(pairs) < 2:
        return pairs[0], pairs[0], pairs[0]
    low, middle, high = statistics.quantiles(pairs, n=4, method="inclusive")
    return low, middle, high


class Absent(Exception):
    """A contender cannot be measured here; the message says why."""


class Worker:
    """The process of one contender."""

    def __init__(self, contender: Contender, place: Path, python: str) -> None:
        _check_installed(contender, python)
        self.contender = contender
        self._log = open(place / f"{contender.name.replace(' ', '-')}.log", "w", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-m", "keras_tx.bench.worker", contender.name, str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=_environment(),
        )

    def tell(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise Absent(f"its process ended ({self._process.wait()}): {self._log.name}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise Absent(" ".join(found["error"].split())[:200])
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()


def measure(
    contenders: Sequence[Contender],
    place: Path,
    cases: Sequence[str],
    *,
    rounds: int,
    seconds: float,
    pythons: Mapping[str, str],
    say: Callable[[str], None],
) -> tuple[list[Measured], dict[str, str]]:
    """Those that were measured, and why the others were not. At most about `seconds` are spent on a case."""
    absent: dict[str, str] = {}
    workers: list[Worker] = []
    measured: list[Measured] = []
    try:
        for contender in contenders:
            python = pythons.get(contender.package, sys.executable)
            try:
                worker = Worker(contender, place, python)
                workers.append(worker)
                prepared = worker.tell(do="prepare")
                loaded = worker.tell(do="load")
                found = Measured(
                    contender.name, loaded["seconds"], loaded["resident"], {}, {}, prepared["seconds"]
                )
                for case in cases:  # the first run is no measurement: it compiles, and fills caches
                    found.checks[case] = worker.tell(do="run", case=case)["check"]
            except Absent as error:
                absent[contender.name] = str(error)
                if workers and workers[-1].contender is contender:
                    workers.pop().close()
                say(f"{contender.name}: not measured: {error}")
                continue
            measured.append(found)
            say(f"{contender.name}: ready after {loaded['seconds']:.2f} s")
        for case in cases:
            _in_turns(workers, measured, case, rounds, seconds, say)
    finally:
        for worker in workers:
            worker.close()
    return measured, absent


def _in_turns(
    workers: Sequence[Worker],
    measured: Sequence[Measured],
    case: str,
    rounds: int,
    seconds: float,
    say: Callable[[str], None],
) -> None:
    start = time.perf_counter()
    for turn in range(rounds):
        for worker, found in zip(workers, measured, strict=True):
            found.seconds.setdefault(case, []).append(worker.tell(do="run", case=case)["seconds"])
        if turn >= 2 and time.perf_counter() - start > seconds:
            say(f"{case}: {turn + 1} of {rounds} rounds in the time there is")
            return


def differing(measured: Sequence[Measured], case: str) -> dict[str, float]:
    """Contenders whose result is not the first one's, and by how much: they did not compute the same."""
    if not measured:
        return {}
    expected = measured[0].checks[case]
    off = {found.name: abs(found.checks[case] - expected) / max(abs(expected), 1e-9) for found in measured}
    return {name: value for name, value in off.items() if value > SAME}


def _check_installed(contender: Contender, python: str) -> None:
    code = f"import importlib.util as i; print(*[m for m in {contender.needs!r} if not i.find_spec(m)])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=_environment())
    if done.returncode or done.stdout.strip():
        missing = done.stdout.strip() or done.stderr.strip().splitlines()[-1]
        raise Absent(f"not installed: {missing}")


def _environment() -> dict[str, str]:
    root = str(Path(keras_tx.__file__).parents[1])  # other environments do not have this package
    given = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": f"{root}{os.pathsep}{given}" if given else root,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HF_HUB_OFFLINE": "1",
    }

"""What the machine can do, by the best of what is installed: matrix multiplies, and reading memory."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Iterable

from tests.benchmarks.results import Outcome

SIZE = 1536  # of the matrices
ROWS, COLUMNS = 4096, 16384  # of the weights that are read: more than the caches hold
BILLIONS_OF_OPERATIONS = 2 * SIZE**3 / 1e9
BILLIONS_OF_BYTES = 4 * ROWS * COLUMNS / 1e9
KINDS = ("fp32", "bf16", "int8", "memory")


@dataclasses.dataclass(frozen=True)
class Rate:
    """Operations or bytes a second, and whose: the best turn, since nothing can do more than the machine."""

    a_second: float
    by: str


@dataclasses.dataclass(frozen=True)
class Machine:
    """Rates by the kind of number, and of "memory"; those that nobody here can measure are missing."""

    cores: int
    processor: str
    rates: dict[str, Rate]
    threads: int = 0

    def __str__(self) -> str:
        found = [
            f"{kind} {rate.a_second / 1e9:,.0f} ({rate.by})"
            for kind, rate in self.rates.items()
            if kind != "memory"
        ]
        memory = self.rates.get("memory")
        parts = [f"{self.cores} cores of {self.processor}"]
        if self.threads:
            parts.append(f"{self.threads} threads for every contender, no GPU")
        if found:
            parts.append(f"matrix multiply, GFLOP/s: {', '.join(found)}")
        if memory:
            parts.append(f"memory read {memory.a_second / 1e9:.0f} GB/s ({memory.by})")
        return "; ".join(parts)


def threads() -> int:
    """Of every contender: the cores that this process may use, two threads of one core counted once."""
    cores = set()
    for number in _allowed():
        try:
            place = f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"
            with open(place, encoding="ascii") as file:
                cores.add(file.read().strip())
        except OSError:
            cores.add(str(number))
    return len(cores)


def threads_of_onnxruntime() -> int | None:
    """None where it takes as many by itself: then, and only then, it also keeps each on its core."""
    return None if len(_allowed()) == os.cpu_count() else threads()


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def described(outcomes: Iterable[Outcome]) -> Machine:
    """The best of all races of a kind; nothing but the cores where none was run."""
    rates: dict[str, Rate] = {}
    for outcome in outcomes:
        for found in outcome.measured:
            for kind in KINDS:
                if outcome.subject.startswith("rate-") and found.seconds.get(kind):
                    rate = Rate(1e9 / min(found.seconds[kind]), found.name.split()[0])
                    rates[kind] = max(rates.get(kind, rate), rate, key=lambda one: one.a_second)
    return Machine(os.cpu_count() or 1, _processor(), rates, threads())


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

"""The machine: its cores, and its rates by the best of the installed libraries."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from keras_tx.runtime.providers import cores

if TYPE_CHECKING:
    from tests.benchmarks.results import Outcome

KINDS = ("fp32", "bf16", "int8", "memory")
threads = cores  # of every contender


@dataclasses.dataclass(frozen=True)
class Rate:
    """Operations or bytes per second in the best round, and the library that reached it."""

    per_second: float
    library: str


@dataclasses.dataclass(frozen=True)
class Machine:
    """Rates by dtype, and of "memory"; those that no installed library can measure are missing."""

    cores: int
    processor: str
    rates: Mapping[str, Rate]
    threads: int = 0

    def __str__(self) -> str:
        rates = [
            f"{kind} {rate.per_second / 1e9:,.0f} ({rate.library})"
            for kind, rate in self.rates.items()
            if kind != "memory"
        ]
        memory = self.rates.get("memory")
        parts = [f"{self.cores} cores of {self.processor}"]
        if self.threads:
            parts.append(f"{self.threads} threads for every contender, no GPU")
        if rates:
            parts.append(f"matrix multiply, GFLOP/s: {', '.join(rates)}")
        if memory:
            parts.append(f"memory read {memory.per_second / 1e9:.0f} GB/s ({memory.library})")
        return "; ".join(parts)


def threads_of_onnxruntime() -> int | None:
    """None where onnxruntime's default is that number: only then it also binds each thread to a core."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return None if allowed == os.cpu_count() else threads()


def describe(outcomes: Iterable[Outcome]) -> Machine:
    """The machine with the best rates among the outcomes."""
    rates: dict[str, Rate] = {}
    for outcome in outcomes:
        if not outcome.model.startswith("rate-"):
            continue
        for result in outcome.results:
            for kind, seconds in result.seconds.items():
                rate = Rate(1e9 / min(seconds), result.name.split()[0])
                rates[kind] = max(rates.get(kind, rate), rate, key=lambda one: one.per_second)
    ordered = {kind: rates[kind] for kind in KINDS if kind in rates}
    return Machine(os.cpu_count() or 1, _processor(), ordered, threads())


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

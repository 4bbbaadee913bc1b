"""What was measured of a contender, and what may be said of it."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

SAME = 0.02  # of the loss that the first contender gives
CLOSE = 0.1  # of the norm of its output: quantized and bf16 ones are no closer
Check = float | list[float]


@dataclasses.dataclass
class Measured:
    """What one contender did on one subject."""

    name: str
    seconds: dict[str, list[float]] = dataclasses.field(default_factory=dict)  # by case, a number a turn
    checks: dict[str, Check] = dataclasses.field(default_factory=dict)  # what must be all contenders'
    figures: dict[str, list[float]] = dataclasses.field(default_factory=dict)  # whatever else: bytes, nodes
    shares: dict[str, float] = dataclasses.field(default_factory=dict)  # by case, of what the machine can do
    versions: dict[str, str] = dataclasses.field(default_factory=dict)  # of what it ran with
    said: str = ""  # what it could not do, in its own words

    def samples(self, name: str) -> list[float]:
        """Of a case or a figure; empty where it was not measured."""
        return self.seconds.get(name) or self.figures.get(name) or []

    def note(self, **figures: float) -> None:
        for name, value in figures.items():
            self.figures.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        return statistics.median(self.samples(name))

    def spread(self, name: str) -> float:
        """Half of the middle half of the turns, as a share of the median."""
        low, middle, high = quartiles(self.samples(name))
        return (high - low) / 2 / middle if middle else 0.0


@dataclasses.dataclass
class Outcome:
    """A race that was run."""

    section: str
    subject: str
    cases: list[str]
    measured: list[Measured] = dataclasses.field(default_factory=list)
    absent: dict[str, str] = dataclasses.field(default_factory=dict)  # contender -> why

    def of(self, name: str) -> Measured | None:
        return next((found for found in self.measured if found.name == name), None)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratios(ours: Measured, peer: Measured, case: str) -> list[float]:
    """How many times as fast we are, turn by turn; a contender that ended early has fewer."""
    return [b / a for a, b in zip(ours.samples(case), peer.samples(case), strict=False)]


def differing(measured: Sequence[Measured], case: str) -> dict[str, str]:
    """Contenders whose result is not the first one's, and how: they did not compute the same.

    A token is another one or not; of a loss and an output, how far apart they are counts.
    """
    checks = {found.name: found.checks[case] for found in measured if case in found.checks}
    if not checks:
        return {}
    expected = next(iter(checks.values()))
    off = {}
    for name, check in checks.items():
        if isinstance(expected, int) and check != expected:
            off[name] = "another first token"
        elif not isinstance(expected, int):
            share = _apart(check, expected)
            if not share <= (CLOSE if isinstance(expected, list) else SAME):  # nan is another result, too
                off[name] = f"another result, by {share:.0%}"
    return off


def _apart(check: Check, expected: Check) -> float:
    """As a share of what was expected."""
    here, there = ([one] if isinstance(one, float | int) else one for one in (check, expected))
    return math.dist(here, there) / max(math.hypot(*there), 1e-9)

"""Results of a comparison, and which statements they support."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from tests.benchmarks.cases import DECODE, Case
from tests.benchmarks.comparisons import MODELS, TRAINING, Comparison
from tests.benchmarks.contenders import Contender, bits_of
from tests.benchmarks.machine import Machine
from tests.benchmarks.models import Cost
from tests.benchmarks.timing import STEPS

EQUAL = 0.02  # largest relative difference of a loss from that of the first contender
CLOSE = 0.1  # the same of an output in fewer than 32 bits: quantized and bf16 outputs are no closer
# In 32 bits. The order of summation changes less (tests/tolerances.py: 1e-5). Rounding to bf16 changes more
# (once: 1.5e-3), and so does exchanging two of a thousand answers (3e-2).
FULL = 1e-3
Check = float | list[float]
ANOTHER_TOKEN = "another first token"


@dataclasses.dataclass
class Result:
    """Measurements of one contender on one model.

    Args:
        seconds: by case, a number per round.
        checks: by case, numbers that must be equal for all contenders.
        figures: other measurements by name, such as bytes or nodes.
        utilization: by case, as a share of the machine's rate.
        versions: of the libraries.
        note: the error message, if it failed; what is wrong with the answers, after adapters.WRONG_NOTE.
    """

    name: str
    seconds: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    checks: dict[str, Check] = dataclasses.field(default_factory=dict)
    figures: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    utilization: dict[str, float] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    note: str = ""

    def samples(self, name: str) -> list[float]:
        """Of a case or a figure; empty if it was not measured."""
        return self.seconds.get(name) or self.figures.get(name) or []

    def add(self, **figures: float) -> None:
        for name, value in figures.items():
            self.figures.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        return statistics.median(self.samples(name))

    def spread(self, name: str) -> float:
        """Half of the interquartile range, relative to the median."""
        low, middle, high = quartiles(self.samples(name))
        return (high - low) / 2 / middle if middle else 0.0


@dataclasses.dataclass
class Outcome:
    """The results of a comparison, and the contenders that could not be measured, with the reason."""

    section: str
    model: str
    cases: list[str]
    results: list[Result] = dataclasses.field(default_factory=list)
    unavailable: dict[str, str] = dataclasses.field(default_factory=dict)

    def of(self, name: str) -> Result | None:
        return next((result for result in self.results if result.name == name), None)

    def add(self, name: str) -> Result:
        """The result of a contender, a new one if it has none."""
        result = self.of(name)
        if result is None:
            result = Result(name)
            self.results.append(result)
        return result


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratios(ours: Result, peer: Result, case: str) -> list[float]:
    """Speed relative to a peer, by round; a contender that failed has fewer rounds."""
    return [b / a for a, b in zip(ours.samples(case), peer.samples(case), strict=False)]


def deviations(results: Sequence[Result], case: str) -> dict[str, str]:
    """Contenders whose output differs from that of the first one, and how."""
    checks = {result.name: result.checks[case] for result in results if case in result.checks}
    if not checks:
        return {}
    first, expected = next(iter(checks.items()))
    how = {
        name: deviation(check, expected, min(bits_of(name), bits_of(first))) for name, check in checks.items()
    }
    return {name: text for name, text in how.items() if text}


def deviation(check: Check, expected: Check, bits: float) -> str:
    """How a check differs from the expected one, if weights have so many bits; "" within the tolerance."""
    if isinstance(expected, int):
        return "" if check == expected else ANOTHER_TOKEN
    distance = _distance(check, expected)
    of_outputs = FULL if bits >= 32 else CLOSE
    if distance <= (of_outputs if isinstance(expected, list) else EQUAL):
        return ""
    return f"another result, by {distance:{'.1%' if distance < 0.01 else '.0%'}}"  # also NaN


def _distance(check: Check, expected: Check) -> float:
    """Relative to the expected values."""
    here, there = ([x] if isinstance(x, float | int) else x for x in (check, expected))
    return math.dist(here, there) / max(math.hypot(*there), 1e-9)


def add_utilization(outcome: Outcome, comparison: Comparison, cost: Cost, machine: Machine) -> None:
    """Relates operations to the rate of matrix multiplication, and decoding to that of reading memory."""
    if comparison.section not in (MODELS, TRAINING):
        return
    for contender in comparison.contenders:
        result = outcome.of(contender.name)
        for case in comparison.cases:
            if result is not None and case.name in result.seconds:
                share = _utilization(case, contender, cost, machine, result.median(case.name))
                if share is not None:
                    result.utilization[case.name] = share


def _utilization(
    case: Case, contender: Contender, cost: Cost, machine: Machine, seconds: float
) -> float | None:
    if case.kind == DECODE:
        rate = machine.rates.get("memory")
        cached = cost.cache * (case.lengths[1] + STEPS / 2)  # by the token in the middle
        read = (cost.read * contender.bits + cached * contender.cache_bits) / 8
        return read / seconds / rate.per_second if rate else None
    rate = machine.rates.get(contender.arithmetic)
    if rate is None or case.name not in cost.flops:
        return None
    return cost.flops[case.name] / seconds / rate.per_second


def add_figures(outcome: Outcome, cost: Cost) -> None:
    """Figures of the goals, relative to the size of the model."""
    weights = 4 * cost.parameters
    for result in outcome.results:
        for name, figure, scale in (
            ("export", "export a 100 M parameters", cost.parameters / 1e8),
            ("again", "again a 100 M parameters", cost.parameters / 1e8),
            ("added", "loaded, of the weights", weights),
            ("exporting", "while exporting, of the weights", weights),
            ("size", "size, of the weights", weights),
        ):
            if result.samples(name):
                result.figures[figure] = [value / scale for value in result.samples(name)]
        pairs = zip(result.samples("decode at 512"), result.samples("decode at 16"), strict=False)
        steps = [long / short for long, short in pairs]
        if steps:
            result.figures["a step at 512 against 16"] = steps

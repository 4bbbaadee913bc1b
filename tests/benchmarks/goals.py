"""The goals that the project set itself before it was built, and whether a run reached them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tests.benchmarks import comparisons
from tests.benchmarks.cases import (
    A_REQUEST,
    AN_EXPORT,
    AT_16,
    AT_768,
    BERT,
    GPT,
    MIXED,
    ONE,
    PREFILLED,
    SMALL_BERT,
    VIT,
)
from tests.benchmarks.results import Measured, Outcome, quartiles, ratios

REACHED, NOISE, MISSED, UNMEASURED = "reached", "within the noise", "missed", "not measured"
FEW = 3  # turns below which there is no spread to compare with


@dataclasses.dataclass(frozen=True)
class Judgement:
    """A row of the table."""

    what: str
    ours: str
    goal: str
    seen: str
    verdict: str


@dataclasses.dataclass(frozen=True)
class Faster:
    """How many times as fast as a peer we want to be, in one case."""

    subject: str
    case: str
    ours: str
    peer: str
    ratio: float
    section: str = comparisons.MODELS

    @property
    def names(self) -> tuple[str, ...]:
        return self.ours, self.peer

    @property
    def said(self) -> str:
        return f"{self.ratio:g}x {self.peer}"

    def judged(self, ours: Measured, peer: Measured) -> Judgement:
        pairs = ratios(ours, peer, self.case)
        goal = self.said
        what = f"{self.subject}, {self.case}"
        if not pairs:
            return Judgement(what, self.ours, goal, "", UNMEASURED)
        low, middle, high = quartiles(pairs)
        seen = f"{middle:.2f}x ({low:.2f} to {high:.2f})"
        if len(pairs) < FEW:
            return Judgement(what, self.ours, goal, seen, _too_few(pairs))
        return Judgement(what, self.ours, goal, seen, verdict(self.ratio, low, high))


@dataclasses.dataclass(frozen=True)
class AtMost:
    """What a case or a figure of ours may be, whatever the peers need.

    Args:
        factor: from what was measured to the unit.
        exact: whether it is counted, and the same each time.
    """

    subject: str
    case: str
    ours: str
    limit: float
    unit: str
    section: str
    factor: float = 1
    exact: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.ours,)

    @property
    def said(self) -> str:
        return f"at most {_number(self.limit)} {self.unit}".rstrip()

    def judged(self, ours: Measured) -> Judgement:
        samples = [value * self.factor for value in ours.samples(self.case)]
        goal, what = self.said, f"{self.subject}, {self.case}"
        low, middle, high = quartiles(samples)
        seen = f"{_number(middle)} ({_number(low)} to {_number(high)})"
        if len(samples) < FEW and not self.exact:
            return Judgement(what, self.ours, goal, seen, _too_few(samples))
        return Judgement(what, self.ours, goal, seen, verdict(-self.limit, -high, -low))


Goal = Faster | AtMost


def _too_few(samples: Sequence[float]) -> str:
    return f"{len(samples)} of {FEW} turns: not claimed"


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def verdict(goal: float, low: float, high: float) -> str:
    """Nothing is claimed that the middle half of the turns does not bear out."""
    if low >= goal:
        return REACHED
    return NOISE if high >= goal else MISSED


def judge(goal: Goal, outcomes: Sequence[Outcome]) -> Judgement | None:
    """None where nobody ran the race, or without ours or the case; who crashed or is absent has no number."""
    for outcome in outcomes:
        if (outcome.section, outcome.subject) != (goal.section, goal.subject):
            continue
        found = [outcome.of(name) for name in goal.names]
        ours = found[0]
        what = f"{goal.subject}, {goal.case}"
        if ours is None or not ours.samples(goal.case):
            if _failed(goal, ours, outcome):
                return Judgement(what, goal.ours, goal.said, "", UNMEASURED)
            continue
        if isinstance(goal, AtMost):
            return goal.judged(ours)
        peer = found[1]
        return goal.judged(ours, peer) if peer else Judgement(what, goal.ours, goal.said, "", UNMEASURED)
    return None


def _failed(goal: Goal, ours: Measured | None, outcome: Outcome) -> bool:
    """Whether the race was run with ours, which is absent or crashed before it was measured."""
    if ours is not None:
        return bool(ours.said) or goal.case in outcome.cases
    if goal.section == comparisons.CLIENTS:  # whose rows are the ways of one contender
        return bool(outcome.absent)
    return goal.ours in outcome.absent


def _exports() -> list[Goal]:
    """Of a base-size model, ours and keras-hub's through the same call."""
    found: list[Goal] = []
    for subject in (VIT, BERT, GPT):
        for ours in ("keras-tx fp32", "keras-tx of keras-hub"):
            for figure in ("export a 100 M parameters", "again a 100 M parameters"):
                found.append(AtMost(subject, figure, ours, 1, "s", comparisons.EXPORT))
        found.append(
            AtMost(subject, "while exporting, of the weights", "keras-tx fp32", 1.2, "x", comparisons.EXPORT)
        )
        found.append(
            AtMost(
                subject, "size, of the weights", "keras-tx fp32", 1.05, "x", comparisons.EXPORT, exact=True
            )
        )
    # Of the padded graph without a cache, which only ViT's is; the exporter's tests count the others.
    for ours in ("keras-tx fp32", "keras-tx of keras-hub"):
        found.append(AtMost(VIT, "nodes a block", ours, 16, "", comparisons.EXPORT, exact=True))
    found.append(AtMost(VIT, AN_EXPORT, "keras-tx fp32 verified", 5, "s", comparisons.EXPORT))
    return found


GOALS: tuple[Goal, ...] = (
    Faster(VIT, ONE, "keras-tx fp32", "optimum", 1.0),
    Faster(VIT, ONE, "keras-tx fp32", "openvino fp32", 1.0),
    Faster(VIT, ONE, "keras-tx fp32", "keras predict", 1.15),
    Faster(VIT, ONE, "keras-tx fp32", "torch eager", 2.0),
    Faster(VIT, ONE, "keras-tx int8", "openvino fp32", 2.5),
    Faster(VIT, ONE, "keras-tx int8", "openvino bf16", 1.6),
    Faster(BERT, MIXED, "keras-tx fp32", "optimum", 1.4),
    Faster(BERT, MIXED, "keras-tx fp32", "openvino fp32", 1.3),
    Faster(BERT, MIXED, "keras-tx int8", "optimum", 3.3),
    Faster(BERT, MIXED, "keras-tx int8", "openvino bf16", 1.7),
    Faster(GPT, AT_16, "keras-tx fp32", "optimum", 1.15),
    Faster(GPT, AT_16, "keras-tx fp32", "llama.cpp f32", 1.0),
    Faster(GPT, AT_16, "keras-tx int8", "llama.cpp q8_0", 1.15),
    Faster(GPT, AT_16, "keras-tx int4", "llama.cpp q4_0", 1.15),
    Faster(GPT, PREFILLED, "keras-tx int8", "llama.cpp q8_0", 3.0),
    Faster(GPT, AT_16, "keras-tx fp32", "keras-hub generate", 2.5),
    Faster(GPT, AT_16, "keras-tx fp32", "torch eager", 2.0),
    AtMost(GPT, AT_768, "keras-tx int8", 1000 / 220, "ms (220 tokens/s)", comparisons.MODELS, 1000),
    AtMost(GPT, "a step at 512 against 16", "keras-tx fp32", 2, "x", comparisons.MODELS),
    AtMost(GPT, "a step at 512 against 16", "keras-tx int8", 2, "x", comparisons.MODELS),
    AtMost(GPT, AT_16, "keras-tx fp32", 0.15, "ms of our Python", comparisons.OVERHEAD, 1000),
    AtMost(GPT, AT_16, "keras-tx int8", 0.15, "ms of our Python", comparisons.OVERHEAD, 1000),
    AtMost(VIT, "load", "keras-tx fp32", 0.3, "s", comparisons.START),
    AtMost(VIT, "loaded, of the weights", "keras-tx fp32", 1.15, "x", comparisons.START),
    AtMost(SMALL_BERT, "all", "keras-tx fp32", 1, "s", comparisons.START),
    Faster(BERT, A_REQUEST, "batched fp32", "at once fp32", 1.5, comparisons.CLIENTS),
    Faster(BERT, A_REQUEST, "batched fp32", "queue fp32", 1.5, comparisons.CLIENTS),
    *_exports(),
)

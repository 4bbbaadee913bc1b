"""Who runs against whom on what, and what of it a quick run does without."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tests.benchmarks import cases
from tests.benchmarks import contenders as field
from tests.benchmarks.cases import BERT, BERT_TRAINED, CASES, GPT, SMALL_BERT, TRAINED, VIT, Case
from tests.benchmarks.contenders import Contender

MACHINE, MODELS, OVERHEAD, START, CLIENTS, EXPORT, TRAINING = (
    "machine",
    "models",
    "overhead",
    "start",
    "clients",
    "export",
    "training",
)
SECTIONS = {
    MACHINE: "what the machine can do: matrix multiplies, reading memory",
    MODELS: "forward passes, prefill and decoding; loading and memory",
    OVERHEAD: "our own time of a token",
    START: "a process that starts, loads and answers",
    CLIENTS: "many clients of one model, one by one and in batches",
    EXPORT: "time, size and nodes of an export",
    TRAINING: "a step of training under each Keras backend",
}


@dataclasses.dataclass(frozen=True)
class Race:
    """Contenders on one subject.

    Args:
        fresh: whether each turn has a new process, which is what is measured.
        quick: the cases of a quick run.
    """

    section: str
    subject: str
    cases: tuple[Case, ...]
    contenders: tuple[Contender, ...]
    fresh: bool = False
    quick: tuple[str, ...] = ()

    def quickly(self) -> Race:
        kept = tuple(case for case in self.cases if case.name in self.quick)
        return dataclasses.replace(
            self, cases=kept, contenders=tuple(c for c in self.contenders if not c.slow)
        )


def _race(
    section: str,
    subject: str,
    contenders: Sequence[Contender],
    given: Sequence[Case],
    quick: Sequence[str] = (),
    fresh: bool = False,
) -> Race:
    able = tuple(contender for contender in contenders if subject in contender.subjects)
    return Race(section, subject, tuple(given), able, fresh, tuple(quick))


RACES = (
    *(
        _race(MACHINE, f"rate-{kind}", field.RATES, [Case(kind, cases.RATE)], [kind])
        for kind in ("fp32", "bf16", "int8", "memory")
    ),
    _race(MODELS, VIT, field.MODELS, CASES[VIT], [cases.ONE]),
    _race(MODELS, BERT, field.MODELS, CASES[BERT], [cases.MIXED]),
    _race(MODELS, GPT, field.MODELS, CASES[GPT], [cases.PREFILLED, cases.AT_16]),
    _race(
        OVERHEAD,
        GPT,
        [
            dataclasses.replace(one, module="keras_tx_overhead")
            for one in (field.OURS, field.OURS_INT8, field.OURS_INT4)
        ],
        [dataclasses.replace(CASES[GPT][1], kind=cases.OVERHEAD)],
        [cases.AT_16],
    ),
    _race(START, SMALL_BERT, field.STARTED, CASES[SMALL_BERT], [cases.FIRST_ANSWER], fresh=True),
    _race(START, VIT, field.STARTED, [dataclasses.replace(CASES[VIT][0], once=True)], fresh=True),
    _race(
        CLIENTS,
        BERT,
        field.CLIENTS,
        [Case(cases.A_REQUEST, cases.CLIENTS, once=True)],
        [cases.A_REQUEST],
    ),
    *(
        _race(
            EXPORT,
            subject,
            field.EXPORTERS,
            [Case(cases.AN_EXPORT, cases.EXPORT, once=True)],
            [cases.AN_EXPORT] * (subject == BERT),
            fresh=True,
        )
        for subject in (VIT, BERT, GPT)
    ),
    *(
        _race(TRAINING, subject, field.TRAINERS, CASES[subject], [cases.A_STEP] * (subject == BERT_TRAINED))
        for subject in TRAINED
    ),
)


def chosen(
    sections: Sequence[str], subjects: Sequence[str], contenders: Sequence[str], quick: bool
) -> tuple[list[Race], list[str]]:
    """The races that are to be run, and in words what a quick run leaves out of them."""
    races: list[Race] = []
    without: list[str] = []
    for race in RACES:
        if race.section not in sections or (race.subject not in subjects and race.section != MACHINE):
            continue
        if race.section != MACHINE:
            kept = tuple(one for one in race.contenders if not contenders or one.name in contenders)
            race = dataclasses.replace(race, contenders=kept)
        short = race.quickly() if quick else race
        if short.cases and short.contenders:
            races.append(short)
        if quick:
            without += _without(race, short)
    rates = [race for race in races if race.section == MACHINE]
    if len(races) > len(rates):  # a machine that was disturbed at first is looked at again
        races += [dataclasses.replace(race, subject=f"{race.subject}-again") for race in rates]
    return races, without


def _without(race: Race, short: Race) -> list[str]:
    where = f"{race.section} {race.subject}"
    if not short.cases or not short.contenders:
        return [where] if race.contenders else []
    left = [one.name for one in race.cases if one not in short.cases]
    left += [one.name for one in race.contenders if one not in short.contenders]
    return [f"{where}: {'; '.join(left)}"] if left else []

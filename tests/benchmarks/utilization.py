"""How near a contender comes to what the machine can do."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.cases import DECODE, Case
from tests.benchmarks.comparisons import MODELS, TRAINING, Race
from tests.benchmarks.contenders import Contender
from tests.benchmarks.machine import Machine
from tests.benchmarks.models import Facts
from tests.benchmarks.results import Outcome
from tests.benchmarks.timing import STEPS

MEMORY = "memory"


def add_shares(outcome: Outcome, race: Race, facts: Facts, machine: Machine) -> None:
    """A forward pass or step against the matrix multiply of its numbers, decoding against reading weights
    and what is kept of the tokens before."""
    if race.section not in (MODELS, TRAINING):
        return
    cases = {case.name: case for case in race.cases}
    for contender in race.contenders:
        found = outcome.of(contender.name)
        if found is None:
            continue
        for name in outcome.cases:
            if name in cases and name in found.seconds:
                share = _share(cases[name], contender, facts, machine, found.median(name))
                if share is not None:
                    found.shares[name] = share


def _share(case: Case, contender: Contender, facts: Facts, machine: Machine, seconds: float) -> float | None:
    if case.kind == DECODE:
        rate = machine.rates.get(MEMORY)
        kept = facts.cache * (case.lengths[1] + STEPS / 2)  # by the token in the middle
        read = (facts.read * contender.bits + kept * contender.cache_bits) / 8
        return read / seconds / rate.a_second if rate else None
    rate = machine.rates.get(contender.arithmetic)
    if rate is None or case.name not in facts.flops:
        return None
    return facts.flops[case.name] / seconds / rate.a_second


def add_figures(outcome: Outcome, facts: Facts) -> None:
    """What goals ask of, relative to the size of the subject."""
    weights = 4 * facts.parameters
    for found in outcome.measured:
        for name, made, scale in (
            ("export", "export a 100 M parameters", facts.parameters / 1e8),
            ("again", "again a 100 M parameters", facts.parameters / 1e8),
            ("added", "loaded, of the weights", weights),
            ("exporting", "while exporting, of the weights", weights),
            ("size", "size, of the weights", weights),
        ):
            samples = found.samples(name)
            if samples:
                found.figures[made] = [value / scale for value in samples]
        at_16, at_512 = found.samples("decode at 16"), found.samples("decode at 512")
        if at_16 and at_512:
            found.figures["a step at 512 against 16"] = _divided(at_512, at_16)


def _divided(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(one, other, strict=False)]

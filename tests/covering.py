"""Parametrizations over several arguments, of which the usual tests run a selection that has each value."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pytest


def covering(*, strength: int = 2, **values: Collection[Any]) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize` over the product of the values of each argument.

    A few tests, which together have each pair of values, are usual. The others have the mark `combinations`.

    Args:
        strength: the number of arguments whose values are combined in all ways in usual tests: 2 for each
            pair of values, 1 for each value.
        values: the values of each argument, or a dict of them by the names that they have in ids of tests.
    """
    choices = [_named(each) for each in values.values()]
    indices = list(itertools.product(*(range(len(each)) for each in choices)))
    usual = set(_selection(indices, strength))
    cases = []
    for combination in indices:
        names, arguments = zip(*(each[i] for each, i in zip(choices, combination, strict=True)), strict=True)
        marks = () if combination in usual else pytest.mark.combinations
        cases.append(pytest.param(*arguments, marks=marks, id="-".join(names)))
    return pytest.mark.parametrize(tuple(values), cases)


def _named(values: Collection[Any]) -> list[tuple[str, Any]]:
    if isinstance(values, Mapping):
        return [(str(name), value) for name, value in values.items()]
    return [(getattr(value, "__name__", None) or str(value), value) for value in values]


def _selection(combinations: list[tuple[int, ...]], strength: int) -> Iterator[tuple[int, ...]]:
    """Combinations with as many parts as possible that the ones before lack, and with the rarest values."""
    parts = {
        combination: set(itertools.combinations(enumerate(combination), strength))
        for combination in combinations
    }
    missing = set().union(*parts.values())
    uses: Counter[tuple[int, int]] = Counter()
    while missing:
        best = max(
            combinations, key=lambda one: (len(missing & parts[one]), -sum(uses[x] for x in enumerate(one)))
        )
        missing -= parts[best]
        uses.update(enumerate(best))
        yield best

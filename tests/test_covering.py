"""A covering parametrization has the whole product, and each pair of values in its usual tests."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.covering import covering

VALUES: dict[str, Any] = {
    "size": [1, 2, 3],
    "kind": ["a", "b", "c"],
    "masked": [False, True],
    "bias": {"": 0, "bias": 1},
}


def cases(strength: int) -> tuple[list[tuple], list[tuple]]:
    """The values of the usual tests, and of all tests."""
    names, params = covering(strength=strength, **VALUES).args
    assert names == tuple(VALUES)
    return [x.values for x in params if not x.marks], [x.values for x in params]


@pytest.mark.parametrize(("strength", "count"), [(1, 3), (2, 10), (4, 36)])
def test_usual_tests_have_each_combination_of_some_arguments(strength: int, count: int):
    usual, every = cases(strength)
    assert len(usual) == count
    assert len(set(every)) == len(every) == 36
    for places in itertools.combinations(range(4), strength):
        parts = [{tuple(case[place] for place in places) for case in part} for part in (usual, every)]
        assert parts[0] == parts[1]


def test_ids_are_the_names_of_the_values():
    _, params = covering(**VALUES).args
    assert params[1].id == "1-a-False-bias"


def test_values_are_used_equally_often():
    usual, _ = cases(1)
    assert {case[2] for case in usual} == {False, True}
    assert sorted(case[0] for case in usual) == [1, 2, 3]

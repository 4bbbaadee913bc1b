"""The benchmark runs its contenders in turns and says what it could not measure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx import cli
from keras_tx.bench import field, machine, report
from keras_tx.bench.cases import CASES, IMAGES, TEXTS, case_of, inputs_of, token_of
from keras_tx.bench.field import BERT, FIELD, GOALS, GPT, VIT
from keras_tx.bench.side_by_side import Absent, Measured, Worker, differing, measure, ratios
from keras_tx_onnx import export_onnx
from tests.drawing import redraw


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A subject as `subjects.prepare` makes it, but tiny."""
    place = tmp_path_factory.mktemp("bench") / BERT
    place.mkdir()
    model = redraw(keras_tx.bert("tiny", vocabulary=90, depth=1, max_length=128))
    given: dict[str, Any] = inputs_of(BERT, 90)
    np.savez(place / "inputs.npz", **given)
    model.save(place / "model.keras")
    export_onnx(model, place / "keras_tx")
    return place


def contender(name: str) -> field.Contender:
    (found,) = (one for one in FIELD if one.name == name)
    return found


def test_contenders_in_turns(place: Path):
    said: list[str] = []
    cases = [case.name for case in CASES[BERT]]
    names = ["keras-tx fp32", "keras predict", "llama.cpp f32"]
    measured, absent = measure(
        [contender(name) for name in names],
        place,
        cases,
        rounds=3,
        seconds=60,
        pythons={},
        say=said.append,
    )
    assert [found.name for found in measured] == names[:2]
    assert set(absent) == {"llama.cpp f32"} and "not installed" in absent["llama.cpp f32"]
    for found in measured:
        assert all(len(found.seconds[case]) == 3 and found.median(case) > 0 for case in cases)
    assert all(differing(measured, case) == {} for case in cases)  # both computed the same
    results = report.Results(
        machine.Machine(2, "a processor", {"fp32": 500.0}, 50.0),
        "2030-01-02",
        {BERT: measured},
        {BERT: absent},
    )
    results.save(place / "results")
    text = (place / "results" / "bench.md").read_text("utf-8")
    assert "| keras-tx fp32 |" in text and "Not measured: llama.cpp f32 (not installed" in text
    assert (
        "2030-01-02, 2 cores of a processor; matrix multiply, GFLOP/s: fp32 500; memory read 50 GB/s" in text
    )
    read = json.loads((place / "results" / "bench.json").read_text("utf-8"))
    assert read["subjects"][BERT][0]["seconds"][cases[0]] == measured[0].seconds[cases[0]]
    assert (place / "results" / f"{BERT}.png").read_bytes().startswith(b"\x89PNG")


def test_a_contender_that_fails_is_named_with_what_it_said(place: Path):
    broken = field.Contender("keras-tx fp32", "keras_tx_runtime", ("numpy",), (BERT,))
    (place.parent / "empty").mkdir()
    worker = Worker(broken, place.parent / "empty", sys.executable)
    try:
        with pytest.raises(Absent, match="FolderError: .*there is no such folder"):
            worker.tell(do="load")
    finally:
        worker.close()


def test_ratios_and_what_may_be_claimed():
    ours = Measured("ours", 0, 0, {"x": [1.0, 1.1, 0.9, 1.0]}, {"x": 1.0})
    peer = Measured("peer", 0, 0, {"x": [2.0, 2.2, 1.8, 2.0]}, {"x": 1.5})
    assert ratios(ours, peer, "x") == pytest.approx((2.0, 2.0, 2.0))
    assert differing([ours, peer], "x") == {"peer": 0.5}
    assert report.verdict(1.5, *ratios(ours, peer, "x")[::2]) == "reached"
    assert report.verdict(2.5, 1.9, 2.6) == "within the noise"
    assert report.verdict(2.5, 1.9, 2.1) == "missed"


def test_the_time_of_a_token_is_without_the_prefill():
    found = token_of(lambda count: (list(range(count)), 5.0 + 0.25 * (count - 1)))
    assert found == {"seconds": pytest.approx(0.25), "check": 0}


def test_goals_name_contenders_and_cases_that_there_are():
    names = {one.name: one for one in FIELD}
    for goal in GOALS:
        case_of(goal.subject, goal.case)
        assert goal.subject in names[goal.ours].subjects and goal.subject in names[goal.peer].subjects


def test_inputs_are_the_same_each_time():
    for subject, size in ((VIT, (3, 8, 8)), (BERT, (3, 8, 8)), (GPT, (3, 8, 8))):
        first, second = (inputs_of(subject, 100, size) for _ in range(2))
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[name], second[name]) for name in first)
        for case in CASES[subject]:
            assert all(f"{case.inputs}.{part}" in first for part in case.parts)
    (mixed, _) = CASES[BERT]
    lengths = inputs_of(BERT, 100)[f"{mixed.inputs}.mask"].sum(axis=1)
    assert mixed.kind == TEXTS and CASES[VIT][0].kind == IMAGES
    assert lengths.max() == 128 and lengths.min() >= 16 and len(set(lengths)) > 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--python", "optimun=/bin/sh"], "no contender 'optimun'. Did you mean 'optimum'"),
        (["--python", "optimum=/nowhere"], "there is no file '/nowhere', expected a Python"),
        (["--only", "keras-tx fp23"], "no such contender. Did you mean 'keras-tx fp32'"),
    ],
)
def test_wrong_options(options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["bench", str(tmp_path / "results"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "results").exists()

"""The benchmark interleaves its contenders, and reports what it cannot measure."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import keras_tx
from tests.benchmarks import contenders as field
from tests.benchmarks import runner
from tests.benchmarks.cases import A_STEP, AN_EXPORT, BERT, CASES, EXPORT, STEP, Case
from tests.benchmarks.comparisons import EXPORT as EXPORTS
from tests.benchmarks.comparisons import MODELS, START, TRAINING, Comparison
from tests.benchmarks.contenders import Contender
from tests.benchmarks.machine import threads
from tests.benchmarks.results import Outcome, deviations
from tests.benchmarks.runner import run_comparison
from tests.benchmarks.tiny_models import make_place
from tests.benchmarks.worker import Unavailable, Worker, environment

pytestmark = pytest.mark.thorough

TINY = {"vocabulary_size": 90, "depth": 1, "max_length": 128}
CRASHING = Contender("crashing", "keras.Predict", ("tests.benchmarks.crashing_module",), (BERT,))
MISSING = Contender("missing", "keras.Predict", ("no_such_module",), (BERT,))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = keras_tx.bert("tiny", **TINY)
    return make_place(tmp_path_factory.mktemp("bench") / BERT, model, CASES[BERT])


def run(comparison: Comparison, place: Path, rounds: int = 2) -> tuple[Outcome, list[str]]:
    lines: list[str] = []
    outcome = Outcome(comparison.section, comparison.model, [case.name for case in comparison.cases])
    run_comparison(comparison, outcome, place, rounds=rounds, seconds=60, pythons={}, say=lines.append)
    return outcome, lines


def named(contenders: tuple[Contender, ...], *names: str) -> tuple[Contender, ...]:
    by_name = {one.name: one for one in contenders}
    return tuple(by_name[name] for name in names)


def test_contenders_in_turns(place: Path):
    names = ("keras-tx fp32", "keras-hub predict", "keras stock export of keras-hub")
    contenders = (*named(field.INFERENCE, *names), MISSING, CRASHING)
    outcome, lines = run(Comparison(MODELS, BERT, CASES[BERT], contenders), place)
    assert [result.name for result in outcome.results] == list(names), outcome.unavailable
    assert "not installed: no_such_module" in outcome.unavailable["missing"]
    assert "crashed: exit code 3" in outcome.unavailable["crashing"]
    for result in outcome.results:
        assert {"Python", "numpy"} < set(result.versions) and result.figures["resident"][0] > 1e7
        assert all(len(result.seconds[case]) == 2 and result.median(case) > 0 for case in outcome.cases)
        assert result.figures["load"][0] > 0
    assert all(deviations(outcome.results, case) == {} for case in outcome.cases)  # all computed the same
    assert any(line.startswith("crashing: crashed") for line in lines)


def test_one_process_per_round(place: Path):
    """What starts, imports, loads and answers; and one that gives up in its second turn keeps its first."""
    case = dataclasses.replace(CASES[BERT][1], once=True)
    contenders = (*named(field.STARTUP, "keras-tx fp32"), CRASHING)
    outcome, _ = run(Comparison(START, BERT, (case,), contenders, new_process=True), place)
    (result,) = outcome.results
    whole, parts = result.samples("all"), [result.samples(name) for name in ("importing", "load", case.name)]
    assert len(whole) == 2
    assert all(one > sum(part[turn] for part in parts) for turn, one in enumerate(whole))
    assert result.median("peak") >= result.median("resident") > 0
    assert set(outcome.unavailable) == {"crashing"}


@pytest.mark.parametrize("fresh", [False, True])
def test_preparation_ends_before_any_measurement(
    fresh: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    told: list[tuple[str, list[str]]] = []

    class Told:
        def __init__(self, contender: Contender, place: Path, python: str) -> None:
            self.name, self.orders = contender.name, list[str]()
            told.append((self.name, self.orders))

        def call(self, order: str, case: Case | None = None) -> dict[str, Any]:
            self.orders.append(order)
            if order != "prepare":
                assert len(told) > 2 and all(orders == ["prepare", "close"] for _, orders in told[:2])
            return {
                "seconds": 1.0,
                "resident": 5 if order == "run" else 2,
                "peak": 9,
                "versions": {"it": "1"},
            }

        def close(self) -> None:
            self.orders.append("close")

    monkeypatch.setattr(runner, "Worker", Told)
    contenders = tuple(Contender(name, "keras.Predict", ("sys",), (BERT,)) for name in ("one", "two"))
    case = dataclasses.replace(CASES[BERT][1], once=fresh)
    outcome, _ = run(Comparison(MODELS, BERT, (case,), contenders, new_process=fresh), tmp_path)
    assert [name for name, _ in told[:2]] == ["one", "two"] and all("prepare" not in o for _, o in told[2:])
    assert all(one.samples("resident")[0] == 5 and one.versions == {"it": "1"} for one in outcome.results)
    assert len(outcome.results) == 2 and all(orders[-1] == "close" for _, orders in told)


def test_wrong_answer_in_a_later_turn_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Changing:
        """Its answers change by a factor in the third run."""

        def __init__(self, contender: Contender, place: Path, python: str) -> None:
            self.factor = {"wrong": 1.2, "right": 1 + 1e-6}[contender.name]
            self.runs = 0

        def call(self, order: str, case: Case | None = None) -> dict[str, Any]:
            self.runs += order == "run"
            check = [1.0, 2.0] if self.runs < 3 else [self.factor, 2 * self.factor]
            return {"seconds": 1.0, "resident": 2, "peak": 9, "versions": {}, "check": check}

        def close(self) -> None:
            pass

    monkeypatch.setattr(runner, "Worker", Changing)
    contenders = tuple(Contender(name, "keras.Predict", ("sys",), (BERT,)) for name in ("right", "wrong"))
    outcome, _ = run(Comparison(MODELS, BERT, CASES[BERT][:1], contenders), tmp_path, rounds=3)
    right, wrong = outcome.results
    assert right.note == "" and deviations(outcome.results, outcome.cases[0]) == {}
    assert wrong.note == f"WRONG ANSWERS: another result, by 20% in a later turn: {outcome.cases[0]}"


def test_no_gpu_and_the_same_threads():
    variables = environment()
    assert variables["CUDA_VISIBLE_DEVICES"] == "-1" and variables["JAX_PLATFORMS"] == "cpu"
    assert variables["OMP_NUM_THREADS"] == variables["TF_NUM_INTRAOP_THREADS"] == str(threads())
    assert 1 <= threads() <= (os.cpu_count() or 1)


@pytest.mark.slow
def test_exports(place: Path):
    """Ours, of keras-hub's model, and Keras's own, which onnxruntime opens here or not."""
    names = ("keras-tx fp32", "keras-tx of keras-hub", "keras stock export")
    case = Case(AN_EXPORT, EXPORT, once=True)
    comparison = Comparison(
        EXPORTS, BERT, (case,), (*named(field.EXPORTERS, *names), MISSING), new_process=True
    )
    outcome, _ = run(comparison, place, rounds=1)
    assert [result.name for result in outcome.results] == list(names), outcome.unavailable
    assert set(outcome.unavailable) == {"missing"}
    ours, of_hub, stock = outcome.results
    assert ours.median("nodes") < stock.median("nodes")
    assert 0 < of_hub.median("nodes a block") < of_hub.median("nodes")
    for result in outcome.results:
        assert result.median("size") > 1e5 and result.median("again") > 0
    assert ours.note == "" and "onnxruntime refuses the file" in stock.note and "Erfc" in stock.note
    assert not list(place.glob("export.*"))


@pytest.mark.parametrize(
    "family",
    [pytest.param("vit", marks=pytest.mark.slow), "bert", pytest.param("gpt", marks=pytest.mark.slow)],
)
def test_steps_of_training_start_with_one_loss(family: str, tmp_path: Path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    steady = {"dropout": 0.0, "attention_dropout": 0.0}
    if family == "vit":
        model = keras_tx.vit("Mu/2", image_size=8, num_classes=3, **steady)
    elif family == "bert":
        model = keras_tx.bert("tiny", head=keras_tx.ClassifierHead(2), **TINY, **steady)
    else:
        pytest.importorskip("jax")
        model = keras_tx.gpt("pico", **steady)
    case = Case(A_STEP, STEP, 4, (32, 32))
    place = make_place(tmp_path / family, model, (case,), folder=False)
    names = ["keras tensorflow float32", "torch eager"]
    if family == "gpt":
        names += ["torch bf16", "keras torch mixed_bfloat16", "keras jax float32"]
    outcome, _ = run(Comparison(TRAINING, family, (case,), named(field.TRAINERS, *names)), place, rounds=1)
    assert [result.name for result in outcome.results] == names, outcome.unavailable
    assert deviations(outcome.results, A_STEP) == {}


@pytest.mark.parametrize("contender", field.RATES, ids=lambda one: one.name)
def test_rates(contender: Contender, tmp_path: Path):
    (model,) = contender.models
    comparison = Comparison("machine", model, (Case(model, "rate"),), (contender,))
    outcome, _ = run(comparison, tmp_path, rounds=1)
    if all(importlib.util.find_spec(name) for name in contender.requires):
        assert 0 < outcome.results[0].median(model) < 10  # seconds of a billion
    else:
        assert "not installed" in outcome.unavailable[contender.name]


def test_error_of_an_adapter_is_the_reason(tmp_path: Path):
    worker = Worker(named(field.INFERENCE, "keras-tx fp32")[0], tmp_path, sys.executable)
    try:
        with pytest.raises(Unavailable, match="FolderError: "):
            worker.call("load")
    finally:
        worker.close()

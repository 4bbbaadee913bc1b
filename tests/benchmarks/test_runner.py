"""The benchmark runs its contenders in turns and says what it could not measure."""

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
from tests.benchmarks.comparisons import MODELS, START, TRAINING, Race
from tests.benchmarks.contenders import Contender
from tests.benchmarks.machine import threads
from tests.benchmarks.results import Outcome, differing
from tests.benchmarks.runner import run_race
from tests.benchmarks.subprocesses import Absent, Worker, environment
from tests.benchmarks.tiny_models import make_place

TINY = {"vocabulary_size": 90, "depth": 1, "max_length": 128}
CRASHING = Contender("crashing", "keras_predict", ("tests.benchmarks.crashing_module",), (BERT,))
MISSING = Contender("missing", "keras_predict", ("no_such_module",), (BERT,))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = keras_tx.bert("tiny", **TINY)
    return make_place(tmp_path_factory.mktemp("bench") / BERT, model, CASES[BERT])


def run(race: Race, place: Path, rounds: int = 2) -> tuple[Outcome, list[str]]:
    said: list[str] = []
    outcome = Outcome(race.section, race.subject, [case.name for case in race.cases])
    run_race(race, outcome, place, rounds=rounds, seconds=60, pythons={}, say=said.append)
    return outcome, said


def named(contenders: tuple[Contender, ...], *names: str) -> tuple[Contender, ...]:
    found = {one.name: one for one in contenders}
    return tuple(found[name] for name in names)


def test_contenders_in_turns(place: Path):
    names = ("keras-tx fp32", "keras-hub predict", "keras stock export of keras-hub")
    contenders = (*named(field.MODELS, *names), MISSING, CRASHING)
    outcome, said = run(Race(MODELS, BERT, CASES[BERT], contenders), place)
    assert [found.name for found in outcome.measured] == list(names), outcome.absent
    assert "not installed: no_such_module" in outcome.absent["missing"]
    assert "crashed: its process ended with 3" in outcome.absent["crashing"]
    for found in outcome.measured:
        assert {"Python", "numpy"} < set(found.versions) and found.figures["resident"][0] > 1e7
        assert all(len(found.seconds[case]) == 2 and found.median(case) > 0 for case in outcome.cases)
        assert found.figures["load"][0] > 0
    assert all(differing(outcome.measured, case) == {} for case in outcome.cases)  # all computed the same
    assert any(line.startswith("crashing: crashed") for line in said)


def test_a_process_a_turn(place: Path):
    """What starts, imports, loads and answers; and one that gives up in its second turn keeps its first."""
    case = dataclasses.replace(CASES[BERT][1], once=True)
    contenders = (*named(field.STARTED, "keras-tx fp32"), CRASHING)
    outcome, _ = run(Race(START, BERT, (case,), contenders, fresh=True), place)
    (found,) = outcome.measured
    whole, parts = found.samples("all"), [found.samples(name) for name in ("importing", "load", case.name)]
    assert len(whole) == 2
    assert all(one > sum(part[turn] for part in parts) for turn, one in enumerate(whole))
    assert found.median("peak") >= found.median("resident") > 0
    assert set(outcome.absent) == {"crashing"}


@pytest.mark.parametrize("fresh", [False, True])
def test_all_is_prepared_in_processes_that_end_before_any_is_measured(
    fresh: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    told: list[tuple[str, list[str]]] = []

    class Told:
        def __init__(self, contender: Contender, place: Path, python: str) -> None:
            self.name, self.orders = contender.name, list[str]()
            told.append((self.name, self.orders))

        def tell(self, do: str, case: Case | None = None) -> dict[str, Any]:
            self.orders.append(do)
            if do != "prepare":
                assert len(told) > 2 and all(orders == ["prepare", "close"] for _, orders in told[:2])
            return {"seconds": 1.0, "resident": 5 if do == "run" else 2, "peak": 9, "versions": {"it": "1"}}

        def close(self) -> None:
            self.orders.append("close")

    monkeypatch.setattr(runner, "Worker", Told)
    contenders = tuple(Contender(name, "keras_predict", ("sys",), (BERT,)) for name in ("one", "two"))
    case = dataclasses.replace(CASES[BERT][1], once=fresh)
    outcome, _ = run(Race(MODELS, BERT, (case,), contenders, fresh=fresh), tmp_path)
    assert [name for name, _ in told[:2]] == ["one", "two"] and all("prepare" not in o for _, o in told[2:])
    assert all(one.samples("resident")[0] == 5 and one.versions == {"it": "1"} for one in outcome.measured)
    assert len(outcome.measured) == 2 and all(orders[-1] == "close" for _, orders in told)


def test_no_gpu_and_the_same_threads():
    given = environment()
    assert given["CUDA_VISIBLE_DEVICES"] == "-1" and given["JAX_PLATFORMS"] == "cpu"
    assert given["OMP_NUM_THREADS"] == given["TF_NUM_INTRAOP_THREADS"] == str(threads())
    assert 1 <= threads() <= (os.cpu_count() or 1)


@pytest.mark.slow
def test_exports(place: Path):
    """Ours, of keras-hub's model, and Keras's own, which onnxruntime opens here or not."""
    names = ("keras-tx fp32", "keras-tx of keras-hub", "keras stock export")
    case = Case(AN_EXPORT, EXPORT, once=True)
    race = Race(EXPORTS, BERT, (case,), (*named(field.EXPORTERS, *names), MISSING), fresh=True)
    outcome, _ = run(race, place, rounds=1)
    assert [found.name for found in outcome.measured] == list(names) and set(outcome.absent) == {"missing"}
    ours, of_hub, stock = outcome.measured
    assert ours.median("nodes") < stock.median("nodes")
    assert 0 < of_hub.median("nodes a block") < of_hub.median("nodes")
    for found in outcome.measured:
        assert found.median("size") > 1e5 and found.median("again") > 0
    assert ours.said == "" and "onnxruntime refuses the file" in stock.said and "Erfc" in stock.said
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
    outcome, _ = run(Race(TRAINING, family, (case,), named(field.TRAINERS, *names)), place, rounds=1)
    assert [found.name for found in outcome.measured] == names, outcome.absent
    assert differing(outcome.measured, A_STEP) == {}


@pytest.mark.parametrize("contender", field.RATES, ids=lambda one: one.name)
def test_rates(contender: Contender, tmp_path: Path):
    (subject,) = contender.subjects
    race = Race("machine", subject, (Case(subject, "rate"),), (contender,))
    outcome, _ = run(race, tmp_path, rounds=1)
    if all(importlib.util.find_spec(name) for name in contender.needs):
        assert 0 < outcome.measured[0].median(subject) < 10  # seconds of a billion
    else:
        assert "not installed" in outcome.absent[contender.name]


def test_a_contender_that_fails_is_named_with_what_it_said(tmp_path: Path):
    worker = Worker(named(field.MODELS, "keras-tx fp32")[0], tmp_path, sys.executable)
    try:
        with pytest.raises(Absent, match="FolderError: "):
            worker.tell("load")
    finally:
        worker.close()

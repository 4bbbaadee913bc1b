"""The command line of the benchmark: selection, omissions and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tests.benchmarks.__main__ as benchmarks
from keras_tx.errors import ConfigError
from tests.benchmarks import comparisons, models, runner
from tests.benchmarks.cases import BEAMS, BERT, ENCODER_DECODERS, GPT, VIT
from tests.benchmarks.goals import GOALS
from tests.benchmarks.results import Outcome, Result


def fake(monkeypatch: pytest.MonkeyPatch, stop_at: str = "") -> list[comparisons.Comparison]:
    """Everything but the measuring: a turn takes 0.1 s, and Ctrl-C comes in the middle of a subject."""
    ran: list[comparisons.Comparison] = []

    def run_comparison(one: comparisons.Comparison, outcome: Outcome, place: Path, **options: Any) -> None:
        ran.append(one)
        for contender in one.contenders:
            outcome.results.append(Result(contender.name, {case.name: [0.1] for case in one.cases}))
            if one.model == stop_at:
                raise KeyboardInterrupt

    facts = models.Cost(1000, 900, {})
    monkeypatch.setattr(runner, "run_comparison", run_comparison)
    monkeypatch.setattr(models, "prepare", lambda name, place: facts)
    return ran


def test_sections_and_subjects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    ran = fake(monkeypatch)
    assert benchmarks.main([str(tmp_path), "--section", "models", "--model", BERT]) == 0
    assert [one.model for one in ran if one.section == "models"] == [BERT]
    assert {one.section for one in ran} == {"machine", "models"}  # shares need what the machine can do
    assert "### models: bert-base" in capsys.readouterr().out
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"bench.json", "bench.md"}


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    fake(monkeypatch, stop_at=BERT)
    assert benchmarks.main([str(tmp_path), "--section", "models"]) == 130
    read = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert read["stopped"]
    (vit, bert) = (one for one in read["outcomes"] if one["section"] == "models")
    assert len(vit["results"]) > 5 and len(bert["results"]) == 1
    assert "interrupted" in capsys.readouterr().out


def test_quick_run_lists_what_it_omits():
    names = [VIT, BERT, GPT, *ENCODER_DECODERS]
    quick, without = comparisons.select(tuple(comparisons.SECTIONS), names, (), True)
    full, nothing = comparisons.select(tuple(comparisons.SECTIONS), names, (), False)
    assert nothing == [] and len(quick) < len(full)
    omitted = "\n".join(without)
    assert "models vit-b16: batch 8" in omitted and "torch compiled" in omitted
    assert "keras stock export" in omitted
    quick_cases = {(one.section, one.model, case.name) for one in quick for case in one.cases}
    for goal in GOALS:  # all but the longest contexts and beams
        if goal.section == comparisons.MODELS and not any(x in goal.case for x in ("768", "512", BEAMS)):
            assert (goal.section, goal.model, goal.case) in quick_cases


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--python", "optimun=/bin/sh"], "optimun.*'optimum'"),
        (["--python", "optimum=/nowhere"], "--python.*/nowhere"),
        (["--contender", "keras-tx fp23"], "--contender 'keras-tx fp23'.*'keras-tx fp32'"),
        (["--section", "clients", "--model", "vit-b16"], "--section clients --model vit-b16"),
    ],
)
def test_wrong_options_raise(options: list[str], message: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=message):
        benchmarks.main([str(tmp_path / "results"), *options])
    assert not (tmp_path / "results").exists()


def test_folder_with_other_content_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ran = fake(monkeypatch)
    export, other, results = tmp_path / "export", tmp_path / "other", tmp_path / "results"
    for folder, name in ((export, "keras_tx.json"), (other, "model.keras"), (results, "bench.json")):
        folder.mkdir()
        (folder / name).write_text("{}")
    for folder, message in (
        (export, "export is an exported folder"),
        (other, "other is a folder with other files"),
        (other / "model.keras", "model.keras is a file"),
    ):
        with pytest.raises(ConfigError, match=message):
            benchmarks.main([str(folder), "--section", "models"])
    assert not ran and len([*export.iterdir(), *other.iterdir()]) == 2
    assert benchmarks.main([str(results), "--section", "models", "--model", BERT]) == 0


def test_model_that_cannot_be_written_raises(tmp_path: Path):
    from keras_tx.errors import KerasTxError

    (tmp_path / "model.keras").write_text("no archive")
    with pytest.raises(KerasTxError, match="bert-mini"):
        models.prepare("bert-mini", tmp_path)

"""The command line: what it runs, what it leaves out and says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tests.benchmarks.__main__ as benchmarks
from keras_tx.errors import ConfigError
from tests.benchmarks import comparisons, models, runner
from tests.benchmarks.cases import BERT, GPT, VIT
from tests.benchmarks.goals import GOALS
from tests.benchmarks.results import Measured, Outcome


def fake(monkeypatch: pytest.MonkeyPatch, stop_at: str = "") -> list[comparisons.Race]:
    """Everything but the measuring: a turn takes 0.1 s, and Ctrl-C comes in the middle of a subject."""
    ran: list[comparisons.Race] = []

    def run_race(race: comparisons.Race, outcome: Outcome, place: Path, **options: Any) -> None:
        ran.append(race)
        for contender in race.contenders:
            outcome.measured.append(Measured(contender.name, {case.name: [0.1] for case in race.cases}))
            if race.subject == stop_at:
                raise KeyboardInterrupt

    facts = models.Facts(1000, 900, {})
    monkeypatch.setattr(runner, "run_race", run_race)
    monkeypatch.setattr(models, "prepare", lambda subject, place: facts)
    return ran


def test_sections_and_subjects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    ran = fake(monkeypatch)
    assert benchmarks.main([str(tmp_path), "--section", "models", "--subject", BERT]) == 0
    assert [race.subject for race in ran if race.section == "models"] == [BERT]
    assert {race.section for race in ran} == {"machine", "models"}  # shares need what the machine can do
    assert "### models: bert-base" in capsys.readouterr().out
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"bench.json", "bench.md", "models-bert-base.png"}


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    fake(monkeypatch, stop_at=BERT)
    assert benchmarks.main([str(tmp_path), "--section", "models"]) == 130
    read = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert read["stopped"]
    (vit, bert) = (one for one in read["outcomes"] if one["section"] == "models")
    assert len(vit["measured"]) > 5 and len(bert["measured"]) == 1
    assert "It was stopped before its end." in capsys.readouterr().out


def test_a_quick_run_says_what_it_left_out():
    quick, without = comparisons.chosen(tuple(comparisons.SECTIONS), [VIT, BERT, GPT], (), True)
    full, nothing = comparisons.chosen(tuple(comparisons.SECTIONS), [VIT, BERT, GPT], (), False)
    assert nothing == [] and len(quick) < len(full)
    said = "\n".join(without)
    assert "models vit-b16: batch 8" in said and "torch compiled" in said
    assert "keras stock export" in said
    kept = {(race.section, race.subject, case.name) for race in quick for case in race.cases}
    for goal in GOALS:  # the races that goals are about are run, if not the longest contexts
        if goal.section == comparisons.MODELS and "768" not in goal.case and "512" not in goal.case:
            assert (goal.section, goal.subject, goal.case) in kept


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--python", "optimun=/bin/sh"], "optimun.*'optimum'"),
        (["--python", "optimum=/nowhere"], "--python.*/nowhere"),
        (["--only", "keras-tx fp23"], "--only 'keras-tx fp23'.*'keras-tx fp32'"),
        (["--section", "clients", "--subject", "vit-b16"], "--section clients --subject vit-b16"),
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
    assert benchmarks.main([str(results), "--section", "models", "--subject", BERT]) == 0


def test_a_subject_that_cannot_be_made_says_why(tmp_path: Path):
    from keras_tx.errors import KerasTxError

    (tmp_path / "model.keras").write_text("no archive")
    with pytest.raises(KerasTxError, match="The models of bert-mini could not be made in .*: "):
        models.prepare("bert-mini", tmp_path)

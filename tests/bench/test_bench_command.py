"""keras-tx bench: what it runs, what it leaves out and says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keras_tx import cli
from keras_tx.bench import races, side_by_side, subjects
from keras_tx.bench.cases import BERT, GPT, VIT
from keras_tx.bench.goals import GOALS
from keras_tx.bench.measured import Measured, Outcome


def fake(monkeypatch: pytest.MonkeyPatch, stop_at: str = "") -> list[races.Race]:
    """Everything but the measuring: a turn takes 0.1 s, and Ctrl-C comes in the middle of a subject."""
    ran: list[races.Race] = []

    def run_race(race: races.Race, outcome: Outcome, place: Path, **options: Any) -> None:
        ran.append(race)
        for contender in race.contenders:
            outcome.measured.append(Measured(contender.name, {case.name: [0.1] for case in race.cases}))
            if race.subject == stop_at:
                raise KeyboardInterrupt

    facts = subjects.Facts(1000, 900, {})
    monkeypatch.setattr(side_by_side, "run_race", run_race)
    monkeypatch.setattr(subjects, "prepare", lambda subject, place: facts)
    return ran


def test_sections_and_subjects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    ran = fake(monkeypatch)
    assert cli.main(["bench", str(tmp_path), "--section", "models", "--subject", BERT]) == 0
    assert [race.subject for race in ran if race.section == "models"] == [BERT]
    assert {race.section for race in ran} == {"machine", "models"}  # shares need what the machine can do
    assert "### models: bert-base" in capsys.readouterr().out
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"bench.json", "bench.md", "models-bert-base.png"}


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    fake(monkeypatch, stop_at=BERT)
    assert cli.main(["bench", str(tmp_path), "--section", "models"]) == 130
    read = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert read["stopped"]
    (vit, bert) = (one for one in read["outcomes"] if one["section"] == "models")
    assert len(vit["measured"]) > 5 and len(bert["measured"]) == 1
    assert "It was stopped before its end." in capsys.readouterr().out


def test_a_quick_run_says_what_it_left_out():
    quick, without = races.chosen(tuple(races.SECTIONS), [VIT, BERT, GPT], (), True)
    full, nothing = races.chosen(tuple(races.SECTIONS), [VIT, BERT, GPT], (), False)
    assert nothing == [] and len(quick) < len(full)
    said = "\n".join(without)
    assert "models vit-b16: batch 8" in said and "torch compiled" in said
    assert "keras stock export" in said
    kept = {(race.section, race.subject, case.name) for race in quick for case in race.cases}
    for goal in GOALS:  # the races that goals are about are run, if not the longest contexts
        if goal.section == races.MODELS and "768" not in goal.case and "512" not in goal.case:
            assert (goal.section, goal.subject, goal.case) in kept


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--python", "optimun=/bin/sh"], "no contender 'optimun'. Did you mean 'optimum'"),
        (["--python", "optimum=/nowhere"], "there is no file '/nowhere', expected a Python"),
        (["--only", "keras-tx fp23"], "no such contender. Did you mean 'keras-tx fp32'"),
        (["--section", "clients", "--subject", "vit-b16"], "--subject vit-b16: nothing is left to measure"),
    ],
)
def test_wrong_options(options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["bench", str(tmp_path / "results"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_a_folder_of_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    ran = fake(monkeypatch)
    export, other, results = tmp_path / "export", tmp_path / "other", tmp_path / "results"
    for folder, name in ((export, "keras_tx.json"), (other, "model.keras"), (results, "bench.json")):
        folder.mkdir()
        (folder / name).write_text("{}")
    for folder, message in (
        (export, "export is an exported folder, expected a new folder for results"),
        (other, "other is a folder with other files"),
        (other / "model.keras", "model.keras is a file"),
    ):
        assert cli.main(["bench", str(folder), "--section", "models"]) == 2
        assert message in capsys.readouterr().err
    assert not ran and len([*export.iterdir(), *other.iterdir()]) == 2
    assert cli.main(["bench", str(results), "--section", "models", "--subject", BERT]) == 0


def test_a_subject_that_cannot_be_made_says_why(tmp_path: Path):
    from keras_tx.errors import KerasTxError

    (tmp_path / "model.keras").write_text("no archive")
    with pytest.raises(KerasTxError, match="The models of bert-mini could not be made in .*: "):
        subjects.prepare("bert-mini", tmp_path)

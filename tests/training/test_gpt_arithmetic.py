"""examples/gpt_arithmetic.py: its problems, its labels, and the whole program at a small size."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from keras_tx.processing import characters

SCRIPT = Path(__file__).parents[2] / "examples" / "gpt_arithmetic.py"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("gpt_arithmetic", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclass looks for itself
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_answers(script):
    assert script.addition(2).solve("58+67=") == "521"
    assert script.addition(3).solve("001+009=") == "0100"
    assert script.sorting(5).solve("30210:") == "00123"


@pytest.mark.parametrize("name", ["addition", "sorting"])
def test_problems_of_the_test_are_unseen(script, name):
    task = getattr(script, name)(2)
    train, test = script.problems(task, 60, 20, seed=0)
    assert len(train) == 60 and len(test) == len(set(test)) == 20
    assert not set(train) & set(test)
    assert set("".join(train + test)) <= set(task.alphabet)


def test_labels_are_those_of_the_answer(script):
    task = script.addition(1)
    transform = characters(task.alphabet)
    inputs, labels = script.examples(task, ["8+7=", "1+2="], transform)
    assert transform.decode(inputs[0].tolist()) == "8+7=5"  # and the last digit is a label only
    assert [transform.decode(row[row != script.IGNORED].tolist()) for row in labels] == ["51", "30"]
    assert (labels[:, :3] == script.IGNORED).all()


@pytest.mark.thorough
def test_train_export_and_generate(script, tmp_path, capsys):
    sizes = ["--digits", "3", "--problems", "800", "--tests", "50", "--batch-size", "32", "--epochs", "6"]
    folder = tmp_path / "sorting"
    share = script.main(["sorting", *sizes, "--folder", str(folder), "--width", "48", "--depth", "2"])
    printed = capsys.readouterr().out
    assert f"exact match on 50 unseen problems: {share:.2%}" in printed
    assert share > 0.3  # three digits in any order: 1 of 1000 by chance

"""examples/gpt_characters.py at a small size, interrupted and started again."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parents[2] / "examples" / "gpt_characters.py"
SMALL = ["--context", "16", "--batch-size", "4", "--width", "32", "--depth", "1", "--between", "10"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpt_characters", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_train_resume_export_and_generate(script, tmp_path, monkeypatch, capsys):
    import matplotlib

    matplotlib.use("Agg")
    topics = {"one": "The cat sat on the mat. " * 20 + "\n", "two": "and the dog?\n" * 40}
    monkeypatch.setattr(script.pydoc_data.topics, "topics", topics)
    options = [*SMALL, "--folder", str(tmp_path / "run")]
    script.main([*options, "--steps", "10"])
    capsys.readouterr()
    history = script.main([*options, "--steps", "20", "--plot", str(tmp_path / "curve.png")])
    printed = capsys.readouterr().out
    assert len(history["val_loss"]) == 2 and history["val_loss"][1] < history["val_loss"][0] < 4
    assert "Epoch 2/2" in printed and "Epoch 1/" not in printed  # the first was there already
    assert "epoch 2, loss" in printed
    assert [line.split()[0] for line in printed.splitlines() if line.endswith("#")] == ["10", "20"]
    assert "parity     onnxruntime within" in printed
    assert len(printed.splitlines()[-1]) > 50 or printed.count("\n") > 20
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "run" / "poet" / "tokenizer.json").exists()

"""examples/gpu_acceptance.py on the CPU, at a small size."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parents[2] / "examples" / "gpu_acceptance.py"
SMALL = ["--variant", "Mu/2", "--image-size", "8", "--batch", "16", "--steps", "30"]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("gpu_acceptance", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for themselves
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def no_gpu(script, monkeypatch):
    monkeypatch.setattr(script, "visible_gpus", list)


@pytest.mark.usefixtures("no_gpu")
def test_every_step_on_the_cpu(script, capsys, tmp_path):
    report = tmp_path / "report.json"
    options = ["--policies", "mixed_bfloat16", "--allow-cpu", "--report", str(report)]
    assert script.main([*SMALL, *options]) == 0
    text = capsys.readouterr().out
    assert "| mixed_bfloat16 | off |" in text
    assert "| mixed_bfloat16 | on |" in text
    assert "FAILED" not in text
    content = json.loads(report.read_text())
    assert content["machine"]["gpu"] == "none"
    assert [row["xla"] for row in content["fits"]] == [False, True]
    assert content["exports"][0]["provider"] == "cpu"
    assert all(content["checks"].values())


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_says_what_to_do(script, capsys):
    assert script.main([]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gpu_acceptance: error: keras on ")
    assert error.count("\n") == 1
    for remedy in ("nvidia-smi", 'pip install "keras-tx[gpu]"', "keras-tx doctor --deep", "--allow-cpu"):
        assert remedy in error


def test_failed_checks_are_listed(script):
    fit = script.Fit("float32", True, 1.4, 1.3, 1.0, 1.0, 1.0)
    export = script.Export("float32", 1e-7, 0.5, 0.9, "cpu", {1: 1.0})
    checks = script.judge([fit], [export], "cuda")
    assert not any(checks.values())
    assert "float32, XLA on: the loss falls" in checks
    assert "float32: onnxruntime runs on cuda" in checks
    text = script.markdown([fit], [export], checks, ["NVIDIA L4"])
    assert "- gpu: NVIDIA L4" in text
    assert text.count("**FAILED**") == len(checks) == 4


def test_nan_loss_fails(script):
    assert not script.Fit("float32", True, 1.4, float("nan"), 1.0, 1.0, 1.0).learned


def test_header_has_command_hardware_minutes_and_metric(script):
    for word in ("command", "hardware", "minutes", "metric"):
        assert f"    {word}  " in script.__doc__

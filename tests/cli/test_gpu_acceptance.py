"""examples/gpu_acceptance.py on the CPU, at a small size."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "gpu_acceptance.py"


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
    options = ["--policies", "mixed_float16", "--small", "--allow-cpu", "--report", str(report)]
    assert script.main(options) == 0
    text = capsys.readouterr().out
    assert "| vit, mixed_float16, XLA off |" in text
    assert "| gpt, mixed_float16, XLA on |" in text
    assert "FAILED" not in text
    content = json.loads(report.read_text())
    assert content["machine"]["gpu"] == "none"
    assert [(row["family"], row["xla"]) for row in content["fits"]] == [
        *(("vit", False), ("vit", True), ("bert", False), ("gpt", False), ("gpt", True))
    ]
    assert all(0 < row["applied"] <= row["steps"] and row["loss_scale"] > 1 for row in content["fits"])
    assert [row["family"] for row in content["exports"]] == ["vit", "bert", "gpt"]
    assert {row["provider"] for row in content["exports"]} == {"cpu"}
    assert len(content["checks"]) == 20 and all(content["checks"].values())


def test_several_devices():
    """In another process, because TensorFlow divides a CPU into devices before it is first used."""
    program = (
        "import sys, tensorflow as tf; cpu = tf.config.list_physical_devices('CPU')[0]; "
        "tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2); "
        f"sys.argv = ['', '--allow-cpu', '--small', '--families', 'vit', '--policies', 'float32']; "
        "sys.argv += ['--devices', '2']; import runpy; "
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "| vit, float32, XLA off, 2 devices |" in done.stdout


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_says_what_to_do(script, capsys):
    assert script.main([]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gpu_acceptance: error: keras on ")
    assert error.count("\n") == 1
    for remedy in ("nvidia-smi", 'pip install "keras-tx[gpu]"', "keras-tx doctor --deep", "--allow-cpu"):
        assert remedy in error


def test_failed_checks_are_listed(script):
    fit = fitted(script, last_loss=1.3, loss_scale=1.0, applied=4)
    export = script.Export("bert", "float32", 1e-7, 0.5, 0.9, "cpu", {1: 1.0}, no_tokens=1.0)
    checks = script.judge([fit], [export], "cuda")
    assert not any(checks.values())
    assert "gpt, mixed_float16, XLA on: the loss falls" in checks
    assert "bert, float32: onnxruntime runs on cuda" in checks
    text = script.markdown([fit], [export], checks, ["NVIDIA L4"])
    assert "- gpu: NVIDIA L4" in text
    assert text.count("**FAILED**") == len(checks) == 6


def test_nan_loss_fails(script):
    assert not fitted(script, last_loss=float("nan")).learned


def fitted(script: ModuleType, **values: Any) -> Any:
    row = {"family": "gpt", "policy": "mixed_float16", "xla": True, "devices": 1, "steps": 10}
    row |= {"first_loss": 1.4, "last_loss": 0.5, "compile_seconds": 1.0, "step_ms": 1.0}
    return script.Fit(**{**row, "examples_per_second": 1.0, "memory_mb": 1.0, **values})

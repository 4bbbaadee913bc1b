"""keras-tx doctor: findings for made-up machines, and the facts of this one."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from keras_tx import environment as gathering
from keras_tx.doctor import (
    DRIVER_FOR,
    PYTHON,
    SUPPORTED,
    Facts,
    Finding,
    Framework,
    Gpu,
    OnnxRuntime,
    diagnose,
    release,
)

ROOT = Path(__file__).parents[2]
CPU = ("CPUExecutionProvider",)
CUDA = ("CUDAExecutionProvider", *CPU)
L4 = Gpu(("NVIDIA L4",), "580.65", "13.0")
OLD_L4 = Gpu(("NVIDIA L4",), "535.10", "12.2")

WORKSHOP = Facts(
    python="3.12.4",
    system="Linux x86_64",
    versions={
        "keras": "3.15.1",
        "keras-hub": "0.32.0",
        "keras-nlp": "0.32.0",
        "tensorflow": "2.21.0",
        "onnx": "1.23.2",
        "onnxruntime": "1.31.1",
        "numpy": "2.4.6",
    },
    onnxruntime=OnnxRuntime(CPU),
)
SERVER = Facts(
    "3.13.1", "Linux x86_64", {"onnxruntime": "1.31.1", "numpy": "2.4.6"}, onnxruntime=OnnxRuntime(CPU)
)


def changed(facts: Facts, *without: str, more: dict[str, str] | None = None, **fields) -> Facts:
    versions = {name: version for name, version in facts.versions.items() if name not in without}
    return dataclasses.replace(facts, versions=versions | (more or {}), **fields)


GPU_WORKSHOP = changed(
    WORKSHOP,
    "onnxruntime",
    more={"onnxruntime-gpu": "1.26.0", "nvidia-cudnn-cu12": "9.10", "nvidia-cuda-runtime-cu12": "12.9"},
    onnxruntime=OnnxRuntime(CUDA, starts_cuda=True),
    gpu=L4,
)
GPU_SERVER = changed(
    SERVER,
    "onnxruntime",
    more={"onnxruntime-gpu": "1.31.1", "nvidia-cudnn-cu13": "9.15", "nvidia-cuda-runtime": "13.0.96"},
    onnxruntime=OnnxRuntime(CUDA, starts_cuda=True),
    gpu=L4,
)


@pytest.mark.parametrize("facts", [WORKSHOP, SERVER, GPU_WORKSHOP, GPU_SERVER])
def test_sound_installations_have_no_warnings(facts):
    assert {finding.level for finding in diagnose(facts)} == {"ok"}


@pytest.mark.parametrize(
    ("facts", "level", "text", "remedy"),
    [
        (
            changed(WORKSHOP, more={"onnxruntime-gpu": "1.26.0"}),
            "problem",
            "onnxruntime and onnxruntime-gpu",
            'pip uninstall -y onnxruntime onnxruntime-gpu && pip install "keras-tx[cpu]"',
        ),
        (
            changed(SERVER, more={"onnxruntime-openvino": "1.31.1"}),
            "problem",
            "onnxruntime-openvino",
            'pip uninstall -y onnxruntime onnxruntime-openvino && pip install "keras-tx[runtime]"',
        ),
        (
            changed(GPU_SERVER, more={"onnxruntime": "1.31.1"}),
            "problem",
            "onnxruntime and onnxruntime-gpu",
            'pip uninstall -y onnxruntime onnxruntime-gpu && pip install "keras-tx[runtime-gpu]"',
        ),
        (
            changed(SERVER, "onnxruntime", onnxruntime=None),
            "problem",
            "not installed",
            'pip install "keras-tx[runtime]"',
        ),
        (
            changed(SERVER, onnxruntime=OnnxRuntime(imports=False, error="DLL load failed")),
            "problem",
            "DLL load failed",
            'pip install --force-reinstall "onnxruntime"',
        ),
        (
            changed(SERVER, more={"onnxruntime": "1.22.1"}),
            "problem",
            "1.22.1 does not support opset 23",
            'pip install "onnxruntime>=1.28,<2"',
        ),
        (
            changed(SERVER, more={"onnxruntime": "1.27.0"}),
            "warning",
            "1.27.0",
            'pip install "onnxruntime>=1.28,<2"',
        ),
        (
            changed(WORKSHOP, more={"keras": "3.11.3"}),
            "problem",
            "3.11.3 is not supported, expected >=3.15,<3.16",
            'pip install "keras>=3.15,<3.16"',
        ),
        (
            changed(WORKSHOP, more={"keras": "3.16.0"}),
            "problem",
            "3.16.0",
            'pip install "keras>=3.15,<3.16"',
        ),
        (
            changed(WORKSHOP, more={"tensorflow": "2.19.1"}),
            "warning",
            "2.19.1",
            'pip install "tensorflow>=2.20,<2.22"',
        ),
        (
            changed(SERVER, more={"matplotlib": "3.9.4"}),
            "warning",
            "3.9.4 is not supported, expected >=3.10.8,<4",
            'pip install "matplotlib>=3.10.8,<4"',
        ),
        (
            dataclasses.replace(SERVER, python="3.10.12"),
            "warning",
            "3.10.12",
            "Python >=3.11",
        ),
        (
            changed(GPU_WORKSHOP, more={"onnxruntime-gpu": "1.27.0"}),
            "problem",
            "tensorflow 2.21.0 requires CUDA 12 and onnxruntime-gpu 1.27.0 requires CUDA 13",
            'pip install "onnxruntime-gpu[cuda,cudnn]>=1.24,<1.27"',
        ),
        (
            changed(GPU_SERVER, more={"onnxruntime-gpu": "1.26.0"}),
            "problem",
            "onnxruntime-gpu 1.26.0 requires CUDA 12, but pip installed CUDA 13",
            'pip install "onnxruntime-gpu[cuda,cudnn]>=1.28,<2"',
        ),
        (
            changed(GPU_SERVER, more={"torch": "2.13.0+cu126"}),
            "warning",
            "torch 2.13.0+cu126 includes CUDA 12",
            "torch for CUDA 13",
        ),
        (
            dataclasses.replace(GPU_SERVER, gpu=OLD_L4),
            "problem",
            "535.10 supports CUDA up to 12.2",
            "driver 580",
        ),
        (
            dataclasses.replace(GPU_SERVER, onnxruntime=OnnxRuntime(CPU, False, "libcudnn.so.9 not found")),
            "problem",
            "libcudnn.so.9 not found",
            'pip install "onnxruntime-gpu[cuda,cudnn]>=1.28,<2"',
        ),
        (
            dataclasses.replace(GPU_WORKSHOP, onnxruntime=OnnxRuntime(CPU, False, "no message")),
            "problem",
            "no message",
            'pip install "onnxruntime-gpu[cuda,cudnn]>=1.24,<1.27"',
        ),
        (
            dataclasses.replace(GPU_SERVER, gpu=None, onnxruntime=OnnxRuntime(CPU, False, "no driver")),
            "warning",
            "nvidia-smi shows no GPU",
            'pip uninstall -y onnxruntime-gpu && pip install "keras-tx[runtime]"',
        ),
        (
            changed(
                GPU_SERVER,
                "nvidia-cudnn-cu13",
                "nvidia-cuda-runtime",
                gpu=None,
                onnxruntime=OnnxRuntime(CUDA, False, "Failed to load libcublasLt.so.13"),
            ),
            "warning",
            "Failed to load libcublasLt.so.13",
            'pip install "onnxruntime-gpu[cuda,cudnn]>=1.28,<2"',
        ),
        (
            dataclasses.replace(SERVER, gpu=L4),
            "warning",
            "built without CUDA",
            'pip uninstall -y onnxruntime && pip install "keras-tx[runtime-gpu]"',
        ),
        (
            changed(GPU_WORKSHOP, "nvidia-cudnn-cu12", "nvidia-cuda-runtime-cu12"),
            "warning",
            "TensorFlow's CUDA 12 libraries",
            'pip install "keras-tx[gpu]"',
        ),
        (
            dataclasses.replace(WORKSHOP, backend="jax"),
            "problem",
            "Keras selects jax",
            'pip install "keras-tx[jax]"',
        ),
        (
            changed(WORKSHOP, more={"keras-hub": "0.31.0"}),
            "warning",
            "keras-hub 0.31.0 and keras-nlp 0.32.0 differ",
            'pip install "keras-hub==0.32.0"',
        ),
        (
            dataclasses.replace(SERVER, disable_telemetry="0"),
            "warning",
            "ORT_DISABLE_TELEMETRY is '0'",
            "set it to 1",
        ),
        (
            dataclasses.replace(GPU_WORKSHOP, frameworks={"tensorflow": Framework()}),
            "problem",
            "lists no GPU",
            'pip install "keras-tx[gpu]"',
        ),
        (
            dataclasses.replace(GPU_WORKSHOP, frameworks={"torch": Framework()}),
            "warning",
            "lists no GPU",
            "torch with CUDA",
        ),
        (
            dataclasses.replace(WORKSHOP, frameworks={"tensorflow": Framework(error="Illegal instruction")}),
            "problem",
            "Illegal instruction",
            "pip install --force-reinstall tensorflow",
        ),
    ],
)
def test_conflicts_have_a_remedy(facts, level, text, remedy):
    wrong = [finding for finding in diagnose(facts) if finding.level != "ok"]
    matching = [finding for finding in wrong if text in finding.text]
    assert len(matching) == 1, wrong
    assert matching[0].level == level
    assert remedy in matching[0].remedy
    assert all(finding.remedy for finding in wrong)


def test_findings_of_a_sound_server():
    texts = {finding.subject: finding.text for finding in diagnose(SERVER)}
    assert set(texts) == {"keras", "GPU", "onnxruntime", "telemetry", "matplotlib"}
    assert texts["onnxruntime"] == "1.31.1, CPUExecutionProvider"
    before = changed(SERVER, more={"onnxruntime": "1.28.0"}, disable_telemetry="0")
    assert "telemetry" not in {finding.subject for finding in diagnose(before)}
    asked = dataclasses.replace(WORKSHOP, frameworks={"tensorflow": Framework(), "torch": Framework(("L4",))})
    texts = {finding.subject: finding.text for finding in diagnose(asked)}
    assert texts["torch"] == "lists L4" and "no GPU" in texts["tensorflow"]


def test_matplotlib_is_named_where_it_is_missing():
    (finding,) = (finding for finding in diagnose(WORKSHOP) if finding.subject == "matplotlib")
    assert finding.level == "ok"
    assert 'pip install "keras-tx[inspect]"' in finding.text
    installed = changed(WORKSHOP, more={"matplotlib": "3.10.8"})
    assert "matplotlib" not in {finding.subject for finding in diagnose(installed)}


def test_problems_come_first():
    facts = changed(WORKSHOP, more={"keras": "3.11", "numpy": "1.26"})
    assert [finding.level for finding in diagnose(facts)][:3] == ["problem", "warning", "ok"]


def test_ranges_equal_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for extra in project["optional-dependencies"].values() for line in extra]
    ranges: dict[str, set[str]] = {}
    for line in [*lines, *project["dependencies"]]:
        name, span = re.match(r"([a-z0-9-]+)(?:\[.*?\])?([^;]*)", line).groups()
        ranges.setdefault(name, set()).add(span.strip())
    assert ranges.pop("onnxruntime-gpu") == {">=1.24,<1.27", ">=1.28,<2"}  # the doctor knows where they meet
    judged = {name: {f">={low},<{below}"} for name, (low, below) in SUPPORTED.items()}
    assert judged.pop("onnxruntime-gpu") == {">=1.24,<2"}
    assert judged == {name: ranges[name] for name in judged}
    assert project["requires-python"] == f">={PYTHON[0]},<{PYTHON[1]}"
    assert set(DRIVER_FOR) == {12, 13}


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("2.13.0+cpu", (2, 13, 0)), ("1.24.0rc1", (1, 24, 0)), ("3", (3,)), ("odd", (0,))],
)
def test_versions_are_compared_by_their_numbers(version, numbers):
    assert release(version) == numbers


def test_cuda_majors():
    assert GPU_WORKSHOP.cuda_majors == {12}
    assert GPU_SERVER.cuda_majors == {13}
    assert WORKSHOP.cuda_majors == frozenset()


def test_this_machine_is_read():
    facts = gathering.gather()
    assert facts.versions["numpy"] == np.__version__
    assert facts.versions["matplotlib"] == metadata.version("matplotlib")
    assert facts.onnxruntime is not None
    assert facts.onnxruntime.imports
    assert facts.onnxruntime.providers == tuple(onnxruntime.get_available_providers())
    assert facts.frameworks is None
    assert facts.disable_telemetry == os.environ["ORT_DISABLE_TELEMETRY"]


def test_graph_of_the_cuda_check_is_valid():
    onnx.checker.check_model(gathering.IDENTITY, full_check=True)
    session = onnxruntime.InferenceSession(gathering.IDENTITY, providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones(1, "float32")}) == [np.ones(1, "float32")]


@pytest.mark.parametrize("source", ["environment", "file", "damaged", "none"])
def test_backend_is_the_one_that_keras_selects(monkeypatch, tmp_path, source):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    if source == "environment":
        monkeypatch.setenv("KERAS_BACKEND", "jax")
    if source == "file":
        (tmp_path / "keras.json").write_text(json.dumps({"backend": "torch"}))
    if source == "damaged":
        (tmp_path / "keras.json").write_text("[")
    assert gathering.keras_backend() == {"environment": "jax", "file": "torch"}.get(source, "tensorflow")


def test_nvidia_smi_is_read():
    table = "| NVIDIA-SMI 580.65.06    Driver Version: 580.65.06    CUDA Version: 13.0     |"
    gpu = gathering.read_nvidia_smi(table, "NVIDIA L4, 580.65.06\nNVIDIA L4, 580.65.06\n")
    assert gpu == Gpu(("NVIDIA L4", "NVIDIA L4"), "580.65.06", "13.0")
    assert gathering.read_nvidia_smi("", "No devices were found") is None
    assert gathering.read_nvidia_smi("", "") is None


def test_crashed_process_is_reported(monkeypatch):
    assert gathering._report("import os; os.abort()")[0] is None
    answer, error = gathering._report("import sys; sys.exit('libfoo.so is missing')")
    assert (answer, error) == (None, "libfoo.so is missing")

    def slow(*_, **__):
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(subprocess, "run", slow)
    assert gathering._report("1", seconds=1) == (None, "no output within 1 seconds")


def test_frameworks_are_queried_in_separate_processes(monkeypatch):
    monkeypatch.setattr(gathering, "_FRAMEWORKS", {"numpy": "print('[\"a GPU\"]')"})
    assert gathering.gather(deep=True).frameworks == {"numpy": Framework(("a GPU",))}


def test_report_of_a_machine_with_a_gpu(tx, monkeypatch):
    monkeypatch.setattr(gathering, "gather", lambda deep: GPU_WORKSHOP)
    ran = tx("doctor")
    assert (ran.code, ran.err) == (0, "")
    assert "3.12.4, Linux x86_64" in ran.out
    assert "nvidia-cuda-runtime-cu12 12.9, nvidia-cudnn-cu12 9.10" in ran.out
    assert "ok  GPU: NVIDIA L4; driver 580.65, CUDA up to 13.0" in ran.out


def test_problem_has_exit_code_1(tx, monkeypatch):
    monkeypatch.setattr(gathering, "gather", lambda deep: changed(SERVER, "onnxruntime", onnxruntime=None))
    ran = tx("doctor")
    assert ran.code == 1
    assert "PROBLEM  onnxruntime: not installed" in ran.out
    assert '-> pip install "keras-tx[runtime]"' in ran.out
    report = tx("doctor", "--json")
    assert report.code == 1
    content = json.loads(report.out)
    assert content["facts"]["versions"]["numpy"] == "2.4.6"
    assert Finding(**content["findings"][0]).level == "problem"


def test_warning_has_exit_code_0(tx, monkeypatch):
    monkeypatch.setattr(gathering, "gather", lambda deep: dataclasses.replace(SERVER, python="3.10.1"))
    ran = tx("doctor", "--deep")
    assert ran.code == 0
    assert "warning  Python: 3.10.1" in ran.out


def test_nothing_heavy_is_imported():
    code = (
        "import sys\n"
        "from keras_tx.cli import main\n"
        "main(['doctor'])\n"
        "print({'keras', 'tensorflow', 'torch', 'jax', 'onnxruntime', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("\nset()\n"), done.stdout + done.stderr


def test_attention_without_keys_is_noted_below_1_28():
    texts = [finding.text for finding in diagnose(GPU_WORKSHOP) if finding.level == "ok"]
    assert any("1.26.0" in text and "without any key is not zero" in text for text in texts)
    texts = [finding.text for finding in diagnose(WORKSHOP)]
    assert not any("without any key" in text for text in texts)

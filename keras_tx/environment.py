"""Gathers the facts for `keras_tx.doctor`: package metadata, nvidia-smi, and the libraries' own reports."""

from __future__ import annotations

import base64
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import keras_tx
from keras_tx.doctor import Facts, Framework, Gpu, OnnxRuntime

SHOWN = (
    "keras tensorflow tensorflow-cpu jax jaxlib torch keras-hub keras-nlp onnx onnx-ir tf2onnx "
    "onnxruntime onnxruntime-gpu numpy pillow tokenizers scikit-learn matplotlib"
).split()

# The graph `y = Identity(x)`, 1 float, opset 17: enough to see whether CUDA starts. Tests read it with onnx.
IDENTITY = base64.b64decode(
    "CAg6NwoQCgF4EgF5IghJZGVudGl0eRIBZ1oPCgF4EgoKCAgBEgQKAggBYg8KAXkSCgoICAESBAoCCAFCBAoAEBE="
)

# Each prints one line of JSON. They run in a process of their own, which a broken library may crash.
_ONNXRUNTIME = """
import base64, contextlib, io, json, onnxruntime
output, starts = io.StringIO(), None
available = onnxruntime.get_available_providers()
if "CUDAExecutionProvider" in available or getattr(onnxruntime, "cuda_version", ""):
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            onnxruntime.preload_dlls()
            session = onnxruntime.InferenceSession(
                base64.b64decode({graph!r}), providers=["CUDAExecutionProvider", "CPUExecutionProvider"]
            )
            starts = "CUDAExecutionProvider" in session.get_providers()
        except Exception as error:
            starts = False
            print(error)
print(json.dumps(dict(providers=available, starts_cuda=starts, output=output.getvalue())))
"""
_FRAMEWORKS = {
    "tensorflow": """
import json, tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
print(json.dumps([tf.config.experimental.get_device_details(g).get("device_name", g.name) for g in gpus]))
""",
    "jax": """
import json, jax
print(json.dumps([d.device_kind for d in jax.devices() if d.platform in ("gpu", "cuda", "rocm")]))
""",
    "torch": """
import json, torch
print(json.dumps([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]))
""",
}


def gather(deep: bool = False) -> Facts:
    """Gathers the facts. With `deep`, the installed frameworks are started and list their devices."""
    versions = installed()
    frameworks = {name: _framework(name) for name in _FRAMEWORKS if name in versions} if deep else None
    has_onnxruntime = any(name in versions for name in _wheels())
    return Facts(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        versions=versions,
        backend=keras_backend(),
        onnxruntime=_onnxruntime() if has_onnxruntime else None,
        gpu=_gpu(),
        frameworks=frameworks,
        disable_telemetry=os.environ.get("ORT_DISABLE_TELEMETRY", ""),
    )


def _wheels() -> set[str]:
    from keras_tx.runtime.providers import WHEELS

    return WHEELS


def installed() -> dict[str, str]:
    """Versions by distribution, from the metadata: nothing is imported."""
    versions, known = {"keras-tx": keras_tx.__version__}, {*SHOWN, *_wheels()}
    for distribution in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if name in known or name.startswith("nvidia-"):
            versions.setdefault(name, distribution.version)  # the first on the path is imported
    return versions


def keras_backend() -> str:
    """The backend that Keras selects, without importing it: as keras/src/backend/config.py does."""
    if named := os.environ.get("KERAS_BACKEND"):
        return named
    home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    try:
        return str(json.loads((home / "keras.json").read_text(encoding="utf-8")).get("backend", "tensorflow"))
    except (OSError, ValueError, AttributeError):
        return "tensorflow"


def _onnxruntime() -> OnnxRuntime:
    answer, error = _report(_ONNXRUNTIME.format(graph=base64.b64encode(IDENTITY).decode()))
    if answer is None:
        return OnnxRuntime(imports=False, error=error)
    error = " ".join(answer["output"].split()) or "no message"
    return OnnxRuntime(
        tuple(answer["providers"]),
        answer["starts_cuda"],
        error[:400] if answer["starts_cuda"] is False else "",
    )


def _framework(name: str) -> Framework:
    answer, error = _report(_FRAMEWORKS[name])
    return Framework(error=error) if answer is None else Framework(tuple(answer))


def _report(code: str, seconds: int = 120) -> tuple[Any, str]:
    """Runs code in a process: the JSON of its last printed line, or None, and the last line of its errors."""
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None, f"no output within {seconds} seconds"
    error = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    try:
        return json.loads(done.stdout.strip().splitlines()[-1]), error
    except (ValueError, IndexError):
        return None, error


def _gpu() -> Gpu | None:
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        done = subprocess.run([command], capture_output=True, text=True, timeout=30)
        names = subprocess.run(
            [command, "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return read_nvidia_smi(done.stdout, names.stdout) if done.returncode == names.returncode == 0 else None


def read_nvidia_smi(table: str, query: str) -> Gpu | None:
    """Parses the output of nvidia-smi: only the table has the newest CUDA that the driver supports."""
    rows = [[cell.strip() for cell in line.split(",")] for line in query.strip().splitlines()]
    if not rows or any(len(row) != 2 for row in rows):
        return None
    cuda = re.search(r"CUDA Version:\s*([\d.]+)", table)
    return Gpu(tuple(name for name, _ in rows), rows[0][1], cuda[1] if cuda else "")

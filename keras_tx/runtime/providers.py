"""Selection of onnxruntime's execution providers, without silent fallbacks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from keras_tx.errors import ProviderError, nearest

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

# Other providers: onnxruntime's name and how to install it. The tests run none of them.
OTHERS = {
    "tensorrt": (TENSORRT, 'Linux with an NVIDIA GPU: pip install "keras-tx[runtime-gpu]", and TensorRT 10'),
    "openvino": ("OpenVINOExecutionProvider", "Intel: pip install onnxruntime-openvino, without onnxruntime"),
    "coreml": ("CoreMLExecutionProvider", "macOS, where onnxruntime itself has it"),
    "directml": ("DmlExecutionProvider", "Windows: pip install onnxruntime-directml, without onnxruntime"),
}
DEVICES = {"cuda": "cuda", "tensorrt": "cuda", "directml": "dml"}  # other providers use the CPU's memory
# Distributions that share the import package onnxruntime.
WHEELS = {
    "onnxruntime",
    *(f"onnxruntime-{kind}" for kind in ("gpu", "openvino", "directml", "qnn", "rocm", "training")),
}
NAMES = ("auto", "cpu", "cuda", *OTHERS)
_NAME_OF = {CPU: "cpu", CUDA: "cuda", **{full_name: name for name, (full_name, _) in OTHERS.items()}}


def check_name(provider: str) -> None:
    if provider not in NAMES:
        raise ProviderError(f"provider is {provider!r}, which is unknown. {nearest(str(provider), NAMES)}")


def name_of(full_name: str) -> str:
    """The short name of one of onnxruntime's providers, if it has one."""
    return _NAME_OF.get(full_name, full_name)


def on_gpu(provider: str) -> bool:
    """Whether a provider has its own device, on which half precision is fast."""
    return provider in DEVICES


def choose(
    provider: str,
    available: Sequence[str],
    *,
    gpu_wheel: bool,
    reason: str = "",
    wheels: Sequence[str] = (),
) -> list[str]:
    """The providers to request from onnxruntime, best first.

    >>> choose("auto", [CPU], gpu_wheel=False)
    ['CPUExecutionProvider']

    Args:
        provider: name of a provider, or "auto".
        available: the providers that onnxruntime reports.
        gpu_wheel: whether it was built with CUDA; newer wheels do not report a CUDA that they cannot load.
        reason: the error of loading the CUDA libraries.
        wheels: the installed distributions of onnxruntime; two overwrite each other's files.

    Raises:
        ProviderError: if the provider is not available.
    """
    check_name(provider)
    if provider == "cpu":
        return [CPU]
    if len(wheels) > 1:
        _two_wheels(provider, wheels)
    if provider in OTHERS:
        full_name, source = OTHERS[provider]
        if full_name not in available:
            raise ProviderError(
                f"provider is {provider!r}, but this onnxruntime has only "
                f"{', '.join(name_of(one) for one in available)}. Install {source}; or pass "
                'provider="cpu".'
            )
        # CUDA runs the nodes that TensorRT does not support.
        return [full_name, *([CUDA] if full_name == TENSORRT and CUDA in available else []), CPU]
    if CUDA in available:
        return [CUDA, CPU]
    if gpu_wheel:
        settle(provider, [CPU], reason)
    elif provider == "cuda":
        raise ProviderError(
            "provider is 'cuda', but this onnxruntime was built without CUDA. On a Linux machine with an "
            'NVIDIA GPU: pip uninstall onnxruntime && pip install "keras-tx[runtime-gpu]". '
            'Or pass provider="cpu".'
        )
    return [CPU]


def _two_wheels(provider: str, wheels: Sequence[str]) -> None:
    problem = f"{' and '.join(wheels)} are both installed and overwrite each other's files."
    remedy = (
        f"Run pip uninstall -y {' '.join(wheels)}, and then pip install "
        '"keras-tx[runtime-gpu]" for CUDA or "keras-tx[runtime]" for the CPU'
    )
    if provider != "auto":
        raise ProviderError(f'provider is {provider!r}. {problem} {remedy}; or pass provider="cpu".')
    warnings.warn(f'{problem} {remedy}; provider="cpu" silences this.', RuntimeWarning, stacklevel=2)


def settle(provider: str, running: Sequence[str], reason: str = "") -> str:
    """The short name of the provider that runs; raises or warns if it is not the requested one."""
    detail = f" ({reason})" if reason else ""
    if provider in OTHERS:
        full_name, source = OTHERS[provider]
        if full_name not in running:
            raise ProviderError(
                f"provider is {provider!r}, which onnxruntime could not start{detail}. It needs "
                f'{source}; or pass provider="cpu".'
            )
        return provider
    if CUDA in running:
        return "cuda"
    problem = (
        f"onnxruntime could not start CUDA{detail}: the GPU, its driver, the CUDA libraries or cuDNN are "
        "missing or have another version."
    )
    remedy = 'Run nvidia-smi and keras-tx doctor, and pip install "keras-tx[runtime-gpu]" for the libraries'
    if provider == "cuda":
        raise ProviderError(f"provider is 'cuda'. {problem} {remedy}; or pass provider=\"cpu\".")
    warnings.warn(
        f'Running on the CPU. {problem} {remedy}; provider="cpu" silences this.', RuntimeWarning, stacklevel=2
    )
    return "cpu"


def cores() -> int:
    """The cores that this process may use; two hardware threads of one core count once."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = set()
    for number in allowed:
        try:
            path = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
            siblings.add(path.read_text("ascii").strip())
        except OSError:
            siblings.add(str(number))
    return len(siblings)

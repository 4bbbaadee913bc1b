"""Which onnxruntime providers to ask for, and which one it came to. Nothing falls back in silence."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from keras_tx.errors import ProviderError, nearest

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
NAMES = ("auto", "cpu", "cuda")


def check_name(provider: str) -> None:
    if provider not in NAMES:
        raise ProviderError(
            f"provider is {provider!r}, expected one of {', '.join(map(repr, NAMES))}. "
            + nearest(str(provider), NAMES)
        )


def choose(provider: str, available: Sequence[str], *, gpu_wheel: bool, reason: str = "") -> list[str]:
    """The providers to ask onnxruntime for, best first.

    >>> choose("auto", [CPU], gpu_wheel=False)
    ['CPUExecutionProvider']

    Args:
        available: what onnxruntime says it has.
        gpu_wheel: whether it was built with CUDA; newer wheels hide a CUDA that they could not load.
        reason: what loading the CUDA libraries said, for the message.
    """
    check_name(provider)
    if provider == "cpu":
        return [CPU]
    if CUDA in available:
        return [CUDA, CPU]
    if gpu_wheel:
        settle(provider, [CPU], reason)
    elif provider == "cuda":
        raise ProviderError(
            "provider is 'cuda', but this onnxruntime was built without CUDA. On a Linux machine with an "
            'NVIDIA GPU: pip uninstall onnxruntime && pip install "keras-tx[runtime-gpu]". '
            'Otherwise provider="cpu".'
        )
    return [CPU]


def settle(provider: str, running: Sequence[str], reason: str = "") -> str:
    """ "cuda" or "cpu", by what the session really has; to be called where CUDA was asked for."""
    if CUDA in running:
        return "cuda"
    problem = (
        "onnxruntime was built with CUDA, but could not start it"
        + (f" ({reason})" if reason else "")
        + ": the CUDA libraries, cuDNN or the driver are missing, or of another version, or there is no GPU."
    )
    remedy = 'See nvidia-smi and keras-tx doctor, and pip install "keras-tx[runtime-gpu]" for the libraries'
    if provider == "cuda":
        raise ProviderError(f"provider is 'cuda'. {problem} {remedy}; or provider=\"cpu\".")
    warnings.warn(
        f'Running on the CPU. {problem} {remedy}; provider="cpu" silences this.', RuntimeWarning, stacklevel=2
    )
    return "cpu"

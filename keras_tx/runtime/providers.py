"""Which onnxruntime providers to ask for, and which one it came to. Nothing falls back in silence."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from keras_tx.errors import ProviderError, nearest

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

# Beside cpu and cuda: onnxruntime's name, and what brings it. None of these was run by our own tests.
OTHERS = {
    "tensorrt": (TENSORRT, 'Linux with an NVIDIA GPU: pip install "keras-tx[runtime-gpu]", and TensorRT 10'),
    "openvino": ("OpenVINOExecutionProvider", "Intel: pip install onnxruntime-openvino, without onnxruntime"),
    "coreml": ("CoreMLExecutionProvider", "macOS, where onnxruntime itself has it"),
    "directml": ("DmlExecutionProvider", "Windows: pip install onnxruntime-directml, without onnxruntime"),
}
DEVICES = {"cuda": "cuda", "tensorrt": "cuda", "directml": "dml"}  # the others compute in the CPU's memory
# Of the distributions named onnxruntime..., those that are one and the same import package.
WHEELS = {
    "onnxruntime",
    *(f"onnxruntime-{kind}" for kind in ("gpu", "openvino", "directml", "qnn", "rocm", "training")),
}
NAMES = ("auto", "cpu", "cuda", *OTHERS)
_NAME_OF = {CPU: "cpu", CUDA: "cuda", **{theirs: name for name, (theirs, _) in OTHERS.items()}}


def check_name(provider: str) -> None:
    if provider not in NAMES:
        raise ProviderError(
            f"provider is {provider!r}, expected one of {', '.join(map(repr, NAMES))}. "
            + nearest(str(provider), NAMES)
        )


def name_of(theirs: str) -> str:
    """Our name for one of onnxruntime's, or its own where we have none."""
    return _NAME_OF.get(theirs, theirs)


def on_gpu(provider: str) -> bool:
    """Whether it computes on a device of its own, where half precision is what is fast."""
    return provider in DEVICES


def choose(
    provider: str,
    available: Sequence[str],
    *,
    gpu_wheel: bool,
    reason: str = "",
    wheels: Sequence[str] = (),
) -> list[str]:
    """The providers to ask onnxruntime for, best first.

    >>> choose("auto", [CPU], gpu_wheel=False)
    ['CPUExecutionProvider']

    Args:
        available: what onnxruntime says it has.
        gpu_wheel: whether it was built with CUDA; newer wheels hide a CUDA that they could not load.
        reason: what loading the CUDA libraries said, for the message.
        wheels: the distributions of onnxruntime that are installed: two overwrite each other's files.
    """
    check_name(provider)
    if provider == "cpu":
        return [CPU]
    if len(wheels) > 1:
        _two_wheels(provider, wheels)
    if provider in OTHERS:
        theirs, source = OTHERS[provider]
        if theirs not in available:
            raise ProviderError(
                f"provider is {provider!r}, but this onnxruntime has only "
                f"{', '.join(name_of(one) for one in available)}. It comes with {source}. "
                'Otherwise provider="cpu".'
            )
        # What TensorRT cannot do, CUDA does.
        return [theirs, *([CUDA] if theirs == TENSORRT and CUDA in available else []), CPU]
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


def _two_wheels(provider: str, wheels: Sequence[str]) -> None:
    problem = (
        f"{' and '.join(wheels)} are installed together: they overwrite each other's files, and chance "
        "decides which providers are there."
    )
    remedy = (
        f"pip uninstall -y {' '.join(wheels)}, and then install one: "
        'pip install "keras-tx[runtime-gpu]" for CUDA, "keras-tx[runtime]" for the CPU'
    )
    if provider != "auto":
        raise ProviderError(f'provider is {provider!r}. {problem} {remedy}; or provider="cpu".')
    warnings.warn(f'{problem} {remedy}; provider="cpu" silences this.', RuntimeWarning, stacklevel=2)


def settle(provider: str, running: Sequence[str], reason: str = "") -> str:
    """Our name for what the session really has; to be called where more than the CPU was asked for."""
    said = f" ({reason})" if reason else ""
    if provider in OTHERS:
        theirs, source = OTHERS[provider]
        if theirs not in running:
            raise ProviderError(
                f"provider is {provider!r}. onnxruntime has it, but could not start it{said}. It needs "
                f'{source}; or provider="cpu".'
            )
        return provider
    if CUDA in running:
        return "cuda"
    problem = (
        f"onnxruntime was built with CUDA, but could not start it{said}: the CUDA libraries, cuDNN or the "
        "driver are missing, or of another version, or there is no GPU."
    )
    remedy = 'See nvidia-smi and keras-tx doctor, and pip install "keras-tx[runtime-gpu]" for the libraries'
    if provider == "cuda":
        raise ProviderError(f"provider is 'cuda'. {problem} {remedy}; or provider=\"cpu\".")
    warnings.warn(
        f'Running on the CPU. {problem} {remedy}; provider="cpu" silences this.', RuntimeWarning, stacklevel=2
    )
    return "cpu"

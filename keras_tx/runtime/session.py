"""One ONNX graph in onnxruntime: its provider, its threads, and a check of what is fed to it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from keras_tx.contract import TensorSpec
from keras_tx.errors import FolderError, InputError, KerasTxError, ProviderError, whole_number
from keras_tx.runtime import providers

_DTYPES = {"float": "float32", "double": "float64"}  # onnxruntime's other names are NumPy's
_UNNAMED = "?"


class Session:
    """A graph that is ready to run.

    >>> with Session("flowers/onnx/model.onnx", provider="cpu") as session:  # doctest: +SKIP
    ...     logits = session.run({"pixel_values": pixels})["logits"]

    Args:
        graph: the .onnx file. Nothing is checked about it here; `open_folder` does.
        provider: "cuda", "cpu", or "auto": CUDA where it works, else the CPU, with a warning
            where an onnxruntime built for CUDA cannot use it. `.provider` says what it came to.
        threads: for one operation on the CPU; None leaves it to onnxruntime, which takes the cores.
    """

    def __init__(
        self, graph: str | os.PathLike[str], provider: str = "auto", threads: int | None = None
    ) -> None:
        providers.check_name(provider)
        self.graph = Path(graph)
        self.provider, self._session = _start(
            self.graph, provider, None if threads is None else whole_number("threads", threads)
        )
        self.inputs = tuple(_spec(node) for node in self._session.get_inputs())
        self.outputs = tuple(_spec(node) for node in self._session.get_outputs())
        self.optional = tuple(_spec(node) for node in self._session.get_overridable_initializers())

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs by name. What the graph does not take is refused here, by name."""
        session = self._open()
        self._check(inputs)
        values = session.run(None, dict(inputs))
        return {spec.name: value for spec, value in zip(self.outputs, values, strict=True)}

    def advance(
        self, inputs: Mapping[str, Any], kept: Sequence[str], wanted: str
    ) -> tuple[list[Any], np.ndarray]:
        """One step of a loop: outputs that the next step takes stay where they were computed.

        Args:
            inputs: arrays, and what an earlier step kept. Not checked: `run` does that.
            kept: the outputs to keep, as onnxruntime's own values on the session's device.
            wanted: the output to give as an array.
        """
        session = self._open()
        if any(spec.name in inputs for spec in self.optional):  # which a binding does not know
            given = {
                name: self._value(value, "cpu") if isinstance(value, np.ndarray) else value
                for name, value in inputs.items()
            }
            *values, last = session.run_with_ort_values([*kept, wanted], given)
            return values, last.numpy().copy()
        binding = session.io_binding()  # a new one each time: a second run would overwrite what it gave
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, value)
            else:
                binding.bind_ortvalue_input(name, value)
        for name in kept:
            binding.bind_output(name, self.provider)
        binding.bind_output(wanted, "cpu")
        session.run_with_iobinding(binding)
        *values, last = binding.get_outputs()
        return values, last.numpy().copy()

    def device_value(self, array: np.ndarray) -> Any:
        """An array as a value that `advance` takes, on the session's device."""
        return self._value(array, self.provider)

    def _value(self, array: np.ndarray, device: str) -> Any:
        return _onnxruntime().OrtValue.ortvalue_from_numpy(array, device)

    def _open(self) -> Any:
        if self._session is None:
            raise KerasTxError(f"The session on {self.graph} is closed, expected an open one; load it again.")
        return self._session

    def close(self) -> None:
        """Gives the memory back; a second time does nothing."""
        self._session = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, inputs: Mapping[str, np.ndarray]) -> None:
        known = {spec.name: spec for spec in (*self.inputs, *self.optional)}
        missing = [spec.name for spec in self.inputs if spec.name not in inputs]
        unknown = [name for name in inputs if name not in known]
        if missing or unknown:
            raise InputError(
                f"The inputs are {', '.join(map(repr, inputs)) or 'none'}; "
                f"expected {', '.join(describe(spec) for spec in self.inputs)}."
            )
        sizes: dict[
            str, tuple[int, str]
        ] = {}  # by the name of a dynamic axis: how long, and where seen first
        for name, value in inputs.items():
            _check_array(known[name], value)
            for axis, length in zip(known[name].shape, value.shape, strict=True):
                if (
                    isinstance(axis, str)
                    and axis != _UNNAMED
                    and sizes.setdefault(axis, (length, name))[0] != length
                ):
                    first, where = sizes[axis]
                    raise InputError(
                        f"{axis} is {length} in {name!r} but {first} in {where!r}, expected the same."
                    )


def describe(spec: TensorSpec) -> str:
    """For messages: name, dtype and shape as the graph has them."""
    return f"{spec.name} {spec.dtype} ({', '.join(map(str, spec.shape))})"


def _start(graph: Path, provider: str, threads: int | None) -> tuple[str, Any]:
    onnxruntime = _onnxruntime()
    gpu_wheel = (
        bool(getattr(onnxruntime, "cuda_version", ""))
        or providers.CUDA in onnxruntime.get_available_providers()
    )
    reason = "" if provider == "cpu" or not gpu_wheel else _load_cuda_libraries(onnxruntime)
    wanted = providers.choose(
        provider, onnxruntime.get_available_providers(), gpu_wheel=gpu_wheel, reason=reason
    )
    if providers.CUDA not in wanted:
        return "cpu", _create(onnxruntime, graph, wanted, threads)
    try:
        session = _create(onnxruntime, graph, wanted, threads)
    except FolderError as error:
        # Is it CUDA that fails, or the graph? What fails on the CPU as well is the graph's fault.
        session, reason = _create(onnxruntime, graph, [providers.CPU], threads), str(error.__cause__)
    return providers.settle(provider, session.get_providers(), reason), session


def _create(onnxruntime: Any, graph: Path, wanted: list[str], threads: int | None) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: it warns of each initializer that may be overridden
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        # enable_fallback: by default onnxruntime prints and goes on with the CPU, here and in run()
        return onnxruntime.InferenceSession(graph, options, providers=wanted, enable_fallback=0)
    except Exception as error:  # onnxruntime's exceptions have no base class of their own
        raise FolderError(
            f"{graph}: onnxruntime {onnxruntime.__version__} cannot load it: {str(error).strip()} "
            "Export it again, or upgrade onnxruntime if it does not know the opset."
        ) from error


def _load_cuda_libraries(onnxruntime: Any) -> str:
    """Finds the CUDA that pip installed, which the system's loader does not; gives its complaints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            onnxruntime.preload_dlls()
        except (AttributeError, OSError, RuntimeError) as error:  # older versions have no such function
            return str(error)
    return " ".join(said.getvalue().split())


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ProviderError(
            f'onnxruntime cannot be imported ({error}). pip install "keras-tx[runtime]", or '
            '"keras-tx[runtime-gpu]" on a Linux machine with an NVIDIA GPU, never both.'
        ) from error
    return onnxruntime


def _spec(node: Any) -> TensorSpec:
    kind: str = node.type.removeprefix("tensor(").removesuffix(")")
    return TensorSpec(
        node.name, _DTYPES.get(kind, kind), tuple(_UNNAMED if axis is None else axis for axis in node.shape)
    )


def _check_array(spec: TensorSpec, value: np.ndarray) -> None:
    if not isinstance(value, np.ndarray):
        raise InputError(
            f"{spec.name!r} is a {type(value).__name__}, expected a NumPy array {describe(spec)}."
        )
    if str(value.dtype) != spec.dtype:
        raise InputError(
            f"{spec.name!r} has dtype {value.dtype}, expected {spec.dtype}; .astype({spec.dtype!r}) "
            "converts it."
        )
    fits = len(value.shape) == len(spec.shape) and all(
        isinstance(axis, str) or axis == length for axis, length in zip(spec.shape, value.shape, strict=True)
    )
    if not fits:
        raise InputError(f"{spec.name!r} has shape {value.shape}, expected {describe(spec)}.")

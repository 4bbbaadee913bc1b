"""Session: an ONNX graph in onnxruntime, whose inputs are checked before it runs."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import io
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.contract import TensorSpec
from keras_tx.errors import (
    ConfigError,
    FolderError,
    InputError,
    KerasTxError,
    ProviderError,
    RunError,
    whole_number,
)
from keras_tx.kernels import TARGETS
from keras_tx.runtime import providers
from keras_tx.runtime.async_call import quiet_options, run_options
from keras_tx.runtime.axis_bounds import axes_of, read_bounds, violated_bound
from keras_tx.runtime.node_placement import fallen_back
from keras_tx.runtime.shared_weights import SharedWeights

_DTYPES = {"float": "float32", "double": "float64"}  # onnxruntime's other names are NumPy's
_UNNAMED = "?"
# Kinds of NumPy dtypes that are cast to the dtypes of a graph.
_CASTS = {"bool": "biu", "int": "biu", "uint": "biu", "float": "biuf"}
MOST_THREADS = 1024
# Fusions of onnxruntime that are slower on the CPU than the nodes they replace: a padded BERT-base runs 8
# texts of 128 tokens in 372 ms, and in 403 ms with SkipLayerNormalization for Add and LayerNormalization.
SLOW_FUSIONS = ("SkipLayerNormFusion",)
_NOT_EMPTY = (contract.BATCH_AXIS, contract.SEQUENCE_AXIS, contract.SOURCE_AXIS, contract.TARGET_AXIS)


class Session:
    """Runs a graph.

    >>> with Session("flowers/onnx/model.onnx", provider="cpu") as session:  # doctest: +SKIP
    ...     logits = session.run({"pixel_values": pixels})["logits"]

    Args:
        graph: path of the .onnx file. Its content is not checked; `open_folder` does that.
        provider: "cpu", "cuda" ..., or "auto": CUDA if it works, otherwise the CPU.
        threads: threads of one operation on the CPU; by default as many as cores.
        weights: weights of the graph that another session has too; used on the CPU.
        content: the bytes of a graph to run instead of that of the file, whose external data it uses.
        lean: whether to keep weights as they are in the file, to return memory after each run, and to let
            threads sleep while they wait. Such a session starts faster and needs less memory, but is slower.

    Attributes:
        provider: the provider that runs the graph.
        threads: threads of one operation on the CPU; None for as many as cores.
        weights: weights of the graph that another session has too.
        inputs: the inputs of the graph.
        optional: inputs that have a default value.
        outputs: the outputs of the graph.
        bounds: sizes of dynamic axes at which the graph computes the same as the Keras model.

    Raises:
        ProviderError: if the provider is unknown or not available.
        FolderError: if onnxruntime cannot load the graph.
        ConfigError: if `threads` is not a number from 1 to 1024.
    """

    def __init__(
        self,
        graph: str | os.PathLike[str],
        provider: str = "auto",
        threads: int | None = None,
        weights: SharedWeights | None = None,
        content: bytes | None = None,
        lean: bool = False,
    ) -> None:
        providers.check_name(provider)
        self.graph = Path(graph)
        count = None if threads is None else whole_number("threads", threads)
        if count is not None and count > MOST_THREADS:
            raise ConfigError(f"threads is {threads!r}, expected at most {MOST_THREADS}.")
        self.threads = count
        self.weights = weights
        self.provider, self._session = _start(self.graph, provider, count, weights, content, lean)
        self._process = os.getpid()
        self._quiet = quiet_options()
        self.inputs = tuple(_spec(node) for node in self._session.get_inputs())
        self.outputs = tuple(_spec(node) for node in self._session.get_outputs())
        self.bounds = read_bounds(
            self._session.get_modelmeta().custom_metadata_map.get(contract.BOUNDS, "[]")
        )
        self.optional = tuple(_spec(node) for node in self._session.get_overridable_initializers())
        self._base: Session | None = None  # whose graph this session runs
        self._adapter: dict[str, Any] = {}  # values of optional inputs, on the session's device

    def with_adapter(self, values: Mapping[str, np.ndarray]) -> Session:
        """This session with other values of optional inputs in every run.

        Both share the graph in memory, and closing one closes both. onnxruntime's own adapters have no effect
        on runs with bound inputs, which text generation uses.

        Raises:
            InputError: if a name is not that of an optional input, or a dtype or shape does not fit.
        """
        specs = {spec.name: spec for spec in self.optional}
        unknown = sorted(set(values) - set(specs))
        if unknown:
            raise InputError(f"{self.graph} has no optional input {unknown[0]!r}.")
        arrays = {name: _checked_array(specs[name], value) for name, value in values.items()}
        self._check_sizes(specs, arrays)
        other = copy.copy(self)
        other._base, other._session = self._base or self, None
        other._adapter = {name: self.device_value(array) for name, array in arrays.items()}
        return other

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs the graph and returns all outputs by name.

        Args:
            inputs: an array for each input. An array of another dtype is cast if that changes no value:
                uint8 to float32 or int64, or float64 that was converted from float32.

        Raises:
            InputError: if an input is missing, unknown, or has a wrong dtype or shape.
            RunError: if the graph fails; the session can be used again.
        """
        session = self._open()
        inputs = self._checked(inputs)
        with self._run_options(inputs) as options:
            if self.provider in providers.DEVICES or self._adapter:
                values = self._run_bound(session, inputs, options)
            else:
                values = session.run(None, inputs, options)
        return {spec.name: value for spec, value in zip(self.outputs, values, strict=True)}

    def _run_bound(self, session: Any, inputs: Mapping[str, np.ndarray], options: Any) -> list[np.ndarray]:
        """`session.run` with bound inputs, which are copied directly to the device that uses them."""
        binding = session.io_binding()  # for each call, because threads share the session
        optional = {spec.name for spec in self.optional}
        for name, array in inputs.items():
            if name in optional:  # bind_cpu_input does not know it
                binding.bind_ortvalue_input(name, self._value(array, "cpu"))
            else:
                binding.bind_cpu_input(name, array)
        self.bind_adapter(binding)
        for spec in self.outputs:
            binding.bind_output(spec.name, "cpu")
        session.run_with_iobinding(binding, options)
        return binding.copy_outputs_to_cpu()  # bound memory is freed with the binding

    def bind_adapter(self, binding: Any) -> None:
        """Binds the values of the adapter as inputs."""
        for name, value in self._adapter.items():
            binding.bind_ortvalue_input(name, value)

    @contextlib.contextmanager
    def _run_options(self, inputs: Mapping[str, Any]) -> Iterator[Any]:
        """Options for a run; converts its errors to a RunError."""
        try:
            yield run_options() or self._quiet
        except Exception as error:  # onnxruntime's exceptions have no base class of their own
            raise self._run_error(error, inputs) from error

    def advance(
        self, inputs: Mapping[str, Any], device_outputs: Sequence[str], output: str
    ) -> tuple[list[Any], np.ndarray]:
        """Runs a step of a loop; `device_outputs` stay on the session's device for the next step.

        Args:
            inputs: arrays, or values that an earlier step kept. They are not checked.
            device_outputs: outputs that the next step reads.
            output: the output to return as an array.
        """
        values = self._device_outputs(inputs, {**dict.fromkeys(device_outputs, self.device), output: "cpu"})
        return values[:-1], values[-1].numpy().copy()

    def keep(self, inputs: Mapping[str, Any], outputs: Sequence[str]) -> list[Any]:
        """Runs the graph; the outputs stay on the session's device, as values for `advance`.

        Args:
            inputs: arrays, or values that a run kept. They are not checked.
            outputs: outputs to keep; the others are not computed.
        """
        return self._device_outputs(inputs, dict.fromkeys(outputs, self.device))

    def _device_outputs(self, inputs: Mapping[str, Any], outputs: Mapping[str, str]) -> list[Any]:
        """The values of outputs, each on its device."""
        session = self._open()
        binding = session.io_binding()  # for each run: a second one would overwrite the outputs
        with self._run_options(inputs) as options:
            for name, value in inputs.items():
                value = self._value(value, "cpu") if isinstance(value, np.ndarray) else value
                binding.bind_ortvalue_input(name, value)
            self.bind_adapter(binding)
            for name, device in outputs.items():
                binding.bind_output(name, device)
            session.run_with_iobinding(binding, options)
        return list(binding.get_outputs())

    def binding(self, shared: Sequence[tuple[str, str, np.ndarray]]) -> Binding:
        """A binding on the CPU for a graph that writes into the memory that it reads.

        Args:
            shared: name of an input, name of an output, and the array for both.
        """
        return Binding(self, shared)

    def device_value(self, array: np.ndarray) -> Any:
        """An array as an input of `advance`, on the session's device."""
        return self._value(array, self.device)

    def select_rows(self, value: Any, rows: Sequence[int]) -> Any:
        """Rows of a value that a run kept, as an input of `advance`."""
        on_host = self.device == "cpu" and hasattr(value, "__dlpack__")  # without a copy
        array = np.from_dlpack(value) if on_host else value.numpy()
        return self.device_value(np.take(array, list(rows), axis=0))

    def _value(self, array: np.ndarray, device: str) -> Any:
        return _onnxruntime().OrtValue.ortvalue_from_numpy(array, device)

    @property
    def device(self) -> str:
        """onnxruntime's name of the device with the provider's memory."""
        return providers.DEVICES.get(self.provider, "cpu")

    def placement(self) -> dict[str, int]:
        """The number of nodes of the optimized graph by provider: {"cpu": 126}."""
        counts: Counter[str] = Counter()
        for part in self._open().get_provider_graph_assignment_info():
            counts[providers.name_of(part.ep_name)] += len(part.get_nodes())
        return dict(counts)

    def check_placement(self) -> None:
        """Raises a ProviderError if nodes run on the CPU that compute more than sizes, unless all do."""
        if self.provider == "cpu":
            return
        on_cpu = [
            (node.name, f"{node.domain}.{node.op_type}" if node.domain else node.op_type)
            for part in self._open().get_provider_graph_assignment_info()
            if providers.name_of(part.ep_name) == "cpu"
            for node in part.get_nodes()
        ]
        fallen = fallen_back(self.graph, on_cpu)
        if fallen:
            counts = Counter(operator for _, operator in fallen)
            counted = ", ".join(f"{count} {operator}" for operator, count in counts.most_common(5))
            total = sum(self.placement().values())
            remedy = f"Export with target={self.provider!r}, or omit" if self.provider in TARGETS else "Omit"
            raise ProviderError(
                f"strict=True, but {len(fallen)} of {total} nodes of {self.graph} run on the CPU instead of "
                f"{self.provider}: {counted}; the first is {fallen[0][0]!r}. {remedy} strict."
            )

    def _open(self) -> Any:
        if self._base is not None:
            return self._base._open()
        if self._session is None:
            raise KerasTxError(f"The session on {self.graph} is closed. Load the folder again.")
        if os.getpid() != self._process:
            raise KerasTxError(
                f"The session on {self.graph} was opened in process {self._process} and cannot run in its "
                f"fork {os.getpid()}, which lacks onnxruntime's threads. Load the folder in each process, "
                "after the fork."
            )
        return self._session

    def _run_error(self, error: Exception, inputs: Mapping[str, Any]) -> KerasTxError:
        reason = " ".join(str(error).split())
        arrays = {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in arrays.items())
        if "terminate flag" in reason.lower():
            return RunError(f"{self.graph}: the call was cancelled.")
        if any(
            word in reason for word in ("bad_alloc", "allocate memory", "bad allocation", "out of memory")
        ):
            return RunError(
                f"{self.graph}: out of memory with {shapes} ({reason:.200}). Pass a smaller batch or shorter "
                "texts; the model can be used again."
            )
        return RunError(f"{self.graph} failed with {shapes}: {reason:.400}")

    def close(self) -> None:
        """Frees the graph's memory. Calling it twice is allowed."""
        if self._base is not None:
            self._base.close()
        self._session = self.weights = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs in the dtypes of the graph, or an InputError."""
        specs = {spec.name: spec for spec in (*self.inputs, *self.optional)}
        if any(spec.name not in inputs for spec in self.inputs) or any(name not in specs for name in inputs):
            raise InputError(
                f"The inputs are {', '.join(map(repr, inputs)) or 'none'}; "
                f"expected {', '.join(describe(spec) for spec in self.inputs)}."
            )
        arrays = {name: _checked_array(specs[name], value) for name, value in inputs.items()}
        self._check_sizes(specs, arrays)
        return arrays

    def _check_sizes(self, specs: Mapping[str, TensorSpec], arrays: Mapping[str, np.ndarray]) -> None:
        """Raises an InputError for a dynamic axis with different sizes, size 0, or one out of bounds."""
        sizes: dict[str, tuple[int, str]] = {}  # of a dynamic axis, and the first input that has it
        for name, array in arrays.items():
            for axis, length in zip(specs[name].shape, array.shape, strict=True):
                if not isinstance(axis, str) or axis == _UNNAMED:
                    continue
                first, where = sizes.setdefault(axis, (length, name))
                if first != length:
                    raise InputError(
                        f"{axis} is {length} in {name!r} but {first} in {where!r}, expected the same."
                    )
                if length == 0 and axis in _NOT_EMPTY:
                    raise InputError(
                        f"{name!r} has shape {array.shape}: {axis} is 0, expected 1 or more. Skip the "
                        "call for empty inputs."
                    )
        bound = violated_bound(self.bounds, {axis: length for axis, (length, _) in sizes.items()})
        if bound is not None:
            actual = [f"{axis} is {sizes[axis][0]} in {sizes[axis][1]!r}" for axis in axes_of(bound)]
            raise InputError(
                f"{' and '.join(actual)}, expected {bound}: at other sizes the graph differs from the Keras "
                "model. Shorten or pad the input, or export a model without this bound."
            )


class Binding:
    """Inputs and outputs of a session that stay bound between runs."""

    def __init__(self, owner: Session, shared: Sequence[tuple[str, str, np.ndarray]]) -> None:
        self._owner = owner
        self._binding = owner._open().io_binding()
        self._bound: dict[str, np.ndarray] = {}
        owner.bind_adapter(self._binding)
        for input_name, output_name, array in shared:
            value = owner._value(array, "cpu")
            self._binding.bind_ortvalue_input(input_name, value)
            self._binding.bind_ortvalue_output(output_name, value)

    def run(self, inputs: Mapping[str, np.ndarray], output: str, out: np.ndarray) -> None:
        """Runs the graph and writes one output into `out`.

        An array that the previous run had too, perhaps with other values, is not bound again.
        """
        session = self._owner._open()
        with self._owner._run_options(inputs) as options:
            self._bind(inputs, output, out)
            session.run_with_iobinding(self._binding, options)

    def _bind(self, inputs: Mapping[str, np.ndarray], output: str, out: np.ndarray) -> None:
        for name, array in inputs.items():
            if self._bound.get(name) is not array:
                self._binding.bind_ortvalue_input(name, self._owner._value(array, "cpu"))
                self._bound[name] = array
        if self._bound.get(output) is not out:
            self._binding.bind_ortvalue_output(output, self._owner._value(out, "cpu"))
            self._bound[output] = out


def describe(spec: TensorSpec) -> str:
    """Name, dtype and shape of an input or output, for messages."""
    return f"{spec.name} {spec.dtype} ({', '.join(map(str, spec.shape))})"


def stays_on_cpu(provider: str) -> bool:
    """Whether a session runs on the CPU, independently of its graph."""
    return provider == "cpu" or (provider == "auto" and not _gpu_wheel(_onnxruntime()))


def _start(
    graph: Path,
    provider: str,
    threads: int | None,
    weights: SharedWeights | None,
    content: bytes | None,
    lean: bool,
) -> tuple[str, Any]:
    onnxruntime = _onnxruntime()
    gpu_wheel = _gpu_wheel(onnxruntime)
    reason = "" if provider == "cpu" or not gpu_wheel else _load_cuda_libraries(onnxruntime)
    names = providers.choose(
        provider,
        onnxruntime.get_available_providers(),
        gpu_wheel=gpu_wheel,
        reason=reason,
        wheels=() if provider == "cpu" else _wheels(onnxruntime),
    )
    if names == [providers.CPU]:
        return "cpu", _create(onnxruntime, graph, names, threads, weights, content, lean)
    try:
        session = _create(onnxruntime, graph, names, threads, None, content, lean)
    except FolderError as error:
        # A graph that fails on the CPU too is not valid; otherwise the provider failed.
        session = _create(onnxruntime, graph, [providers.CPU], threads, weights, content, lean)
        reason = str(error.__cause__)
    return providers.settle(provider, session.get_providers(), reason), session


def _gpu_wheel(onnxruntime: Any) -> bool:
    built_with_cuda = bool(getattr(onnxruntime, "cuda_version", ""))
    return built_with_cuda or providers.CUDA in onnxruntime.get_available_providers()


def _wheels(onnxruntime: Any) -> tuple[str, ...]:
    """The installed distributions that share the import package: more than one is a mistake.

    Read from the file names: `importlib.metadata` takes longer than loading a small model.
    """
    folder = Path(getattr(onnxruntime, "__file__", None) or os.devnull).parent.parent
    names = {path.name.split("-")[0].replace("_", "-") for path in folder.glob("onnxruntime*.dist-info")}
    return tuple(sorted(names & providers.WHEELS))


def _create(
    onnxruntime: Any,
    graph: Path,
    names: list[str],
    threads: int | None,
    weights: SharedWeights | None,
    content: bytes | None,
    lean: bool,
) -> Any:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.log_severity_level = 3  # errors only: otherwise it warns about each optional input
    if threads is not None:
        options.intra_op_num_threads = threads
    if weights is not None:
        weights.add_to(options, onnxruntime)
    if lean:
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if lean or content is not None:
        options.enable_cpu_mem_arena = False  # which would keep twice the memory of its large outputs
    if content is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(graph.parent)
        )
    try:
        # enable_fallback=0: by default onnxruntime prints a message and continues on the CPU
        model = graph if content is None else content
        session = onnxruntime.InferenceSession(
            model,
            options,
            providers=names,
            enable_fallback=0,
            disabled_optimizers=SLOW_FUSIONS if names == [providers.CPU] else (),
        )
    except Exception as error:  # onnxruntime's exceptions have no base class of their own
        raise FolderError(
            f"{graph}: onnxruntime {onnxruntime.__version__} cannot load it: {str(error).strip()} "
            "Export again, or upgrade onnxruntime if it does not support the opset."
        ) from error
    if weights is not None:
        weights.release()
    _trim_heap()
    return session


def _trim_heap() -> None:
    """Returns memory to the system that held the file; glibc keeps it otherwise."""
    with contextlib.suppress(AttributeError):  # other C libraries have no such function
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)


def _load_cuda_libraries(onnxruntime: Any) -> str:
    """Loads the CUDA libraries that pip installed; returns error messages."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            onnxruntime.preload_dlls()
        except (AttributeError, OSError, RuntimeError) as error:  # older versions have no such function
            return str(error)
    return " ".join(output.getvalue().split())


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


def _checked_array(spec: TensorSpec, value: np.ndarray) -> np.ndarray:
    if not isinstance(value, np.ndarray):
        raise InputError(
            f"{spec.name!r} is a {type(value).__name__}, expected a NumPy array {describe(spec)}."
        )
    array = value if str(value.dtype) == spec.dtype else _cast(spec, value)
    fits = len(value.shape) == len(spec.shape) and all(
        isinstance(axis, str) or axis == length for axis, length in zip(spec.shape, value.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"{spec.name!r} has shape {value.shape}, expected {describe(spec)}.{_batch_remedy(spec, value)}"
        )
    return array


def _batch_remedy(spec: TensorSpec, value: np.ndarray) -> str:
    """What to do about an array that has only another number of rows than the graph; empty for others."""
    others = zip(spec.shape[1:], value.shape[1:], strict=False)
    alike = len(spec.shape) == value.ndim > 1 and all(isinstance(a, str) or a == b for a, b in others)
    if not alike:
        return ""
    return (
        f" The graph has a fixed batch of {spec.shape[0]}: pass a multiple of it, and to a method with "
        f"batch_size, batch_size={spec.shape[0]}."
    )


def _cast(spec: TensorSpec, value: np.ndarray) -> np.ndarray:
    """Casts to the dtype of the graph; raises an InputError if a value would change."""
    wrong = f"{spec.name!r} has dtype {value.dtype}, expected {spec.dtype}"
    if value.dtype.kind not in _CASTS.get(spec.dtype.rstrip("0123456789"), ""):
        raise InputError(f"{wrong}. Convert it with .astype({spec.dtype!r}).")
    with np.errstate(all="ignore"):  # numbers that overflow
        array = value.astype(spec.dtype)
        back = array.astype(value.dtype)
    floats = value.dtype.kind == "f"
    # The first comparison alone would miss integers that change sign, the second large integers.
    if not np.array_equal(back, value, floats) or not np.array_equal(array, value, floats):
        raise InputError(
            f"{wrong}, and has values that {spec.dtype} cannot represent. Round them with "
            f".astype({spec.dtype!r})."
        )
    return array

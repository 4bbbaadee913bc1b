"""One ONNX graph in onnxruntime: its provider, its threads, and a check of what is fed to it."""

from __future__ import annotations

import contextlib
import io
import os
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
from keras_tx.runtime import providers
from keras_tx.runtime.async_call import quiet_options, run_options
from keras_tx.runtime.axis_bounds import axes_of, read_bounds, violated_bound

_DTYPES = {"float": "float32", "double": "float64"}  # onnxruntime's other names are NumPy's
_UNNAMED = "?"
# The kinds of NumPy's dtypes that are cast to those of a graph; ids cannot have a fraction.
_CASTS = {"bool": "biu", "int": "biu", "uint": "biu", "float": "biuf"}
MOST_THREADS = 1024


class Session:
    """A graph that is ready to run.

    >>> with Session("flowers/onnx/model.onnx", provider="cpu") as session:  # doctest: +SKIP
    ...     logits = session.run({"pixel_values": pixels})["logits"]

    Args:
        graph: the .onnx file. Nothing is checked about it here; `open_folder` does.
        provider: "cpu", "cuda" and so on, or "auto": CUDA where it works, else the CPU, with a warning
            where an onnxruntime built for CUDA cannot use it. `.provider` says what it came to.
        threads: for one operation on the CPU; None leaves it to onnxruntime, which takes the cores.
    """

    def __init__(
        self, graph: str | os.PathLike[str], provider: str = "auto", threads: int | None = None
    ) -> None:
        providers.check_name(provider)
        self.graph = Path(graph)
        count = None if threads is None else whole_number("threads", threads)
        if count is not None and count > MOST_THREADS:
            raise ConfigError(f"threads is {threads!r}, expected at most {MOST_THREADS}.")
        self.provider, self._session = _start(self.graph, provider, count)
        self._process = os.getpid()
        self._quiet = quiet_options()
        self.inputs = tuple(_spec(node) for node in self._session.get_inputs())
        self.outputs = tuple(_spec(node) for node in self._session.get_outputs())
        self.bounds = read_bounds(
            self._session.get_modelmeta().custom_metadata_map.get(contract.BOUNDS, "[]")
        )
        self.optional = tuple(_spec(node) for node in self._session.get_overridable_initializers())

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns all outputs by name; raises an InputError that names an input the graph does not accept.

        An array of another dtype is cast if that changes no value: uint8 to float32 or int64, or float64
        that was converted from float32.
        """
        session = self._open()
        inputs = self._checked(inputs)
        with self._named(inputs) as options:
            if self.provider in providers.DEVICES:
                values = self._bound(session, inputs, options)
            else:
                values = session.run(None, inputs, options)
        return {spec.name: value for spec, value in zip(self.outputs, values, strict=True)}

    def _bound(self, session: Any, inputs: Mapping[str, np.ndarray], options: Any) -> list[np.ndarray]:
        """What `session.run` gives, with inputs and outputs bound: each goes straight to where it is used."""
        binding = session.io_binding()  # a new one for each call: other threads make theirs
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)  # copied at once to the device of the node that takes it
        for spec in self.outputs:
            binding.bind_output(spec.name, "cpu")  # of a size that only the run tells
        session.run_with_iobinding(binding, options)
        return binding.copy_outputs_to_cpu()  # of our own: what is bound is gone with the binding

    @contextlib.contextmanager
    def _named(self, inputs: Mapping[str, Any]) -> Iterator[Any]:
        """Options for a run, whose errors are ours then."""
        try:
            yield run_options() or self._quiet
        except Exception as error:  # onnxruntime's exceptions have no base class of their own
            raise self._failed(error, inputs) from error

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
        binding = session.io_binding()  # a new one each time: a second run would overwrite what it gave
        with self._named(inputs) as options:
            for name, value in inputs.items():
                given = self._value(value, "cpu") if isinstance(value, np.ndarray) else value
                binding.bind_ortvalue_input(name, given)
            for name in kept:
                binding.bind_output(name, self.device)
            binding.bind_output(wanted, "cpu")
            session.run_with_iobinding(binding, options)
        *values, last = binding.get_outputs()
        return values, last.numpy().copy()

    def binding(self, shared: Sequence[tuple[str, str, np.ndarray]]) -> Binding:
        """The loop on the CPU of a graph that writes into the memory that it reads: nothing is allocated.

        Args:
            shared: an input, an output, and the array that is both.
        """
        return Binding(self, shared)

    def device_value(self, array: np.ndarray) -> Any:
        """An array as a value that `advance` takes, on the session's device."""
        return self._value(array, self.device)

    def _value(self, array: np.ndarray, device: str) -> Any:
        return _onnxruntime().OrtValue.ortvalue_from_numpy(array, device)

    @property
    def device(self) -> str:
        """Where the provider's memory is, in onnxruntime's words."""
        return providers.DEVICES.get(self.provider, "cpu")

    def placement(self) -> dict[str, int]:
        """How many nodes of the graph each provider runs, as onnxruntime optimized it: {"cpu": 126}."""
        found: Counter[str] = Counter()
        for part in self._open().get_provider_graph_assignment_info():
            found[providers.name_of(part.ep_name)] += len(part.get_nodes())
        return dict(found)

    def _open(self) -> Any:
        if self._session is None:
            raise KerasTxError(f"The session on {self.graph} is closed, expected an open one; load it again.")
        if os.getpid() != self._process:
            raise KerasTxError(
                f"The session on {self.graph} was opened in process {self._process}, and this is its fork "
                f"{os.getpid()}, in which onnxruntime's threads do not exist: it would wait for ever. Load "
                "the folder after the fork, in each process."
            )
        return self._session

    def _failed(self, error: Exception, inputs: Mapping[str, Any]) -> KerasTxError:
        said = " ".join(str(error).split())
        arrays = {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}
        given = ", ".join(f"{name} {list(value.shape)}" for name, value in arrays.items())
        if "terminate flag" in said.lower():
            return RunError(f"{self.graph}: the call was cancelled while it ran.")
        if any(word in said for word in ("bad_alloc", "allocate memory", "bad allocation", "out of memory")):
            return RunError(
                f"{self.graph}: there is not enough memory for {given} ({said:.200}). Give a smaller batch "
                "or shorter texts; the model can be used again."
            )
        return RunError(f"{self.graph} failed with {given}: {said:.400}")

    def close(self) -> None:
        """Gives the memory back; a second time does nothing."""
        self._session = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs in the dtypes of the graph, or an InputError."""
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
        arrays = {name: _checked_array(known[name], value) for name, value in inputs.items()}
        for name, value in arrays.items():
            for axis, length in zip(known[name].shape, value.shape, strict=True):
                if not isinstance(axis, str) or axis == _UNNAMED:
                    continue
                first, where = sizes.setdefault(axis, (length, name))
                if first != length:
                    raise InputError(
                        f"{axis} is {length} in {name!r} but {first} in {where!r}, expected the same."
                    )
                if length == 0 and axis in (contract.BATCH_AXIS, contract.SEQUENCE_AXIS):
                    raise InputError(
                        f"{name!r} has shape {value.shape}: {axis} is 0, expected 1 or more. Skip the "
                        "call for empty inputs."
                    )
        bound = violated_bound(self.bounds, {axis: length for axis, (length, _) in sizes.items()})
        if bound is not None:
            seen = [f"{axis} is {sizes[axis][0]} in {sizes[axis][1]!r}" for axis in axes_of(bound)]
            raise InputError(
                f"{' and '.join(seen)}, expected {bound}: at other sizes the Keras model computes something "
                "else than this graph. Shorten or pad the input, or export a model without this bound."
            )
        return arrays


class Binding:
    """Inputs and outputs of a session that stay bound from run to run."""

    def __init__(self, owner: Session, shared: Sequence[tuple[str, str, np.ndarray]]) -> None:
        self._owner = owner
        self._binding = owner._open().io_binding()
        self._bound: dict[str, np.ndarray] = {}
        for taken, given, array in shared:
            value = owner._value(array, "cpu")
            self._binding.bind_ortvalue_input(taken, value)
            self._binding.bind_ortvalue_output(given, value)

    def run(self, inputs: Mapping[str, np.ndarray], wanted: str, out: np.ndarray) -> None:
        """Computes; the output `wanted` is written into `out`.

        An array that is that of the run before, with other numbers in it, costs nothing to give.
        """
        session = self._owner._open()
        with self._owner._named(inputs) as options:
            self._bind(inputs, wanted, out)
            session.run_with_iobinding(self._binding, options)

    def _bind(self, inputs: Mapping[str, np.ndarray], wanted: str, out: np.ndarray) -> None:
        for name, array in inputs.items():
            if self._bound.get(name) is not array:
                self._binding.bind_ortvalue_input(name, self._owner._value(array, "cpu"))
                self._bound[name] = array
        if self._bound.get(wanted) is not out:
            self._binding.bind_ortvalue_output(wanted, self._owner._value(out, "cpu"))
            self._bound[wanted] = out


def describe(spec: TensorSpec) -> str:
    """For messages: name, dtype and shape as the graph has them."""
    return f"{spec.name} {spec.dtype} ({', '.join(map(str, spec.shape))})"


def stays_on_cpu(provider: str) -> bool:
    """Whether a session will run on the CPU whatever its graph is."""
    return provider == "cpu" or (provider == "auto" and not _gpu_wheel(_onnxruntime()))


def _start(graph: Path, provider: str, threads: int | None) -> tuple[str, Any]:
    onnxruntime = _onnxruntime()
    gpu_wheel = _gpu_wheel(onnxruntime)
    reason = "" if provider == "cpu" or not gpu_wheel else _load_cuda_libraries(onnxruntime)
    wanted = providers.choose(
        provider,
        onnxruntime.get_available_providers(),
        gpu_wheel=gpu_wheel,
        reason=reason,
        wheels=() if provider == "cpu" else _wheels(onnxruntime),
    )
    if wanted == [providers.CPU]:
        return "cpu", _create(onnxruntime, graph, wanted, threads)
    try:
        session = _create(onnxruntime, graph, wanted, threads)
    except FolderError as error:
        # Is it the provider that fails, or the graph? What fails on the CPU as well is the graph's fault.
        session, reason = _create(onnxruntime, graph, [providers.CPU], threads), str(error.__cause__)
    return providers.settle(provider, session.get_providers(), reason), session


def _gpu_wheel(onnxruntime: Any) -> bool:
    built_with_cuda = bool(getattr(onnxruntime, "cuda_version", ""))
    return built_with_cuda or providers.CUDA in onnxruntime.get_available_providers()


def _wheels(onnxruntime: Any) -> tuple[str, ...]:
    """The distributions that share the package that is imported: one, if all is well.

    Read off the names beside it, since `importlib.metadata` takes longer than a small model needs to load.
    """
    beside = Path(getattr(onnxruntime, "__file__", None) or os.devnull).parent.parent
    found = {path.name.split("-")[0].replace("_", "-") for path in beside.glob("onnxruntime*.dist-info")}
    return tuple(sorted(found & providers.WHEELS))


def _create(onnxruntime: Any, graph: Path, wanted: list[str], threads: int | None) -> Any:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
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
        raise InputError(f"{spec.name!r} has shape {value.shape}, expected {describe(spec)}.")
    return array


def _cast(spec: TensorSpec, value: np.ndarray) -> np.ndarray:
    """Casts to the dtype of the graph; raises an InputError if a value would change."""
    wrong = f"{spec.name!r} has dtype {value.dtype}, expected {spec.dtype}"
    if value.dtype.kind not in _CASTS.get(spec.dtype.rstrip("0123456789"), ""):
        raise InputError(f"{wrong}. Convert it with .astype({spec.dtype!r}).")
    with np.errstate(all="ignore"):  # numbers that overflow
        array = value.astype(spec.dtype)
        back = array.astype(value.dtype)
    floats = value.dtype.kind == "f"
    # The way back alone would miss integers that change their sign, and comparing alone large ones.
    if not np.array_equal(back, value, floats) or not np.array_equal(array, value, floats):
        raise InputError(
            f"{wrong}, and holds values that {spec.dtype} cannot represent. .astype({spec.dtype!r}) rounds "
            "them."
        )
    return array

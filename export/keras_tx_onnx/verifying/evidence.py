"""Whether equal outputs prove anything: if they hardly vary, a wrong graph can return the same.

A softmax over small logits is 1/n everywhere, weights of zero return a constant. Such an output is compared
before its activation, or, if that hardly varies either, with other weights in place of constant ones.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx

from keras_tx.errors import ExportError
from keras_tx.runtime.session import Session
from keras_tx_onnx import tolerances
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.keras_patches import in_float32
from keras_tx_onnx.reading.symbolic_backend import Call
from keras_tx_onnx.verifying.cases import Case

# A difference above this share of the variation between samples is more than rounding.
LEAST = 1e-2
SATURATING = frozenset({"softmax", "log_softmax", "sigmoid", "hard_sigmoid", "tanh"})
_NODES = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Tanh"})
_WITH_ACTIVATION = (
    keras.layers.Activation,
    keras.layers.Dense,
    keras.layers.EinsumDense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
    keras.layers.Conv1DTranspose,
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose,
)


class Variation:
    """The values of an output over all cases, from Keras and from the graph."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, ...], list[np.ndarray]] = {}
        self.difference = 0.0

    def add(self, expected: np.ndarray, computed: np.ndarray) -> None:
        expected, computed = np.atleast_1d(expected).astype("float64"), np.atleast_1d(computed)
        self._rows.setdefault(expected.shape[1:], []).append(expected)
        self.difference = max(self.difference, float(np.abs(expected - computed).max(initial=0)))

    @property
    def scale(self) -> float:
        return max(float(np.abs(x).max(initial=0)) for rows in self._rows.values() for x in rows)

    @property
    def spread(self) -> float:
        """The largest variation of a number from sample to sample."""
        stacked = [np.concatenate(rows) for rows in self._rows.values()]
        return max((float(np.ptp(rows, axis=0).max()) for rows in stacked if rows.size), default=0.0)

    def proves(self, tolerance: float) -> bool:
        empty = all(x.size == 0 for rows in self._rows.values() for x in rows)
        limit = max(LEAST, 10 * tolerance)
        return empty or (self.spread > 0 and self.difference <= limit * self.spread)


def compare_before_activation(
    model: Any, path: Path, outputs: Sequence[str], weak: Sequence[str], cases: Sequence[Case]
) -> dict[str, float]:
    """Compares outputs before the activation that ends the model, in units of their own scale.

    Returns the difference of each weak output that varies there; raises an ExportError if one is too large.
    """
    cases = [case for case in cases if case.run is Session.run]
    probe = path.with_name("before_activation.onnx")
    inner = _write_probe(path, probe, [name for name in outputs if name in weak])
    if not inner or not cases or len(functional_graph.function_of(model).outputs) != len(outputs):
        return {}
    variations = {name: Variation() for name in inner}
    try:
        with Session(probe, provider="cpu") as session:
            for case in cases:
                computed = session.run(case.given)
                expected = dict(zip(outputs, before_activation(model, case.inputs), strict=True))
                for name in list(variations):
                    right, other = expected[name], computed[inner[name]]
                    if right is None or right.shape != other.shape:
                        del variations[name]
                    else:
                        variations[name].add(right, other)
    finally:
        probe.unlink(missing_ok=True)
    differences = {}
    for name, variation in variations.items():
        if variation.spread < LEAST * variation.scale or variation.scale == 0:
            continue
        differences[name] = variation.difference / variation.scale
        if differences[name] > tolerances.FLOAT32:
            raise ExportError(
                f"Output {name!r} differs from Keras by {differences[name]:.1e} of its scale before the "
                f"model's last activation (fp32 tolerance {tolerances.FLOAT32:.0e})."
            )
    return differences


def _write_probe(path: Path, probe: Path, names: Sequence[str]) -> dict[str, str]:
    """Writes the graph with the input of each activation as an output; returns these by the output's name."""
    proto = onnx.load(path, load_external_data=False)
    producers = {name: node for node in proto.graph.node for name in node.output}
    inner = {
        name: producers[name].input[0]
        for name in names
        if name in producers and producers[name].op_type in _NODES
    }
    there = {value.name for value in proto.graph.output}
    for name in set(inner.values()) - there:
        proto.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    if inner:
        onnx.save(proto, probe)
    return inner


def before_activation(model: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray | None]:
    """Keras's outputs before the model's last activation; None for an output without a known one."""

    def computed(function: Any, values: list[Any]) -> list[Any]:
        last = {id(operation) for operation in functional_graph.last_operations(function)}

        def visit(call: Call) -> list[Any]:
            if id(call.operation) not in last:
                return keras.tree.flatten(call.operation(*call.args, **call.kwargs))
            if functional_graph.is_function(call.operation) and not functional_graph.has_own_call(
                call.operation
            ):
                tensors = [x for x in keras.tree.flatten((call.args, call.kwargs)) if keras.ops.is_tensor(x)]
                return computed(functional_graph.function_of(call.operation), tensors)
            return _without_activation(call)

        return functional_graph.walk(function, values, visit)

    with keras.device("cpu"), in_float32():
        values = computed(
            functional_graph.function_of(model), [keras.ops.convert_to_tensor(x) for x in inputs]
        )
        return [None if y is None else keras.ops.convert_to_numpy(y) for y in values]


def activation_of(operation: Any) -> str | None:
    """The name of the activation at the end of a layer or operation; None if unknown."""
    if type(operation).__name__ in _NODES:
        return next(name for name in SATURATING if name.replace("_", "") == type(operation).__name__.lower())
    if type(operation) in _WITH_ACTIVATION:
        return getattr(operation.activation, "__name__", None)
    return None


def _without_activation(call: Call) -> list[Any]:
    operation = call.operation
    name = activation_of(operation)
    if type(operation).__name__ in _NODES:
        return keras.tree.flatten(call.args)[:1]
    if name not in SATURATING:
        return [None for _ in call.outputs]
    bare = copy.copy(operation)  # with the same weights; the model's own layer stays as it is
    bare.activation = keras.activations.linear
    return [type(operation).call(bare, *call.args, **call.kwargs)]


@contextmanager
def redrawn(model: Any) -> Iterator[int]:
    """A context in which constant weights are random numbers, in this thread only; yields their count.

    The variables themselves do not change.
    """
    random = np.random.default_rng(0)
    changed = []
    for variable in functional_graph.trainable_variables(model):
        values = keras.ops.convert_to_numpy(variable.value)
        if keras.backend.is_float_dtype(variable.dtype) and values.size and np.ptp(values) == 0:
            numbers = _drawn(values, random)
            changed.append((variable, keras.ops.convert_to_tensor(numbers, variable.dtype)))
    with keras.StatelessScope(state_mapping=changed):
        yield len(changed)


def _drawn(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    if values.ndim >= 2:
        return random.standard_normal(values.shape) / math.sqrt(math.prod(values.shape[:-1]))
    if np.all(values == 0):
        return 0.1 * random.standard_normal(values.shape)
    return values * random.uniform(0.5, 1.5, values.shape)

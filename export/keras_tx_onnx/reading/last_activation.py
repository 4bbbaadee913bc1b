"""The activation that ends a model, and Keras's outputs before it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.input_uses import nested_model
from keras_tx_onnx.reading.keras_patches import in_float32
from keras_tx_onnx.reading.symbolic_backend import Call

SATURATING = frozenset({"softmax", "log_softmax", "sigmoid", "hard_sigmoid", "tanh"})
# As layers, operations of Keras and nodes of ONNX name them.
CLASSES = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Tanh"})
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


def activation_of(operation: Any) -> str | None:
    """The name of the activation at the end of a layer or operation; None if unknown."""
    kind = type(operation).__name__
    if kind in CLASSES:
        return next(name for name in SATURATING if name.replace("_", "") == kind.lower())
    if type(operation) in _WITH_ACTIVATION:
        return getattr(operation.activation, "__name__", None)
    return None


def outputs_before_activation(model: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray | None]:
    """Keras's outputs before the last activation of a model; None for an output without a known one."""

    def computed(function: Any, values: list[Any]) -> list[Any]:
        last = {id(operation) for operation in functional_graph.last_operations(function)}

        def visit(call: Call) -> list[Any]:
            if id(call.operation) not in last:
                return keras.tree.flatten(call.operation(*call.args, **call.kwargs))
            nested = nested_model(call)
            if nested is not None:
                arguments = keras.tree.flatten((call.args, call.kwargs))
                return computed(nested, [x for x in arguments if keras.ops.is_tensor(x)])
            return _without_activation(call)

        return functional_graph.walk(function, values, visit)

    with keras.device("cpu"), in_float32():
        tensors = [keras.ops.convert_to_tensor(x) for x in inputs]
        values = computed(functional_graph.function_of(model), tensors)
        return [None if y is None else keras.ops.convert_to_numpy(y) for y in values]


def _without_activation(call: Call) -> list[Any]:
    operation = call.operation
    if type(operation).__name__ in CLASSES:
        return keras.tree.flatten(call.args)[:1]
    if activation_of(operation) not in SATURATING:
        return [None for _ in call.outputs]
    bare = copy.copy(operation)  # shares the weights; the model's own layer stays unchanged
    bare.activation = keras.activations.linear
    return [type(operation).call(bare, *call.args, **call.kwargs)]

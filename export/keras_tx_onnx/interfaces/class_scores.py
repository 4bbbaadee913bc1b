"""How the graph of any classifier ends: its logits, and the labels and problem type of the folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.heads.base import check_labels
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.verifying import evidence

_PROBLEMS = {
    "softmax": contract.SINGLE_LABEL,
    "sigmoid": contract.MULTI_LABEL,
    "linear": contract.SINGLE_LABEL,
}


@dataclasses.dataclass(frozen=True)
class ClassScores:
    """What the interface of a classifier needs of its output.

    `config` is part of config.json, `expected` makes logits of Keras's outputs, and `passes` make them in
    the graph.
    """

    labels: tuple[str, ...]
    config: dict[str, Any]
    expected: Callable[[list[np.ndarray], list[np.ndarray]], list[np.ndarray]]
    passes: tuple[Callable[[ir.Model], int], ...]


def class_scores(model: Any, function: Any, labels: Sequence[str] | None) -> ClassScores:
    """Of a model with one output (batch, classes) that ends with a Dense layer, a softmax or a sigmoid.

    One sigmoid and two labels are a binary classifier: the number is the probability of the second label. Its
    graph returns the logits 0 and z, whose softmax is 1 - sigmoid(z) and sigmoid(z).
    """
    classes = function.outputs[0].shape[1]
    activation = _last_activation(model, function)
    binary = classes == 1 and isinstance(labels, list | tuple) and len(labels) == 2
    if binary and activation != "sigmoid":
        raise ConfigError(
            f"2 labels were given, but model {model.name!r} returns one number with the activation "
            f"{activation!r}, expected 'sigmoid'. End it with keras.layers.Dense(1, activation='sigmoid'), "
            "the probability of the second label."
        )
    count = 2 if binary else classes
    names = [f"LABEL_{i}" for i in range(count)] if labels is None else list(check_labels(labels, count))

    def expected(outputs: list[np.ndarray], inputs: list[np.ndarray]) -> list[np.ndarray]:
        if activation == "linear":
            return outputs
        (logits,) = evidence.before_activation(model, inputs)
        assert logits is not None, f"the {activation} at the end of {model.name!r} was found before"
        return [logits * _BINARY if binary else logits]

    config = {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
        "problem_type": contract.SINGLE_LABEL if binary else _PROBLEMS[activation],
    }
    return ClassScores(tuple(names), config, expected, (_to_logits, *((_to_two_logits,) if binary else ())))


_BINARY = np.array([[0.0, 1.0]], "float32")


def _last_activation(model: Any, function: Any) -> str:
    """Of what ends the model: that its outputs are logits, or how they come of logits, must be known."""
    (operation,) = functional_graph.last_operations(function)
    if functional_graph.is_function(operation) and not functional_graph.has_own_call(operation):
        return _last_activation(model, functional_graph.function_of(operation))
    name = evidence.activation_of(operation)
    if name not in _PROBLEMS or getattr(operation, "axis", -1) not in (-1, 1):
        raise ConfigError(
            f"Model {model.name!r} ends with {type(operation).__name__} {operation.name!r}, expected a Dense "
            "layer, a softmax or a sigmoid, so that its logits are known. Leave task, labels, image and "
            "raw_pixels out, or end the model so."
        )
    return name


def _to_logits(model: ir.Model) -> int:
    """Takes the softmax or sigmoid off the end of the graph: the runtime and other clients apply it."""
    (output,) = model.graph.outputs
    node = output.producer()
    if node is None or node.op_type not in ("Softmax", "Sigmoid"):
        return 0
    logits, name = node.inputs[0], output.name
    assert logits is not None
    logits.shape, logits.type = logits.shape or output.shape, logits.type or output.type
    model.graph.outputs[0] = logits
    model.graph.remove(node, safe=True)
    logits.name = name
    return 1


def _to_two_logits(model: ir.Model) -> int:
    """Makes 0 and z of the one logit z of a binary classifier."""
    (logit,) = model.graph.outputs
    assert logit.shape is not None
    tensor = ir.tensor(_BINARY, name="binary_logits/factors")
    factors = ir.Value(
        name=tensor.name, shape=ir.Shape(_BINARY.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    model.graph.register_initializer(factors)
    node = ir.node("Mul", inputs=[logit, factors], name="binary_logits")
    model.graph.append(node)
    (logits,) = node.outputs
    logits.type, logits.shape = logit.type, ir.Shape([logit.shape[0], 2])
    model.graph.outputs[0] = logits
    logits.name, logit.name = logit.name, f"{logit.name}/binary"
    return 1

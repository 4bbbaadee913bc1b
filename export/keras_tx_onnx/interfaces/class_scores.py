"""The end of a classifier's graph: its logits, and the labels and problem type of the folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.heads.base import check_labels
from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.reading import functional_graph, last_activation

_PROBLEMS = {
    "softmax": contract.SINGLE_LABEL,
    "sigmoid": contract.MULTI_LABEL,
    "linear": contract.SINGLE_LABEL,
}


_BINARY = np.array([[0.0, 1.0]], "float32")


class ClassScores:
    """The labels, config and logits of a model with one output (batch, classes).

    The model ends with a Dense layer, a softmax or a sigmoid. One sigmoid with two labels is a binary
    classifier: the number is the probability of the second label. Its graph returns the logits 0 and z, whose
    softmax is 1 - sigmoid(z) and sigmoid(z).

    Attributes:
        labels: names of the classes, in order.
        config: entries of config.json.
        passes: passes that replace the outputs of the graph by logits.
    """

    def __init__(self, model: Any, function: Any, labels: Sequence[str] | None):
        self._model = model
        self._activation = _last_activation(model, function)
        classes = function.outputs[0].shape[1]
        self._binary = classes == 1 and isinstance(labels, list | tuple) and len(labels) == 2
        if self._binary and self._activation != "sigmoid":
            raise ConfigError(
                f"labels has 2 names, but model {model.name!r} returns one number with the activation "
                f"{self._activation!r}. End the model with keras.layers.Dense(1, activation='sigmoid'): the "
                "number is the probability of the second label."
            )
        count = 2 if self._binary else classes
        default = [f"LABEL_{index}" for index in range(count)]
        self.labels = tuple(default if labels is None else check_labels(labels, count))
        self.config: dict[str, Any] = {
            "id2label": {str(index): name for index, name in enumerate(self.labels)},
            "label2id": {name: index for index, name in enumerate(self.labels)},
            "problem_type": contract.SINGLE_LABEL if self._binary else _PROBLEMS[self._activation],
        }
        self.passes: list[Callable[[ir.Model], int]] = [_to_logits, *([_to_two_logits] * self._binary)]

    def expected(self, outputs: list[np.ndarray], inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Keras's logits."""
        if self._activation == "linear":
            return outputs
        (logits,) = last_activation.outputs_before_activation(self._model, inputs)
        assert logits is not None, f"{self._model.name!r} ends with {self._activation}"
        return [logits * _BINARY if self._binary else logits]


def _last_activation(model: Any, function: Any) -> str:
    """The activation of the layer or operation that ends the model."""
    (operation,) = functional_graph.last_operations(function)
    if functional_graph.is_function(operation) and not functional_graph.has_own_call(operation):
        return _last_activation(model, functional_graph.function_of(operation))
    name = last_activation.activation_of(operation)
    if name not in _PROBLEMS or getattr(operation, "axis", -1) not in (-1, 1):
        raise ConfigError(
            f"Model {model.name!r} ends with {type(operation).__name__} {operation.name!r}, expected a Dense "
            "layer, a softmax or a sigmoid. Change the end of the model, or omit task, labels, image and "
            "raw_pixels to export a generic model."
        )
    return name


def _to_logits(model: ir.Model) -> int:
    """Removes the softmax or sigmoid at the end of the graph, because the runtime and clients apply it."""
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
    """Replaces the logit z of a binary classifier by 0 and z."""
    (logit,) = model.graph.outputs
    assert logit.shape is not None
    editor = GraphEditor(model.graph)
    factors = editor.initializer("binary_logits/factors", _BINARY)
    result = (logit.dtype, [logit.shape[0], 2])
    logits = editor.add("Mul", [logit, factors], [result], name="binary_logits")
    model.graph.outputs[0] = logits
    logits.name, logit.name = logit.name, f"{logit.name}/binary"
    return 1

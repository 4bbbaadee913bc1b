"""The calls of a functional Keras model, and their eager evaluation."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError

CROSS = "cross_attention"  # attribute of a TransformerBlock


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """A call of a layer or operation in a functional model.

    Attributes:
        layer: the layer or operation.
        args, kwargs: its arguments, with Keras tensors of the graph.
        outputs: its Keras tensors.
    """

    layer: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Any, ...]

    @property
    def has_attention(self) -> bool:
        """Whether the layer returns attention weights with `return_attention_scores=True`."""
        return isinstance(self.layer, _attention_layers())

    @property
    def has_cross_attention(self) -> bool:
        """Whether the layer returns the weights of its cross-attention after those of its self-attention."""
        return getattr(self.layer, CROSS, None) is not None

    @property
    def tensors(self) -> list[Any]:
        """The Keras tensors in its arguments."""
        import keras

        return [x for x in keras.tree.flatten((self.args, self.kwargs)) if keras.backend.is_keras_tensor(x)]


class GraphEvaluation:
    """Values of the tensors of a functional graph, each of which is freed after its last use.

    Args:
        inputs: Keras tensors of the graph's inputs.
        values: their values.
        calls: all calls of the graph, in order.
    """

    def __init__(self, inputs: Sequence[Any], values: Sequence[Any], calls: Sequence[LayerCall]) -> None:
        self._values = {id(tensor): value for tensor, value in zip(inputs, values, strict=True)}
        self._uses = collections.Counter(id(tensor) for call in calls for tensor in call.tensors)

    def call(self, call: LayerCall) -> None:
        """Computes the outputs of a call."""
        import keras

        self._store(call, keras.tree.flatten(self._apply(call, {})))

    def weights(self, call: LayerCall) -> list[Any]:
        """Computes the outputs of a call, and returns its attention weights, of cross-attention last."""
        output, *weights = self._apply(call, {"return_attention_scores": True})
        self._store(call, [output, *weights])
        return weights

    def _apply(self, call: LayerCall, options: dict[str, Any]) -> Any:
        import keras

        def value(x: Any) -> Any:
            return self._values[id(x)] if keras.backend.is_keras_tensor(x) else x

        args, kwargs = keras.tree.map_structure(value, (call.args, call.kwargs))
        with without_gradients():
            return call.layer(*args, **{**kwargs, **options})

    def _store(self, call: LayerCall, values: Sequence[Any]) -> None:
        for tensor, value in zip(call.outputs, values, strict=False):  # weights may be no output of the graph
            if self._uses[id(tensor)]:
                self._values[id(tensor)] = value
        for tensor in call.tensors:
            self._uses[id(tensor)] -= 1
            if not self._uses[id(tensor)]:
                del self._values[id(tensor)]


def layer_calls(model: Any) -> tuple[Any, list[LayerCall]]:
    """Returns a copy of a functional model with the same layers, and the calls of its graph in order.

    A layer can also belong to other graphs, so its property `output` is not always the one in this model.
    """
    import keras

    calls: list[LayerCall] = []

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = layer(*args, **kwargs)
        calls.append(LayerCall(layer, args, kwargs, tuple(keras.tree.flatten(outputs))))
        return outputs

    # A compiled copy has an optimizer. A Sequential has no `input` before its first call.
    is_sequential = isinstance(model, keras.Sequential)
    ends = (model.inputs[0], model.outputs[0]) if is_sequential else (model.input, model.output)
    copy = keras.models.clone_model(
        keras.Model(*ends), clone_function=lambda layer: layer, call_function=call
    )
    return copy, calls


def calls_with_attention(model: Any) -> tuple[list[Any], list[LayerCall]]:
    """Returns the inputs of a functional graph with the layers of the model, and its calls in order.

    Raises:
        ConfigError: if the model is not functional, has no attention layers, or has them inside other layers.
    """
    import keras

    if not getattr(model, "outputs", None):
        raise ConfigError(
            f"Model {model.name!r} is not a functional Keras model, so its layers cannot be evaluated one by "
            "one. Export it with export_onnx, and inspect the folder."
        )
    kinds = _attention_layers()
    for layer in model.layers:
        if not isinstance(layer, kinds) and any(isinstance(x, kinds) for x in layer._flatten_layers()):
            raise ConfigError(
                f"Model {model.name!r} has attention inside the layer {layer.name!r} "
                f"({type(layer).__name__}), which does not return attention weights. Export it with "
                "export_onnx, and inspect the folder."
            )
    copy, calls = layer_calls(model)
    function = next((one.layer for one in calls if isinstance(one.layer, keras.Function)), None)
    if function is not None:
        raise ConfigError(
            f"Model {model.name!r} contains the keras.Function {function.name!r}, whose layers cannot be "
            "evaluated one by one. Inspect the model that it is a part of."
        )
    if not any(one.has_attention for one in calls):
        raise ConfigError(f"Model {model.name!r} has no layers with attention.")
    return copy.inputs, calls


def _attention_layers() -> tuple[type, ...]:
    import keras

    from keras_tx.layers import MultiHeadAttention, TransformerBlock

    layers = keras.layers
    return TransformerBlock, MultiHeadAttention, layers.MultiHeadAttention, layers.GroupQueryAttention


def as_float32(tensor: Any) -> np.ndarray:
    """Returns a tensor of any dtype as a float32 array."""
    import keras

    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Computes without the graph that PyTorch keeps for gradients."""
    import keras

    if keras.backend.backend() != "torch":
        yield
        return
    import torch

    with torch.no_grad():
        yield

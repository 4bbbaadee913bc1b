"""KerasModelReader: attention weights and hidden states of a Keras model, one layer after the other."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, InputError
from keras_tx.inspect.filters import patch_kernel
from keras_tx.inspect.inputs import InputAdapter, Tensors
from keras_tx.inspect.layer_choice import in_order
from keras_tx.inspect.patch_grid import PatchGrid
from keras_tx.inspect.positions import position_table


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """A call of a layer with attention in a functional model.

    Attributes:
        layer: the TransformerBlock or attention layer.
        args, kwargs: its arguments, with Keras tensors of the graph.
        output: its output, without attention weights.
    """

    layer: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


class KerasModelReader:
    """Computes the arrays of an Inspector with Keras.

    The graph is evaluated eagerly, from one layer with attention to the next, so that only the weights of one
    layer are in memory.
    """

    def __init__(self, model: Any) -> None:
        import keras

        from keras_tx.models.encoder_decoder_model import EncoderDecoderModel
        from keras_tx.models.transformer_model import TransformerModel

        if not isinstance(model, keras.Model):
            raise ConfigError(
                f"model is a {type(model).__module__}.{type(model).__qualname__}, expected a Keras model or "
                "the path of a folder that export_onnx wrote."
            )
        self.model = model
        self.name = model.name
        self.is_family = isinstance(model, TransformerModel)
        encoder_decoder = isinstance(model, EncoderDecoderModel)
        self.parts: tuple[str, ...] = ("encoder", "decoder", "cross") if encoder_decoder else ()
        self.inputs, self.calls = attention_calls(model)
        processing = getattr(model, "processing", None) if self.is_family else None
        self.adapter = InputAdapter(
            self.name,
            tuple(tensor.name for tensor in keras.tree.flatten(model.inputs)),
            processing,
            processing,
            getattr(model, "start_id", None),
        )
        self._with_states: Any = None

    def layer_names(self, part: str | None) -> list[str]:
        return [call.layer.name for call in self._calls(part)]

    def _calls(self, part: str | None) -> list[LayerCall]:
        if part is None:
            return self.calls
        return [call for call in self.calls if (call.layer.cross_attention is None) == (part == "encoder")]

    def attention_layers(
        self, tensors: Tensors, indices: Sequence[int], part: str | None
    ) -> Iterator[np.ndarray]:
        return in_order(indices, self._layers(tensors, indices, part))

    def _layers(
        self, tensors: Tensors, indices: Sequence[int], part: str | None
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the indices and attention weights of layers, in the order of the model."""
        calls = self._calls(part)
        wanted = {id(calls[index]): index for index in indices}
        graph = _Evaluation(self.inputs, self._values(tensors))
        for call in self.calls:
            if id(call) in wanted:
                yield wanted[id(call)], graph.weights(call, 1 if part == "cross" else 0)
            else:
                graph.call(call)

    def hidden_states(self, tensors: Tensors, part: str | None) -> list[np.ndarray]:
        if not self.is_family:
            raise ConfigError(
                f"Model {self.name!r} is not a model of keras_tx, so its hidden states are not defined. "
                "Create a keras.Model with the outputs of its layers instead."
            )
        if self._with_states is None:
            self._with_states = self.model.with_outputs(hidden_states=True)
        name = "hidden_states" if part is None else f"{part}_hidden_states"
        with _without_gradients():
            outputs = self._with_states(self.arguments(tensors), training=False)
            return [as_float32(state) for state in outputs[name]]

    def outputs(self, tensors: Tensors) -> Any:
        import keras

        with _without_gradients():
            return keras.tree.map_structure(as_float32, self.model(self.arguments(tensors), training=False))

    def grid(self, tensors: Tensors) -> PatchGrid:
        layer = self._patch_embedding()
        sizes = layer.input.shape[1:3]
        if None in sizes:
            sizes = np.shape(next(iter(tensors.values())))[1:3]
        patch = layer.patch(2)
        rows, columns = (side // p for side, p in zip(sizes, patch, strict=True))
        covered = rows * patch[0] / sizes[0], columns * patch[1] / sizes[1]
        tokens = self.calls[0].args[0].shape[1]
        if tokens is None:
            tokens = next(self.attention_layers(tensors, [0], None)).shape[-1]
        return PatchGrid(rows, columns, tokens - rows * columns, covered)

    def _patch_embedding(self) -> Any:
        from keras_tx.layers import PatchEmbedding

        layers = [layer for layer in self.model.layers if isinstance(layer, PatchEmbedding)]
        if len(layers) != 1 or len(layers[0].input.shape) != 4:
            raise InputError(
                f"Model {self.name!r} has {len(layers)} PatchEmbedding layers, expected one of images, so it "
                "has no grid."
            )
        return layers[0]

    def patch_size(self) -> tuple[int, int]:
        return self._patch_embedding().patch(2)

    def patch_kernel(self, layer: str | None) -> np.ndarray:
        return patch_kernel(self.model, layer)

    def position_table(self, layer: str | None) -> tuple[np.ndarray, tuple[int, ...], int]:
        return position_table(self.model, layer)

    def token_table(self) -> np.ndarray:
        from keras_tx.inspect.nearest_tokens import token_table

        return token_table(self.model)

    def query_mask(self, tensors: Tensors, part: str | None) -> np.ndarray | None:
        if not self.is_family or self.adapter.kind != "text":
            return None
        name = contract.DECODER_ATTENTION_MASK if part in ("decoder", "cross") else contract.ATTENTION_MASK
        return as_float32(self.arguments(tensors)[name]) != 0

    def arguments(self, tensors: Tensors) -> Any:
        """Returns the inputs of the model: a dict for text models, else a tensor or the tensors by name."""
        unknown = [name for name in tensors if name not in self.adapter.names]
        if self.is_family and self.adapter.kind == "text":
            if self.parts and contract.DECODER_INPUT_IDS not in tensors:  # only the encoder is computed
                ids = np.full((len(tensors[contract.INPUT_IDS]), 1), self.adapter.start_id)
                tensors = {**tensors, contract.DECODER_INPUT_IDS: ids}
            return self.model.complete(tensors)
        missing = [name for name in self.adapter.names if name not in tensors]
        if unknown or missing:
            raise InputError(
                f"The inputs are {', '.join(map(repr, tensors))}, but {self.name!r} accepts "
                f"{', '.join(map(repr, self.adapter.names))}."
            )
        ordered = [tensors[name] for name in self.adapter.names]
        return ordered[0] if len(ordered) == 1 else ordered

    def _values(self, tensors: Tensors) -> list[Any]:
        """The values of the tensors `inputs` of the graph."""
        import keras

        arguments = self.arguments(tensors)
        if isinstance(arguments, dict):
            values = [arguments[tensor.name] for tensor in self.model.inputs]
        else:
            values = arguments if isinstance(arguments, list) else [arguments]
        return [
            keras.ops.cast(keras.ops.convert_to_tensor(value), tensor.dtype)
            for value, tensor in zip(values, self.inputs, strict=True)
        ]


class _Evaluation:
    """Values of the tensors of a functional graph, computed up to one layer after the other."""

    def __init__(self, inputs: Sequence[Any], values: Sequence[Any]) -> None:
        self.known = {id(tensor): (tensor, value) for tensor, value in zip(inputs, values, strict=True)}

    def call(self, call: LayerCall) -> None:
        """Computes the output of a layer."""
        self._set(call.output, self._apply(call, {}))

    def weights(self, call: LayerCall, place: int) -> np.ndarray:
        """Computes the output of a layer, and returns its attention weights: place 1 is cross-attention."""
        output, *weights = self._apply(call, {"return_attention_scores": True})
        self._set(call.output, output)
        return as_float32(weights[place])

    def _apply(self, call: LayerCall, options: dict[str, Any]) -> Any:
        import keras

        arguments = keras.tree.flatten((call.args, call.kwargs))
        with _without_gradients():
            self._compute([x for x in arguments if keras.backend.is_keras_tensor(x)])
            args, kwargs = keras.tree.map_structure(self._value, (call.args, call.kwargs))
            return call.layer(*args, **{**kwargs, "training": False, **options})

    def _value(self, x: Any) -> Any:
        return self.known[id(x)][1] if id(x) in self.known else x

    def _set(self, tensor: Any, value: Any) -> None:
        self.known[id(tensor)] = (tensor, value)

    def _compute(self, tensors: Sequence[Any]) -> None:
        """Computes tensors from those that are known."""
        import keras

        missing = [tensor for tensor in tensors if id(tensor) not in self.known]
        if not missing:
            return
        pairs = list(self.known.values())
        values = keras.Function([tensor for tensor, _ in pairs], missing)([value for _, value in pairs])
        for tensor, value in zip(missing, values, strict=True):
            self._set(tensor, value)


def attention_calls(model: Any) -> tuple[list[Any], list[LayerCall]]:
    """Returns the inputs of a functional graph with the layers of the model, and its calls with attention.

    Raises:
        ConfigError: if the model is not functional, or its attention layers are inside other layers.
    """
    import keras

    from keras_tx.layers import MultiHeadAttention, TransformerBlock

    kinds = (
        TransformerBlock,
        MultiHeadAttention,
        keras.layers.MultiHeadAttention,
        keras.layers.GroupQueryAttention,
    )
    if not getattr(model, "outputs", None):
        raise ConfigError(
            f"Model {model.name!r} is not a functional Keras model, so its layers cannot be evaluated one by "
            "one. Export it with export_onnx, and inspect the folder."
        )
    calls: list[LayerCall] = []

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        output = layer(*args, **kwargs)
        if isinstance(layer, kinds):
            calls.append(LayerCall(layer, args, kwargs, keras.tree.flatten(output)[0]))
        return output

    uncompiled = keras.Model(model.inputs, model.outputs)  # a compiled clone has an optimizer
    clone = keras.models.clone_model(uncompiled, clone_function=lambda layer: layer, call_function=call)
    if not calls:
        nested = _layer_with_attention(model, kinds)
        if nested is None:
            raise ConfigError(f"Model {model.name!r} has no layers with attention.")
        raise ConfigError(
            f"Model {model.name!r} has its attention inside the layer {nested.name!r} "
            f"({type(nested).__name__}), which does not return attention weights. Export it with "
            "export_onnx, and inspect the folder."
        )
    return clone.inputs, calls


def _layer_with_attention(model: Any, kinds: tuple[type, ...]) -> Any:
    """A layer of the model that contains an attention layer, or None."""
    for layer in model.layers:
        if any(isinstance(part, kinds) for part in layer._flatten_layers()):
            return layer
    return None


def as_float32(tensor: Any) -> np.ndarray:
    """Returns a tensor of any dtype as a float32 array."""
    import keras

    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))


@contextlib.contextmanager
def _without_gradients() -> Iterator[None]:
    """Computes without the graph that PyTorch keeps for gradients."""
    import keras

    if keras.backend.backend() != "torch":
        yield
        return
    import torch

    with torch.no_grad():
        yield

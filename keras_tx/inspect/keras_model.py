"""KerasModelReader: attention weights and hidden states of a Keras model, one layer at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, InputError
from keras_tx.inspect.attention import PatchGrid
from keras_tx.inspect.embeddings import patch_kernel, position_table, token_table
from keras_tx.inspect.graph_evaluation import (
    CROSS,
    GraphEvaluation,
    LayerCall,
    as_float32,
    calls_with_attention,
    without_gradients,
)
from keras_tx.inspect.inputs import InputAdapter, Tensors


class KerasModelReader:
    """Computes the arrays of an Inspector with Keras.

    The graph is evaluated eagerly, call by call, so that only the weights of one layer are in memory.
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
        self.inputs, self.graph = calls_with_attention(model)
        self.calls = [call for call in self.graph if call.has_attention]
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
        return [
            f"{call.layer.name}/{CROSS}" if is_cross and part is None else call.layer.name
            for call, is_cross in self._attention(part)
        ]

    def _attention(self, part: str | None) -> list[tuple[LayerCall, bool]]:
        """The calls with attention, each with whether its cross-attention is meant."""
        pairs = [
            (call, is_cross)
            for call in self.calls
            for is_cross in (False, True)
            if call.has_cross_attention or not is_cross
        ]
        if part is None:
            return pairs
        return [
            (call, is_cross)
            for call, is_cross in pairs
            if call.has_cross_attention == (part != "encoder") and is_cross == (part == "cross")
        ]

    def attention_layers(
        self, tensors: Tensors, indices: Sequence[int], part: str | None
    ) -> Iterator[np.ndarray]:
        pairs = self._attention(part)
        selected: dict[int, list[bool]] = {}
        for call, is_cross in (pairs[index] for index in indices):
            selected.setdefault(id(call), []).append(is_cross)
        values = GraphEvaluation(self.inputs, self._values(tensors), self.graph)
        for call in self.graph:
            if id(call) in selected:
                weights = values.weights(call)
                for is_cross in selected[id(call)]:
                    yield as_float32(weights[is_cross])
                del weights  # before the next layer is computed
            else:
                values.call(call)

    def hidden_states(self, tensors: Tensors, part: str | None) -> list[np.ndarray]:
        if not self.is_family:
            raise ConfigError(
                f"Model {self.name!r} is not a model of keras_tx, so its hidden states are not defined. "
                "Create a keras.Model with the outputs of its layers instead."
            )
        if self._with_states is None:
            self._with_states = self.model.with_outputs(hidden_states=True)
        name = "hidden_states" if part is None else f"{part}_hidden_states"
        with without_gradients():
            outputs = self._with_states(self.arguments(tensors), training=False)
            return [as_float32(state) for state in outputs[name]]

    def outputs(self, tensors: Tensors) -> Any:
        import keras

        with without_gradients():
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
        return PatchGrid(rows, columns, tokens - rows * columns, covered, self._registers())

    def _registers(self) -> int:
        """The number of registers, of a ViT and of other models with its names of layers."""
        from keras_tx.layers import ClassToken

        layers = [layer for layer in self.model.layers if isinstance(layer, ClassToken)]
        return sum(layer.count for layer in layers if layer.name == "registers")

    def _patch_embedding(self) -> Any:
        from keras_tx.layers import PatchEmbedding

        layers = [layer for layer in self.model.layers if isinstance(layer, PatchEmbedding)]
        if len(layers) != 1 or len(layers[0].input.shape) != 4:
            raise InputError(
                f"Model {self.name!r} has {len(layers)} PatchEmbedding layers, expected one for images, so "
                "it has no grid."
            )
        return layers[0]

    def patch_size(self) -> tuple[int, int]:
        layer = self._patch_embedding()
        height, width = layer.patch(2)
        stride = 2 ** getattr(getattr(self.model, "config", None), "stem_depth", 0)
        return height * stride, width * stride

    def patch_kernel(self, layer: str | None) -> np.ndarray:
        return patch_kernel(self.model, layer)

    def position_table(self, layer: str | None) -> tuple[np.ndarray, tuple[int, ...], int]:
        return position_table(self.model, layer)

    def token_table(self) -> np.ndarray:
        return token_table(self.model)

    def query_mask(self, tensors: Tensors, part: str | None) -> np.ndarray | None:
        if self.adapter.kind != "text":
            return None
        name = contract.DECODER_ATTENTION_MASK if part in ("decoder", "cross") else contract.ATTENTION_MASK
        arguments = self.arguments(tensors)
        mask = (arguments if isinstance(arguments, dict) else tensors).get(name)
        return None if mask is None else as_float32(mask) != 0

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
        for value, tensor in zip(values, self.inputs, strict=True):
            shape = tuple(np.shape(value))
            if len(shape) != len(tensor.shape) or any(
                expected not in (None, side) for side, expected in zip(shape, tensor.shape, strict=True)
            ):
                raise InputError(
                    f"The input {tensor.name!r} has the shape {shape}, but {self.name!r} accepts "
                    f"{tuple(tensor.shape)}."
                )
        return [
            keras.ops.cast(keras.ops.convert_to_tensor(value), tensor.dtype)
            for value, tensor in zip(values, self.inputs, strict=True)
        ]

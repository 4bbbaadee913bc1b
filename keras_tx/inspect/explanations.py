"""Explanations of an Inspector: one number for each pixel, patch or token of its inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, InputError
from keras_tx.inspect.attribution import IntegratedGradients, integrated_gradients, occlusion
from keras_tx.inspect.decision import complete_inputs
from keras_tx.inspect.inputs import InputAdapter, Tensors
from keras_tx.inspect.relevance import (
    AttentionGradients,
    attention_gradients,
    encoder_decoder_relevance,
    gradient_rollout,
    self_attention_relevance,
)
from keras_tx.processing import TextTransform


def check_gradients(reader: Any, method: str) -> None:
    """Raises a ConfigError if a method that requires gradients is called for a folder."""
    if not hasattr(reader, "model"):
        raise ConfigError(
            f"{method} requires gradients, and {reader.name!r} is an exported folder, which has none. "
            "Inspect the Keras model, inspect(keras_tx.load_model('model.keras')), or call occlusion."
        )


def relevance_map(reader: Any, tensors: Tensors, part: str | None, **decision: Any) -> np.ndarray:
    """Returns the relevance of patches or tokens by the rules of Chefer et al.

    Args:
        reader: the KerasModelReader.
        tensors: inputs of the model by name.
        part: of an encoder-decoder, the part whose tokens have the relevance.
        decision: `target`, `position` and `output` of `attention_gradients`.
    """

    def of_example(computed: AttentionGradients) -> np.ndarray:
        layers = computed.layers
        if part is None:
            return self_attention_relevance(layers[""])
        relevance = encoder_decoder_relevance(layers["encoder"], layers["decoder"], layers["cross"])
        return relevance.cross if part == "encoder" else relevance.decoder

    return _token_map(reader, tensors, of_example, decision)


def rollout_map(reader: Any, tensors: Tensors, **decision: Any) -> np.ndarray:
    """Returns gradient-weighted rollout for the tokens from which the score is computed."""
    if reader.parts:
        raise ConfigError(
            f"{reader.name!r} is an encoder-decoder, which gradient_rollout does not support. Call relevance."
        )
    return _token_map(reader, tensors, lambda computed: gradient_rollout(computed.layers[""]), decision)


def _token_map(
    reader: Any,
    tensors: Tensors,
    rule: Callable[[AttentionGradients], np.ndarray],
    decision: dict[str, Any],
) -> np.ndarray:
    """The result of a rule for each token, or on the grid of patches.

    Examples are computed one at a time, because weights, gradients and intermediate tensors need memory.
    """
    import keras

    inputs = keras.tree.map_structure(np.asarray, complete_inputs(reader.model, reader.arguments(tensors)))
    count = len(keras.tree.flatten(inputs)[0])
    per_example = {name for name, value in decision.items() if np.ndim(value) == 1}
    for name in per_example:
        if len(decision[name]) != count:
            raise ConfigError(
                f"{name} is {decision[name]!r}, expected an integer, or one for each of the {count} examples."
            )
    rows = []
    for index in range(count):
        example = keras.tree.map_structure(lambda x, index=index: x[index : index + 1], inputs)
        chosen = {name: value[index] if name in per_example else value for name, value in decision.items()}
        computed = attention_gradients(reader.model, example, **chosen)
        if bool(reader.parts) != ("cross" in computed.layers):
            raise ConfigError(
                f"Model {reader.name!r} has cross-attention, but is no encoder-decoder of keras_tx. Call "
                "attention_gradients and encoder_decoder_relevance."
            )
        rows.append(computed.of_tokens(rule(computed)))
    tokens = np.concatenate(rows)
    if reader.adapter.kind != "image":
        return tokens
    grid = reader.grid(tensors)
    return tokens[:, grid.prefix :].reshape(-1, grid.rows, grid.columns)


def integrated_gradients_map(
    reader: Any, tensors: Tensors, part: str | None, baseline: Any, **options: Any
) -> IntegratedGradients:
    """Returns integrated gradients summed over the channels of each pixel, or the width of each token."""
    _one_array(reader, tensors, "integrated_gradients")
    if isinstance(baseline, str):
        baseline = _embedding(reader, baseline)
    index = 0 if part == "encoder" else 1  # the embedding is called with the source first
    if part is not None:
        baseline = [baseline if index == i else None for i in range(2)]
    computed = integrated_gradients(reader.model, reader.arguments(tensors), baseline=baseline, **options)
    values = computed.values if part is None else computed.values[index]
    return dataclasses.replace(computed, values=values.sum(axis=-1))


def _embedding(reader: Any, token: str) -> np.ndarray:
    """The embedding of a token."""
    if reader.adapter.kind != "text":
        raise ConfigError(f"baseline={token!r} is for texts. Pass a number or an array for {reader.name!r}.")
    number = reader.adapter.token_id(token)
    if number is None:
        raise InputError(f"baseline={token!r} is not a token of the vocabulary of {reader.name!r}.")
    return reader.token_table()[number]


def occlusion_map(
    reader: Any, tensors: Tensors, part: str | None, window: Any, baseline: Any, **options: Any
) -> np.ndarray:
    """Returns the occlusion of pixels or tokens, for a Keras model or a folder."""
    adapter = reader.adapter
    if adapter.kind == "text":
        name = contract.DECODER_INPUT_IDS if part == "decoder" else contract.INPUT_IDS
        baseline = _occlusion_id(adapter, part) if baseline is None else baseline
        window = 1 if window is None else window
        return occlusion(
            reader.outputs,
            _with_masks(reader, tensors),
            window=window,
            baseline=baseline,
            name=name,
            **options,
        )
    name = _one_array(reader, tensors, "occlusion")
    array = np.asarray(tensors[name])
    is_first = adapter.kind == "image" and name == contract.PIXEL_VALUES  # whether the channels are
    if window is None:
        if adapter.kind != "image":
            raise ConfigError("window=None is for images and texts. Pass the size of the window.")
        window = reader.patch_size()
    if is_first:
        array = np.moveaxis(array, 1, -1)

    def predict(images: np.ndarray) -> Any:
        return reader.outputs({name: np.moveaxis(images, -1, 1) if is_first else images})

    baseline = 0 if baseline is None else baseline
    return occlusion(predict, array, window=window, baseline=baseline, **options)


def _one_array(reader: Any, tensors: Tensors, function: str) -> str:
    """The name of the only array of a model that accepts neither images nor texts."""
    if reader.adapter.kind != "text" and len(tensors) > 1:
        raise InputError(
            f"{reader.name!r} accepts the arrays {', '.join(map(repr, tensors))}, of which "
            f"Inspector.{function} cannot choose one. Call keras_tx.inspect.{function} with the Keras model."
        )
    return next(iter(tensors))


def _with_masks(reader: Any, tensors: Tensors) -> Tensors:
    """The tensors with their attention mask, which must not change when tokens are replaced."""
    mask = reader.query_mask(tensors, "encoder" if reader.parts else None)
    return tensors if mask is None else {**tensors, contract.ATTENTION_MASK: mask.astype("int64")}


def _occlusion_id(adapter: InputAdapter, part: str | None) -> int:
    """The id that replaces an occluded token: that of the mask token, or of padding."""
    transform = adapter.transform
    if not isinstance(transform, TextTransform):
        raise InputError(
            f"{adapter.name!r} has no tokenizer, so the id that replaces a token is unknown. Pass baseline=."
        )
    transform = transform.target if part == "decoder" else transform
    return transform.pad_id if transform.mask_token is None else transform.id_of(transform.mask_token)

"""A model that also returns its hidden states and attention weights."""

from __future__ import annotations

from typing import Any

import keras

from keras_tx.errors import ConfigError
from keras_tx.layers import TransformerBlock


def with_outputs(model: Any, hidden_states: bool, attentions: bool) -> keras.Model:
    """See TransformerModel.with_outputs."""
    encoded = model.encoded
    source = None if encoded is None else encoded.source
    encoder_decoder = source is not None
    states: dict[str, list[Any]] = {}
    scores: dict[str, list[Any]] = {}

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(layer, TransformerBlock):
            return layer(*args, **kwargs)
        part = "" if not encoder_decoder else "encoder_" if layer.cross_attention is None else "decoder_"
        if attentions:
            output, *weights = BlockWithScores(layer, name=layer.name)(*args, **kwargs)
            names = (f"{part}attentions", "cross_attentions")
            for name, x in zip(names, weights, strict=False):
                scores.setdefault(name, []).append(x)
        else:
            output = layer(*args, **kwargs)
        name = f"{part}hidden_states"
        states.setdefault(name, [args[0]]).append(output)
        return output

    # If a norm follows the last block, its output is the last hidden state.
    last = {} if encoded is None else {"decoder_" if encoder_decoder else "": encoded.tokens}
    if encoder_decoder:
        last["encoder_"] = source
    uncompiled = keras.Model(model.input, [model.output, *last.values()])  # a compiled clone has an optimizer
    clone = keras.models.clone_model(uncompiled, clone_function=lambda layer: layer, call_function=call)
    if not states:
        raise ConfigError(
            f"Model {model.name!r} has no TransformerBlock in its graph, so it has neither hidden states nor "
            "attention weights. Create a keras.Model with the outputs of its layers instead."
        )
    output, *tensors = clone.output
    for part, x in zip(last, tensors, strict=True):
        states[f"{part}hidden_states"][-1] = x
    outputs = dict(output) if isinstance(output, dict) else {model.output_name: output}
    for requested, groups in ((hidden_states, states), (attentions, scores)):
        for name, group in groups.items() if requested else ():
            outputs[name] = tuple(
                keras.layers.Identity(dtype=x.dtype, name=f"{name}_{index}")(x)
                for index, x in enumerate(group)
            )
    return keras.Model(clone.input, outputs, name=model.name)


@keras.saving.register_keras_serializable("keras_tx")
class BlockWithScores(keras.layers.Layer):
    """A TransformerBlock that also returns its attention scores.

    It is a layer of its own because all calls of a Keras layer must have the same number of outputs.
    """

    def __init__(self, block: TransformerBlock, **kwargs: Any):
        super().__init__(dtype=block.dtype_policy, **kwargs)
        self.supports_masking = True
        self.block = block

    def call(self, inputs: Any, **arguments: Any) -> tuple[Any, ...]:
        return self.block.call(inputs, return_attention_scores=True, **arguments)

    def compute_output_spec(self, inputs: Any, **arguments: Any) -> tuple[Any, ...]:
        return self.block.compute_output_spec(inputs, return_attention_scores=True, **arguments)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {"name": config["name"], "block": keras.saving.serialize_keras_object(self.block)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> BlockWithScores:
        return cls(keras.saving.deserialize_keras_object(config["block"]), name=config["name"])

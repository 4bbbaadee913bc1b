"""A model that also returns its hidden states and attention weights."""

from __future__ import annotations

from typing import Any

import keras

from keras_tx.errors import ConfigError
from keras_tx.layers import TransformerBlock


def with_outputs(model: Any, hidden_states: bool, attentions: bool) -> keras.Model:
    """See TransformerModel.with_outputs."""
    states: list[Any] = []
    scores: list[Any] = []

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(layer, TransformerBlock):
            return layer(*args, **kwargs)
        if attentions:
            output, *weights = BlockWithScores(layer, name=layer.name)(*args, **kwargs)
            scores.append(weights[0])
        else:
            output = layer(*args, **kwargs)
        states.extend([output] if states else [args[0], output])
        return output

    # If a norm follows the last block, its output is the last hidden state.
    last = [] if model.encoded is None else [model.encoded.tokens]
    uncompiled = keras.Model(model.input, [model.output, *last])  # a compiled clone would have an optimizer
    clone = keras.models.clone_model(uncompiled, clone_function=lambda layer: layer, call_function=call)
    if not states:
        raise ConfigError(
            f"Model {model.name!r} has no TransformerBlock in its graph, so it has neither hidden states nor "
            "attention weights. Create a keras.Model with the outputs of its layers instead."
        )
    output, *last = clone.output
    states[-1:] = last or states[-1:]
    outputs = dict(output) if isinstance(output, dict) else {model.output_name: output}
    for name, wanted, tensors in (
        ("hidden_states", hidden_states, states),
        ("attentions", attentions, scores),
    ):
        if wanted:
            outputs[name] = tuple(
                keras.layers.Identity(dtype=x.dtype, name=f"{name}_{index}")(x)
                for index, x in enumerate(tensors)
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

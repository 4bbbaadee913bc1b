"""The exported graph of a masked language model of keras-hub, with the logits of every token."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx_onnx.interfaces.base import NoOptions
from keras_tx_onnx.interfaces.keras_hub_encoder import KerasHubEncoderInterface
from keras_tx_onnx.interfaces.keras_hub_texts import REMEDY
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.signature import Functional

_POSITIONS = "mask_positions"


class MaskedLMInterface(KerasHubEncoderInterface):
    """`input_ids`, `attention_mask` and perhaps `token_type_ids` to the `logits` of each token.

    keras-hub's model computes logits at the input `mask_positions`; here these are all positions.
    """

    kind = "a masked language model of keras-hub"
    Options = NoOptions
    task = contract.FILL_MASK

    def __init__(self, functional: Functional, options: NoOptions, opset: int):
        source = functional.model
        model = _at_all_positions(source)
        super().__init__(dataclasses.replace(functional, model=model), options, opset, source)
        if self.transform.mask_token is None:
            raise ConfigError(
                f"The tokenizer of model {source.name!r}, a {type(source.preprocessor.tokenizer).__name__}, "
                f"has no mask_token. {REMEDY}"
            )
        self.outputs = [contract.LOGITS]
        self.add_files({"mask_token_id": self.transform.id_of(self.transform.mask_token)})


def _at_all_positions(source: Any) -> keras.Model:
    """The model without `mask_positions`, whose head computes logits for every token."""
    function = functional_graph.function_of(source)
    inputs = {tensor.name: tensor for tensor in function.inputs}
    heads = functional_graph.last_operations(function)
    if _POSITIONS not in inputs or "token_ids" not in inputs or len(heads) != 1:
        raise ConfigError(
            f"Model {source.name!r} ({type(source).__name__}) has the inputs {', '.join(inputs)}, expected "
            f"token_ids and {_POSITIONS}. {REMEDY}"
        )
    (head,) = heads
    hidden = functional_graph.first_input(head)
    del inputs[_POSITIONS]
    positions = ops.cumsum(ops.ones_like(inputs["token_ids"]), axis=1) - 1
    return keras.Model(inputs, head(hidden, positions), name=source.name)

"""The exported graph of a text embedder of keras-hub, with the tokens and the pooled vector of a text."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx_onnx.interfaces.base import NoOptions
from keras_tx_onnx.interfaces.keras_hub_encoder import KerasHubEncoderInterface
from keras_tx_onnx.interfaces.keras_hub_texts import REMEDY
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.signature import Functional

_TOKENS = "sequence_output"  # of backbones with several outputs


class TextEmbedderInterface(KerasHubEncoderInterface):
    """`input_ids`, `attention_mask` and perhaps `token_type_ids` to tokens and `sentence_embedding`.

    Pooling and normalization of the Keras model are in the graph.
    """

    kind = "a text embedder of keras-hub"
    Options = NoOptions
    task = contract.FEATURE_EXTRACTION

    def __init__(self, functional: Functional, options: NoOptions, opset: int):
        source = functional.model
        model = _with_tokens(source)
        super().__init__(dataclasses.replace(functional, model=model), options, opset, source)
        self.outputs = [contract.LAST_HIDDEN_STATE, contract.SENTENCE_EMBEDDING]
        self.add_files({"hidden_size": int(model.outputs[0].shape[-1])})


def _with_tokens(source: Any) -> keras.Model:
    """The model with the last hidden state of its backbone as another output."""
    outputs = functional_graph.function_of(source).outputs
    tokens = source.backbone(source.backbone.input)
    tokens = tokens.get(_TOKENS) if isinstance(tokens, dict) else tokens
    if len(outputs) != 1 or len(outputs[0].shape) != 2 or tokens is None or len(tokens.shape) != 3:
        raise ConfigError(
            f"Model {source.name!r} ({type(source).__name__}) has the outputs "
            f"{', '.join(str(tuple(tensor.shape)) for tensor in outputs)}, expected one vector (batch, "
            f"width) of the tokens of its backbone. {REMEDY}"
        )
    return keras.Model(source.input, [tokens, outputs[0]], name=source.name)

"""to_keras_hub converts models of every family."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close

BERT = {"vocabulary_size": 40, "depth": 1, "activation": "gelu_tanh", "head": keras_tx.ClassifierHead(3)}
IDS = np.array([[5, 17, 9, 3], [8, 2, 11, 7]])


def outputs(model: Any) -> np.ndarray:
    """Logits of ids."""
    if isinstance(model, keras_tx.Bert | keras_tx.GPT):
        return as_numpy(model(IDS))
    inputs = {"token_ids": IDS, "padding_mask": np.ones_like(IDS)}
    if "segment_ids" in model.input:
        inputs["segment_ids"] = np.zeros_like(IDS)
    return as_numpy(model(inputs))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: keras_tx.bert("tiny", **BERT), "BertTextClassifier"),
        (lambda: keras_tx.gpt("pico"), "GPT2CausalLM"),
        (lambda: keras_tx.gpt("llama-tiny"), "LlamaCausalLM"),
    ],
    ids=["bert", "gpt2", "llama"],
)
@pytest.mark.filterwarnings("ignore:.*dropout.*:UserWarning", "ignore:.*preprocessor.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*tokenizer.*:UserWarning")
def test_the_families(ours: Any, theirs: str):
    model = redraw(ours())
    hub = keras_tx.to_keras_hub(model)
    assert type(hub).__name__ == theirs
    assert_close(outputs(hub), outputs(model))


def test_other_models_raise():
    with pytest.raises(ConfigError, match="model is a Sequential"):
        keras_tx.to_keras_hub(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    with pytest.raises(ConfigError, match="model is a Transformer, expected one of ViT, Bert, GPT, T5"):
        keras_tx.to_keras_hub(keras_tx.transformer("tiny"))

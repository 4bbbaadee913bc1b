"""keras-hub's T5, both versions, in and out: equal outputs and tensors."""

from __future__ import annotations

from typing import Any

import keras
import keras_hub
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close

# keras-hub's own layers warn when its T5 is built.
pytestmark = pytest.mark.filterwarnings("ignore:Layer '(self|cross)_attention' :UserWarning")

MODELS: Any = keras_hub.models
SOURCE = np.random.default_rng(0).integers(1, 40, (2, 9))
TARGET = np.random.default_rng(1).integers(1, 40, (2, 5))
MASK = np.ones_like(SOURCE)
MASK[1, 6:] = 0
THEIRS = {
    "encoder_token_ids": SOURCE,
    "encoder_padding_mask": MASK,
    "decoder_token_ids": TARGET,
    "decoder_padding_mask": np.ones_like(TARGET),
}
OURS = {"input_ids": SOURCE, "attention_mask": MASK, "decoder_input_ids": TARGET}
SIZES = {
    "vocabulary_size": 40,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
    "key_value_dim": 6,
}


def backbone_of(version: str, gelu: str = "keras_hub>gelu_approximate") -> Any:
    if version == "1.0":
        return MODELS.T5Backbone(**SIZES, use_gated_activation=False)
    activation = keras.saving.get_registered_object(gelu) or gelu
    return MODELS.T5Backbone(**SIZES, activation=activation, tie_embedding_weights=False)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_task_in_and_out(version: str):
    theirs = redraw(MODELS.T5Seq2SeqLM(backbone_of(version)))
    model = keras_tx.from_checkpoint(theirs)
    expected = as_numpy(theirs(THEIRS))
    assert_close(as_numpy(model(OURS)), expected)
    again = keras_tx.to_keras_hub(model)
    assert type(again) is MODELS.T5Seq2SeqLM
    np.testing.assert_array_equal(as_numpy(again(THEIRS)), expected)


def test_backbone_in_and_out():
    theirs = redraw(backbone_of("1.0"))
    model = keras_tx.from_checkpoint(theirs)
    expected = as_numpy(theirs(THEIRS)["decoder_sequence_output"])
    assert_close(as_numpy(model(OURS)), expected)
    again = keras_tx.to_keras_hub(model)
    np.testing.assert_array_equal(as_numpy(again(THEIRS)["decoder_sequence_output"]), expected)


def test_exact_gelu_warns():
    with pytest.warns(UserWarning, match="exact gelu"):
        assert (
            keras_tx.from_checkpoint(MODELS.T5Seq2SeqLM(backbone_of("1.1", "gelu"))).config.activation
            == "geglu"
        )
    with pytest.raises(ConfigError, match=r"use_gated_activation=True"):
        keras_tx.from_checkpoint(backbone_of("1.1", "relu"))


@pytest.mark.parametrize("option", [{"decoder_depth": 1}, {"relative_buckets": 8}, {"scale_logits": False}])
def test_unsupported_options_raise(option: dict[str, Any]):
    ((name, value),) = option.items()
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        keras_tx.to_keras_hub(keras_tx.t5("tiny", **option))

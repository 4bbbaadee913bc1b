"""Encoder-decoders: parts, inputs, costs, training, saving, and the layers that they add."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.layers.key_value_cache import KeyValueCache, caching
from tests.drawing import as_numpy
from tests.tolerances import assert_close

SOURCE = np.array([[37, 9, 4, 1], [5, 1, 0, 0]], "int32")
TARGET = np.array([[0, 52, 7], [0, 3, 4]], "int32")
INPUTS = {"input_ids": SOURCE, "decoder_input_ids": TARGET}


@pytest.fixture(scope="module", params=["transformer", "t5", "bart", "v1.1"])
def model(request: pytest.FixtureRequest) -> keras.Model:
    options = {
        "bart": {"positions": "learned", "embedding_norm": True, "logits_bias": True, "norm_position": "pre"},
        "v1.1": {"activation": "geglu", "tied": False, "decoder_depth": 1},
    }.get(request.param, {})
    factory = keras_tx.t5 if request.param in ("t5", "v1.1") else keras_tx.transformer
    return factory("tiny", **options)


def test_parts_compute_the_output_of_the_model(model: keras.Model):
    mask = (SOURCE != 0).astype("int32")
    encoded = model.encoder()({"input_ids": SOURCE, "attention_mask": mask})
    logits = model.decoder()(
        {
            "encoder_hidden_states": encoded["last_hidden_state"],
            "attention_mask": keras.ops.convert_to_tensor(mask),
            "decoder_input_ids": keras.ops.convert_to_tensor(TARGET),
            "decoder_attention_mask": keras.ops.convert_to_tensor(np.ones_like(TARGET)),
        }
    )
    np.testing.assert_array_equal(as_numpy(logits), as_numpy(model(INPUTS)))


def test_parts_have_the_weights_of_the_model(model: keras.Model):
    """Only the token embedding is in both."""
    encoder, decoder = ({id(x) for x in part.weights} for part in (model.encoder(), model.decoder()))
    assert encoder | decoder == {id(x) for x in model.weights}
    assert encoder & decoder == {id(x) for x in model.get_layer("token_embedding").weights}


def test_padding_of_the_source_has_no_effect(model: keras.Model):
    longer = {**INPUTS, "input_ids": np.pad(SOURCE, ((0, 0), (0, 3)), constant_values=0)}
    assert_close(as_numpy(model(longer)), as_numpy(model(INPUTS)))


def test_cached_decoding_equals_the_whole_target(model: keras.Model):
    mask = (SOURCE != 0).astype("int32")
    source = model.encoder()({"input_ids": SOURCE, "attention_mask": mask})["last_hidden_state"]
    decoder = model.decoder()
    pasts, steps = None, []
    for index in range(TARGET.shape[1]):
        cache = KeyValueCache(np.ones((2, index + 1), "bool"), pasts)
        with caching(cache):
            steps.append(
                decoder(
                    {
                        "encoder_hidden_states": source,
                        "attention_mask": keras.ops.convert_to_tensor(mask),
                        "decoder_input_ids": keras.ops.convert_to_tensor(TARGET[:, index : index + 1]),
                        "decoder_attention_mask": keras.ops.ones((2, 1), "int32"),
                    }
                )
            )
        pasts = cache.presents
    logits = keras.ops.concatenate(steps, axis=1)
    assert_close(as_numpy(logits), as_numpy(model(INPUTS)))


def test_fit_and_save(model: keras.Model, tmp_path):
    copy = model.from_config(model.get_config())
    copy.compile(run_eagerly=True)
    history = copy.fit(INPUTS, TARGET, verbose=0)
    assert set(history.history) == {"loss", "accuracy", "perplexity"}
    copy.save(tmp_path / "model.keras")
    loaded = keras_tx.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(as_numpy(loaded(INPUTS)), as_numpy(copy(INPUTS)))


@pytest.mark.parametrize(
    ("inputs", "pattern"),
    [
        ({"input_ids": SOURCE}, "decoder_input_ids"),
        ({"decoder_input_ids": TARGET}, "'input_ids'"),
        ({**INPUTS, "decoder_input_ids": TARGET[:1]}, "decoder_input_ids has 1 rows"),
        ({**INPUTS, "decoder_input_ids": np.full((2, 3), 256)}, "decoder_input_ids has 256 in row 0"),
        ({**INPUTS, "decoder_input_ids": np.zeros((2, 65), int)}, "decoder_input_ids has length 65.*=64"),
        ({**INPUTS, "decoder_attention_mask": np.ones((2, 4), int)}, r"decoder_attention_mask .*\(2, 4\)"),
    ],
)
def test_wrong_inputs_raise(inputs: dict[str, np.ndarray], pattern: str):
    with pytest.raises(ConfigError, match=pattern):
        keras_tx.t5("tiny")(inputs)


@pytest.mark.parametrize(
    ("config", "millions"),
    [  # as published: of Raffel et al. and the T5 1.1 page, of Vaswani et al. (65 and 213), of Lewis et al.
        (keras_tx.T5Config.variant("small"), 60.5),
        (keras_tx.T5Config.variant("base"), 222.9),
        (keras_tx.T5Config.variant("large"), 737.7),
        (keras_tx.T5Config.variant("3B"), 2851.6),
        (keras_tx.T5Config.variant("11B"), 11307.3),
        (keras_tx.T5Config.variant("v1.1-small"), 77.0),
        (keras_tx.T5Config.variant("v1.1-base"), 247.6),
        (keras_tx.TransformerConfig.variant("base"), 63.1),
        (keras_tx.TransformerConfig.variant("big"), 214.2),
        (keras_tx.TransformerConfig.variant("bart-base"), 139.5),
    ],
    ids=str,
)
def test_parameter_counts_without_weights(config, millions: float):
    assert round(keras_tx.cost(config).params / 1e6, 1) == millions


def test_sines_before_cosines_are_a_permutation_of_alternating_ones():
    x = np.zeros((1, 7, 12), "float32")
    alternating, halves = (
        as_numpy(keras_tx.PositionalEmbedding(7, kind)(x)) for kind in ("sine-cosine", "sine-cosine-halves")
    )
    np.testing.assert_array_equal(halves[..., :6], alternating[..., ::2])
    np.testing.assert_array_equal(halves[..., 6:], alternating[..., 1::2])


def test_ids_out_of_range_raise():
    with pytest.raises(ConfigError, match="start_id=256.*vocabulary_size=256"):
        keras_tx.t5("tiny", start_id=256)
    with pytest.raises(ConfigError, match=r"stop_ids=\(300,\)"):
        keras_tx.transformer("tiny", stop_ids=(300,))

"""cost(): parameters and FLOPs by layer."""

from __future__ import annotations

import gc

import keras
import pytest
from keras.src.backend.common import global_state

import keras_tx
from keras_tx.errors import ConfigError


def test_counts_every_parameter_of_a_real_model():
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3, registers=2, layer_scale=0.1)
    cost = keras_tx.cost(model)
    assert cost.params == model.count_params()
    assert {layer.name for layer in cost.layers if layer.params} == {
        part.name for part in model.layers if part.weights
    }


def test_flops_worked_by_hand():
    # 16 patches of 2x2x3 into 32; 17 tokens; one block of width 32, mlp 128; a head for 3 classes
    patches = 2 * 16 * (2 * 2 * 3) * 32
    attention = 2 * 17 * (4 * 32 * 32) + 2 * 2 * 17 * 17 * 32
    feed_forward = 2 * 17 * (2 * 32 * 128)
    cost = keras_tx.cost(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
    assert {layer.name: layer.flops for layer in cost.layers if layer.flops} == {
        "patch_embedding": patches,
        "block_0": attention + feed_forward,
        "logits": 2 * 32 * 3,
    }
    assert cost.flops == patches + attention + feed_forward + 2 * 32 * 3


def test_flops_of_relative_positions_worked_by_hand():
    # 1 + 6 tokens of width 8 in two heads of 4; 3 offsets of rows and 5 of columns
    x = keras.Input((7, 8))
    plain, relative = (
        keras_tx.cost(keras.Model(x, keras_tx.layers.MultiHeadAttention(2, **options)(x)))
        for options in ({}, {"relative_grid": (2, 3), "prefix_tokens": 1})
    )
    assert relative.flops - plain.flops == 2 * 2 * 6 * 4 * (3 + 5)


def test_flops_of_cross_attention_worked_by_hand():
    # 3 tokens of width 8 attend over 5 of width 6, in two heads; their values are 3 wide
    x, value = keras.Input((3, 8)), keras.Input((5, 6))
    layers = keras_tx.layers
    block = layers.TransformerBlock(2, 16, value_dim=3, cross_attention=True, name="block")
    own = 2 * 3 * (8 * 8 + 8 * 8 + 8 * 6 + 6 * 8) + 2 * 2 * (4 + 3) * 3 * 3
    cross = 2 * 3 * (8 * 8 + 6 * 8) + 2 * 5 * (6 * 8 + 6 * 6) + 2 * 2 * (4 + 3) * 3 * 5
    (row,) = keras_tx.cost(keras.Model([x, value], block(x, value))).layers
    assert row.flops == own + cross + 2 * 3 * (2 * 8 * 16)
    # The graph does not say which tensor is the value: not counted rather than counted wrongly.
    (row,) = keras_tx.cost(keras.Model([x, value], layers.MultiHeadAttention(2)(x, value))).layers
    assert row.flops is None


def test_prints_a_table():
    text = str(keras_tx.cost(keras_tx.vit("Mu/2", image_size=8, num_classes=3)))
    assert "block_0" in text
    assert text.splitlines()[-1].split()[:2] == ["total", "13,859"]


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_flops_of_a_convolution(layout: str):
    """Two for each product: 3 x 3 pixels of 2 of the 4 channels, for 6 filters at 4 x 4 places."""
    inputs = keras.Input((8, 8, 4) if layout == "channels_last" else (4, 8, 8))
    layer = keras.layers.Conv2D(6, 3, strides=2, padding="same", groups=2, data_format=layout, use_bias=False)
    (row,) = keras_tx.cost(keras.Model(inputs, layer(inputs))).layers
    assert row.flops == 2 * (3 * 3 * 2) * 6 * 4 * 4


def test_unknown_layers_are_not_counted():
    inputs = keras.Input((8, 3))
    model = keras.Model(inputs, keras.layers.Conv1D(2, 3, name="conv")(inputs))
    (row,) = keras_tx.cost(model).layers
    assert row.flops is None
    assert "not counted" in str(keras_tx.cost(model))


@pytest.mark.parametrize(
    "config",
    [
        keras_tx.ViTConfig.variant("G/14"),
        keras_tx.BertConfig.variant("base"),
        keras_tx.GPTConfig.variant("124M", tied=False),
    ],
    ids=lambda config: type(config).__name__,
)
def test_a_large_config_allocates_nothing(config):
    keras_tx.cost(config)
    gc.collect()
    assert not global_state.get_global_attribute("uninitialized_variables")
    assert keras_tx.vit("Mu/2", image_size=8).count_params() > 0  # the next model is an ordinary one


def test_refuses_what_is_no_model():
    with pytest.raises(ConfigError, match="model is a str"):
        keras_tx.cost("B/16")

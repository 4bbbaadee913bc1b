from __future__ import annotations

import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.layers import ClassToken
from tests.drawing import as_numpy, built, draw


def test_vit_base_16_at_224():
    assert ClassToken()(np.zeros((2, 196, 768), "float32")).shape == (2, 197, 768)


@pytest.mark.parametrize("count, after", [(1, 0), (1, 1), (4, 1), (2, 3), (3, 5)])
def test_tokens_are_inserted_after_the_first_ones(count, after):
    x = draw(2, 5, 8)
    layer = built(ClassToken(count, after=after), x)
    tokens = np.broadcast_to(as_numpy(layer.tokens), (2, count, 8))
    np.testing.assert_array_equal(
        as_numpy(layer(x)), np.concatenate([x[:, :after], tokens, x[:, after:]], axis=1)
    )


def test_order_of_class_distillation_and_register_tokens():
    """DeiT: class, distillation, patches. DINOv2: class, registers, patches."""
    x = np.full((1, 3, 1), 9.0, "float32")
    layers = [ClassToken(), ClassToken(after=1), ClassToken(4, after=2)]
    for number, layer in enumerate(layers, start=1):
        layer.build((1, None, 1))
        layer.tokens.assign(np.full((layer.count, 1), number, "float32"))
        x = layer(x)
    assert as_numpy(x).ravel().tolist() == [1, 2, 3, 3, 3, 3, 9, 9, 9]


@pytest.mark.parametrize(
    "config, shape, parts",
    [
        ({"count": 0}, None, ["count is 0", "1 or more"]),
        ({"after": -1}, None, ["after is -1", "0 or more"]),
        ({}, (2, 8), ["'token'", "(2, 8)", "(batch, tokens, width)"]),
        ({}, (2, 4, None), ["'token'", "(2, 4, None)", "(batch, tokens, width)"]),
        ({"after": 5}, (2, 4, 8), ["'token'", "after=5", "4 tokens"]),
    ],
)
def test_errors_contain_argument_and_value(config, shape, parts):
    with pytest.raises(ConfigError) as error:
        ClassToken(**config, name="token").build(shape)
    assert all(part in str(error.value) for part in parts), str(error.value)

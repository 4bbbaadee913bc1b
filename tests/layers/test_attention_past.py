"""Attention in chunks with a past equals attention over the whole sequence."""

from __future__ import annotations

import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.layers import MultiHeadAttention, TransformerBlock
from tests.drawing import as_numpy, built, draw
from tests.tolerances import assert_close


def in_chunks(layer, x, chunks, mask=None, positions=None, heads=2, size=4):
    """The outputs of the chunks, and the past of the last one."""
    past = (np.zeros((len(x), heads, 0, size), "float32"),) * 2
    outputs, start = [], 0
    for length in chunks:
        stop = start + length
        arguments = {} if mask is None else {"padding_mask": mask[:, :stop]}
        if positions is not None:
            arguments["positions"] = positions[:, start:stop]
        output, past = layer(x[:, start:stop], past=past, **arguments)
        outputs.append(as_numpy(output))
        start = stop
    return np.concatenate(outputs, axis=1), past


ROTARY = {"num_heads": 4, "kv_heads": 2, "key_dim": 4, "rotary_base": 1e4}


@pytest.mark.parametrize("padded", [False, True], ids=["", "left-padded"])
@pytest.mark.parametrize(
    "cls, config, chunks",
    [
        (MultiHeadAttention, {"num_heads": 2}, (1, 1, 5)),
        (MultiHeadAttention, ROTARY, (3, 2, 1, 1)),
        (MultiHeadAttention, ROTARY | {"qk_norm": True}, (3, 2, 1, 1)),
        (MultiHeadAttention, ROTARY | {"qk_norm": "rms"}, (3, 2, 1, 1)),
        (TransformerBlock, ROTARY | {"mlp_dim": 16}, (3, 2, 1, 1)),
    ],
    ids=["plain", "rotary and grouped", "normalized query and key", "rms of query and key", "block"],
)
def test_chunks_with_past_equal_one_call(cls, config, chunks, padded):
    x = draw(2, 7, 8)
    layer = built(cls(**config, causal=True), x)
    arguments = {}
    if padded:
        mask = np.array([[0, 0, 1, 1, 1, 1, 1], [1] * 7], bool)
        arguments = {"mask": mask}
        if "rotary_base" in config:
            arguments["positions"] = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    whole = as_numpy(
        layer(x, padding_mask=arguments["mask"], positions=arguments.get("positions")) if padded else layer(x)
    )
    pieces, (key, value) = in_chunks(layer, x, chunks, **arguments)
    assert_close(pieces, whole)
    assert tuple(key.shape) == tuple(value.shape) == (2, 2, 7, 4)
    if padded:  # the same as the sequence without its padding
        assert_close(pieces[:1, 2:], as_numpy(layer(x[:1, 2:])))


def projected(layer: MultiHeadAttention, name: str, x: np.ndarray, heads: int) -> np.ndarray:
    dense = getattr(layer, name)
    y = x @ as_numpy(dense.kernel) + as_numpy(dense.bias)
    return y.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)  # (b, heads, s, d)


def test_output_contains_key_and_value_of_all_tokens():
    x = draw(2, 7, 8)
    layer = built(MultiHeadAttention(2, causal=True), x)
    _, (key, value) = in_chunks(layer, x, (3, 4))
    assert_close(as_numpy(key), projected(layer, "key", x, 2))
    assert_close(as_numpy(value), projected(layer, "value", x, 2))


def test_positions_without_rotary_base_raise():
    with pytest.raises(ConfigError, match="rotary_base.*positions="):
        MultiHeadAttention(2)(draw(1, 3, 8), positions=np.arange(3)[None])

"""Attention in ONNX: masks, bias, past, context, rotary and grouped heads, written as one node or many."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_tx.layers import MultiHeadAttention, RelativePositionBias, TransformerBlock
from tests.drawing import draw, redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run
from tests.tolerances import assert_close

OPSETS = pytest.mark.parametrize("opset", [17, 23, 24])
# one full row, one left-padded, one right-padded, one of padding only
MASK = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])


def tokens(name: str = "x", width: int = 16) -> keras.KerasTensor:
    return keras.Input((None, width), name=name)


def mask_input(dtype: str = "int64") -> keras.KerasTensor:
    return keras.Input((None,), dtype=dtype, name="mask")


def check(model: keras.Model, opset: int, folder, *inputs: np.ndarray) -> list[np.ndarray]:
    redraw(model)
    got = run(exported(model, folder / "out", opset=opset), *inputs)
    for mine, expected in zip(got, outputs_of(model, *inputs), strict=True):
        assert np.isfinite(mine).all()
        assert_close(mine, expected)
    assert ("Attention" in nodes_of(folder / "out")) == (opset >= 23 and not _asks_for_weights(model))
    return got


def _asks_for_weights(model: keras.Model) -> bool:
    return any(len(output.shape) == 4 and output.shape[-1] is None for output in model.outputs)


@OPSETS
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"kv_heads": 2}, {"rotary_base": 1e4}], ids=str)
@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_padding_mask(options: dict, dtype: str, opset: int, tmp_path):
    x, mask = tokens(), mask_input(dtype)
    model = keras.Model([x, mask], MultiHeadAttention(4, **options)(x, padding_mask=mask))
    check(model, opset, tmp_path, draw(4, 5, 16), MASK.astype(dtype))


@OPSETS
def test_a_row_of_padding_is_the_output_bias(opset: int, tmp_path):
    x, mask = tokens(), mask_input()
    layer = MultiHeadAttention(4)
    model = keras.Model([x, mask], layer(x, padding_mask=mask))
    (got,) = check(model, opset, tmp_path, draw(4, 5, 16), MASK)
    bias = keras.ops.convert_to_numpy(layer.output_projection.bias)
    np.testing.assert_array_equal(got[3], np.broadcast_to(bias, (5, 16)))


@OPSETS
@pytest.mark.parametrize("causal", [False, True])
def test_relative_position_bias(causal: bool, opset: int, tmp_path):
    x, mask = tokens(), mask_input()
    bias = RelativePositionBias(4, buckets=8, max_distance=16, bidirectional=not causal)(x)
    model = keras.Model([x, mask], MultiHeadAttention(4, causal=causal)(x, padding_mask=mask, bias=bias))
    check(model, opset, tmp_path, draw(4, 5, 16), MASK)


@OPSETS
@pytest.mark.parametrize("heads", [1, 4])
def test_a_bias_with_one_row_for_all_queries(heads: int, opset: int, tmp_path):
    x, bias = tokens(), keras.Input((heads, 1, None), name="bias")
    model = keras.Model([x, bias], MultiHeadAttention(4)(x, bias=bias))
    check(model, opset, tmp_path, draw(4, 5, 16), draw(4, heads, 1, 5, seed=2))


@OPSETS
def test_cross_attention(opset: int, tmp_path):
    x, context, mask = tokens(), tokens("context", 12), mask_input()
    model = keras.Model([x, context, mask], MultiHeadAttention(4)(x, context, padding_mask=mask))
    check(model, opset, tmp_path, draw(4, 3, 16), draw(4, 5, 12, seed=1), MASK)


@OPSETS
def test_attention_weights(opset: int, tmp_path):
    x, mask = tokens(), mask_input()
    outputs = MultiHeadAttention(4, causal=True)(x, padding_mask=mask, return_weights=True)
    _, weights = check(keras.Model([x, mask], outputs), opset, tmp_path, draw(4, 5, 16), MASK)
    assert set(np.round(weights.sum(-1), 5).ravel()) <= {0, 1}


@OPSETS
@pytest.mark.parametrize("options", [{}, {"kv_heads": 2, "rotary_base": 1e4}], ids=str)
def test_cache_ports(options: dict, opset: int, tmp_path):
    """One graph for prefill, chunks and steps: together they give what the whole sequence gives at once."""
    heads, rotary = options.get("kv_heads", 4), "rotary_base" in options
    x, mask = tokens(), mask_input()
    key, value = (keras.Input((heads, None, 4), name=name) for name in ("past_key", "past_value"))
    positions = keras.Input((None,), dtype="int64", name="positions")
    layer = MultiHeadAttention(4, causal=True, **options)
    given = {"padding_mask": mask, "past": (key, value), "positions": positions if rotary else None}
    output, (new_key, new_value) = layer(x, **given)
    inputs = [x, mask, key, value, *([positions] if rotary else [])]
    model = redraw(keras.Model(inputs, [output, new_key, new_value]))
    folder = exported(model, tmp_path / "out", opset=opset)

    sequence, real = draw(3, 5, 16), MASK[:3]
    places = np.maximum(real.cumsum(1) - 1, 0)
    if not rotary:
        whole = keras.ops.convert_to_numpy(layer(sequence, padding_mask=real))
    else:
        whole = keras.ops.convert_to_numpy(layer(sequence, padding_mask=real, positions=places))
    past = [np.zeros((3, heads, 0, 4), "float32")] * 2
    pieces = []
    for start, end in ((0, 2), (2, 4), (4, 5)):
        arrays = [sequence[:, start:end], real[:, :end], *past, *([places[:, start:end]] if rotary else [])]
        piece, *past = run(folder, *arrays)
        pieces.append(piece)
    assert_close(np.concatenate(pieces, axis=1), whole)
    assert past[0].shape == (3, heads, 5, 4)


def test_a_block_has_at_most_16_nodes(tmp_path):
    x, mask = tokens(), mask_input()
    model = keras.Model([x, mask], TransformerBlock(4, 32)(x, padding_mask=mask))
    nodes = nodes_of(exported(model, tmp_path / "out"))
    assert sum(nodes.values()) - 5 <= 16  # Cast, Unsqueeze, Shape, Concat, Expand make the mask, once a model


def test_masks_are_made_once_for_all_blocks(tmp_path):
    x, mask = tokens(), mask_input()
    y = x
    for _ in range(3):
        y = TransformerBlock(4, 32)(y, padding_mask=mask)
    nodes = nodes_of(exported(keras.Model([x, mask], y), tmp_path / "out"))
    assert (nodes["Cast"], nodes["Attention"]) == (1, 3)

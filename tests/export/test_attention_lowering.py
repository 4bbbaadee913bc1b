"""Attention in ONNX: masks, bias, past, context, rotary and grouped heads, written as one node or many."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_tx.layers import MultiHeadAttention, RelativePositionBias, TransformerBlock
from tests.covering import covering
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
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"kv_heads": 2},
        {"rotary_base": 1e4},
        {"qk_norm": True},
        {"qk_norm": "rms", "norm_epsilon": 0.1, "kv_heads": 2, "rotary_base": 1e4},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_padding_mask(options: dict, dtype: str, opset: int, tmp_path):
    x, mask = tokens(), mask_input(dtype)
    model = keras.Model([x, mask], MultiHeadAttention(4, **options)(x, padding_mask=mask))
    check(model, opset, tmp_path, draw(4, 5, 16), MASK.astype(dtype))


@OPSETS
def test_output_of_padding_is_the_output_bias(opset: int, tmp_path):
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
@pytest.mark.parametrize(
    "options",
    [
        {"relative_grid": 5},
        {"relative_grid": 9, "causal": True, "kv_heads": 2, "scale": 0.3},
        {"relative_grid": 6, "prefix_tokens": 2, "qk_norm": True},
        {"relative_grid": (1, 5)},
        {"relative_grid": (2, 2), "prefix_tokens": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True])
def test_relative_grid(masked: bool, options: dict, opset: int, tmp_path):
    x, mask, bias = tokens(), mask_input(), keras.Input((4, 1, None), name="bias")
    layer, arrays = MultiHeadAttention(4, **options), [draw(4, 5, 16), MASK, draw(4, 4, 1, 5, seed=2)]
    if masked:
        model = keras.Model([x, mask, bias], layer(x, padding_mask=mask, bias=bias))
    else:
        model, arrays = keras.Model(x, layer(x)), arrays[:1]
    check(model, opset, tmp_path, *arrays)


@OPSETS
@pytest.mark.parametrize(
    "options",
    [
        {"prefix_tokens": 1, "rotary_grid": (2, 2)},
        {"prefix_tokens": 1, "rotary_grid": (1, 4), "kv_heads": 2, "key_bias": False, "qk_norm": True},
        {"rotary_grid": (5, 1), "qkv_bias": False, "key_bias": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("length", [5, None])
def test_rotary_grid(length: int | None, options: dict, opset: int, tmp_path):
    x = keras.Input((length, 16), name="x")
    layer = MultiHeadAttention(4, rotary_base=100.0, **options)
    check(keras.Model(x, layer(x)), opset, tmp_path, draw(4, 5, 16))


def test_relative_grid_with_a_fixed_length_and_weights(tmp_path):
    x = keras.Input((5, 16), name="x")
    outputs = MultiHeadAttention(4, relative_grid=6)(x, return_attention_scores=True)
    check(keras.Model(x, outputs), 17, tmp_path, draw(4, 5, 16))


@pytest.mark.parametrize("length", [6, 9, 10, 25])
@pytest.mark.parametrize("grid", [5, (1, 5)])
def test_more_tokens_than_the_relative_grid_raise(grid, length: int, tmp_path):
    x = tokens()
    folder = exported(redraw(keras.Model(x, MultiHeadAttention(4, relative_grid=grid)(x))), tmp_path / "out")
    with pytest.raises(Exception, match=r"Reshape.*cannot be reshaped"):
        run(folder, draw(1, length, 16))


@OPSETS
@pytest.mark.parametrize("heads", [1, 4])
def test_bias_with_one_row_for_all_queries(heads: int, opset: int, tmp_path):
    x, bias = tokens(), keras.Input((heads, 1, None), name="bias")
    model = keras.Model([x, bias], MultiHeadAttention(4)(x, bias=bias))
    check(model, opset, tmp_path, draw(4, 5, 16), draw(4, heads, 1, 5, seed=2))


@OPSETS
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"rotary_base": 1e4},
        {"value_dim": 3},
        {"qk_norm": True, "norm_epsilon": 0.1, "use_bias": False, "kv_heads": 2, "rotary_base": 1e4},
        {"qk_norm": "rms"},
    ],
    ids=str,
)
def test_cross_attention(options: dict, opset: int, tmp_path):
    x, value, mask = tokens(), tokens("value", 12), mask_input()
    model = keras.Model([x, value, mask], MultiHeadAttention(4, **options)(x, value, padding_mask=mask))
    check(model, opset, tmp_path, draw(4, 3, 16), draw(4, 5, 12, seed=1), MASK)


@OPSETS
def test_separate_keys(opset: int, tmp_path):
    x, value, key = tokens(), tokens("value", 12), tokens("key", 9)
    model = keras.Model([x, value, key], MultiHeadAttention(4, key_dim=3, value_dim=5)(x, value, key))
    check(model, opset, tmp_path, draw(4, 3, 16), draw(4, 5, 12, seed=1), draw(4, 5, 9, seed=2))


@OPSETS
@pytest.mark.parametrize("call", [lambda layer, x: layer(x, x), lambda layer, x: layer(x, x, x)])
@pytest.mark.parametrize("options", [{}, {"causal": True, "rotary_base": 1e4}], ids=str)
def test_query_as_value(options: dict, call, opset: int, tmp_path):
    x = tokens()
    check(keras.Model(x, call(MultiHeadAttention(4, **options), x)), opset, tmp_path, draw(4, 5, 16))


ALLOWED = np.random.default_rng(7).random((4, 4, 3, 5)) > 0.4
ALLOWED[0, 0, 1] = False  # a query of one head, and one of all heads, without keys
ALLOWED[1, :, 2] = False
SHAPES = {
    "TS": ALLOWED[0, 0],
    "BTS": ALLOWED[:, 0],
    "B1TS": ALLOWED[:, :1],
    "1HTS": ALLOWED[:1],
    "BHTS": ALLOWED,
    "B1T1": ALLOWED[:, :1, :, :1],
    "BH1S": ALLOWED[:, :, :1],
}


def axes_of(array: np.ndarray, name: str, dtype: str | None = None) -> keras.KerasTensor:
    """An input with the array's axes of size 1 and of heads, and else dynamic ones."""
    static = [n if n == 1 or (array.ndim == 4 and axis == 1) else None for axis, n in enumerate(array.shape)]
    return keras.Input(batch_shape=static, dtype=dtype, name=name)


@covering(
    others=[(), ("padding",), ("bias",), ("padding", "bias")],
    axes=list(SHAPES),
    options=[{}, {"causal": True, "kv_heads": 2}],
    opset=[17, 23, 24],
)
def test_attention_mask(others: tuple, axes: str, options: dict, opset: int, tmp_path):
    array = SHAPES[axes]
    x, value, mask = tokens(), tokens("value", 12), axes_of(array, "attention_mask", "bool")
    arrays, tensors, more = [draw(4, 3, 16), draw(4, 5, 12, seed=1), array], [x, value, mask], {}
    if "padding" in others:
        more["padding_mask"] = mask_input("bool")
        arrays.append(MASK.astype(bool))
    if "bias" in others:
        more["bias"] = keras.Input(batch_shape=(None, 4, None, None), name="bias")
        arrays.append(draw(1, 4, 3, 5, seed=3))
    layer = MultiHeadAttention(4, **options)
    model = keras.Model([*tensors, *more.values()], layer(x, value, attention_mask=mask, **more))
    check(model, opset, tmp_path, *arrays)


@OPSETS
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("axes", ["TS", "BTS", "1HTS", "BHTS", "BH1S"])
def test_bias_of_minus_infinity(axes: str, causal: bool, opset: int, tmp_path):
    """The output of a query whose bias is -inf for every key is the output bias, as in Keras."""
    array = np.where(np.resize(SHAPES[axes], (*SHAPES[axes].shape[:-1], 3)), 0.5, -np.inf).astype("float32")
    x, bias = tokens(), axes_of(array, "bias")
    model = keras.Model([x, bias], MultiHeadAttention(4, causal=causal)(x, bias=bias))
    check(model, opset, tmp_path, draw(4, 3, 16), array)


@OPSETS
def test_keras_masks_of_keys_and_values(opset: int, tmp_path):
    x, value, key = tokens(), *(keras.Input((None,), dtype="int64", name=name) for name in ("value", "key"))
    embedding = keras.layers.Embedding(4, 12, mask_zero=True)
    model = keras.Model([x, value, key], MultiHeadAttention(4)(x, embedding(value), embedding(key)))
    ids = np.array([[1, 2, 0, 3], [0, 1, 2, 3]]), np.array([[1, 2, 3, 0], [0, 0, 0, 0]])
    check(model, opset, tmp_path, draw(2, 3, 16), *ids)


@OPSETS
def test_decoder_block(opset: int, tmp_path):
    x, value, mask = tokens(), tokens("value", 12), mask_input()
    block = TransformerBlock(4, 32, causal=True, cross_attention=True, layer_scale=0.5)
    outputs = block(x, value, value_padding_mask=mask, return_attention_scores=True)
    model = keras.Model([x, value, mask], outputs)
    _, own, cross = check(model, opset, tmp_path, draw(4, 3, 16), draw(4, 5, 12, seed=1), MASK)
    assert own.shape == (4, 4, 3, 3) and cross.shape == (4, 4, 3, 5)


@OPSETS
def test_attention_mask_over_the_past(opset: int, tmp_path):
    x, mask = tokens(), keras.Input((None, None), dtype="bool", name="attention_mask")
    past = [keras.Input((4, None, 4), name=name) for name in ("past_key", "past_value")]
    layer = MultiHeadAttention(4, causal=True)
    output, present = layer(x, past=tuple(past), attention_mask=mask)
    model = keras.Model([x, mask, *past], [output, *present])
    arrays = [draw(4, 4, 2, 4, seed=n) for n in (1, 2)]
    check(model, opset, tmp_path, draw(4, 3, 16), ALLOWED[:, 0], *arrays)


@OPSETS
def test_attention_weights(opset: int, tmp_path):
    x, mask = tokens(), mask_input()
    outputs = MultiHeadAttention(4, causal=True)(x, padding_mask=mask, return_attention_scores=True)
    _, weights = check(keras.Model([x, mask], outputs), opset, tmp_path, draw(4, 5, 16), MASK)
    assert set(np.round(weights.sum(-1), 5).ravel()) <= {0, 1}


@OPSETS
@pytest.mark.parametrize("options", [{}, {"kv_heads": 2, "rotary_base": 1e4}], ids=str)
def test_cache_ports(options: dict, opset: int, tmp_path):
    """Prefill, chunks and decode steps of one graph equal the whole sequence in one call."""
    heads, rotary = options.get("kv_heads", 4), "rotary_base" in options
    x, mask = tokens(), mask_input()
    key, value = (keras.Input((heads, None, 4), name=name) for name in ("past_key", "past_value"))
    positions = keras.Input((None,), dtype="int64", name="positions")
    layer = MultiHeadAttention(4, causal=True, **options)
    arguments = {"padding_mask": mask, "past": (key, value), "positions": positions if rotary else None}
    output, (new_key, new_value) = layer(x, **arguments)
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


def test_block_has_at_most_16_nodes(tmp_path):
    x, mask = tokens(), mask_input()
    model = keras.Model([x, mask], TransformerBlock(4, 32)(x, padding_mask=mask))
    nodes = nodes_of(exported(model, tmp_path / "out"))
    assert sum(nodes.values()) - 5 <= 16  # Cast, Unsqueeze, Shape, Concat, Expand make the mask, once a model


def test_mask_is_shared_by_all_blocks(tmp_path):
    x, mask = tokens(), mask_input()
    y = x
    for _ in range(3):
        y = TransformerBlock(4, 32)(y, padding_mask=mask)
    nodes = nodes_of(exported(keras.Model([x, mask], y), tmp_path / "out"))
    assert (nodes["Cast"], nodes["Attention"]) == (1, 3)

"""The attention layers of Keras: every argument of their call, at dynamic lengths, in old and new opsets."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from tests.covering import covering
from tests.drawing import draw, redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run
from tests.naming import shown
from tests.tolerances import assert_close

OPSETS = pytest.mark.parametrize("opset", [17, 23, 26])
SIZES = ((3, 4, 6), (1, 7, 5))  # batch, queries, keys


def tokens(name: str, width: int = 8) -> keras.KerasTensor:
    return keras.Input((None, width), name=name)


def check(model: keras.Model, opset: int, folder, *draws) -> None:
    """`draws` make an array from (batch, queries, keys)."""
    redraw(model)
    exported(model, folder / "out", opset=opset)
    for sizes in SIZES:
        arrays = [make(*sizes) for make in draws]
        for mine, expected in zip(run(folder / "out", *arrays), outputs_of(model, *arrays), strict=True):
            assert_close(mine, expected)


def queries(b: int, t: int, s: int) -> np.ndarray:
    return draw(b, t, 8)


def keys(b: int, t: int, s: int) -> np.ndarray:
    return draw(b, s, 8, seed=1)


def values(b: int, t: int, s: int) -> np.ndarray:
    return draw(b, s, 8, seed=2)


def seen(*shape: int) -> np.ndarray:
    """A mask whose rows attend to all keys, some keys or no key."""
    mask = draw(*shape, seed=3) > 0
    mask[..., 0, :] = False
    mask[..., -1, :] = True
    return mask


def multi(**options) -> layers.Layer:
    return layers.MultiHeadAttention(2, 3, **options)


def grouped(**options) -> layers.Layer:
    return layers.GroupQueryAttention(3, 4, 2, **options)


OPTIONS = [
    {},
    {"use_bias": False},
    {"use_gate": True},
    {"sliding_window": 2},
    {"value_dim": 5},
    {"output_shape": 6},
    {"output_shape": (2, 3)},
    {"dropout": 0.1},
]


@OPSETS
@pytest.mark.parametrize("options", OPTIONS, ids=shown)
def test_options_of_multi_head_attention(options: dict, opset: int, tmp_path):
    if "value_dim" in options and keras.backend.backend() == "jax":
        pytest.skip("Keras itself cannot")
    x = tokens("x")
    check(keras.Model(x, multi(**options)(x, x)), opset, tmp_path, queries)
    assert nodes_of(tmp_path / "out")["Attention"] == (opset >= 23)


@OPSETS
@pytest.mark.parametrize("options", [*OPTIONS[:4], {"dropout": 0.1}], ids=shown)
def test_options_of_group_query_attention(options: dict, opset: int, tmp_path):
    x = tokens("x")
    check(keras.Model(x, grouped(**options)(x, x)), opset, tmp_path, queries)
    assert nodes_of(tmp_path / "out")["Attention"] == (opset >= 23)


@OPSETS
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layer", [multi, grouped])
def test_separate_queries_keys_and_values(layer, causal: bool, opset: int, tmp_path):
    q, k, v = tokens("q"), tokens("k"), tokens("v")
    output = layer()(q, v, k, use_causal_mask=causal)
    check(keras.Model([q, v, k], output), opset, tmp_path, queries, values, keys)
    assert nodes_of(tmp_path / "out")["Attention"] == (opset >= 23)


@OPSETS
@pytest.mark.parametrize(
    ("shape", "make"),
    [
        ((None, None, None), lambda b, t, s: seen(b, t, s)),
        ((1, None, None), lambda b, t, s: seen(b, 1, t, s)),
        ((2, None, None), lambda b, t, s: seen(b, 2, t, s)),
        ((1, None), lambda b, t, s: draw(b, 1, s) > 0),
        ((None, 1), lambda b, t, s: draw(b, t, 1) > 0),
        ((None, None), lambda b, t, s: seen(b, t, s).astype("int64")),
    ],
    ids=shown,
)
@pytest.mark.parametrize("options", [{}, {"dropout": 0.1}, {"scores": True}, {"causal": True}], ids=shown)
def test_attention_masks(options: dict, shape: tuple, make, opset: int, tmp_path):
    rest = shape[1:] if len(shape) == 3 and shape[0] is None else shape
    if len(rest) == 3 and options.get("causal"):
        pytest.skip("a mask for each head, beside a causal one")
    dtype = "int32" if shape == (None, None) else "bool"
    q, v, mask = tokens("q"), tokens("v"), keras.Input(rest, dtype=dtype, name="mask")
    layer = multi(dropout=options.get("dropout", 0.0))
    arguments = {"attention_mask": mask, "use_causal_mask": options.get("causal", False)}
    outputs = layer(q, v, **arguments, return_attention_scores=options.get("scores", False))
    check(keras.Model([q, v, mask], outputs), opset, tmp_path, queries, values, make)


@covering(layer=[multi, grouped], options=[{}, {"dropout": 0.1}], opset=[17, 23, 26])
def test_masks_of_values_and_keys(layer, options: dict, opset: int, tmp_path):
    """For a query without any key, Keras computes the mean of all values, or zero with dropout."""
    q, v = tokens("q"), tokens("v")
    of_values, of_keys = (keras.Input((None,), dtype="bool", name=n) for n in ("of_values", "of_keys"))
    output = layer(**options)(q, v, v, value_mask=of_values, key_mask=of_keys, use_causal_mask=True)

    def padding(b: int, t: int, s: int) -> np.ndarray:
        return np.arange(s) >= np.arange(b)[:, None] * s // 2

    def real(b: int, t: int, s: int) -> np.ndarray:
        return np.arange(s) < np.full((b, 1), s - 1)

    model = keras.Model([q, v, of_values, of_keys], output)
    check(model, opset, tmp_path, queries, values, padding, real)


def test_mask_is_shared_by_all_layers(tmp_path):
    x, mask = tokens("x"), keras.Input((None,), dtype="bool", name="mask")
    y = x
    for _ in range(3):
        y = multi()(y, y, value_mask=mask)
    nodes = nodes_of(exported(keras.Model([x, mask], y), tmp_path / "out"))
    assert (nodes["Attention"], nodes["ReduceMax"], nodes["Expand"], nodes["Where"]) == (3, 1, 1, 3)


def test_attention_over_other_axes_raises(tmp_path):
    x = keras.Input((4, 5, 8), name="x")
    model = keras.Model(x, layers.MultiHeadAttention(2, 3, attention_axes=(1, 2), name="odd")(x, x))
    with pytest.raises(ExportError, match=r"'odd' has attention_axes=\(1, 2\).*rank 4"):
        export_onnx(model, tmp_path / "out", verify=False)


@covering(
    layer=[layers.Attention, layers.AdditiveAttention],
    options=[{}, {"use_scale": True}, {"use_scale": False}],
    scores=[False, True],
    causal=[False, True],
    opset=[17, 23, 26],
)
def test_plain_attention(layer, options: dict, scores: bool, causal: bool, opset: int, tmp_path):
    q, v, k = tokens("q"), tokens("v"), tokens("k")
    outputs = layer(**options)([q, v, k], return_attention_scores=scores, use_causal_mask=causal)
    check(keras.Model([q, v, k], outputs), opset, tmp_path, queries, values, keys)


@covering(name=["dot", "concat", "additive"], causal=[False, True], opset=[17, 23, 26])
def test_plain_attention_with_masks(name: str, causal: bool, opset: int, tmp_path):
    q, v = tokens("q"), tokens("v")
    of_queries, of_values = (keras.Input((None,), dtype="bool", name=n) for n in ("of_queries", "of_values"))
    if name == "additive":
        layer = layers.AdditiveAttention()
    else:
        layer = layers.Attention(score_mode=name, use_scale=True)
    output = layer([q, v], mask=[of_queries, of_values], use_causal_mask=causal)
    model = keras.Model([q, v, of_queries, of_values], output)
    check(
        model,
        opset,
        tmp_path,
        queries,
        values,
        lambda b, t, s: draw(b, t, seed=4) > 0,
        lambda b, t, s: np.arange(s) >= np.arange(b)[:, None] * s // 2,
    )

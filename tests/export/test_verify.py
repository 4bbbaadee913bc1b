"""The comparison with Keras finds what is wrong, and names the layer."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ExportError
from keras_tx.layers import FeedForward
from keras_tx_onnx import export_onnx, registry, tolerances, verify
from tests.drawing import redraw


@pytest.fixture
def break_lowering(monkeypatch):
    """Lets the lowering of a layer give something slightly wrong."""

    def replace(target, change):
        right = registry._LOWERINGS[target]
        wrong = dataclasses.replace(
            right, function=lambda cx, *args, **kw: change(cx, right.function(cx, *args, **kw))
        )
        monkeypatch.setitem(registry._LOWERINGS, target, wrong)

    return replace


@pytest.mark.parametrize(
    ("target", "layer"),
    [
        (keras_tx.PatchEmbedding, "patch_embedding"),
        (keras_tx.PositionalEmbedding, "positions"),
        (keras_tx.MultiHeadAttention, "block_0"),
        ("GetItem", "get_item"),
        (keras.layers.Dense, "block_0"),
    ],
    ids=str,
)
def test_a_wrong_layer_is_named_and_leaves_no_folder(break_lowering, target, layer: str, tmp_path):
    model = redraw(keras_tx.vit("Mu/2", image_size=8, classes=3, depth=2))
    break_lowering(target, lambda cx, x: cx.op.Mul(x, 1.01))
    with pytest.raises(
        ExportError, match=rf"'logits' differs from Keras.*tolerance 1e-04.*first layer.*'{layer}"
    ):
        export_onnx(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_graph_that_the_checker_refuses_is_reported(break_lowering, tmp_path, caplog):
    break_lowering(keras.layers.LayerNormalization, lambda cx, x: cx.op.NoSuchNode(x))
    with pytest.raises(ExportError, match="checker refuses the graph.*NoSuchNode"):
        export_onnx(keras_tx.vit("Mu/2", image_size=8, classes=3), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_nan_is_a_difference():
    ones = np.ones(3)
    assert tolerances.difference(ones, np.array([1, np.nan, 1])) == float("inf")
    assert tolerances.difference(ones, np.ones((3, 1))) == float("inf")
    assert tolerances.difference(2 * ones, np.array([2, 2, 1.0])) == 0.5


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16", "float16"])
def test_half_precision_is_compared_in_float32(policy: str, tmp_path):
    model = redraw(keras_tx.vit("Mu/2", image_size=8, classes=3, dtype=policy))
    assert verify.in_float32(model) is not model
    assert export_onnx(model, tmp_path / "out").manifest.parity.max_difference < 1e-5
    wrapped = keras.Model(model.input, keras.layers.Dense(2, dtype=policy)(model.output))
    redraw(wrapped)
    assert export_onnx(wrapped, tmp_path / "wrapped").manifest.parity.max_difference < 1e-5


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_under_a_global_policy(policy: str, tmp_path):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        x = keras.Input((4,), name="x")
        inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation="relu")])
        for index, model in enumerate((keras.Model(x, keras.layers.Dense(3)(inner(x))), inner)):
            report = export_onnx(redraw(model), tmp_path / str(index))
            assert report.manifest.parity.max_difference < 1e-5
    finally:
        keras.config.set_dtype_policy(before)


def test_the_search_survives_a_norm_without_shift(break_lowering, tmp_path):
    x = keras.Input((4, 8), name="x")
    y = keras.layers.LayerNormalization(center=False, name="norm")(x)
    model = redraw(keras.Model(x, keras.layers.Dense(2, name="wrong")(y)))
    break_lowering(keras.layers.Dense, lambda cx, x: cx.op.Mul(x, 1.01))
    with pytest.raises(ExportError, match="first layer that differs is 'wrong'"):
        export_onnx(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_float32_needs_no_copy():
    model = keras_tx.vit("Mu/2", image_size=8)
    assert verify.in_float32(model) is model


def test_a_layer_that_cannot_be_copied_to_float32_is_named(tmp_path):
    class Stubborn(FeedForward):
        def __init__(self, **kwargs):
            super().__init__(**{**kwargs, "dtype": "mixed_bfloat16"})

    x = keras.Input((4, 8), name="x")
    model = keras.Model(x, Stubborn(hidden=8, name="stubborn")(x))
    with pytest.raises(ExportError, match="'stubborn' computes in bfloat16.*verify=False"):
        verify.in_float32(model)


def test_one_case_for_each_batch(tmp_path):
    report = export_onnx(keras_tx.vit("Mu/2", image_size=8, classes=3), tmp_path / "out")
    assert report.manifest.parity.cases == ("batch 1", "batch 3")

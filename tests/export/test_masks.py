"""Keras masks: layers that use, propagate or drop them."""

from __future__ import annotations

import keras
import numpy as np
import onnx
import pytest
from keras import layers, ops

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from tests.drawing import draw, redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run
from tests.tolerances import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning")


def padded(batch: int, length: int, seed: int = 0) -> np.ndarray:
    """Numbers of tokens: whole rows, padding on either side and in the middle, and padding alone."""
    ids = np.random.default_rng(seed).integers(1, 7, (batch, length))
    ids[1, length // 2 :] = 0
    ids[2, : length // 3 + 1] = 0
    ids[3, 1:-1:2] = 0
    ids[4] = 0
    return ids


def check(model: keras.Model, folder, *seeds: int, opset: int = 23) -> None:
    redraw(model)
    exported(model, folder / "out", opset=opset)
    for length in (4, 9):
        arrays = [padded(5, length, seed) for seed in seeds or (0,)]
        for mine, expected in zip(run(folder / "out", *arrays), outputs_of(model, *arrays), strict=True):
            assert_close(mine, expected)


def words(name: str = "ids") -> keras.KerasTensor:
    return keras.Input((None,), dtype="int32", name=name)


def embedded(ids: keras.KerasTensor, width: int = 4) -> keras.KerasTensor:
    return layers.Embedding(7, width, mask_zero=True)(ids)


class Shown(layers.Layer):
    """Returns the mask as numbers; 2 without a mask."""

    def compute_output_shape(self, shape):
        return shape[:2]

    def call(self, x, mask=None):
        return ops.full(ops.shape(x)[:2], 2.0) if mask is None else ops.cast(mask, "float32")


class Doubling(layers.Layer):
    def call(self, x):
        return 2 * x


class Own(layers.Layer):
    """Makes a mask from its input."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, x):
        return x + 1

    def compute_mask(self, inputs, mask=None):
        mine = ops.any(inputs > 0, axis=-1)
        return mine if mask is None else ops.logical_and(mine, mask)


HANDED_ON = {
    "embedding": lambda x: x,
    "dropout": lambda x: layers.Dropout(0.5)(x),
    "dense": lambda x: layers.Dense(4)(x),
    "norm": lambda x: layers.LayerNormalization()(x),
    "activation": lambda x: layers.Activation("tanh")(x),
    "a layer that loses it": lambda x: layers.Conv1D(4, 3, padding="same")(x),
    "a layer of the user's that loses it": lambda x: Doubling()(x),
    "an operation": lambda x: x * 2,
    "a layer of the user's": lambda x: Own()(x),
    "two of the user's": lambda x: Own()(Doubling()(x)),
    "add, both": lambda x: layers.Add()([x, layers.Dense(4)(x)]),
    "add, one": lambda x: layers.Add()([x, Doubling()(x)]),
    "concatenate": lambda x: layers.Concatenate()([x, layers.Dense(3)(x)]),
    "concatenate, one": lambda x: layers.Concatenate()([x, Doubling()(x)]),
    "concatenate, time": lambda x: layers.Concatenate(axis=1)([x, Doubling()(x)]),
    "maximum": lambda x: layers.Maximum()([x, Own()(x)]),
    "maximum, one": lambda x: layers.Maximum()([x, Doubling()(x)]),
    "minimum": lambda x: layers.Minimum()([x, Own()(x)]),
    "multiply": lambda x: layers.Multiply()([x, Own()(x)]),
    "multiply, one": lambda x: layers.Multiply()([x, Doubling()(x)]),
    "average": lambda x: layers.Average()([x, Own()(x)]),
    "masking again": lambda x: layers.Masking(0.25)(layers.ReLU(max_value=0.25)(x)),
    "time distributed": lambda x: layers.TimeDistributed(layers.Dense(4))(x),
    "time distributed model": lambda x: layers.TimeDistributed(
        keras.Sequential([keras.Input((4,)), layers.Dense(4)])
    )(x),
    "multi-head attention": lambda x: layers.MultiHeadAttention(2, 3)(x, x),
    "after multi-head attention": lambda x: [layers.MultiHeadAttention(2, 3)(x, x), Doubling()(x), x],
    "attention twice, where the first removes the mask": lambda x: layers.MultiHeadAttention(2, 3)(
        layers.MultiHeadAttention(2, 3)(x, x), x
    ),
    "the sum with attention": lambda x: layers.Add()([x, layers.MultiHeadAttention(2, 3)(x, x)]),
    "with dropout": lambda x: layers.MultiHeadAttention(2, 3, dropout=0.1)(x, x),
    "group query attention": lambda x: layers.GroupQueryAttention(3, 2, 1)(x, x, use_causal_mask=True),
    "attention": lambda x: layers.Attention()([x, x]),
    "additive attention": lambda x: layers.AdditiveAttention()([x, Own()(x)], use_causal_mask=True),
    "a nested model": lambda x: keras.Sequential([keras.Input((None, 4)), layers.Dense(4)])(x),
    "flatten": lambda x: layers.Dense(2)(layers.GlobalMaxPooling1D()(x)),
    "reversible embedding": lambda x: layers.ReversibleEmbedding(7, 4, mask_zero=True)(ops.argmax(x, -1)),
    "lambda": lambda x: layers.Lambda(lambda y: y * 3)(x),
    "lambda with a mask": lambda x: layers.Lambda(lambda y: y * 3, mask=lambda y, mask: mask)(x),
}


@pytest.mark.parametrize("build", HANDED_ON.values(), ids=HANDED_ON)
def test_masks_are_propagated_as_in_keras(build, tmp_path):
    ids = words()
    outputs = keras.tree.flatten(build(embedded(ids)))
    shown = [Shown()(y) for y in outputs if len(y.shape) == 3]
    check(keras.Model(ids, [*outputs, *shown]), tmp_path)


@pytest.mark.parametrize("opset", [17, 23])
def test_transformer_with_masks_of_its_embedding(opset: int, tmp_path):
    """Encoder and decoder; every padded row, and rows of padding alone, as Keras has them."""
    source, target = words("source"), words("target")
    x = embedded(source, 8)
    x = layers.LayerNormalization()(layers.MultiHeadAttention(2, 4)(x, x) + x)
    y = embedded(target, 8)
    y = layers.MultiHeadAttention(2, 4, dropout=0.1)(y, y, use_causal_mask=True)
    y = layers.MultiHeadAttention(2, 4)(y, x)
    check(keras.Model([source, target], layers.Dense(3)(y)), tmp_path, 0, 1, opset=opset)
    assert nodes_of(tmp_path / "out")["Attention"] == (3 if opset >= 23 else 0)


@pytest.mark.parametrize("layer", [layers.GlobalAveragePooling1D, lambda: layers.LSTM(3)])
def test_explicit_masks(layer, tmp_path):
    x, mask = keras.Input((None, 4), name="x"), keras.Input((None,), dtype="bool", name="mask")
    model = redraw(keras.Model([x, mask], layers.Dense(3)(layer()(x, mask=mask))))
    folder = exported(model, tmp_path / "out")
    for length in (4, 9):
        arrays = draw(5, length, 4), padded(5, length) > 0
        arrays[1][4, 0] = True  # Keras divides by the number of the real ones
        for mine, expected in zip(run(folder, *arrays), outputs_of(model, *arrays), strict=True):
            assert_close(mine, expected)


def test_softmax_over_real_tokens(tmp_path):
    ids = words()
    scores = ops.squeeze(layers.Dense(1)(embedded(ids)), -1)
    check(keras.Model(ids, layers.Softmax()(scores, mask=ops.not_equal(ids, 0))), tmp_path)


def test_masks_through_a_nested_model(tmp_path):
    x = keras.Input((None, 4), name="x")
    inner = keras.Model(x, Shown()(layers.Dropout(0.1)(x)), name="inner")
    ids = words()
    check(keras.Model(ids, inner(embedded(ids))), tmp_path)


def test_masks_are_boolean(tmp_path):
    """No constant represents minus infinity, which float16 could not store."""
    ids = words()
    x = embedded(ids, 8)
    model = keras.Model(ids, layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    folder = exported(model, tmp_path / "out", opset=23)
    graph = onnx.load(folder / "onnx" / "model.onnx").graph
    for tensor in graph.initializer:
        assert np.abs(onnx.numpy_helper.to_array(tensor)).max() < 65504


def test_fixed_mask_raises(tmp_path):
    class Fixed(layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.supports_masking = True

        def call(self, x):
            return x + 1

        def compute_mask(self, inputs, mask=None):
            return np.array([[True, False]])

    x = keras.Input((2, 4), name="x")
    with pytest.raises(
        ExportError, match="mask of the layer 'odd' .*ndarray, which does not come from its inputs"
    ):
        export_onnx(keras.Model(x, Fixed(name="odd")(x)), tmp_path / "out", verify=False)

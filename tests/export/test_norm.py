"""Normalizations with every option, at inference."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
from keras import layers

from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, draw, redraw
from tests.export.exporting import exported, outputs_of, run
from tests.export.one_input import same
from tests.export.test_convolution import named
from tests.tolerances import assert_close

OPSETS = (17, 18, 20, 21, 23)
SWITCHES = [{}, {"center": False}, {"scale": False}, {"center": False, "scale": False}]


def moving(call, shape):
    """A model whose moving statistics are drawn as well."""
    x = keras.Input(shape, name="x")
    model = redraw(keras.Model(x, call(x)))
    random = np.random.default_rng(3)
    for weight in model.non_trainable_weights:
        low = 0.5 if "variance" in weight.path else -1.0
        weight.assign(random.uniform(low, 1.5, weight.shape))
    return model


@pytest.mark.parametrize("axis", [-1, 1, 2, 3, -2])
def test_batch_normalization(axis: int, tmp_path):
    def call(x):
        switches = [*SWITCHES, {"epsilon": 0.1}]
        return [layers.BatchNormalization(axis=axis, **options)(x) for options in switches]

    model, x = moving(call, (3, 5, 4)), draw(3, 3, 5, 4)
    for opset in OPSETS:
        got = run(exported(model, tmp_path / str(opset), opset=opset), x)
        for mine, expected in zip(got, outputs_of(model, x), strict=True):
            assert_close(mine, expected)


@pytest.mark.parametrize("shape", [(4,), (5, 4), (2, 3, 2, 4)])
def test_batch_normalization_of_any_rank(shape, tmp_path):
    model, x = moving(lambda x: layers.BatchNormalization()(x), shape), draw(3, *shape)
    assert_close(run(exported(model, tmp_path / "out"), x)[0], outputs_of(model, x)[0])


def test_batch_normalization_ignores_a_mask_at_inference(tmp_path):
    x, counts = keras.Input((5, 4), name="x"), keras.Input((5,), dtype="bool", name="counts")
    model = redraw(keras.Model([x, counts], layers.BatchNormalization()(x, mask=counts)))
    series, mask = draw(3, 5, 4), np.random.default_rng(0).random((3, 5)) < 0.5
    export_onnx(model, tmp_path / "out", verify=False)
    # Nothing of the graph depends on the mask, which stays an input.
    assert_close(run(tmp_path / "out", series, mask)[0], as_numpy(model([series, mask])))


def test_batch_normalization_over_the_batch_raises(tmp_path):
    x = keras.Input(batch_shape=(3, 4), name="x")
    model = keras.Model(x, layers.BatchNormalization(axis=0, name="odd")(x))
    with pytest.raises(Exception, match="'odd' has axis=0"):
        export_onnx(model, tmp_path / "out", verify=False)


def test_layer_normalization(tmp_path):
    def call(x):
        return [
            named(layers.LayerNormalization, axis=axis, **options)(x)
            for axis, options in itertools.product(
                (-1, 1, (-1, -2), (1, 2, 3), (1, 3), 2), [*SWITCHES, {"epsilon": 0.1}]
            )
        ]

    same(call, (3, 5, 4), tmp_path, opsets=OPSETS)


@pytest.mark.filterwarnings("ignore:You passed `rms_scaling=True`:UserWarning")
def test_layer_normalization_with_rms_scaling(tmp_path):
    def call(x):
        axes = (-1, 1, (-1, -2), (1, 3))
        return [named(layers.LayerNormalization, axis=axis, rms_scaling=True)(x) for axis in axes]

    same(call, (3, 5, 4), tmp_path, opsets=OPSETS)


def test_rms_normalization(tmp_path):
    def call(x):
        axes = (-1, 3, [2, 3], [1, 2, 3])
        return [
            *(named(layers.RMSNormalization, axis=axis)(x) for axis in axes),
            layers.RMSNormalization(epsilon=0.1)(x),
        ]

    same(call, (3, 5, 4), tmp_path, opsets=OPSETS)


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_rms_normalization_broadcasts_its_scale(axis: int, tmp_path):
    same(lambda x: layers.RMSNormalization(axis=axis)(x), (4, 4, 4), tmp_path, opsets=OPSETS)


@pytest.mark.parametrize("shape", [(6,), (5, 6), (3, 5, 6), (2, 3, 2, 6)])
def test_group_normalization(shape, tmp_path):
    def call(x):
        options = [{"groups": 2}, {"groups": 1}, {"groups": 3, "epsilon": 0.1}, {"groups": -1}]
        if shape == (6,):
            options.pop()  # one number less its mean is nothing
        more = [{"groups": 2, **switch} for switch in SWITCHES]
        return [layers.GroupNormalization(**choice)(x) for choice in [*options, *more]]

    same(call, shape, tmp_path, opsets=OPSETS)


def test_group_normalization_of_other_axes_and_dynamic_sizes(tmp_path):
    same(lambda x: layers.GroupNormalization(2, axis=1)(x), (4, 5, 3), tmp_path / "first", opsets=OPSETS)
    same(lambda x: layers.GroupNormalization(2, axis=2)(x), (4, 6, 3), tmp_path / "middle", opsets=OPSETS)
    sizes = [(3, 5, 4), (6, 2, 4)]
    same(
        lambda x: layers.GroupNormalization(2)(x),
        (None, None, 4),
        tmp_path / "any",
        sizes=sizes,
        opsets=OPSETS,
    )


def test_unit_normalization(tmp_path):
    def call(x):
        axes = (-1, 1, (1, 2), (-1, 1))
        return [named(layers.UnitNormalization, axis=axis)(x) for axis in axes]

    values = draw(3, 3, 5, 4)
    values[0, 0] = 0
    same(call, (3, 5, 4), tmp_path, opsets=OPSETS, values=values)


def test_spectral_normalization_uses_its_kernel_unchanged(tmp_path):
    def call(x):
        x = layers.SpectralNormalization(layers.Conv2D(4, 3, activation="relu"))(x)
        return layers.SpectralNormalization(layers.Dense(2), power_iterations=2)(x)

    nodes = same(call, (6, 5, 3), tmp_path, opsets=(17, 23))
    assert nodes == {"Transpose": 2, "Conv": 1, "Relu": 1, "MatMul": 1, "Add": 1}

"""Every activation that Keras offers, by name in a layer and as a layer with its options."""

from __future__ import annotations

import functools
import inspect

import keras
import numpy as np
import pytest
from keras import activations, layers

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from keras_tx_onnx.lowerings.activations import WRITTEN
from tests.export.exporting import exported, run
from tests.export.one_input import refused, same
from tests.export.test_convolution import named
from tests.tolerances import assert_close

OPSETS = (17, 18, 20, 23)
OFFERED = [
    name
    for name, value in vars(activations).items()
    if inspect.isfunction(value) and name not in ("get", "serialize", "deserialize")
]
VALUES = np.concatenate([np.linspace(-4, 4, 65), [-0.5, 0.5, -1.0, 1.0, 6.0, 30.0, -30.0]])
VALUES = np.resize(VALUES, (9, 8)).astype("float32")


def test_every_activation_of_keras_is_covered():
    assert {getattr(activations, name) for name in OFFERED} == {getattr(activations, n) for n in WRITTEN}


def test_by_name(tmp_path):
    names = [name for name in OFFERED if name not in ("glu", "threshold")]  # one halves, one needs options
    same(
        lambda x: [layers.Activation(name)(x) for name in names], (8,), tmp_path, opsets=OPSETS, values=VALUES
    )


def test_inside_a_layer(tmp_path):
    names = [name for name in OFFERED if name not in ("glu", "threshold")]
    same(lambda x: [layers.Dense(4, activation=name)(x) for name in names], (8,), tmp_path)
    same(
        lambda x: [layers.EinsumDense("ab,bc->ac", 4, activation=name)(x) for name in names],
        (8,),
        tmp_path / "e",
    )
    same(lambda x: [layers.Conv1D(4, 2, activation=name)(x) for name in names], (5, 3), tmp_path / "c")


def test_with_options(tmp_path):
    chosen = [
        functools.partial(activations.gelu, approximate=True),
        functools.partial(activations.elu, alpha=0.3),
        functools.partial(activations.celu, alpha=0.3),
        functools.partial(activations.leaky_relu, negative_slope=0.3),
        functools.partial(activations.relu, negative_slope=0.3, max_value=2.0, threshold=0.5),
        functools.partial(activations.threshold, threshold=0.5, default_value=-1.0),
        functools.partial(activations.hard_shrink, threshold=1.0),
        functools.partial(activations.soft_shrink, threshold=1.0),
        functools.partial(activations.squareplus, b=2),
        functools.partial(activations.softmax, axis=1),
        functools.partial(activations.log_softmax, axis=1),
    ]

    def call(x):
        return [layers.Activation(function, name=f"a{i}")(x) for i, function in enumerate(chosen)]

    same(call, (4, 8), tmp_path, opsets=OPSETS, values=np.stack([VALUES[:4], VALUES[4:8]]))


def test_glu_in_a_layer_raises(tmp_path):
    call = lambda x: layers.Dense(6, activation="glu", name="odd")(x)  # noqa: E731
    model = keras.Model(x := keras.Input((4,)), call(x))  # Keras infers a wrong shape
    assert (model.output_shape, model(np.ones((1, 4))).shape) == ((None, 6), (1, 3))
    refused(call, (4,), tmp_path, "'odd' has activation='glu'")


def test_user_functions_are_opened(tmp_path):
    def tanh(x):
        return 2 * keras.ops.tanh(x)

    def call(x):
        x = layers.Conv1D(3, 2, activation=tanh)(layers.Dense(2, activation=tanh)(x))
        return layers.Activation(lambda y: keras.ops.sigmoid(1.702 * y) * y)(x)

    same(call, (5, 4), tmp_path)


def test_celu_with_a_negative_alpha_raises(tmp_path):
    negative = functools.partial(activations.celu, alpha=-1.0)
    refused(lambda x: layers.Activation(negative, name="odd")(x), (4,), tmp_path, "'odd' .*alpha=-1.0")


def test_relu_layer(tmp_path):
    options = [
        {},
        {"max_value": 2.0},
        {"negative_slope": 0.3},
        {"threshold": 0.5},
        {"negative_slope": 0.3, "max_value": 2.0},
        {"negative_slope": 0.3, "threshold": 0.5},
        {"negative_slope": 0.3, "threshold": 0.5, "max_value": 2.0},
        {"threshold": 3.0, "max_value": 2.0},
    ]
    same(
        lambda x: [named(layers.ReLU, **choice)(x) for choice in options],
        (8,),
        tmp_path,
        opsets=OPSETS,
        values=VALUES,
    )


def test_other_layers(tmp_path):
    def call(x):
        return [
            layers.LeakyReLU(negative_slope=0.1)(x),
            layers.ELU(alpha=0.5)(x),
            layers.PReLU()(x),
            layers.PReLU(shared_axes=[1])(x),
            layers.PReLU(shared_axes=[1, 2])(x),
            layers.Softmax()(x),
            layers.Softmax(axis=1)(x),
            layers.Softmax(axis=(1, 2))(x),
            layers.Softmax(axis=[-1])(x),
        ]

    same(call, (4, 8), tmp_path, opsets=OPSETS)


@pytest.mark.parametrize("dtype", ["bool", "float32", "int32"])
@pytest.mark.parametrize("axis", [-1, (1, 2)])
def test_softmax_with_a_mask(dtype: str, axis, tmp_path):
    x, mask = keras.Input((4, 8), name="x"), keras.Input((4, 8), dtype=dtype, name="mask")
    model = keras.Model([x, mask], layers.Softmax(axis=axis)(x, mask=mask))
    scores = np.resize(VALUES, (2, 4, 8))
    unmasked = np.random.default_rng(0).random((2, 4, 8)) < 0.6
    unmasked[0, 0] = False  # nothing is left
    expected = keras.ops.convert_to_numpy(model([scores, unmasked.astype(dtype)]))
    mask_array = unmasked if dtype == "bool" else unmasked.astype("int64" if dtype == "int32" else dtype)
    assert_close(run(exported(model, tmp_path / "out"), scores, mask_array)[0], expected)


def test_a_mask_that_keras_refuses_is_refused(tmp_path):
    ids = keras.Input((8,), dtype="int32")
    model = keras.Model(ids, layers.Softmax(axis=1)(layers.Embedding(5, 6, mask_zero=True)(ids)))
    with pytest.raises(ValueError, match="mask"):
        model(np.ones((2, 8), "int32"))
    with pytest.raises(ExportError, match=r"softmax.*\(None, 8\).*\(None, 8, 6\)"):
        export_onnx(model, tmp_path / "out", verify=False)

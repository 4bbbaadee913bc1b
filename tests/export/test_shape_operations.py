"""Indices, slices, shapes and sizes: cases beyond their examples."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers, ops

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from tests.drawing import draw
from tests.export.comparing import equals_keras

X = draw(2, 4, 3)
WHOLE = np.arange(24, dtype="int32").reshape(2, 4, 3) % 7 - 3
PLACES = np.array([[0, 3, -1], [1, -2, 2]], "int32")
WRONG = np.array([[0, 3, -1], [1, 7, 2]], "int32")


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        (lambda x: [x[:, 1], x[:, -1], x[:, 1:3], x[..., 0], x[:, None], x[:, 0, None, -1]], (X,)),
        (lambda x: [x[:, ::2], x[:, ::-1], x[:, 3:0:-2], x[:, -3:-1], x[:, 1:, :2], x[..., 1:]], (X,)),
        (lambda x: [x[..., None, :], x[:, ..., None], x[None, ...], x[:, :, 5:]], (X,)),
        (lambda x: ops.take(x, [2, 0, -1], axis=1), (X,)),
        (lambda x: ops.take(x, [2, 0, 20]), (X,)),
        (lambda x, i: ops.take(x, i, axis=1), (X, PLACES)),
        (lambda x, i: ops.take(x, i, axis=-2), (WHOLE, PLACES)),
        (lambda x: ops.take_along_axis(x, ops.argsort(x, axis=1), axis=1), (X,)),
        (lambda x: ops.take_along_axis(x, np.array([[[-1, 0, 2]]]), axis=1), (X,)),
        (lambda x: [*ops.top_k(x, 2)], (X,)),
        (lambda x: [*ops.top_k(x * 0, 2)], (X,)),  # equal ones: the first
        (lambda x: ops.top_k(x, 2)[0], (WHOLE,)),
        (lambda x: [ops.sort(x, 1), ops.argsort(x, 1), ops.argsort(x * 0), ops.sort(x, -1)], (X,)),
        (lambda x: [ops.sort(x, 1), ops.argsort(x, 1)], (WHOLE,)),
        (lambda i: [ops.one_hot(i, 3), ops.one_hot(i, 3, axis=0), ops.one_hot(i, 3, axis=1)], (WRONG,)),
        (lambda i: [ops.one_hot(i, 4, dtype="bool"), ops.one_hot(i, 4, dtype="int32")], (WRONG,)),
        (lambda x: [ops.tril(x), ops.triu(x, 1), ops.tril(x, -1)], (X,)),
        (lambda x: ops.triu(x > 0, 1), (X,)),
        (lambda x: [ops.concatenate([x, x], -1), ops.concatenate([x, x * 2], 1)], (X,)),
        (lambda x, y: ops.concatenate([x, y], 1), (X, WHOLE)),
        (lambda x: [ops.stack([x, x], 0), ops.stack([x, x], -1)], (X,)),
        (lambda x: ops.split(x, [1, 3], axis=1), (X,)),
        (lambda x: ops.split(x, 3, axis=-1), (X,)),
        (lambda x: ops.unstack(x, axis=-1), (X,)),
        (lambda x: [ops.squeeze(x[:, :1]), ops.squeeze(x[:, :1], 1), ops.expand_dims(x, (0, -1))], (X,)),
        (lambda x: [ops.transpose(x), ops.moveaxis(x, 0, -1), ops.swapaxes(x, -1, 0)], (X,)),
        (lambda x: ops.moveaxis(x, (0, 1), (-1, -2)), (X,)),
        (lambda x: [ops.repeat(x, 2, 1), ops.repeat(x, [1, 2, 0], 2), ops.repeat(x, 2)], (X,)),
        (lambda x: [ops.tile(x, 2), ops.tile(x, (2, 1, 1, 2)), ops.flip(x), ops.flip(x, -1)], (X,)),
        (
            lambda x: [ops.roll(x, 1), ops.roll(x, -1, 1), ops.roll(x, (1, 5), (1, 2)), ops.roll(x, 0, 1)],
            (X,),
        ),
        (lambda x: [ops.sort(x, None), ops.append(x, x)], (X,)),
        (lambda x: ops.take_along_axis(x, np.array([3, 0]), axis=None), (X,)),
        (lambda x: [*ops.split(x, 2), *ops.split(x, [1])], (X,)),
        (lambda x: ops.slice(x, ops.cast(ops.sum(x[0] * 0, 0), "int32"), (1, 2, 3)), (X,)),
        (
            lambda x: [ops.pad(x, ((1, 0), (0, 2), (1, 1))), ops.pad(x, [[0, 0], [2, 0], [0, 1]], "reflect")],
            (X,),
        ),
        (lambda x: ops.pad(x, [[0, 0], [1, 1], [0, 0]], constant_values=7), (X,)),
        (lambda x: ops.pad(x, [[0, 0], [1, 1], [0, 0]]), (WHOLE,)),
        (lambda x: [ops.reshape(x, (-1, 2)), ops.reshape(x, (2, 12)), ops.ravel(x)], (X,)),
        (lambda x: ops.broadcast_to(x[:, :, None], (2, 4, 5, 3)), (X,)),
        (lambda x: [ops.zeros_like(x), ops.ones_like(x, dtype="int32"), ops.full_like(x, 2)], (X,)),
        (lambda x: ops.slice(x, [0, 1, 1], [2, 2, 2]), (X,)),
        (lambda x: ops.slice_update(x, [0, 1, 1], np.ones((2, 2, 2), "float32")), (X,)),
        (lambda x: ops.scatter_update(x, [[0, 1, 1], [1, 3, 2]], np.array([5.0, 6.0], "float32")), (X,)),
        (lambda x: [ops.diagonal(x, offset=n, axis1=1, axis2=2) for n in (0, 1, -1, -2)], (X,)),
        (lambda x: ops.diagonal(x, axis1=-1, axis2=1), (X,)),
        (lambda x: ops.trace(x, axis1=1, axis2=2), (X,)),
        (lambda x: ops.meshgrid(x[:, 0, 0], x[0, :, 0]), (X,)),
        (lambda x: ops.meshgrid(x[:, 0, 0], x[0, :, 0], indexing="ij"), (X,)),
        (lambda x: ops.linspace(x, x + 1, 4), (X,)),
        (lambda x: [ops.hstack([x, x]), ops.vstack([x, x])], (X,)),
    ],
)
def test_shapes(call, inputs, opset: int, tmp_path):
    equals_keras(call, tmp_path, *inputs, opset=opset)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x[:, 1:-1],
        lambda x: x[:, ::-2],
        lambda x: x[:, -1],
        lambda x: [ops.flip(x, 1), ops.roll(x, 2, 1), ops.roll(x, -1, 1)],
        lambda x: ops.repeat(x, 3, 1),
        lambda x: [ops.cumsum(x, 1), ops.argmax(x, 1), ops.mean(x, 1)],
        lambda x: [ops.sort(x, 1), ops.argsort(x, 1)],
        lambda x: ops.take(x, [0, -1], 1),
        lambda x: ops.reshape(x, (-1, 3)),
        lambda x: ops.split(x, [1, 2], axis=1),
        lambda x: [
            ops.tril(x),
            ops.zeros_like(x),
            ops.pad(x, ((0, 0), (1, 2), (0, 0))),
            ops.tile(x, (1, 2, 1)),
        ],
        lambda x: ops.matmul(x, ops.transpose(x, (0, 2, 1))),
        lambda x: ops.softmax(x, 1),
        lambda x: ops.one_hot(ops.argmax(x, -1), 4),
        lambda x: ops.take_along_axis(x, ops.argsort(x, 1)[:, :1], 1),
        lambda x: x + x[:, :1] * x[:1, :],
    ],
)
def test_one_export_runs_at_every_size(call, tmp_path):
    equals_keras(call, tmp_path, draw(2, 4, 3), again=[draw(5, 7, 3, seed=1)], dynamic=[1])


INTEGERS = st.one_of(st.none(), st.integers(-5, 5))
SLICES = st.builds(slice, INTEGERS, INTEGERS, st.one_of(st.none(), st.sampled_from([1, 2, -1, -2])))
KEYS = st.lists(st.one_of(SLICES, st.integers(-3, 2), st.none(), st.just(Ellipsis)), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(KEYS)
def test_any_key(tmp_path_factory, key):
    if sum(k is not None and k is not Ellipsis for k in key) > 2 or sum(k is Ellipsis for k in key) > 1:
        return
    try:
        expected = X[(slice(None), *key)]
        keras.KerasTensor((None, *X.shape[1:]))[(slice(None), *key)]
    except (IndexError, ValueError):
        return
    if expected.size:
        equals_keras(lambda x: x[(slice(None), *key)], tmp_path_factory.mktemp("key"), X)


class Sizes(layers.Layer):
    """A layer that computes with the sizes of its input in one way."""

    def __init__(self, compute, **kwargs):
        super().__init__(**kwargs)
        self.compute = compute

    def call(self, x):
        return self.compute(x, *ops.shape(x))


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize(
    "compute",
    [
        lambda x, b, t, w: ops.reshape(x, (b, t * w)),
        lambda x, b, t, w: ops.reshape(x, (b * t, -1)),
        lambda x, b, t, w: ops.reshape(x, (-1, t, 1, w)),
        lambda x, b, t, w: ops.broadcast_to(x[:, :1], (b, t, w)) + x,
        lambda x, b, t, w: x[:, : t - 1] + x[:, 1:t],
        lambda x, b, t, w: x[:, t - 2],
        lambda x, b, t, w: ops.slice(x, (0, t - 2, 0), (b, 2, w)),
        lambda x, b, t, w: ops.slice_update(x, (0, t - 1, 0), ops.ones((b, 1, w))),
        lambda x, b, t, w: x + ops.full((t, w), 2.0),
        lambda x, b, t, w: x + ops.expand_dims(ops.arange(t, dtype="float32"), -1),
        lambda x, b, t, w: x + ops.cast(ops.expand_dims(ops.arange(0, 2 * t, 2) // 3, -1), "float32"),
        lambda x, b, t, w: ops.tile(x[:, :1], (1, t, 1)),
        lambda x, b, t, w: ops.where(ops.tril(ops.ones((t, t), dtype="bool")), 1.0, 0.0),
        lambda x, b, t, w: ops.pad(x, [[0, 0], [0, t], [0, 0]]),
        lambda x, b, t, w: ops.one_hot(ops.arange(t), t) + ops.sum(x),
        lambda x, b, t, w: ops.take(x, ops.minimum(ops.arange(t), 2), axis=1),
    ],
)
def test_numbers_computed_from_sizes(compute, opset: int, tmp_path):
    call = Sizes(compute, name="sizes")
    equals_keras(call, tmp_path, draw(2, 4, 3), again=[draw(3, 9, 3, seed=1)], dynamic=[1], opset=opset)


def test_variables_and_arrays_are_operands(tmp_path):
    class Own(layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(shape[-1],), name="scale")
            self.kernel = self.add_weight(shape=(shape[-1], 2), name="kernel")
            self.steps = self.add_weight(
                shape=(2,), dtype="int32", trainable=False, initializer="ones", name="steps"
            )

        def call(self, x):
            mixed = ops.matmul(x * self.scale + np.arange(3, dtype="float32"), self.kernel)
            return mixed + ops.cast(self.steps, "float32") + ops.take(self.kernel, [0, 2], axis=0)[0]

    equals_keras(Own(name="own"), tmp_path, X)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.unstack(x, axis=0), "axis"),
        (lambda x: ops.pad(x, [[0, 0], [1, 1], [0, 0]], "symmetric"), "mode='symmetric'"),
        (lambda x: ops.linspace(x, x + 1, 3, axis=1), "retstep, axis, num"),
        (lambda x: ops.vstack([x[:, 0, 0], x[:, 0, 1]]), "xs of rank=1"),
        (lambda x: ops.meshgrid(x, x), r"x of rank=\[3, 3\]"),
        (lambda x: ops.repeat(x, [1, 2], axis=0), "repeats=.*dynamic"),
        (lambda x: ops.top_k(x > 0, 2)[0], "dtype='bool'"),
        (lambda x: ops.scatter(np.array([[1]]), x[:1, 0] > 0, (5, 3)), "dtype='bool'"),
        (lambda x: ops.diagonal(x > 0, axis1=1, axis2=2), "dtype and offset=.*bool"),
    ],
)
def test_unsupported_operations_raise(call, message: str, tmp_path):
    x = keras.Input((4, 3), name="x")
    with pytest.raises((ExportError, ValueError), match=message):
        export_onnx(keras.Model(x, call(x)), tmp_path / "out", verify=False)

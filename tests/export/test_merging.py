"""Layers that merge several inputs, also of different ranks and sizes."""

from __future__ import annotations

import keras
import pytest
from keras import layers

from tests.export.one_input import same
from tests.export.test_convolution import named

OPSETS = (17, 18, 23)
FOLDED = [layers.Add, layers.Multiply, layers.Average, layers.Maximum, layers.Minimum]


@pytest.mark.parametrize("kind", FOLDED)
def test_two_and_three_inputs_with_broadcasting(kind, tmp_path):
    def call(x):
        column = x[:, :, :1]
        return [
            kind()([x, 2 * x - 1]),
            kind()([x, 1 - x, x + 1]),
            kind()([x, column]),
            kind()([column, x, column]),
            kind()([x, x[:, 0]]),  # (b, c) meets (b, t, c) as (b, 1, c)
            kind()([x[:, 0], x, x]),
        ]

    same(call, (4, 5), tmp_path, opsets=OPSETS)


def test_subtract(tmp_path):
    def call(x):
        return [
            layers.Subtract()([x, 2 * x + 1]),
            layers.Subtract()([x, x[:, 0]]),
            layers.Subtract()([x[:, 0], x]),
        ]

    same(call, (4, 5), tmp_path, opsets=OPSETS)


def test_dynamic_sizes(tmp_path):
    def call(x):
        return [kind()([x, 2 * x, layers.GlobalMaxPooling1D()(x)]) for kind in FOLDED]

    same(call, (None, 5), tmp_path, sizes=[(4, 5), (7, 5)])


def test_concatenate(tmp_path):
    def call(x):
        return [
            layers.Concatenate()([x, 2 * x]),
            layers.Concatenate(axis=1)([x, x, x[:, :2]]),
            layers.Concatenate(axis=-2)([x, x + 1]),
        ]

    same(call, (4, 5), tmp_path, opsets=OPSETS)
    same(lambda x: layers.Concatenate(axis=1)([x, x]), (None, 5), tmp_path / "any", sizes=[(4, 5), (7, 5)])


def test_dot(tmp_path):
    def call(x):
        transposed = layers.Permute((2, 1))(x)
        axes = [(2, 2), (1, 1), 1, 2, -1]
        return [
            *(
                named(layers.Dot, axis, normalize=normal)([x, 2 * x])
                for axis in axes
                for normal in (False, True)
            ),
            layers.Dot((2, 1))([x, transposed]),
            layers.Dot((1, 2))([x, transposed]),
            layers.Dot(1)([x[:, 0], 2 * x[:, 1]]),
            layers.Dot(1, normalize=True)([x[:, 0], x[:, 1]]),
            layers.Dot((2, 1))([x, x[:, 0]]),
            layers.Dot((1, 2))([x[:, 0], x]),
        ]

    same(call, (4, 5), tmp_path, opsets=OPSETS)


def test_dot_of_higher_ranks(tmp_path):
    def call(x):
        y = keras.ops.transpose(x, (0, 3, 1, 2))
        return [layers.Dot((3, 1))([x, y]), layers.Dot((1, 2))([x, y]), layers.Dot((2, 3))([x, y])]

    same(call, (2, 3, 4), tmp_path)

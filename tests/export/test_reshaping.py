"""Layers that move, repeat, pad and cut, in both layouts and at dynamic sizes."""

from __future__ import annotations

import itertools

import pytest
from keras import layers

from tests.export.one_input import refused, same
from tests.export.test_convolution import named
from tests.export.test_preprocessing import INTERPOLATIONS

OPSETS = (17, 18, 20, 23)
BOTH = ("channels_last", "channels_first")


@pytest.mark.parametrize("shape", [(), (4,), (5, 4), (2, 3, 4), (2, 3, 2, 4)])
def test_flatten(shape, tmp_path):
    same(lambda x: [layers.Flatten(data_format=name)(x) for name in BOTH], shape, tmp_path, opsets=OPSETS)


def test_flatten_of_any_size(tmp_path):
    sizes = [(2, 3, 4), (5, 1, 4)]
    same(lambda x: [layers.Flatten(name)(x) for name in BOTH], (None, None, 4), tmp_path, sizes=sizes)


def test_reshape(tmp_path):
    def call(x):
        targets = [(6, 4), (24,), (-1, 8), (2, -1), (-1,), (1, 24, 1), (2, 3, 4)]
        return [named(layers.Reshape, target)(x) for target in targets]

    same(call, (4, 6), tmp_path, opsets=OPSETS)


def test_reshape_of_any_size(tmp_path):
    def call(x):
        return [named(layers.Reshape, target)(x) for target in [(-1, 2), (2, -1), (-1,), (-1, 2, 2)]]

    same(call, (None, 4), tmp_path, sizes=[(3, 4), (5, 4)])


def test_permute(tmp_path):
    def call(x):
        return [named(layers.Permute, dims)(x) for dims in itertools.permutations((1, 2, 3))]

    same(call, (2, 3, 4), tmp_path)
    same(lambda x: layers.Permute((2, 1))(x), (None, 4), tmp_path / "any", sizes=[(3, 4), (5, 4)])


def test_repeat_vector(tmp_path):
    same(lambda x: [layers.RepeatVector(1)(x), layers.RepeatVector(5)(x)], (4,), tmp_path, opsets=OPSETS)


def test_padding_and_cropping_of_series(tmp_path):
    def call(x):
        return [
            *(
                named(layers.ZeroPadding1D, amount, data_format=name)(x)
                for amount in (2, (1, 3))
                for name in BOTH
            ),
            *(named(layers.Cropping1D, amount)(x) for amount in (1, (0, 2), (2, 0), (0, 0))),
        ]

    same(call, (6, 4), tmp_path, opsets=OPSETS)


def test_padding_and_cropping_of_images(tmp_path):
    def call(x):
        amounts = (1, (1, 2), ((1, 0), (0, 2)))
        return [
            named(kind, amount, data_format=name)(x)
            for kind in (layers.ZeroPadding2D, layers.Cropping2D)
            for amount in amounts
            for name in BOTH
        ]

    same(call, (5, 6, 5), tmp_path, opsets=OPSETS)
    same(call, (None, None, 6), tmp_path / "any", sizes=[(5, 6, 6), (7, 8, 6)])


def test_padding_and_cropping_of_volumes(tmp_path):
    def call(x):
        return [
            named(kind, amount, data_format=name)(x)
            for kind in (layers.ZeroPadding3D, layers.Cropping3D)
            for amount in (1, (0, 1, 2), ((1, 0), (0, 2), (1, 1)))
            for name in BOTH
        ]

    same(call, (5, 6, 5, 6), tmp_path)


def test_up_sampling(tmp_path):
    def image(x):
        return [
            named(layers.UpSampling2D, size, interpolation=interpolation, data_format=name)(x)
            for size in (2, (1, 3), (3, 2))
            for interpolation in ("nearest", "bilinear")
            for name in BOTH
        ]

    def volume(x):
        return [
            named(layers.UpSampling3D, size, data_format=name)(x) for size in (2, (1, 3, 2)) for name in BOTH
        ]

    same(lambda x: [layers.UpSampling1D(n)(x) for n in (1, 2, 5)], (4, 3), tmp_path / "series", opsets=OPSETS)
    same(image, (4, 5, 3), tmp_path / "image", opsets=OPSETS)
    same(volume, (2, 3, 4, 2), tmp_path / "volume", opsets=OPSETS)
    same(image, (None, None, 3), tmp_path / "any", sizes=[(4, 5, 3), (2, 7, 3)])


@pytest.mark.parametrize("interpolation", INTERPOLATIONS[1:])
def test_interpolation(interpolation: str, tmp_path):
    call = lambda x: layers.UpSampling2D((2, 3), interpolation=interpolation, name="odd")(x)  # noqa: E731
    same(call, (4, 5, 3), tmp_path)
    refused(call, (None, 5, 3), tmp_path, f"'odd' has interpolation='{interpolation}'.*fixed sizes")

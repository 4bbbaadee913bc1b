"""Pooling over windows, all positions and to a size; padding that onnxruntime computes wrongly."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
from keras import layers

from tests.drawing import as_numpy, draw
from tests.export.exporting import exported, nodes_of, run
from tests.export.one_input import refused, same
from tests.export.test_convolution import first_and_last, named
from tests.tolerances import assert_close


def below_zero(shape, batch: int = 3) -> np.ndarray:
    """Where a zero that padding added would be the maximum."""
    return -np.abs(draw(batch, *shape, seed=5)) - 0.5


@pytest.mark.parametrize("size", (4, 5, 7))
@pytest.mark.parametrize("kind", [layers.MaxPooling1D, layers.AveragePooling1D])
def test_windows_and_strides(kind, size: int, tmp_path):
    def call(x):
        return [
            named(kind, window, strides=stride, padding=padding)(x)
            for window, stride, padding in itertools.product(
                (1, 2, 3, 4), (None, 1, 2, 3, 5), ("valid", "same")
            )
        ]

    same(call, (size, 2), tmp_path, values=below_zero((size, 2)))


@pytest.mark.parametrize("opset", [17, 18, 20, 23])
def test_images_and_volumes(opset: int, tmp_path):
    def image(x):
        return [
            layers.MaxPooling2D((3, 2), strides=(2, 1), padding="same")(x),
            layers.AveragePooling2D((2, 3), strides=(1, 2), padding="same")(x),
            layers.AveragePooling2D((3, 2))(x),
            layers.MaxPooling2D((2, 1), strides=(3, 1), padding="same")(x),
        ]

    def volume(x):
        return [
            layers.MaxPooling3D((1, 2, 3), strides=(1, 2, 1), padding="same")(x),
            layers.AveragePooling3D((3, 1, 2), strides=1, padding="same")(x),
        ]

    same(image, (6, 7, 3), tmp_path / "image", values=below_zero((6, 7, 3)), opsets=(opset,))
    same(volume, (5, 4, 6, 2), tmp_path / "volume", values=below_zero((5, 4, 6, 2)), opsets=(opset,))


@pytest.mark.parametrize("kind", [layers.MaxPooling2D, layers.AveragePooling2D])
@pytest.mark.parametrize(
    ("pool", "strides", "padding"),
    [(3, 2, "valid"), (1, 2, "valid"), (3, 2, "same"), (2, 2, "same"), (3, 1, "same"), (1, 2, "same")],
)
def test_pooling_includes_zeros_of_a_padding_layer(kind, pool, strides, padding, tmp_path):
    """As in ResNet50V2. onnxruntime would merge padding and pooling, and ignore the zeros."""

    def call(x):
        x = layers.ZeroPadding2D(1)(layers.Permute((2, 3, 1))(x))  # adjacent when channels are first
        return kind(pool, strides=strides, padding=padding)(x)

    nodes = same(call, (3, 7, 6), tmp_path, values=below_zero((3, 7, 6)))
    assert nodes["Pad"] == nodes["Transpose"] == 1


def test_first_layers_of_a_resnet(tmp_path):
    def call(x):
        x = layers.Conv2D(4, 7, strides=2)(layers.ZeroPadding2D(3)(x))
        return layers.MaxPooling2D(3, strides=2)(layers.ZeroPadding2D(1)(x))

    nodes = same(call, (16, 18, 3), tmp_path, values=below_zero((16, 18, 3)))
    assert nodes == {"Pad": 2, "Conv": 1, "MaxPool": 1, "Transpose": 2}


def test_padding_after_padding_raises(tmp_path):
    def call(x):
        return layers.MaxPooling2D(2, strides=3, padding="same", name="odd")(layers.ZeroPadding2D(1)(x))

    refused(call, (5, 5, 3), tmp_path, "'odd' has padding='same'")
    same(call, (4, 4, 3), tmp_path / "nothing_to_pad", values=below_zero((4, 4, 3)))


def test_dynamic_sizes(tmp_path):
    def call(x):
        return [
            layers.MaxPooling2D(3, strides=2, padding="same")(x),
            layers.AveragePooling2D((2, 3), strides=2, padding="same")(x),
            layers.MaxPooling2D(1, strides=2, padding="same")(x),
            layers.AveragePooling2D(2, strides=3)(x),
            layers.GlobalAveragePooling2D()(x),
            layers.GlobalMaxPooling2D(keepdims=True)(x),
        ]

    same(call, (None, None, 2), tmp_path, sizes=[(6, 7, 2), (5, 5, 2), (9, 10, 2)])


def test_window_smaller_than_stride_at_a_dynamic_size_raises(tmp_path):
    def call(x):
        return layers.AveragePooling1D(2, strides=3, padding="same", name="odd")(x)

    refused(call, (None, 2), tmp_path, "'odd' has padding='same'.* 2 .* 3")


CHANNELS_FIRST = [
    (lambda **o: layers.MaxPooling1D(3, strides=2, padding="same", **o), (7, 3)),
    (lambda **o: layers.AveragePooling2D((2, 3), padding="same", **o), (6, 7, 3)),
    (lambda **o: layers.MaxPooling3D(2, **o), (4, 5, 6, 2)),
    (lambda **o: layers.GlobalAveragePooling1D(**o), (7, 3)),
    (lambda **o: layers.GlobalMaxPooling2D(keepdims=True, **o), (6, 7, 3)),
    (lambda **o: layers.GlobalAveragePooling3D(**o), (4, 5, 6, 2)),
    (lambda **o: layers.GlobalMaxPooling1D(**o), (7, 3)),
]


@pytest.mark.parametrize(("make", "shape"), CHANNELS_FIRST)
def test_channels_first(make, shape, tmp_path):
    last, first = first_and_last(make, shape)
    x = below_zero(shape)
    (got,) = run(exported(first, tmp_path / "out"), np.moveaxis(x, -1, 1))
    expected = as_numpy(last(x))
    assert_close(got, np.moveaxis(expected, -1, 1) if expected.ndim > 2 else expected)
    assert nodes_of(tmp_path / "out")["Transpose"] == 0


@pytest.mark.parametrize("keepdims", [False, True])
def test_mask_of_a_series(keepdims: bool, tmp_path):
    x, counts = keras.Input((5, 4), name="x"), keras.Input((5,), dtype="bool", name="counts")
    model = keras.Model([x, counts], layers.GlobalAveragePooling1D(keepdims=keepdims)(x, mask=counts))
    series, mask = draw(3, 5, 4), np.array([[1, 1, 0, 0, 0], [1] * 5, [0, 1, 0, 1, 0]], bool)
    for opset in (17, 23):
        (got,) = run(exported(model, tmp_path / str(opset), opset=opset), series, mask)
        assert_close(got, as_numpy(model([series, mask])))


needs_adaptive = pytest.mark.skipif(
    not hasattr(layers, "AdaptiveMaxPooling1D"), reason="Keras has adaptive pooling from 3.13 on"
)


@needs_adaptive
@pytest.mark.parametrize("size", (3, 4, 7))
def test_to_a_size(size: int, tmp_path):
    def call(x):
        return [
            named(kind, count)(x)
            for kind in (layers.AdaptiveMaxPooling1D, layers.AdaptiveAveragePooling1D)
            for count in range(1, size + 1)
            if -(-size // count) + 1 <= size  # TensorFlow aborts where Keras asks for a longer window
        ]

    same(call, (size, 2), tmp_path, opsets=(17, 23))


@needs_adaptive
def test_to_a_size_channels_first_and_dynamic(tmp_path):
    def call(x):
        return [
            layers.AdaptiveMaxPooling2D((3, 2), data_format="channels_first")(x),
            layers.AdaptiveAveragePooling2D((3, 2), data_format="channels_first")(x),
        ]

    same(call, (3, 6, 7), tmp_path)
    message = "'odd' pools axis 1 to 3"
    refused(lambda x: layers.AdaptiveMaxPooling1D(3, name="odd")(x), (None, 2), tmp_path, message)

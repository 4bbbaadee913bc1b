"""Convolutions with every option, at sizes that divide and that do not."""

from __future__ import annotations

import itertools
import re

import keras
import numpy as np
import pytest
from keras import layers

import keras_tx
from keras_tx.layers import PatchEmbedding, PositionalEmbedding, TransformerBlock
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, draw, redraw
from tests.export.exporting import exported, run
from tests.export.one_input import refused, same
from tests.tolerances import assert_close

SIZES = (4, 5, 7)
WINDOWS = (1, 2, 3, 4)


def named(kind, *args, **options):
    """A layer named after its arguments, which appear in the message of a failure."""
    parts = [str(x) for x in (kind.__name__, *args, *itertools.chain(*options.items()))]
    name = "_".join(parts).translate(str.maketrans("(), ", "____"))
    return kind(*args, **options, name=name)


@pytest.mark.parametrize("size", SIZES)
def test_windows_and_strides(size: int, tmp_path):
    def call(x):
        return [
            named(layers.Conv1D, 2, window, strides=stride, padding=padding)(x)
            for window, stride, padding in itertools.product(
                WINDOWS, (1, 2, 3, 5), ("valid", "same", "causal")
            )
        ]

    same(call, (size, 2), tmp_path)


@pytest.mark.parametrize("size", SIZES)
def test_dilations(size: int, tmp_path):
    def call(x):
        return [
            named(layers.Conv1D, 2, window, dilation_rate=dilation, padding=padding)(x)
            for window, dilation, padding in itertools.product((1, 2, 3), (2, 3), ("valid", "same", "causal"))
            if padding != "valid" or (window - 1) * dilation < size
        ]

    same(call, (size, 2), tmp_path)


@pytest.mark.parametrize("options", [{}, {"use_bias": False}, {"activation": "gelu"}], ids=str)
def test_axes_of_an_image_are_not_mixed_up(options: dict, tmp_path):
    def call(x):
        return [
            layers.Conv2D(4, (2, 3), strides=(1, 2), padding="same", **options)(x),
            layers.Conv2D(4, (3, 2), strides=(3, 2), groups=2, **options)(x),
            layers.Conv2D(4, (3, 2), dilation_rate=(1, 2), padding="same", groups=4, **options)(x),
            layers.DepthwiseConv2D((2, 2), strides=2, padding="same", depth_multiplier=2, **options)(x),
            layers.DepthwiseConv2D((3, 2), dilation_rate=(2, 1), padding="same", **options)(x),
            layers.DepthwiseConv2D((3, 2), **options)(x),
            layers.SeparableConv2D(5, (2, 3), padding="same", depth_multiplier=2, **options)(x),
            layers.SeparableConv2D(5, 3, strides=2, padding="same", **options)(x),
            layers.SeparableConv2D(5, 2, dilation_rate=2, **options)(x),
        ]

    same(call, (6, 7, 4), tmp_path, opsets=(17, 18, 20, 23))


def test_series(tmp_path):
    def call(x):
        return [
            layers.DepthwiseConv1D(3, strides=2, padding="same", depth_multiplier=2)(x),
            layers.DepthwiseConv1D(2, dilation_rate=3)(x),
            layers.SeparableConv1D(5, 4, strides=3, padding="same")(x),
            layers.SeparableConv1D(5, 2, dilation_rate=2)(x),
            layers.Conv1D(4, 3, groups=2, padding="causal", strides=2)(x),
        ]

    same(call, (7, 4), tmp_path)


def test_volumes(tmp_path):
    def call(x):
        return [
            layers.Conv3D(4, (1, 2, 3), padding="same")(x),
            layers.Conv3D(4, (1, 2, 3), strides=(1, 2, 1), padding="same", groups=2)(x),
            layers.Conv3D(4, 2, dilation_rate=(2, 1, 1))(x),
        ]

    same(call, (5, 4, 6, 2), tmp_path)


def test_patches_of_a_video(tmp_path):
    """At two opsets, and on other sizes than those of the trace."""

    def call(x):
        return PatchEmbedding(5, (2, 3, 4))(x)

    sizes = [(2, 3, 4, 2), (6, 3, 8, 2), (4, 9, 4, 2)]
    nodes = same(call, (None, None, None, 2), tmp_path, opsets=(17, 23), sizes=sizes)
    assert nodes["Conv"] == 1
    assert nodes["Transpose"] == 2


def test_patches_that_drop_the_remainder(tmp_path):
    def call(x):
        return PatchEmbedding(5, (3, 4), drop_remainder=True)(x)

    sizes = [(3, 4, 2), (5, 11, 2), (7, 8, 2)]
    nodes = same(call, (None, None, 2), tmp_path, opsets=(17, 23), sizes=sizes)
    assert nodes["Conv"] == 1
    same(call, (8, 9, 2), tmp_path / "fixed")
    model = redraw(keras_tx.vit("Mu/2", image_size=(9, 13), drop_remainder=True, num_classes=3))
    export_onnx(model, tmp_path / "vit")  # verified
    again = load(tmp_path / "vit").classify(np.zeros((9, 13, 3), "uint8"))
    assert len(again) == 3


def test_video_transformer_is_verified_at_other_lengths(tmp_path):
    video = keras.Input((None, 4, 8, 1), name="video")
    tokens = TransformerBlock(2, 16)(PatchEmbedding(12, (2, 4, 4))(video))
    model = redraw(keras.Model(video, tokens))
    report = str(export_onnx(model, tmp_path / "out"))
    assert len(set(re.findall(r"length (\d+)", report))) == 3  # lengths of the verification
    fixed = keras.Input((4, 4, 6, 2), name="video")
    tokens = PositionalEmbedding((2, 2, 3), "sine-cosine")(PatchEmbedding(12, 2)(fixed))
    model = redraw(keras.Model(fixed, tokens))
    export_onnx(model, tmp_path / "positions")
    x = draw(3, 4, 4, 6, 2)
    assert_close(run(tmp_path / "positions", x)[0], as_numpy(model(x)))


@pytest.mark.parametrize("size", (2, 3, 5))
def test_transposed(size: int, tmp_path):
    def call(x):
        outputs = []
        for window, stride, padding in itertools.product(WINDOWS, (1, 2, 3, 4), ("valid", "same")):
            for extra in (None, *range(stride)):
                if padding == "same" and extra is not None and not _possible(window, stride, extra, size):
                    continue
                outputs.append(
                    named(
                        layers.Conv1DTranspose,
                        2,
                        window,
                        strides=stride,
                        padding=padding,
                        output_padding=extra,
                    )(x)
                )
        return outputs

    same(call, (size, 2), tmp_path)


def _possible(window: int, stride: int, extra: int, size: int) -> bool:
    """TensorFlow wants the result of "same" to be one that a convolution would bring back to this size."""
    return -(-((size - 1) * stride + window % 2 + extra) // stride) == size


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_transposed_with_dilation(padding: str, tmp_path):
    def call(x):
        return [
            named(layers.Conv2DTranspose, 3, window, dilation_rate=dilation, padding=padding)(x)
            for window, dilation in itertools.product((1, 2, 3), (1, 2, 3))
        ]

    same(call, (5, 6, 2), tmp_path)


def test_transposed_images_and_volumes(tmp_path):
    def image(x):
        return [
            layers.Conv2DTranspose(3, (2, 3), strides=(3, 2), padding="same", activation="relu")(x),
            layers.Conv2DTranspose(3, (4, 1), strides=(2, 3), use_bias=False)(x),
            layers.Conv2DTranspose(3, (3, 3), strides=(2, 2), padding="same", output_padding=(1, 1))(x),
        ]

    def volume(x):
        return [
            layers.Conv3DTranspose(3, (1, 2, 3), strides=(2, 1, 2), padding="same")(x),
            layers.Conv3DTranspose(3, 2, strides=2)(x),
        ]

    same(image, (4, 5, 2), tmp_path / "image")
    same(volume, (2, 3, 4, 2), tmp_path / "volume")


def test_dynamic_sizes(tmp_path):
    def call(x):
        return [
            layers.Conv2D(4, 3, strides=2, padding="same")(x),
            layers.Conv2D(4, (3, 1), strides=(1, 2), padding="same")(x),
            layers.Conv2D(4, 1, strides=2, padding="same")(x),
            layers.Conv2D(4, 3, dilation_rate=2, padding="same")(x),
            layers.DepthwiseConv2D(4, strides=3, padding="same")(x),
            layers.SeparableConv2D(4, 2, strides=2, padding="same")(x),
            layers.Conv2D(4, 2, strides=3)(x),
            layers.Conv2DTranspose(4, 3, strides=2, padding="same")(x),
        ]

    sizes = [(6, 7, 2), (5, 5, 2), (9, 10, 2)]
    same(call, (None, None, 2), tmp_path / "both", sizes=sizes)
    same(call, (None, 7, 2), tmp_path / "one", sizes=[(6, 7, 2), (5, 7, 2)])


def test_window_smaller_than_stride_at_a_dynamic_size_raises(tmp_path):
    message = "'odd' has padding='same'.* 2 .* 3"
    call = lambda x: layers.Conv2D(4, 2, strides=3, padding="same", name="odd")(x)  # noqa: E731
    refused(call, (None, 7, 2), tmp_path, message)
    same(call, (6, 7, 2), tmp_path)


def first_and_last(make, shape, **options):
    """The same layer channels last and first, with the same weights. TensorFlow computes only the former."""
    last, first = (make(data_format=f"channels_{which}", **options) for which in ("last", "first"))
    inputs = keras.Input(shape, name="x")
    model = redraw(keras.Model(inputs, last(inputs)))
    flipped = keras.Input((shape[-1], *shape[:-1]), name="x")
    other = keras.Model(flipped, first(flipped))
    other.set_weights(model.get_weights())
    return model, other


CHANNELS_FIRST = [
    (lambda **o: layers.Conv1D(4, 3, strides=2, padding="same", **o), (7, 3)),
    (lambda **o: layers.Conv2D(4, (2, 3), strides=(1, 2), padding="same", **o), (6, 7, 3)),
    (lambda **o: layers.Conv2D(6, 3, groups=3, activation="relu", **o), (6, 7, 3)),
    (lambda **o: layers.Conv3D(4, 2, **o), (3, 4, 5, 2)),
    (lambda **o: layers.DepthwiseConv1D(3, depth_multiplier=2, **o), (7, 3)),
    (lambda **o: layers.DepthwiseConv2D(3, padding="same", **o), (6, 7, 3)),
    (lambda **o: layers.SeparableConv1D(4, 3, **o), (7, 3)),
    (lambda **o: layers.SeparableConv2D(4, 3, padding="same", **o), (6, 7, 3)),
    (lambda **o: layers.Conv1DTranspose(4, 3, strides=2, **o), (7, 3)),
    (lambda **o: layers.Conv2DTranspose(4, 3, strides=2, padding="same", **o), (6, 7, 3)),
    (lambda **o: layers.Conv3DTranspose(4, 2, **o), (3, 4, 5, 2)),
]


@pytest.mark.parametrize(("make", "shape"), CHANNELS_FIRST)
def test_channels_first(make, shape, tmp_path):
    last, first = first_and_last(make, shape)
    x = draw(3, *shape)
    (got,) = run(exported(first, tmp_path / "out"), np.moveaxis(x, -1, 1))
    assert_close(np.moveaxis(got, 1, -1), as_numpy(last(x)))


def test_softmax_activation_uses_the_last_axis(tmp_path):
    last, first = first_and_last(lambda **o: layers.Conv2D(4, 3, **o), (6, 7, 3))
    first.layers[-1].activation = keras.activations.softmax
    x = draw(3, 6, 7, 3)
    (got,) = run(exported(first, tmp_path / "out"), np.moveaxis(x, -1, 1))
    assert_close(got, as_numpy(keras.ops.softmax(np.moveaxis(as_numpy(last(x)), -1, 1), axis=-1)))


def test_lora_weights_are_exported(tmp_path):
    x = keras.Input((6, 5, 3), name="x")
    model = keras.Model(x, layers.Conv2D(4, 3, name="conv")(x))
    model.get_layer("conv").enable_lora(2)
    image = draw(3, 6, 5, 3)
    (got,) = run(exported(redraw(model), tmp_path / "out"), image)
    assert_close(got, as_numpy(model(image)))

"""Preprocessing layers: every option at inference, and errors for unsupported ones."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
from keras import layers

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, draw
from tests.export.exporting import exported, run
from tests.export.one_input import refused, same
from tests.export.test_convolution import named
from tests.tolerances import assert_close

# PyTorch has no Lanczos interpolation.
INTERPOLATIONS = ["bilinear", "bicubic"] + ["lanczos3", "lanczos5"] * (keras.backend.backend() != "torch")
RESIZED = [(4, 9), (13, 5), (6, 5), (3, 3), (12, 10), (1, 7)]


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_resizing(interpolation: str, data_format: str, tmp_path):
    def call(x):
        aspects = ({}, {"crop_to_aspect_ratio": True}, {"pad_to_aspect_ratio": True, "fill_value": 0.5})
        return [
            named(layers.Resizing, *size, interpolation=interpolation, data_format=data_format, **aspect)(x)
            for size, aspect in itertools.product(RESIZED, aspects)
        ]

    same(call, (6, 5, 3) if data_format == "channels_last" else (3, 6, 5), tmp_path, opsets=(17, 18, 23))


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_interpolation(interpolation: str, antialias: bool, data_format: str, tmp_path):
    """As the backend computes it: TensorFlow, JAX and PyTorch have other weights for bicubic."""

    def call(x):
        options = {"interpolation": interpolation, "antialias": antialias, "data_format": data_format}
        aspects = ({}, {"crop_to_aspect_ratio": True}, {"pad_to_aspect_ratio": True, "fill_value": 0.5})
        return [
            named(layers.Resizing, *size, **options, **aspect)(x)
            for size, aspect in itertools.product(RESIZED[:3], aspects)
        ]

    same(call, (6, 5, 3) if data_format == "channels_last" else (3, 6, 5), tmp_path, opsets=(17, 23))


def test_resizing_of_any_size(tmp_path):
    sizes = [(6, 5, 3), (3, 11, 3)]
    same(lambda x: layers.Resizing(4, 7)(x), (None, None, 3), tmp_path, sizes=sizes)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((None, 5, 3), {"interpolation": "lanczos3"}, "'odd' has interpolation='lanczos3'.*fixed sizes"),
        ((6, None, 3), {"interpolation": "bicubic"}, "'odd' has interpolation='bicubic'.*fixed sizes"),
        ((None, None, 3), {"antialias": True}, "'odd' has .*antialias=True.*fixed sizes"),
        (
            (None, 5, 3),
            {"interpolation": "nearest"},
            "'odd' has interpolation='nearest'.*axis 1",
        ),
        ((None, 5, 3), {"crop_to_aspect_ratio": True}, "'odd' .*aspect ratio"),
        ((None, 5, 3), {"pad_to_aspect_ratio": True}, "'odd' .*aspect ratio"),
        ((5, 3), {}, r"'odd' .*shape \(None, 5, 3\)"),
    ],
)
def test_unsupported_resizing_raises(shape, options: dict, message: str, tmp_path):
    refused(lambda x: layers.Resizing(4, 4, name="odd", **options)(x), shape, tmp_path, message)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_center_crop(data_format: str, tmp_path):
    def call(x):
        sizes = [(4, 4), (6, 5), (3, 2), (1, 1), (9, 4), (4, 9), (9, 9)]
        return [named(layers.CenterCrop, *size, data_format=data_format)(x) for size in sizes]

    same(call, (6, 5, 3) if data_format == "channels_last" else (3, 6, 5), tmp_path)


def test_unsupported_center_crop_raises(tmp_path):
    refused(
        lambda x: layers.CenterCrop(4, 4, name="odd")(x), (5, 3), tmp_path, r"'odd' .*shape \(None, 5, 3\)"
    )
    refused(lambda x: layers.CenterCrop(4, 4, name="odd")(x), (None, 5, 3), tmp_path, "'odd' .*aspect ratio")


def test_integers_become_floats(tmp_path):
    x = keras.Input((6, 5, 3), dtype="uint8", name="x")
    call = (
        layers.CenterCrop(3, 4)(x),
        layers.Rescaling(1 / 255, offset=-0.5)(x),
        layers.Normalization(mean=[1.0, 2.0, 3.0], variance=[1.0, 2.0, 0.5])(x),
    )
    model = keras.Model(x, call)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 5, 3))
    expected = model(pixels.astype("uint8"))
    for got, reference in zip(run(exported(model, tmp_path / "out"), pixels), expected, strict=True):
        assert_close(got, as_numpy(reference))


def test_resizing_integers_raises(tmp_path):
    x = keras.Input((6, 5, 3), dtype="uint8", name="x")
    with pytest.raises(ExportError, match="'odd' .*uint8"):
        export_onnx(keras.Model(x, layers.Resizing(3, 3, name="odd")(x)), tmp_path / "out", verify=False)


def test_rescaling(tmp_path):
    def call(x):
        return [
            layers.Rescaling(0.1, offset=2.0)(x),
            layers.Rescaling([0.1, 0.2, 0.3], offset=[1.0, 2.0, 3.0])(x),
            layers.Rescaling(2)(x),
        ]

    same(call, (6, 5, 3), tmp_path)


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("axis", [-1, 1, None, (1, 2)])
def test_adapted_normalization(invert: bool, axis, tmp_path):
    layer = layers.Normalization(axis=axis, invert=invert)
    data = draw(50, 4, 3) * 3 + 2
    data[:, 1, 1] = 0.5  # no variance: Keras divides by its epsilon
    layer.adapt(data)
    same(lambda x: layer(x), (4, 3), tmp_path, values=data[:5])


def test_discretization(tmp_path):
    boundaries = [-1.0, 0.0, 0.5]
    layer = layers.Discretization(boundaries)
    values = np.array([[-2.0, -1.0, -0.5, 0.0], [0.25, 0.5, 0.75, 100.0]], "float32")
    same(lambda x: layers.Rescaling(1.0)(layer(x)), (4,), tmp_path, values=values)
    adapted = layers.Discretization(num_bins=4)
    adapted.adapt(draw(100, 1))
    same(lambda x: layers.Rescaling(1.0)(adapted(x)), (4,), tmp_path / "adapted")
    for mode in ("one_hot", "multi_hot", "count"):
        call = lambda x: layers.Discretization(boundaries, output_mode=mode, name="odd")(x)  # noqa: E731, B023
        refused(call, (4,), tmp_path, f"'odd' has output_mode='{mode}'")


def test_random_crop_raises(tmp_path):
    message = r"'odd' .*\(6, 5\).*\(4, 4\)"
    refused(lambda x: layers.RandomCrop(4, 4, name="odd")(x), (6, 5, 3), tmp_path, message)


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda: layers.Hashing(4, name="odd"), "int32"),
        (lambda: layers.IntegerLookup(vocabulary=[1, 2, 3], name="odd"), "int64"),
        (lambda: layers.StringLookup(vocabulary=["a", "b"], name="odd"), "string"),
        (lambda: layers.TextVectorization(vocabulary=["a", "b"], name="odd"), "string"),
    ],
)
def test_lookup_layers_raise(make, dtype: str, tmp_path):
    layer = make()
    x = keras.Input((4,), dtype=dtype, name="x")
    reason = "" if dtype == "int64" else ".* computes with strings.* before the model"
    with pytest.raises(ExportError, match=f"'odd' .*{type(layer).__name__}{reason}"):
        export_onnx(keras.Model(x, layer(x)), tmp_path / "out", verify=False)
    assert not list(tmp_path.iterdir())

"""Every architecture of keras.applications, exported without tf2onnx, equals Keras.

`pytest -m slow tests/export/test_applications.py` runs them all and prints the record of each.
"""

from __future__ import annotations

import functools
import inspect
import math
import re

import keras
import numpy as np
import pytest
from keras import layers

from keras_tx_onnx import export_onnx, tolerances
from keras_tx_onnx.reading import functional_graph
from tests.export.exporting import nodes_of, outputs_of, run

pytestmark = pytest.mark.thorough

ARCHITECTURES = {name: value for name, value in vars(keras.applications).items() if inspect.isfunction(value)}
CHEAP = ("MobileNetV3Small", "MobileNetV2", "EfficientNetV2B0")
CLASSES = 10
SEEN = 0.01

# Each block of a deep network amplifies the rounding errors of float32. Keras's float32 error against
# float64, in units of the output's scale, bounds the comparison: with every scale near 1 and shifts
# around 0 it is 1.0 for EfficientNetB7 (55 blocks), 0.9 for EfficientNetV2L, 3e-4 for ResNet152, 1e-4 for
# InceptionV3. Two things of trained networks lower it. Shifts that are mostly above 0 leave most activations
# in their linear part: 8e-5 for EfficientNetB7, 3e-5 for ResNet152, 4e-5 for InceptionV3. Branches are
# initially small beside the skip path (Goyal et al. 2017, section 5.1): with the last scale of a branch at
# 0.1, 4e-6 for EfficientNetB7, 2e-6 for ResNet152. Blocks without a skip path keep their last
# scale: at 0.1, the shifts would dominate the images.
# block2a has no path beside it, block2b has.
ENDS_A_BRANCH = re.compile(r"(block\d[b-z]_project_bn|conv\d_block\d+_3_(bn|conv))$")
GENTLE = 0.1


def smallest(architecture, **options):
    """The model at the smallest size that its architecture accepts."""
    size = 32
    while True:
        try:
            return architecture(
                weights=None, input_shape=(size, size, 3), classifier_activation=None, **options
            )
        except ValueError as error:
            minimum = re.search(r"at least (\d+)x(\d+)", str(error))
            if minimum is None or int(minimum[1]) <= size:
                raise
            size = int(minimum[1])


def pictures(batch: int, shape, seed: int) -> np.ndarray:
    """Pixels from 0 to 255, for networks that normalize them."""
    size = [96 if n is None else n for n in shape[1:]]
    return np.random.default_rng(seed).uniform(0, 255, (batch, *size)).astype("float32")


def drawn(model, seed: int = 1):
    """Redraws all weights. The moving statistics are computed, so that the outputs of each norm are near 1.

    With random moving statistics, constant shifts would dominate the differences between images. All channels
    have similar variances, because dividing by a small variance would amplify rounding errors.
    """
    random = np.random.default_rng(seed)
    inside = list(model._flatten_layers(include_self=False))
    for layer in inside:
        for weight in layer._trainable_variables:
            weight.assign(_drawn(layer, weight.name, weight.shape, random))
    norms = [layer for layer in inside if isinstance(layer, layers.BatchNormalization)]
    for norm in norms:
        norm.call = functools.partial(_call_with_batch_statistics, norm, random)
    model(pictures(4, model.input_shape, seed=9), training=False)
    for norm in norms:
        del norm.call
    return model


def _call_with_batch_statistics(norm, random, x, training=None, mask=None):
    others = [axis for axis in range(len(x.shape)) if axis != norm.axis % len(x.shape)]
    mean, variance = keras.ops.moments(x, others)
    norm.moving_mean.assign(mean)
    norm.moving_variance.assign(keras.ops.mean(variance) * random.uniform(0.5, 1.5, variance.shape))
    return type(norm).call(norm, x)


def _drawn(layer, name: str, shape, random) -> np.ndarray:
    scale = GENTLE if ENDS_A_BRANCH.search(layer.name) else 1.0
    if name == "gamma":
        return scale * random.uniform(0.5, 1.5, shape) * random.choice((-1, 1), shape)
    if len(shape) == 1:
        return scale * random.uniform(-0.2, 0.8, shape)
    depthwise = isinstance(layer, layers.DepthwiseConv2D) or name == "depthwise_kernel"
    fan_in = math.prod(shape[:2] if depthwise else shape[:-1])
    return scale * random.standard_normal(shape) * math.sqrt(2 / fan_in)


def compared(model, folder, *sizes) -> float:
    """The largest difference over batches of 1 and 3, and over sizes where these are dynamic."""
    worst = 0.0
    for batch in (1, 3):
        for size in sizes or [model.input_shape[1:]]:
            images = pictures(batch, (None, *size), seed=batch)
            for got, expected in zip(run(folder, images), outputs_of(model, images), strict=True):
                worst = max(worst, tolerances.difference(expected, got))
                if batch > 1:  # the outputs depend on the images
                    assert np.abs(expected[0] - expected[1]).max() > SEEN * np.abs(expected).max()
    return worst


@pytest.mark.parametrize(
    "name", [name if name in CHEAP else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]
)
def test_equals_keras(name: str, tmp_path, capsys):
    model = smallest(ARCHITECTURES[name], classes=CLASSES)
    drawn(model)
    report = export_onnx(model, tmp_path / "out", verify=False)
    assert set(report.manifest.tiers.values()) <= {"registered", "opened"}
    nodes, worst = nodes_of(tmp_path / "out"), compared(model, tmp_path / "out")
    with capsys.disabled():
        print(
            f"\n| {name} | {model.input_shape[1]} | {model.count_params():,} | {sum(nodes.values())} "
            f"| {nodes['Transpose']} | {worst:.1e} |"
        )
    assert worst <= tolerances.FLOAT32
    keras.backend.clear_session()


# Not NASNet: in Keras itself its branches differ in size where it is built without one.
DYNAMIC = (
    "ResNet50V2",
    "DenseNet121",
    "EfficientNetB0",
    "ConvNeXtTiny",
    "InceptionV3",
    "Xception",
    "VGG16",
)


@pytest.mark.parametrize(
    "name", ["MobileNetV2", *(pytest.param(name, marks=pytest.mark.slow) for name in DYNAMIC)]
)
def test_one_export_for_images_of_any_size(name: str, tmp_path):
    model = ARCHITECTURES[name](weights=None, include_top=False, input_shape=(None, None, 3))
    export_onnx(drawn(model), tmp_path / "out", verify=False)
    sizes = (96, 128, 3), (111, 90, 3)
    assert compared(model, tmp_path / "out", *sizes) <= tolerances.FLOAT32
    keras.backend.clear_session()


FORMS = {
    "top": {},
    "top-sized": {"sized": True},
    "body": {"include_top": False},
    "body-sized": {"include_top": False, "sized": True},
}
QUICK = {("MobileNetV3Small", "top"), ("InceptionV3", "body"), ("MobileNetV2", "body")}


def in_form(architecture, sized: bool = False, **options):
    return smallest(architecture, **options) if sized else architecture(weights=None, **options)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(name, form, marks=[] if (name, form) in QUICK else pytest.mark.slow)
        for name in ARCHITECTURES
        for form in FORMS
    ],
)
def test_default_and_smallest_sizes(name: str, form: str, tmp_path):
    """With and without classifier, of the default size or none, and of the smallest size."""
    model = in_form(ARCHITECTURES[name], **FORMS[form])
    report = export_onnx(model, tmp_path / "out")
    assert report.manifest.parity.max_difference <= tolerances.FLOAT32
    assert set(report.manifest.tiers.values()) <= {"registered", "opened"}
    keras.backend.clear_session()


def test_small_images_raise_before_computation():
    x = keras.Input((None, None, 3))
    y = layers.MaxPooling2D(3, strides=2)(layers.Conv2D(4, 3)(x))
    model = keras.Model(x, y)
    with pytest.raises(ValueError, match="zero or negative"):
        functional_graph.check_sizes(model, [(1, 4, 4, 3)])
    functional_graph.check_sizes(model, [(1, 5, 5, 3)])


class Unsaid(layers.Layer):
    """A layer whose call runs, but whose output sizes Keras cannot infer."""

    def compute_output_shape(self, shape):
        if shape[1] is not None:
            raise ValueError("it is not known")
        return shape

    def call(self, x):
        return x * 2


def test_layer_without_shape_inference_does_not_raise():
    x = keras.Input((None, None, 3))
    model = keras.Model(x, Unsaid()(layers.Conv2D(4, 3)(x)))
    functional_graph.check_sizes(model, [(1, 8, 8, 3)])

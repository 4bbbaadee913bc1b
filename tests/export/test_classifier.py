"""Image classifiers, such as those of keras.applications: the folder classifies image files."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
from keras import layers
from PIL import Image

import keras_tx
from keras_tx import ImageTransform
from keras_tx.errors import ConfigError
from keras_tx.runtime import load
from keras_tx_onnx import compare, export_onnx
from tests.drawing import redraw
from tests.tolerances import assert_close

LABELS = ["daisy", "rose", "tulip"]
RAW = ImageTransform(8, rescale=1.0, mean=0.0, std=1.0)


def small(ending: str = "dense", dtype: str = "float32", size: int | None = 8):
    x = keras.Input((size, size, 3), dtype=dtype, name="picture")
    y = layers.Rescaling(1 / 255)(x) if dtype != "float32" else x
    y = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 3, activation="tanh")(y))
    if ending == "dense":
        y = layers.Dense(3, activation="softmax")(y)
    elif ending == "nested":
        y = keras.Sequential([keras.Input((8,)), layers.Dense(3), layers.Softmax()])(y)
    elif ending == "operation":
        y = keras.ops.softmax(layers.Dense(3)(y))
    elif ending == "sigmoid":
        y = layers.Dense(3, activation="sigmoid")(y)
    else:
        y = layers.Dense(3)(y)
    return redraw(keras.Model(x, y))


def pictures(count: int = 2, size: int = 8) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (count, size, size, 3), "uint8")


def scores_of(answers) -> np.ndarray:
    """The scores in the order of the labels."""
    return np.array(
        [[next(a["score"] for a in row if a["label"] == name) for name in LABELS] for row in answers]
    )


@pytest.mark.parametrize("raw_pixels", [False, True])
@pytest.mark.parametrize("ending", ["dense", "nested", "operation", "sigmoid", "logits"])
def test_scores_equal_keras(ending: str, raw_pixels: bool, tmp_path):
    model = small(ending)
    image = ImageTransform(8, rescale=1 / 255, mean=0.4, std=0.3)
    report = export_onnx(model, tmp_path / "out", labels=LABELS, image=image, raw_pixels=raw_pixels)
    assert report.manifest.task == "image-classification" and report.manifest.parity is not None
    x = pictures()
    expected = np.asarray(keras.ops.convert_to_numpy(model(image(x))))
    if ending == "logits":
        expected = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
    with load(tmp_path / "out") as classify:
        assert classify.labels == tuple(LABELS)
        assert [spec.name for spec in classify.session.outputs] == ["logits"]
        assert_close(scores_of(classify(x, top_k=3)), expected)
    problem = json.loads((tmp_path / "out" / "config.json").read_text())["problem_type"]
    assert problem == ("multi_label_classification" if ending == "sigmoid" else "single_label_classification")
    assert all(result.passed for result in compare(model, tmp_path / "out"))


@pytest.mark.parametrize("module", ["mobilenet_v2", "densenet", "resnet", "efficientnet"])
@pytest.mark.parametrize("raw_pixels", [False, True])
def test_preprocess_input_of_a_module(module: str, raw_pixels: bool, tmp_path):
    """The four kinds of keras.applications: -1 to 1, ImageNet's mean and deviation, BGR, none."""
    preprocess = getattr(keras.applications, module).preprocess_input
    model = small()
    export_onnx(model, tmp_path / "out", labels=LABELS, image=preprocess, raw_pixels=raw_pixels)
    x = pictures()
    expected = keras.ops.convert_to_numpy(model(preprocess(x.astype("float32"))))
    with load(tmp_path / "out") as classify:
        assert_close(scores_of(classify(x, top_k=3)), expected)
    assert all(result.passed for result in compare(model, tmp_path / "out"))


def test_keras_applications_model_classifies_a_file(tmp_path):
    model = keras.applications.MobileNetV2(weights=None, classes=3, input_shape=(32, 32, 3), alpha=0.35)
    model.get_layer("predictions").kernel.assign(model.get_layer("predictions").kernel * 1e9)
    report = export_onnx(model, tmp_path / "out", labels=LABELS)
    assert any("keras.applications.mobilenet_v2.preprocess_input" in note for note in report.manifest.notes)
    (pixels,) = pictures(1, 32)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    prepared = keras.applications.mobilenet_v2.preprocess_input(pixels[None].astype("float32"))
    expected = keras.ops.convert_to_numpy(model(prepared))
    with load(tmp_path / "out") as classify:
        assert len(classify(tmp_path / "a.png", top_k=2)) == 2
        assert_close(scores_of([classify(tmp_path / "a.png", top_k=3)]), expected)


@pytest.mark.parametrize(
    "converter",
    [
        {"scale": 1 / 255.0},
        {"scale": 1 / 127.5, "offset": -1.0},
        {"scale": [0.01, 0.02, 0.03], "offset": [-1.0, -2.0, -3.0], "crop_to_aspect_ratio": False},
        {},
        {"scale": 1 / 255.0, "crop_to_aspect_ratio": False, "pad_to_aspect_ratio": True},
        {"scale": 1 / 255.0, "interpolation": "bicubic", "antialias": True},
        {"scale": 1 / 255.0, "interpolation": "nearest", "crop_to_aspect_ratio": False},
    ],
    ids=str,
)
def test_preprocessor_of_keras_hub(converter: dict, tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64],
        stackwise_num_blocks=[1],
        stackwise_num_strides=[1],
        block_type="basic_block",
        image_shape=(None, None, 3),
    )
    image_converter = keras_hub.layers.ImageConverter(image_size=(32, 32), **converter)
    preprocessor = keras_hub.models.ResNetImageClassifierPreprocessor(image_converter=image_converter)
    model = keras_hub.models.ResNetImageClassifier(backbone, num_classes=3, preprocessor=preprocessor)
    redraw(model)
    report = export_onnx(model, tmp_path / "out", labels=LABELS)
    assert any("preprocessor" in note for note in report.manifest.notes)
    with load(tmp_path / "out") as classify:
        for shape in ((32, 32), (50, 41), (20, 64)):
            x = np.random.default_rng(5).integers(0, 256, (2, *shape, 3), "uint8")
            # Keras pads only images of floats.
            logits = model.predict(
                x.astype("float32") if "pad_to_aspect_ratio" in converter else x, verbose=0
            )
            expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
            assert_close(scores_of(classify(x, top_k=3)), expected)
            Image.fromarray(x[0]).save(tmp_path / "a.png")
            assert_close(scores_of([classify(tmp_path / "a.png", top_k=3)]), expected[:1])


@pytest.mark.parametrize("nested", [False, True])
def test_one_sigmoid_and_two_labels(nested: bool, tmp_path):
    """Its number is the probability of the second label."""
    x = keras.Input((8, 8, 3))
    last = layers.Dense(1, activation="sigmoid")
    last = keras.Sequential([keras.Input((192,)), last]) if nested else last
    model = redraw(keras.Model(x, last(layers.Flatten()(x))))
    image = ImageTransform(8, rescale=1 / 255, mean=0.5, std=1.0)
    report = export_onnx(model, tmp_path / "out", labels=["no", "yes"], image=image)
    assert report.manifest.parity is not None
    assert (
        json.loads((tmp_path / "out" / "config.json").read_text())["problem_type"]
        == "single_label_classification"
    )
    p = keras.ops.convert_to_numpy(model(image(pictures())))[:, 0]
    with load(tmp_path / "out") as classify:
        got = [{a["label"]: a["score"] for a in row} for row in classify(pictures())]
    assert_close(np.array([[row["no"], row["yes"]] for row in got]), np.stack([1 - p, p], axis=1))
    assert all(result.passed for result in compare(model, tmp_path / "out"))


def test_integer_pixels_of_any_size(tmp_path):
    model = small(dtype="uint8", size=None)
    export_onnx(model, tmp_path / "out", task="image-classification", image=RAW)
    x = pictures()
    with load(tmp_path / "out") as classify:
        assert classify.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
        got = {a["label"]: a["score"] for a in classify(x[0], top_k=3)}
    expected = keras.ops.convert_to_numpy(model(x))[0]
    assert_close(np.array([got[f"LABEL_{i}"] for i in range(3)]), expected)


def detector():
    x = keras.Input((8, 8, 3))
    return keras.Model(x, layers.Conv2D(3, 3)(x))


def ends_otherwise():
    x = keras.Input((8, 8, 3))
    return keras.Model(x, layers.LayerNormalization(name="last")(layers.Dense(3)(layers.Flatten()(x))))


def one_number():
    x = keras.Input((8, 8, 3))
    return keras.Model(x, layers.Dense(1)(layers.Flatten()(x)))


def unprepared():
    options = {"weights": None, "classes": 3, "include_preprocessing": False, "input_shape": (32, 32, 3)}
    return keras.applications.MobileNetV3Small(**options)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            detector,
            {"labels": LABELS, "image": RAW},
            r"\(None, 6, 6, 3\)",
        ),
        (
            ends_otherwise,
            {"labels": LABELS, "image": RAW},
            "LayerNormalization 'last'",
        ),
        (small, {"labels": LABELS}, "image=keras_tx.ImageTransform"),
        (unprepared, {"labels": LABELS}, "image=keras_tx.ImageTransform"),
        (small, {"labels": LABELS[:2], "image": RAW}, "labels has 2 names.*3 classes"),
        (one_number, {"labels": LABELS[:2], "image": RAW}, "labels.*2.*'linear'.*'sigmoid'"),
        (small, {"labels": LABELS, "image": ImageTransform(9)}, r"image.*\(9, 9, 3\).*\(8, 8, 3\)"),
        (small, {"labels": LABELS, "image": np.abs}, "image=.*ImageTransform"),
        (
            lambda: keras_tx.bert("tiny", vocabulary_size=50, depth=1, head=keras_tx.ClassifierHead(2)),
            {"task": "image-classification"},
            "task='image-classification'.*'text-classification'",
        ),
        (small, {"task": "object-detection"}, "task='object-detection'.*'image-classification'"),
    ],
)
def test_unsupported_classifiers_and_options_raise(make, options, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        export_onnx(make(), tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())

"""Tasks of keras-hub with their preprocessing: the folder returns for raw inputs what the task predicts."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.processing import ImageTransform
from keras_tx.runtime import load
from keras_tx.runtime.tasks.object_detection import suppress
from keras_tx_onnx import compare, export_onnx
from keras_tx_onnx.interfaces import keras_hub_images
from tests.benchmarks import tiny_image_backbones as images
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close
from tests.wordpiece import VOCABULARY

keras_hub = pytest.importorskip("keras_hub", reason='pip install "keras-tx[cpu]"')
from tests.weights.test_keras_hub_tokenizers import byte_pairs, sentence_pieces  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*max_length")

TEXTS = ["The quick brown fox", "A quick answer to the question!", "", "dogs are jumping, too " * 5]
SIZES = {
    "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12, "max_sequence_length": 40,
}  # fmt: skip


def tokenizer(kind: str) -> Any:
    if kind in ("Bert", "DistilBert"):
        words = [*VOCABULARY, "the", "quick", "brown", "fox", "dogs"]
        return getattr(keras_hub.models, f"{kind}Tokenizer")(
            vocabulary=list(dict.fromkeys(words)), lowercase=True
        )
    name = f"{kind}Tokenizer"
    return byte_pairs(name) if kind == "Roberta" else sentence_pieces(name)


def backbone(kind: str, vocabulary: int) -> Any:
    options: dict[str, Any] = {**SIZES, "vocabulary_size": vocabulary}
    if kind == "Albert":
        options["embedding_dim"] = 4
    if kind == "DebertaV3":
        options["bucket_size"] = 8
    return getattr(keras_hub.models, f"{kind}Backbone")(**options)


def text_task(kind: str, task: str, **options: Any) -> Any:
    words = tokenizer(kind)
    preprocessor = getattr(keras_hub.models, f"{kind}{task}Preprocessor")(words, sequence_length=24)
    body = backbone(kind, words.vocabulary_size())
    return redraw(getattr(keras_hub.models, f"{kind}{task}")(body, preprocessor=preprocessor, **options))


@pytest.mark.parametrize("kind", ["Albert", "DebertaV3", "XLMRoberta"])
def test_text_classifiers_with_sentencepiece(kind: str, tmp_path: Path):
    model = text_task(kind, "TextClassifier", num_classes=3, activation="softmax")
    manifest = export_onnx(model, tmp_path / "out").manifest
    assert manifest.task == "text-classification"
    expected = model.predict(TEXTS, verbose=0)
    with load(tmp_path / "out") as classify:
        answers = classify(TEXTS, top_k=3)
    names = ["LABEL_0", "LABEL_1", "LABEL_2"]
    scores = [[next(a["score"] for a in row if a["label"] == name) for name in names] for row in answers]
    assert_close(np.array(scores), expected)


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "Albert", "XLMRoberta", "DistilBert", "DebertaV3"])
def test_masked_language_models(kind: str, tmp_path: Path):
    """The scores at a mask are those of the head of the Keras model at its position."""
    model = text_task(kind, "MaskedLM")
    manifest = export_onnx(model, tmp_path / "out").manifest
    assert manifest.task == "fill-mask" and manifest.outputs[0].shape[1] == "sequence_length"
    words = model.preprocessor.tokenizer
    text = "The quick {} fox"
    with load(tmp_path / "out") as fill:
        mask = fill.transform.mask_token
        assert fill.transform.id_of(mask) == words.mask_token_id
        answers = fill(text.format(mask), top_k=words.vocabulary_size())
        (row,) = fill.transform.encode([text.format(mask)])
    place = row.ids.tolist().index(words.mask_token_id)
    inputs = {
        "token_ids": row.ids[None], "padding_mask": np.ones_like(row.ids)[None],
        "segment_ids": np.zeros_like(row.ids)[None], "mask_positions": np.array([[place]]),
    }  # fmt: skip
    names = [tensor.name for tensor in model.inputs]
    logits = as_numpy(model({name: inputs[name] for name in names}))[0, 0]
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    scores = np.zeros_like(expected)
    for answer in answers:
        scores[answer["id"]] = answer["score"]
    assert_close(scores, expected)
    # Around the mask, the ids are those of the preprocessor.
    assert row.ids.tolist()[0] == words.start_token_id and row.ids.tolist()[-1] == words.end_token_id
    assert all(result.passed for result in compare(model, tmp_path / "out"))


@pytest.mark.parametrize(
    ("kind", "pooling", "normalize"),
    [("Bert", "mean", True), ("XLMRoberta", "mean", True), ("Bert", "max", False), ("Bert", "cls", False)],
)
def test_text_embedders(kind: str, pooling: str, normalize: bool, tmp_path: Path):
    options = {} if kind == "XLMRoberta" else {"pooling_mode": pooling, "normalize": normalize}
    model = text_task(kind, "TextEmbedder", **options)
    manifest = export_onnx(model, tmp_path / "out").manifest
    assert manifest.task == "feature-extraction"
    expected = model.predict(TEXTS, verbose=0)
    with load(tmp_path / "out") as embed:
        assert_close(embed(TEXTS), expected)


def test_a_task_whose_preprocessing_differs_is_generic(tmp_path: Path):
    """FNet reads padding, so that its outputs depend on the padded length."""
    words = sentence_pieces("FNetTokenizer")
    preprocessor = keras_hub.models.FNetTextClassifierPreprocessor(words, sequence_length=24)
    sizes = {name: value for name, value in SIZES.items() if name != "num_heads"}
    body = keras_hub.models.FNetBackbone(vocabulary_size=words.vocabulary_size(), **sizes)
    model = redraw(keras_hub.models.FNetTextClassifier(body, num_classes=2, preprocessor=preprocessor))
    manifest = export_onnx(model, tmp_path / "out").manifest
    assert manifest.task is None
    assert any("no preprocessing" in note and "padding_mask" in note for note in manifest.notes)
    with pytest.raises(ConfigError, match="padding_mask"):
        export_onnx(model, tmp_path / "other", labels=["a", "b"])


def image_task(
    kind: str, body: Any, size: tuple[int, int], converter: dict | None = None, **options: Any
) -> Any:
    image_converter = keras_hub.layers.ImageConverter(image_size=size, **(converter or {"scale": 1 / 255}))
    name = "BASNetPreprocessor" if kind.startswith("BASNet") else f"{kind}Preprocessor"
    preprocessor = getattr(keras_hub.models, name)(image_converter=image_converter)
    return redraw(getattr(keras_hub.models, kind)(body, preprocessor=preprocessor, **options))


def pictures(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).integers(0, 256, (2, *shape, 3), "uint8")


def deeplab() -> Any:
    """For images of 64 x 64, with an encoder for images of any size, as in keras-hub's presets."""
    return keras_hub.models.DeepLabV3Backbone(
        image_encoder=images.resnet(2), low_level_feature_key="P2",
        spatial_pyramid_pooling_key="P4", dilation_rates=[2, 4], upsampling_size=4, image_shape=(64, 64, 3),
    )  # fmt: skip


def retinanet() -> Any:
    encoder = images.resnet(
        2, stackwise_num_filters=[64, 16, 24, 32], stackwise_num_blocks=[1] * 4,
        stackwise_num_strides=[1, 2, 2, 2],
    )  # fmt: skip
    return keras_hub.models.RetinaNetBackbone(
        image_encoder=encoder, min_level=3, max_level=5, use_p5=False, image_shape=(None, None, 3)
    )


@pytest.mark.parametrize(
    ("kind", "body", "options"),
    [
        ("SegFormerImageSegmenter", lambda: images.segformer(2), {"num_classes": 3}),
        ("DeepLabV3ImageSegmenter", deeplab, {"num_classes": 4, "activation": "softmax"}),
        pytest.param("BASNetImageSegmenter", lambda: images.basnet(2), {}, marks=pytest.mark.thorough),
    ],
    ids=["segformer", "deeplab", "basnet"],
)
def test_image_segmenters(kind: str, body: Any, options: dict, tmp_path: Path):
    model = image_task(kind, body(), (64, 64), **options)
    classes = options.get("num_classes", 1)
    labels = [f"class {index}" for index in range(classes)]
    manifest = export_onnx(model, tmp_path / "out", labels=labels).manifest
    assert manifest.task == "image-segmentation"
    with load(tmp_path / "out") as segment:
        assert segment.labels == tuple(labels)
        for shape in ((64, 64), (90, 70)):
            x = pictures(*shape)
            expected = model.predict(x, verbose=0)
            assert_close(np.stack(segment.scores(x)), expected)
            masks = np.stack(segment(x))
            if classes == 1:
                mask = expected[..., 0] > 0.5
                sure = np.abs(expected[..., 0] - 0.5) > 1e-3
            else:
                mask = expected.argmax(-1)
                best = np.sort(expected, axis=-1)
                sure = best[..., -1] - best[..., -2] > 1e-3 * np.abs(expected).max()
            assert sure.mean() > 0.5 and np.array_equal(masks[sure], mask[sure])
            Image.fromarray(x[0]).save(tmp_path / "a.png")
            assert np.array_equal(segment(tmp_path / "a.png"), masks[0])
    assert all(result.passed for result in compare(model, tmp_path / "out"))


@pytest.mark.parametrize(
    "converter",
    [
        {"scale": 1 / 255, "crop_to_aspect_ratio": False},
        {"scale": 1 / 255, "crop_to_aspect_ratio": False, "pad_to_aspect_ratio": True},
        {"scale": 1 / 255},
    ],
    ids=["stretch", "pad", "crop"],
)
def test_object_detectors(converter: dict, tmp_path: Path):
    """Boxes are in pixels of the picture; those of Keras in pixels of the resized one."""
    model = image_task(
        "RetinaNetObjectDetector", retinanet(), (64, 64), converter, num_classes=3,
        bounding_box_format="xyxy",
    )  # fmt: skip
    model.prediction_decoder = keras_hub.layers.NonMaxSuppression(
        bounding_box_format="xyxy", from_logits=True, confidence_threshold=0.55, iou_threshold=0.4,
        max_detections=20,
    )  # fmt: skip
    manifest = export_onnx(model, tmp_path / "out", labels=["a", "b", "c"]).manifest
    assert manifest.task == "object-detection"
    with load(tmp_path / "out") as detect:
        for shape in ((64, 64), (90, 70)):
            x = pictures(*shape)
            pads = "pad_to_aspect_ratio" in converter  # which Keras does only for images of floats
            expected = model.predict(x.astype("float32") if pads else x, verbose=0)
            for index, objects in enumerate(detect(x)):
                count = int(expected["num_detections"][index])
                assert len(objects) == count > 0
                assert_close(
                    np.array([each["score"] for each in objects]), expected["confidence"][index, :count]
                )
                labels = [("a", "b", "c")[int(label)] for label in expected["labels"][index, :count]]
                assert [each["label"] for each in objects] == labels
                boxes = in_picture(expected["boxes"][index, :count], shape, converter)
                edges = np.array([list(each["box"].values()) for each in objects])
                assert_close(edges, boxes, contract.FLOAT32)


def in_picture(boxes: np.ndarray, shape: tuple[int, int], converter: dict) -> np.ndarray:
    """Boxes of a picture of 64 x 64 that was resized from this shape."""
    height, width = shape
    if converter.get("pad_to_aspect_ratio"):
        side, sign = max(shape), -1
    elif converter.get("crop_to_aspect_ratio", True):
        side, sign = min(shape), 1
    else:
        return np.clip(boxes * np.array([width, height] * 2) / 64, 0, [width, height] * 2)
    offset = [sign * abs(width - side) // 2, sign * abs(height - side) // 2] * 2
    return np.clip(boxes * side / 64 + np.array(offset), 0, [width, height] * 2)


def test_suppressed_boxes_equal_those_of_keras():
    random = np.random.default_rng(7)
    corners = random.uniform(0, 80, (300, 2))
    boxes = np.concatenate([corners, corners + random.uniform(1, 30, (300, 2))], axis=1).astype("float32")
    scores = random.uniform(0, 1, (300, 2)).astype("float32")
    for overlap in (0.1, 0.5, 0.9):
        layer = keras_hub.layers.NonMaxSuppression(
            bounding_box_format="xyxy", from_logits=False, confidence_threshold=0.3, iou_threshold=overlap,
            max_detections=50,
        )  # fmt: skip
        expected = layer(keras.ops.convert_to_tensor(boxes[None]), keras.ops.convert_to_tensor(scores[None]))
        count = int(expected["num_detections"][0])
        kept = suppress(boxes, scores.max(-1), 0.3, overlap, 50)
        assert len(kept) == count
        assert_close(boxes[kept], as_numpy(expected["boxes"])[0, :count])


def test_preprocessing_that_cannot_be_reproduced_is_refused(tmp_path: Path):
    class Brighter(keras_hub.layers.ImageConverter):
        def _call_python(self, inputs):
            return super()._call_python(inputs) + 0.1

    model = image_task("SegFormerImageSegmenter", images.segformer(2), (64, 64), num_classes=2)
    model.preprocessor.image_converter = Brighter(image_size=(64, 64), scale=1 / 255)
    manifest = export_onnx(model, tmp_path / "out").manifest
    assert manifest.task is None and any("returns other pixels" in note for note in manifest.notes)
    with pytest.raises(ConfigError, match="returns other pixels.*image="):
        export_onnx(model, tmp_path / "other", task="image-segmentation")


def transform_of(converter: Any) -> ImageTransform:
    model = SimpleNamespace(name="model", preprocessor=SimpleNamespace(image_converter=converter))
    result = keras_hub_images.keras_hub_transform(model, 48, 48)
    assert result is not None
    return result[0]


def test_bicubic_weights_are_those_of_the_backend(monkeypatch):
    converter = keras_hub.layers.ImageConverter(image_size=(48, 48), interpolation="bicubic", scale=1 / 255)
    resize = transform_of(converter).keras_resize
    assert resize is not None and resize.table == (keras.backend.backend() == "tensorflow")
    other = "jax" if resize.table else "tensorflow"
    monkeypatch.setattr(keras_hub_images, "backend", lambda: other)
    with pytest.raises(ConfigError, match="returns other pixels"):
        transform_of(converter)


@pytest.mark.parametrize("length", [1, 32, 48, 224, 384])
@pytest.mark.parametrize("factor", [1.7, 1.1, 0.6, 1.3])
def test_test_images_have_no_common_divisor_with_the_size(length: int, factor: float):
    larger = keras_hub_images._stretch(length, factor)
    assert math.gcd(larger, length) == 1 and 0 <= larger - int(length * factor) < 8


def test_error_of_the_image_converter_is_a_config_error():
    """The PyTorch backend does not support Lanczos."""

    class Failing(keras_hub.layers.ImageConverter):
        def _call_python(self, inputs):
            raise ValueError("Resizing with Lanczos\nis not supported.")

    with pytest.raises(ConfigError, match=r"preprocessor of model 'model'.*Lanczos is not.*Pass image="):
        transform_of(Failing(image_size=(48, 48), interpolation="lanczos3", scale=1 / 255))

"""The one sweep: every model, task and precision goes the whole way, on the backend that Keras runs on.

build -> fit -> save -> load -> export -> keras_tx.runtime, which gives what Keras gives for the same
pictures. A family adds its rows to ROWS. KERAS_BACKEND=jax in the environment runs it on another backend.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.covering import covering
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close

pytestmark = pytest.mark.thorough

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    task: str
    build: Callable[[str], Any]
    raw_pixels: bool = False


def vit(**options: Any) -> Callable[[str], Any]:
    return lambda policy: keras_tx.vit("Mu/2", image_size=(8, 12), dtype=policy, **options)


ROWS = [
    Row("vit", contract.IMAGE_CLASSIFICATION, vit(num_classes=3)),
    Row("vit raw pixels", contract.IMAGE_CLASSIFICATION, vit(num_classes=3, channels=1), raw_pixels=True),
    Row(
        "vit average",
        contract.IMAGE_CLASSIFICATION,
        vit(num_classes=3, pooling="average", registers=2, positions="sine-cosine", layer_scale=0.5, depth=2),
    ),
    Row(
        "deit",
        contract.IMAGE_CLASSIFICATION,
        vit(head=keras_tx.DistilledClassifierHead(3, dropout=0.1), distillation=True),
    ),
    Row(
        "dinov2",
        contract.IMAGE_CLASSIFICATION,
        vit(
            num_classes=3,
            pooling="token+average",
            mask_token=True,
            registers=2,
            layer_scale=0.5,
            activation="swiglu",
            qkv_bias=False,
        ),
    ),
    Row(
        "dinov3",
        contract.IMAGE_CLASSIFICATION,
        vit(
            num_classes=3,
            positions="rotary",
            registers=2,
            mask_token=True,
            layer_scale=0.5,
            activation="swiglu",
            key_bias=False,
        ),
    ),
    Row("vit relative", contract.IMAGE_CLASSIFICATION, vit(num_classes=3, positions="relative", registers=1)),
    Row("vit qk norm", contract.IMAGE_CLASSIFICATION, vit(num_classes=3, qk_norm=True, layer_scale=0.5)),
    Row(
        "vit clip",
        contract.IMAGE_CLASSIFICATION,
        vit(
            num_classes=3,
            pre_norm=True,
            patch_bias=False,
            pooled_norm=True,
            pooling="average",
            class_token=True,
        ),
    ),
    Row(
        "vit convolutions",
        contract.IMAGE_CLASSIFICATION,
        vit(num_classes=3, stem="convolutions", pooling="average"),
    ),
    Row("vit pooler", contract.IMAGE_FEATURES, vit(pooler="tanh", pooler_dim=5)),
    Row("vit features", contract.IMAGE_FEATURES, vit()),
    Row("vit tokens", contract.IMAGE_FEATURES, vit(pooling="none", registers=1, positions="learned-2d")),
]


def pictures(model: Any, count: int = 5) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [
        random.integers(0, 256, (*model.config.size, model.config.channels), "uint8") for _ in range(count)
    ]


def fit(model: Any, images: np.ndarray) -> None:
    if model.head is None:
        model.compile(loss="mse")
        model.fit(images, np.zeros((len(images), *model.output_shape[1:])), verbose=0)
    else:
        model.compile()
        model.fit(images, np.arange(len(images)) % model.head.num_classes, verbose=0)


@covering(strength=1, row={row.name: row for row in ROWS}, policy=POLICIES)
def test_train_save_export_and_run(row: Row, policy: str, tmp_path):
    model = redraw(row.build(policy))
    images = pictures(model)
    fit(model, model.processing(images))
    model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")

    report = export_onnx(model, tmp_path / "folder", raw_pixels=row.raw_pixels)
    assert report.manifest.task == row.task
    expected = as_numpy(keras_tx.from_checkpoint(model, dtype="float32")(model.processing(images)))
    with load(tmp_path / "folder", provider="cpu") as runtime:
        answers = runtime(images, batch_size=2)
    if row.task == contract.IMAGE_FEATURES:
        assert_close(answers, expected)
        return
    exponentials = np.exp(expected - expected.max(1, keepdims=True))
    scores = exponentials / exponentials.sum(1, keepdims=True)
    for answer, score in zip(answers, scores, strict=True):
        assert [a["label"] for a in answer] == [f"LABEL_{i}" for i in np.argsort(-score)]
        assert_close(np.array([a["score"] for a in answer]), np.sort(score)[::-1])

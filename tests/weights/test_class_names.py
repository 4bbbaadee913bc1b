"""The rows of a checkpoint's head belong to its class names, which transformers returns with its logits."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.heads import DistilledClassifierHead
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import assert_close

IDS = np.array([[5, 6, 7, 3], [8, 9, 3, 2]])
PIXELS = draw(2, 8, 8, 3)
NAMES, OTHER_ORDER = ("joy", "anger", "fear"), ("anger", "fear", "joy")
SMALL: dict[str, Any] = {"vocabulary_size": 20, "depth": 1, "max_length": 8}
KINDS: dict[str, Any] = {
    "ClassifierHead": lambda **names: keras_tx.ClassifierHead(3, **names),
    "MultiLabelHead": lambda **names: keras_tx.MultiLabelHead(3, **names),
    "RegressionHead": lambda **names: keras_tx.RegressionHead(3, **names),
    "TokenClassifierHead": lambda **names: keras_tx.TokenClassifierHead(3, **names),
}


def logits_by_name(model: Any, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    inputs = PIXELS if isinstance(model, keras_tx.ViT) else IDS
    return dict(zip(names, np.moveaxis(as_numpy(model(inputs)), -1, 0), strict=True))


def logits_of_transformers(folder: Path, kind: str) -> dict[str, np.ndarray]:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    opened_by = "TokenClassification" if "Token" in kind else "SequenceClassification"
    if kind == "image":
        opened_by = "ImageClassification"
    theirs = getattr(transformers, f"AutoModelFor{opened_by}").from_pretrained(folder).eval()
    pixels = torch.tensor(np.ascontiguousarray(PIXELS.transpose(0, 3, 1, 2)))
    with torch.no_grad():
        logits = theirs(pixels if kind == "image" else torch.tensor(IDS)).logits.numpy()
    return {theirs.config.id2label[index]: logits[..., index] for index in range(3)}


def assert_equal_by_name(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert set(ours) == set(theirs)
    for name, values in ours.items():
        assert_close(values, theirs[name])


@pytest.mark.parametrize(
    ("factory", "kind"),
    [*((keras_tx.bert, kind) for kind in KINDS), (keras_tx.gpt, "ClassifierHead"), (keras_tx.vit, "image")],
)
def test_names_in_another_order_reorder_the_rows(factory, kind, tmp_path):
    head = KINDS.get(kind, KINDS["ClassifierHead"])
    variant, sizes = {
        keras_tx.bert: ("tiny", SMALL),
        keras_tx.gpt: ("pico", {**SMALL, "pad_id": 0}),
        keras_tx.vit: ("Mu/2", {"image_size": 8}),
    }[factory]
    saved = redraw(factory(variant, head=head(labels=NAMES), **sizes))
    folder = keras_tx.save_checkpoint(saved, tmp_path / "folder")
    model = keras_tx.from_checkpoint(folder, head=head(labels=OTHER_ORDER))
    assert model.head.labels == OTHER_ORDER
    expected = logits_of_transformers(folder, kind)
    assert np.abs(expected["joy"] - expected["anger"]).max() > 1e-3
    assert_equal_by_name(logits_by_name(model, OTHER_ORDER), expected)
    again = keras_tx.from_checkpoint(saved, head=head(labels=OTHER_ORDER))
    assert_equal_by_name(logits_by_name(again, OTHER_ORDER), expected)


def test_both_classifiers_of_a_distilled_model_are_reordered(tmp_path):
    sizes: dict[str, Any] = {"image_size": 8, "distillation": True}
    saved = redraw(keras_tx.vit("Mu/2", head=DistilledClassifierHead(3, labels=NAMES), **sizes))
    folder = keras_tx.save_checkpoint(saved, tmp_path / "folder")
    head = DistilledClassifierHead(3, labels=OTHER_ORDER)
    model = keras_tx.from_checkpoint(folder, head=head)
    assert_equal_by_name(logits_by_name(model, OTHER_ORDER), logits_by_name(saved, NAMES))


@pytest.mark.parametrize("kind", KINDS)
def test_other_names_have_new_rows_and_a_warning(kind, tmp_path):
    saved = redraw(keras_tx.bert("tiny", head=KINDS[kind](labels=NAMES), **SMALL))
    folder = keras_tx.save_checkpoint(saved, tmp_path / "folder")
    with pytest.warns(UserWarning) as caught:
        model = keras_tx.from_checkpoint(folder, head=KINDS[kind](labels=("ham", "joy", "spam")))
    messages = [str(warning.message) for warning in caught]
    assert "the classes 'joy', 'anger', 'fear', but head= has 'ham', 'joy', 'spam'" in messages[0]
    assert "newly initialized: logits/kernel, logits/bias" in messages[1]
    kernels = [as_numpy(x.get_layer("logits").kernel) for x in (model, saved)]
    assert np.abs(kernels[0] - kernels[1]).min() > 1e-6
    with pytest.raises(AssertionError):
        assert_close(kernels[0].std(), kernels[1].std())
    blocks = [as_numpy(x.get_layer("block_0").weights[0]) for x in (model, saved)]
    assert np.array_equal(*blocks)


def test_head_without_names_gets_those_of_its_rows(tmp_path):
    saved = redraw(keras_tx.bert("tiny", head=keras_tx.ClassifierHead(3, labels=NAMES), **SMALL))
    folder = keras_tx.save_checkpoint(saved, tmp_path / "folder")
    by_count = keras_tx.bert("tiny", num_classes=3, weights=folder, **SMALL)
    for model in (keras_tx.from_checkpoint(folder, head=keras_tx.ClassifierHead(3, dropout=0.1)), by_count):
        assert model.head.labels == NAMES
        assert_equal_by_name(logits_by_name(model, NAMES), logits_by_name(saved, NAMES))
    with pytest.warns(UserWarning, match="newly initialized: logits"):
        model = keras_tx.from_checkpoint(folder, head=keras_tx.ClassifierHead(2))
    assert model.head.labels is None


def test_rows_without_names_get_those_of_the_head(tmp_path):
    saved = redraw(keras_tx.bert("tiny", head=keras_tx.ClassifierHead(3), **SMALL))
    folder = keras_tx.save_checkpoint(saved, tmp_path / "folder")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = keras_tx.from_checkpoint(folder, head=keras_tx.ClassifierHead(3, labels=NAMES))
    assert_equal_by_name(logits_by_name(model, NAMES), logits_by_name(saved, NAMES))


def test_head_of_a_user_is_refused_in_another_order(tmp_path, monkeypatch):
    monkeypatch.setattr(keras_tx.ClassifierHead, "class_layers", ())
    saved = keras_tx.bert("tiny", head=keras_tx.ClassifierHead(3, labels=NAMES), **SMALL)
    with pytest.raises(ConfigError, match="'joy', 'anger', 'fear', but head= has 'anger', 'fear', 'joy'"):
        keras_tx.from_checkpoint(saved, head=keras_tx.ClassifierHead(3, labels=OTHER_ORDER))

"""Options of transformers' models: equal outputs with random weights, saved, exported and run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.processing import wordpiece
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, draw
from tests.tolerances import assert_close

torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
IDS = np.array([[2, 5, 4, 9, 3], [2, 7, 8, 4, 3]])
BERT = {
    "vocab_size": 24,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
}
DISTILBERT = {
    "vocab_size": 24,
    "dim": 8,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 12,
    "max_position_embeddings": 16,
}
VIT = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "image_size": 12,
    "patch_size": 4,
}


def redrawn(kind: str, **fields: Any) -> Any:
    """A model of transformers with random weights; no two of them are equal."""
    model_class = getattr(transformers, kind)
    model = model_class(model_class.config_class(**fields)).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, 0.5)
    return model


def outputs_of(model: Any, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    with torch.no_grad():
        outputs = model(**{name: torch.tensor(x) for name, x in inputs.items()})
    return {name: x.numpy() for name, x in outputs.items()}


def saved(model: Any, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def back(model: Any, kind: str, tmp_path: Path) -> Any:
    """The model of transformers that save_checkpoint makes; every tensor is there, and none besides."""
    folder = keras_tx.save_checkpoint(model, tmp_path / "back")
    made, notes = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not any(notes.values()), notes
    return made.eval()


UNTIED = [
    ("BertForMaskedLM", BERT),
    ("BertForPreTraining", BERT),
    ("RobertaForMaskedLM", {**BERT, "type_vocab_size": 1, "pad_token_id": 1}),
    ("DistilBertForMaskedLM", DISTILBERT),
]


@pytest.mark.parametrize(("kind", "fields"), UNTIED, ids=[kind for kind, _ in UNTIED])
def test_an_untied_masked_language_head(kind: str, fields: dict[str, Any], tmp_path: Path):
    theirs = redrawn(kind, **fields, tie_word_embeddings=False)
    expected = outputs_of(theirs, input_ids=IDS)
    name = "prediction_logits" if "Pre" in kind else "logits"
    model = keras_tx.from_checkpoint(saved(theirs, tmp_path))
    assert not model.head.tied
    mine = as_numpy(model(IDS))
    assert_close(mine[name] if isinstance(mine, dict) else mine, expected[name])
    again = back(model, kind, tmp_path)
    assert not again.config.tie_word_embeddings
    assert_close(outputs_of(again, input_ids=IDS)[name], expected[name])
    model.save(tmp_path / "model.keras")
    assert keras_tx.load_model(tmp_path / "model.keras").head == model.head
    assert keras_tx.cost(model)


def test_an_untied_head_fills_masks(tmp_path: Path):
    fields = {**BERT, "vocab_size": len(WORDS)}
    theirs = redrawn("BertForMaskedLM", **fields, tie_word_embeddings=False)
    model = keras_tx.from_checkpoint(saved(theirs, tmp_path), processing=wordpiece(WORDS))
    export_onnx(model, tmp_path / "folder")
    answers = load(tmp_path / "folder").fill("a [MASK] e", top_k=3)
    ids = model.processing("a [MASK] e")["input_ids"]
    expected = outputs_of(theirs, input_ids=ids)["logits"][0, list(ids[0]).index(4)]
    assert [x["token"] for x in answers] == [WORDS[number] for number in np.argsort(-expected)[:3]]


@pytest.mark.parametrize("count", [1, 3])
def test_image_regression(count: int, tmp_path: Path):
    problem = {} if count == 1 else {"problem_type": "regression"}
    theirs = redrawn("ViTForImageClassification", **VIT, num_labels=count, **problem)
    images = np.tanh(draw(2, 12, 12, 3))  # as model.processing makes them, in -1..1
    expected = outputs_of(theirs, pixel_values=images.transpose(0, 3, 1, 2))["logits"]
    model = keras_tx.from_checkpoint(saved(theirs, tmp_path))
    assert model.head == keras_tx.RegressionHead(count)
    assert_close(as_numpy(model(images)), expected)
    again = back(model, "ViTForImageClassification", tmp_path)
    assert again.config.problem_type == "regression" and again.config.num_labels == count
    assert_close(outputs_of(again, pixel_values=images.transpose(0, 3, 1, 2))["logits"], expected)
    model.compile(run_eagerly=True)
    model.fit(images, np.zeros((2, count), "float32"), epochs=1, verbose=0)
    export_onnx(model, tmp_path / "folder")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), "uint8")
    answer = load(tmp_path / "folder")(pixels)
    numbers = as_numpy(model(model.processing(pixels[None])))[0]
    assert [x["label"] for x in answer] == [f"LABEL_{index}" for index in range(count)]
    assert_close(np.array([x["score"] for x in answer], "float32"), numbers)
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["problem_type"] == "regression"


IMAGES = {
    "quick_gelu": {"hidden_act": "quick_gelu"},
    "rectangular patches": {"patch_size": (4, 2)},
    "rectangular patches and images": {
        "patch_size": (2, 4),
        "image_size": (8, 16),
        "hidden_act": "quick_gelu",
    },
}


@pytest.mark.parametrize("name", IMAGES)
def test_vit_options(name: str, tmp_path: Path):
    theirs = redrawn("ViTForImageClassification", **{**VIT, "num_labels": 3, **IMAGES[name]})
    height, width = np.broadcast_to(theirs.config.image_size, 2)
    images = draw(2, height, width, 3)
    expected = outputs_of(theirs, pixel_values=images.transpose(0, 3, 1, 2))["logits"]
    model = keras_tx.from_checkpoint(saved(theirs, tmp_path))
    assert_close(as_numpy(model(images)), expected)
    again = back(model, "ViTForImageClassification", tmp_path)
    assert_close(outputs_of(again, pixel_values=images.transpose(0, 3, 1, 2))["logits"], expected)
    assert keras_tx.from_checkpoint(tmp_path / "back").config == model.config
    model.save(tmp_path / "model.keras")
    assert keras_tx.load_model(tmp_path / "model.keras").config == model.config
    export_onnx(model, tmp_path / "folder", labels=["a", "b", "c"])
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), "uint8")
    inputs = model.processing(pixels[None]).transpose(0, 3, 1, 2)
    scores = torch.softmax(torch.tensor(outputs_of(theirs, pixel_values=inputs)["logits"][0]), -1).numpy()
    answer = {x["label"]: x["score"] for x in load(tmp_path / "folder")(pixels)}
    assert_close(np.array([answer[label] for label in "abc"], "float32"), scores)


def test_the_two_logits_of_deit_beside_their_mean(tmp_path: Path):
    theirs = redrawn("DeiTForImageClassificationWithTeacher", **VIT, num_labels=3)
    images = np.tanh(draw(2, 12, 12, 3))  # as model.processing makes them, in -1..1
    expected = outputs_of(theirs, pixel_values=images.transpose(0, 3, 1, 2))
    head = keras_tx.DistilledClassifierHead(3, separate=True)
    model = keras_tx.from_checkpoint(saved(theirs, tmp_path), head=head)
    mine = as_numpy(model(images))
    assert set(mine) == {"logits", "cls_logits", "distillation_logits"} == set(expected)
    for name, value in expected.items():
        assert_close(mine[name], value)
    again = back(model, "DeiTForImageClassificationWithTeacher", tmp_path)
    for name, value in outputs_of(again, pixel_values=images.transpose(0, 3, 1, 2)).items():
        assert_close(value, expected[name])
    export_onnx(model, tmp_path / "folder")
    answers = load(tmp_path / "folder")
    answers(np.zeros((12, 12, 3), "uint8"))
    outputs = answers.session.run({"pixel_values": np.ascontiguousarray(images.transpose(0, 3, 1, 2))})
    for name, value in expected.items():
        assert_close(outputs[name], value)
    # A teacher's labels are learned by one of the two, those of the images by the other.
    model.compile(run_eagerly=True)
    targets = {"cls_logits": np.array([0, 2]), "distillation_logits": np.array([1, 2])}
    before = as_numpy(model.get_layer("distillation_logits").kernel)
    model.fit(images, targets, epochs=1, verbose=0)
    assert (as_numpy(model.get_layer("distillation_logits").kernel) != before).any()
    with pytest.raises(ConfigError, match="Label 3 in row 1"):
        model.fit(images, {**targets, "cls_logits": np.array([0, 3])}, verbose=0)
    model.save(tmp_path / "model.keras")
    assert keras_tx.load_model(tmp_path / "model.keras").head == head

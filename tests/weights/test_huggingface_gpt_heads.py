"""Classifiers on a GPT equal those of transformers, with every weight redrawn, in Keras and exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.processing import train_byte_bpe
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close
from tests.weights.states import quietly_opened

torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')

PAD = 3
LLAMA = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
}
SIZES = {
    "GPT2": {"vocab_size": 30, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12},
    "Llama": LLAMA,
    "Mistral": LLAMA,
    "Qwen2": LLAMA,
    "Qwen3": {**LLAMA, "head_dim": 6},
    "Gemma": {**LLAMA, "head_dim": 6},
    "OpenAIGPT": {"vocab_size": 30, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12},
}
LABELS = {0: "no", 1: "perhaps", 2: "yes"}
HEADS = {
    "classes": ("ForSequenceClassification", {"id2label": LABELS}, keras_tx.ClassifierHead),
    "number": ("ForSequenceClassification", {"num_labels": 1}, keras_tx.RegressionHead),
    "numbers": (
        "ForSequenceClassification",
        {"num_labels": 2, "problem_type": "regression"},
        keras_tx.RegressionHead,
    ),
    "several": (
        "ForSequenceClassification",
        {"id2label": LABELS, "problem_type": "multi_label_classification"},
        keras_tx.MultiLabelHead,
    ),
    "tags": (
        "ForTokenClassification",
        {"id2label": LABELS, "classifier_dropout": 0.25},
        keras_tx.TokenClassifierHead,
    ),
}


def reference(family: str, head: str, **options: Any) -> Any:
    """A model of transformers with every weight redrawn."""
    suffix, fields, _ = HEADS[head]
    config = getattr(transformers, f"{family}Config")(
        **SIZES[family], **fields, **{"pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2, **options}
    )
    theirs = getattr(transformers, family + suffix)(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return theirs


def batch(side: str) -> dict[str, np.ndarray]:
    """Texts of 7, 4 and 1 tokens, padded on one side."""
    random = np.random.default_rng(1)
    ids, mask = np.full((3, 7), PAD), np.zeros((3, 7), int)
    for row, length in enumerate((7, 4, 1)):
        places = slice(7 - length, 7) if side == "left" else slice(0, length)
        ids[row, places], mask[row, places] = random.integers(4, 30, length), 1
    return {"input_ids": ids, "attention_mask": mask}


def logits_of(theirs: Any, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Their logits; without position_ids, transformers would count padding on the left."""
    positions = np.maximum(inputs["attention_mask"].cumsum(1) - 1, 0)
    with torch.no_grad():
        arrays = {name: torch.tensor(x) for name, x in {**inputs, "position_ids": positions}.items()}
        return theirs(**arrays).logits.numpy()


def assert_equal(ours: Any, theirs: Any, inputs: dict[str, np.ndarray]) -> None:
    mine, expected = as_numpy(ours(inputs)), logits_of(theirs, inputs)
    if mine.ndim == 3:
        real = inputs["attention_mask"].astype(bool)
        mine, expected = mine[real], expected[real]
    assert_close(mine, expected)


CASES = [(family, head) for family in SIZES for head in HEADS if (family, head) != ("OpenAIGPT", "tags")]


@pytest.mark.parametrize(("family", "head"), CASES)
def test_equals_transformers_in_and_out(family: str, head: str, tmp_path: Path):
    theirs = reference(family, head)
    theirs.save_pretrained(tmp_path / "theirs")
    model = keras_tx.from_checkpoint(tmp_path / "theirs")
    assert type(model.head) is HEADS[head][2]
    if "id2label" in HEADS[head][1]:
        assert model.head.labels == tuple(LABELS.values())
    if head == "tags":
        assert model.head.dropout == 0.25
    for side in ("right", "left"):
        assert_equal(model, theirs, batch(side))
    keras_tx.save_checkpoint(model, tmp_path / "ours")
    name = json.loads((tmp_path / "ours/config.json").read_text())["architectures"][0]
    assert name == family.replace("Mistral", "Llama") + HEADS[head][0]
    again, info = quietly_opened(getattr(transformers, name), tmp_path / "ours")
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert_equal(model, again.eval(), batch("right"))
    assert keras_tx.from_checkpoint(tmp_path / "ours").head == model.head


def test_padding_that_is_also_the_end_of_text(tmp_path: Path):
    """transformers reads the last token that is not the padding token, even where the mask includes it."""
    theirs = reference("GPT2", "classes", pad_token_id=2, eos_token_id=2)
    theirs.save_pretrained(tmp_path)
    model = keras_tx.from_checkpoint(tmp_path)
    assert model.config.pad_id == 2
    ids = np.array([[5, 6, 7, 2], [8, 9, 2, 2], [2, 2, 2, 2]])
    mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]])
    assert_equal(model, theirs, {"input_ids": ids, "attention_mask": mask})


@pytest.mark.parametrize("head", ["classes", "number", "several", "tags"])
@pytest.mark.parametrize("family", ["GPT2", "Llama"])
def test_exported_folder_equals_transformers(family: str, head: str, tmp_path: Path):
    theirs = reference(family, head)
    theirs.save_pretrained(tmp_path / "theirs")
    model = keras_tx.from_checkpoint(tmp_path / "theirs")
    export_onnx(model, tmp_path / "ours")
    with load(tmp_path / "ours", provider="cpu") as folder:  # without a tokenizer: arrays
        for side in ("right", "left"):
            inputs = batch(side)
            (exported,) = folder({name: x.astype("int64") for name, x in inputs.items()}).values()
            expected = logits_of(theirs, inputs)
            real = inputs["attention_mask"].astype(bool) if exported.ndim == 3 else slice(None)
            assert_close(exported[real], expected[real])


TEXTS = ["the cat sat on the mat", "Ada", "Ada lives in London"]


@pytest.mark.parametrize("variant", ["pico", "llama-tiny"])
@pytest.mark.parametrize("pooling", [None, "average"])
def test_runtime_classifies_texts(variant: str, pooling: str | None, tmp_path: Path):
    transform = train_byte_bpe(TEXTS * 3, size=280)
    head = keras_tx.ClassifierHead(2, labels=("cat", "person"), pooling=pooling)
    model = redraw(keras_tx.gpt(variant, head=head, processing=transform))
    inputs = transform(TEXTS)
    logits = as_numpy(model({name: inputs[name] for name in ("input_ids", "attention_mask")}))
    scores = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    export_onnx(model, tmp_path / "x")
    with load(tmp_path / "x", provider="cpu") as classify:
        answers = [{x["label"]: x["score"] for x in answer} for answer in classify(TEXTS)]
    assert_close(np.array([[answer["cat"], answer["person"]] for answer in answers]), scores)
    if pooling is None:  # the vector of the last token
        body = keras_tx.gpt(variant, head=None, processing=transform)
        for weight in body.weights:
            weight.assign(next(x for x in model.weights if x.path == weight.path))
        tokens = as_numpy(body({name: inputs[name] for name in ("input_ids", "attention_mask")}))
        last = tokens[np.arange(3), inputs["attention_mask"].sum(1) - 1]
        assert_close(logits, last @ as_numpy(model.get_layer("logits").kernel))


def test_average_pooling_is_refused_by_the_formats(tmp_path: Path):
    model = keras_tx.gpt("pico", head=keras_tx.ClassifierHead(2, pooling="average"))
    with pytest.raises(ConfigError, match="a ClassifierHead with pooling='average'"):
        keras_tx.save_checkpoint(model, tmp_path / "x")


def test_tags_of_gpt1_are_refused(tmp_path: Path):
    model = keras_tx.gpt("pico", head=keras_tx.TokenClassifierHead(3), norm_position="post")
    with pytest.raises(ConfigError, match="a TokenClassifierHead with norm_position='post'"):
        keras_tx.save_checkpoint(model, tmp_path / "x")


def test_another_head_is_new(tmp_path: Path):
    theirs = reference("Llama", "classes")
    theirs.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="logits/kernel"):
        other = keras_tx.from_checkpoint(tmp_path, head=keras_tx.MultiLabelHead(3))
    stored = load_file(tmp_path / "model.safetensors")["score.weight"]
    assert not np.array_equal(as_numpy(other.get_layer("logits").kernel), stored.T)
    with pytest.warns(UserWarning, match="logits/kernel, logits/bias"):
        keras_tx.from_checkpoint(tmp_path, head=keras_tx.TokenClassifierHead(3))


def test_saved_and_loaded(tmp_path: Path):
    for head in (keras_tx.ClassifierHead(2, pooling="average"), keras_tx.RegressionHead()):
        model = redraw(keras_tx.gpt("pico", head=head))
        model.save(tmp_path / "x.keras")
        again = keras_tx.load_model(tmp_path / "x.keras")
        assert again.head == head
        ids = np.array([[5, 6, 7]])
        np.testing.assert_array_equal(as_numpy(again(ids)), as_numpy(model(ids)))


def test_no_text_generation():
    model = keras_tx.gpt("pico", num_classes=2)
    with pytest.raises(ConfigError, match="head=ClassifierHead"):
        keras_tx.generate(model, [1, 2])
    with pytest.raises(ConfigError, match="distillation token"):
        keras_tx.gpt("pico", head=keras_tx.DistilledClassifierHead(2))

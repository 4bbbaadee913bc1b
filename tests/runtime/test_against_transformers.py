"""The text tasks equal transformers with the same random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.tolerances import assert_close
from tests.wordpiece import VOCABULARY, wordpiece

SIZES = {
    "width": 16,
    "depth": 2,
    "num_heads": 4,
    "mlp_dim": 24,
    "vocabulary_size": len(VOCABULARY),
    "max_length": 32,
    "pooler": None,
}
TEXTS = ["The cat sat on the mat.", "Ada!", "I love the film, it is very good and I hate the cats."]


def both(folder: Path, name: str, head: Any, **options: Any) -> tuple[Any, Any, Any]:
    """The loaded folder, and the model and tokenizer of transformers from the same folder."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch
    import transformers

    model = keras_tx.bert("tiny", head=head, **{**SIZES, **options})
    labels = getattr(head, "num_classes", None)
    export_onnx(model, folder, tokenizer=wordpiece(), verify=False)
    config = transformers.AutoConfig.from_pretrained(folder, attn_implementation="eager")
    assert labels is None or config.num_labels == labels
    theirs = getattr(transformers, name)(config).eval()
    random = np.random.default_rng(5)
    with torch.no_grad():
        for parameter in theirs.parameters():
            drawn = random.standard_normal(tuple(parameter.shape)) * 0.3 + 0.1
            parameter.copy_(torch.from_numpy(drawn.astype("float32")))
    saved = folder.with_name("saved")
    theirs.save_pretrained(saved)
    filled = keras_tx.from_checkpoint(saved, head=head)
    export_onnx(filled, folder, tokenizer=wordpiece(), overwrite=True)
    return load(folder, provider="cpu"), theirs, transformers.AutoTokenizer.from_pretrained(folder)


def of_theirs(model: Any, tokenizer: Any, *texts: Any) -> dict[str, np.ndarray]:
    import torch

    with torch.no_grad():
        out = model(**tokenizer(*texts, padding=True, return_tensors="pt"))
    return {name: value.numpy() for name, value in out.items()}


def softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x.astype("float64") - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def test_classifier(tmp_path):
    head = keras_tx.ClassifierHead(3)
    ours, theirs, tokenizer = both(tmp_path / "x", "BertForSequenceClassification", head, pooler="tanh")
    for columns in ((TEXTS,), (TEXTS, TEXTS[::-1])):
        expected = softmax(of_theirs(theirs, tokenizer, *columns)["logits"])
        for answer, scores in zip(ours(*columns), expected, strict=True):
            by_label = {entry["label"]: entry["score"] for entry in answer}
            assert_close(np.array([by_label[f"LABEL_{i}"] for i in range(3)]), scores)
    # The pipeline of transformers, from text to label.
    import transformers

    pipeline = transformers.pipeline("text-classification", model=theirs, tokenizer=tokenizer, device="cpu")
    for mine, entry in zip(ours(TEXTS, top_k=1), pipeline(TEXTS), strict=True):
        assert mine[0]["label"] == entry["label"]
        assert mine[0]["score"] == pytest.approx(entry["score"], rel=1e-5)


def test_several_labels(tmp_path):
    head = keras_tx.MultiLabelHead(3)
    ours, theirs, tokenizer = both(tmp_path / "x", "BertForSequenceClassification", head, pooler="tanh")
    import transformers

    theirs.config.problem_type = ours.folder.problem_type  # as in the exported folder
    pipeline = transformers.pipeline("text-classification", model=theirs, tokenizer=tokenizer, device="cpu")
    for mine, entries in zip(ours(TEXTS), pipeline(TEXTS, top_k=None), strict=True):
        assert [entry["label"] for entry in mine] == [entry["label"] for entry in entries]
        for one, entry in zip(mine, entries, strict=True):
            assert one["score"] == pytest.approx(entry["score"], rel=1e-5)
    assert not np.allclose([sum(entry["score"] for entry in mine) for mine in ours(TEXTS)], 1.0)


def test_tagger(tmp_path):
    head = keras_tx.TokenClassifierHead(3)
    ours, theirs, tokenizer = both(tmp_path / "x", "BertForTokenClassification", head)
    import transformers

    pipeline = transformers.pipeline(
        "token-classification",
        model=theirs,
        tokenizer=tokenizer,
        device="cpu",
        aggregation_strategy="first",
    )
    for text in TEXTS:
        words = {(word["start"], word["end"]): word for word in ours(text, merge=False)}
        for group in pipeline(text):  # transformers merges adjacent equal labels
            inside = [
                word for (start, end), word in words.items() if group["start"] <= start < end <= group["end"]
            ]
            assert {word["label"] for word in inside} == {group["entity_group"]}
            mean = float(np.mean([word["score"] for word in inside]))
            assert mean == pytest.approx(float(group["score"]), rel=1e-5)
        merged = [(entity["start"], entity["end"], entity["label"]) for entity in ours(text)]
        assert merged == [(group["start"], group["end"], group["entity_group"]) for group in pipeline(text)]


def test_answers(tmp_path):
    ours, theirs, tokenizer = both(tmp_path / "x", "BertForQuestionAnswering", keras_tx.SpanHead())
    question, text = "Who lives in Paris?", "Ada  lives in PARIS. The cat sat."
    encoded = tokenizer(question, text, return_offsets_mapping=True)
    out = of_theirs(theirs, tokenizer, [question], [text])
    places = [0] + [i for i, part in enumerate(encoded.sequence_ids()) if part == 1]
    start, end = (softmax(out[name][0][places]) for name in ("start_logits", "end_logits"))
    table = np.triu(np.outer(start, end))
    table[0, 1:] = 0
    answers = ours(question, text, top_k=3)
    best = np.argsort(-table, axis=None)[:3]
    for flat, entry in zip(best, answers, strict=True):
        i, j = np.unravel_index(flat, table.shape)
        assert entry["score"] == pytest.approx(float(table[i, j]), rel=1e-5)
        if i:
            offsets = encoded["offset_mapping"]
            assert (entry["start"], entry["end"]) == (offsets[places[i]][0], offsets[places[j]][1])
        else:
            assert entry["answer"] == ""


def test_masks(tmp_path):
    ours, theirs, tokenizer = both(tmp_path / "x", "BertForMaskedLM", keras_tx.MaskedLMHead())
    import transformers

    pipeline = transformers.pipeline("fill-mask", model=theirs, tokenizer=tokenizer, device="cpu")
    for text in ("the [MASK] sat on the mat.", "i love [MASK]!"):
        for mine, entry in zip(ours(text), pipeline(text), strict=True):
            assert mine["id"] == entry["token"]
            assert mine["token"].strip() == entry["token_str"].replace(" ", "")
            assert mine["score"] == pytest.approx(entry["score"], rel=1e-5)


def test_embeddings(tmp_path):
    ours, theirs, tokenizer = both(tmp_path / "x", "BertModel", None, pooler="tanh")
    tokens = of_theirs(theirs, tokenizer, TEXTS)["last_hidden_state"]
    mask = tokenizer(TEXTS, padding=True, return_tensors="np")["attention_mask"][..., None]
    assert_close(ours(TEXTS, normalize=False), (tokens * mask).sum(1) / mask.sum(1))

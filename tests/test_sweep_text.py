"""The sweep for texts: every head of an encoder goes the whole way, on the backend that Keras runs on.

build -> fit -> save -> load -> export -> keras_tx.runtime, which gives what Keras gives for the same texts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.processing import TextTransform
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close
from tests.wordpiece import VOCABULARY, wordpiece

pytestmark = pytest.mark.thorough

TEXTS = [
    "the cat sat on the [MASK].",
    "ada lives in [MASK]",
    "[MASK]!",
    "i love the very good [MASK], we hate it.",
]
SIZES = {
    "width": 16,
    "depth": 1,
    "num_heads": 2,
    "mlp_dim": 16,
    "vocabulary_size": len(VOCABULARY),
    "max_length": 32,
}
ROBERTA = {"segments": 0, "position_offset": 1}
MODERNBERT = {"factory": keras_tx.modernbert, "depth": 2, "window": 4}
DEBERTA = {"factory": keras_tx.deberta, "buckets": 4, "max_distance": 16}
HEADS: dict[str, tuple[Any, dict[str, Any]]] = {
    "classifier": (keras_tx.ClassifierHead(3), {}),
    "classifier, roberta": (keras_tx.ClassifierHead(3), ROBERTA),
    "regression": (keras_tx.RegressionHead(), {}),
    "tags": (keras_tx.TokenClassifierHead(3), {}),
    "span": (keras_tx.SpanHead(), {}),
    "masked": (keras_tx.MaskedLMHead(), ROBERTA),
    "sentence": (keras_tx.SentenceEmbeddingHead(), {}),
    "classifier, modernbert": (keras_tx.ClassifierHead(3), MODERNBERT),
    "masked, modernbert": (keras_tx.MaskedLMHead(), MODERNBERT),
    "classifier, deberta": (keras_tx.ClassifierHead(3), DEBERTA),
    "span, deberta": (keras_tx.SpanHead(), DEBERTA),
}


def labels_for(name: str, arrays: dict[str, np.ndarray]) -> Any:
    samples = np.arange(len(TEXTS)) % 2
    tokens = np.where(arrays["attention_mask"] == 1, arrays["input_ids"] % 3, -100)
    name = name.split(",")[0]
    if name == "span":
        return {"start_logits": samples, "end_logits": samples + 1}
    return tokens if name in ("tags", "masked") else samples


def softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def check_classifier(runtime: Any, expected: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
    for answer, scores in zip(runtime(TEXTS), softmax(expected), strict=True):
        assert [entry["label"] for entry in answer] == [f"LABEL_{i}" for i in np.argsort(-scores)]
        assert_close(np.array([entry["score"] for entry in answer]), np.sort(scores)[::-1])


def check_regression(runtime: Any, expected: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
    assert_close(np.array([[entry["score"] for entry in answer] for answer in runtime(TEXTS)]), expected)


def check_tags(runtime: Any, expected: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
    for row, answer in enumerate(runtime.tag(TEXTS, merge=False)):
        starts = list(arrays["offset_mapping"][row][1:, 0])  # behind the class token
        for word in answer:
            scores = softmax(expected[row, 1 + starts.index(word["start"])])
            assert word["score"] == pytest.approx(float(scores.max()), rel=1e-5)


def check_span(runtime: Any, expected: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> None:
    pairs = runtime.transform(TEXTS, TEXTS[::-1])
    answers = runtime.answer(TEXTS, TEXTS[::-1], top_k=1)
    assert [set(answer[0]) for answer in answers] == [{"answer", "score", "start", "end", "no_answer"}] * len(
        TEXTS
    )
    assert pairs["input_ids"].shape[0] == len(answers)
    out = runtime.session.run({spec.name: arrays[spec.name] for spec in runtime.session.inputs})
    for name, value in expected.items():
        assert_close(out[name], value)


def check_masked(runtime: Any, expected: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
    mask = VOCABULARY.index("[MASK]")
    for row, answer in enumerate(runtime(TEXTS, top_k=3)):
        scores = softmax(expected[row, list(arrays["input_ids"][row]).index(mask)])
        assert [entry["id"] for entry in answer] == list(np.argsort(-scores)[:3])
        assert_close(np.array([entry["score"] for entry in answer]), np.sort(scores)[::-1][:3])


def check_sentence(runtime: Any, expected: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
    assert_close(runtime(TEXTS, batch_size=2), expected)


CHECKS: dict[str, Callable[..., None]] = {
    "classifier": check_classifier,
    "regression": check_regression,
    "tags": check_tags,
    "span": check_span,
    "masked": check_masked,
    "sentence": check_sentence,
}
ROWS = [(name, "float32") for name in HEADS]
ROWS += [(name, policy) for name in ("classifier", "span") for policy in ("mixed_bfloat16", "mixed_float16")]


@pytest.mark.parametrize(("name", "policy"), ROWS)
def test_train_save_export_and_run(name: str, policy: str, tmp_path: Path):
    head, options = HEADS[name]
    options = {"factory": keras_tx.bert, **SIZES, **options}
    model = redraw(options.pop("factory")("tiny", head=head, dtype=policy, **options))
    wordpiece().save(str(tmp_path / "tokenizer.json"))
    transform = TextTransform.load(tmp_path / "tokenizer.json", segments="token_type_ids" in model.input)
    arrays = transform(TEXTS, offsets=True)
    inputs = {key: arrays[key] for key in model.input}
    model.compile()
    model.fit(inputs, labels_for(name, arrays), verbose=0)
    model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")

    report = export_onnx(model, tmp_path / "folder", tokenizer=tmp_path)
    assert report.manifest.task == model.task
    expected = as_numpy(keras_tx.from_checkpoint(model, dtype="float32")(inputs))
    with load(tmp_path / "folder", provider="cpu") as runtime:
        CHECKS[name.split(",")[0]](runtime, expected, arrays)

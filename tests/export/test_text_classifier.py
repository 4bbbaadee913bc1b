"""Text classifiers of keras-hub are exported with the tokenizer of their preprocessor."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.processing import train_byte_bpe
from keras_tx.runtime import load
from keras_tx_onnx import compare, export_onnx
from tests.drawing import redraw
from tests.naming import shown
from tests.tolerances import assert_close
from tests.wordpiece import VOCABULARY

keras_hub = pytest.importorskip("keras_hub", reason='pip install "keras-tx[cpu]"')
from keras_tx.weights.keras_hub_tokenizers import tokenizer_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")

LABELS = ["bad", "good", "neither"]
TEXTS = [
    "The cat sat on the MAT!",
    "I love the film",
    "",
    "Ada Lovelace lives in London, Paris and ... the film " * 3,
]
OTHERS = [
    ("Bert", None),
    ("Bert", "sigmoid"),
    ("DistilBert", None),
    ("DistilBert", "softmax"),
    ("Roberta", "softmax"),
    ("Roberta", "sigmoid"),
]


def roberta_tokenizer() -> Any:
    special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    special |= {"mask_token": "<mask>", "cls_token": "<s>", "sep_token": "</s>"}
    learned = train_byte_bpe(["the cat sat on the mat", "I love the film"] * 3, 300, **special)
    return tokenizer_of(learned, "RobertaTokenizer")


def classifier(
    kind: str, num_classes: int = 3, length: int = 12, positions: int = 24, rows: int = 0, **options: Any
):
    models = keras_hub.models
    if kind == "Roberta":
        tokenizer = roberta_tokenizer()
    else:
        tokenizer = getattr(models, f"{kind}Tokenizer")(vocabulary=list(VOCABULARY), lowercase=True)
    preprocessor = getattr(models, f"{kind}TextClassifierPreprocessor")(tokenizer, sequence_length=length)
    backbone = getattr(models, f"{kind}Backbone")(
        vocabulary_size=rows or tokenizer.vocabulary_size(), num_layers=2, num_heads=2, hidden_dim=8,
        intermediate_dim=12, max_sequence_length=positions,
    )  # fmt: skip
    model = getattr(models, f"{kind}TextClassifier")
    return redraw(model(backbone, num_classes=num_classes, preprocessor=preprocessor, **options))


def scores_of(answers: Any, labels: list[str]) -> np.ndarray:
    """The scores in the order of the labels."""
    return np.array(
        [[next(a["score"] for a in row if a["label"] == name) for name in labels] for row in answers]
    )


@pytest.mark.filterwarnings("ignore:.*max_length")
@pytest.mark.parametrize(
    ("kind", "activation"),
    [
        ("Bert", "softmax"),
        ("DistilBert", "sigmoid"),
        pytest.param("Roberta", None, marks=pytest.mark.thorough),
        *(pytest.param(*both, marks=pytest.mark.thorough) for both in OTHERS),
    ],
)
def test_scores_equal_predict(kind: str, activation: str | None, tmp_path: Path):
    model = classifier(kind, activation=activation)
    report = export_onnx(model, tmp_path / "out", labels=LABELS)
    manifest = report.manifest
    assert manifest.task == "text-classification" and manifest.parity is not None
    assert any("every mask" in case for case in manifest.parity.cases)
    segments = ["token_type_ids"] if kind == "Bert" else []
    assert [spec.name for spec in manifest.inputs] == ["input_ids", "attention_mask", *segments]
    assert {spec.dtype for spec in manifest.inputs} == {"int64"}
    assert {spec.shape for spec in manifest.inputs} == {("batch_size", "sequence_length")}
    expected = model.predict(TEXTS, verbose=0)
    if activation is None:
        expected = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
    with load(tmp_path / "out") as classify:
        assert classify.labels == tuple(LABELS)
        assert_close(scores_of(classify(TEXTS, top_k=3), LABELS), expected)
        assert_close(scores_of([classify(TEXTS[1], top_k=3)], LABELS), expected[1:2])
    assert all(result.passed for result in compare(model, tmp_path / "out"))


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_text_pairs(kind: str, tmp_path: Path):
    model = classifier(kind, length=24)
    export_onnx(model, tmp_path / "out", task="text-classification")
    first, second = ["the cat sat", "i hate"], ["on the mat", "a very bad film"]
    inputs = model.preprocessor(x=(first, second))
    logits = keras.ops.convert_to_numpy(model(inputs))
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    with load(tmp_path / "out") as classify:
        labels = ["LABEL_0", "LABEL_1", "LABEL_2"]
        assert_close(scores_of(classify(first, second, top_k=3), labels), expected)


def test_one_sigmoid_and_two_labels(tmp_path: Path):
    model = classifier("Bert", num_classes=1, activation="sigmoid")
    export_onnx(model, tmp_path / "out", labels=["bad", "good"])
    (p,) = model.predict(TEXTS[:1], verbose=0)[0]
    with load(tmp_path / "out") as classify:
        assert_close(scores_of([classify(TEXTS[0])], ["bad", "good"]), np.array([[1 - p, p]]))


def test_model_without_preprocessor_is_generic(tmp_path: Path):
    model = classifier("Bert")
    assert export_onnx(model, tmp_path / "labels").manifest.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    model.preprocessor = None
    manifest = export_onnx(model, tmp_path / "out").manifest
    assert manifest.task is None and {spec.name for spec in manifest.inputs} >= {"token_ids", "padding_mask"}


def test_characters_with_different_ids_are_noted(tmp_path: Path):
    notes = export_onnx(classifier("Bert"), tmp_path / "out", labels=LABELS).manifest.notes
    (note,) = [note for note in notes if "different ids for" in note]
    assert "'[MASK]'" in note
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["vocab_size"], config["max_position_embeddings"]) == (len(VOCABULARY), 24)


class ByLetters(keras_hub.models.BertTokenizer):
    def call(self, inputs):
        return super().call([" ".join(str(text)) for text in np.atleast_1d(np.asarray(inputs))])


def test_sentencepiece_raises(tmp_path: Path):
    sentencepiece = pytest.importorskip("sentencepiece")
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat", "a film"]), model_writer=proto, vocab_size=11,
        model_type="WORD", pad_id=0, unk_id=1, bos_id=2, eos_id=3, pad_piece="<pad>", unk_piece="<unk>",
        bos_piece="[CLS]", eos_piece="[SEP]", user_defined_symbols="[MASK]",
    )  # fmt: skip
    model = classifier("Bert")
    tokenizer = keras_hub.models.AlbertTokenizer(proto=proto.getvalue())
    model.preprocessor = keras_hub.models.AlbertTextClassifierPreprocessor(tokenizer, sequence_length=12)
    with pytest.raises(ConfigError, match="AlbertTokenizer.*generic model"):
        export_onnx(model, tmp_path / "out", labels=LABELS)
    assert not list(tmp_path.iterdir())


def with_preprocessor(tokenizer: Any):
    model = classifier("Bert")
    model.preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=12)
    return model


def unsplit():
    model = classifier("Bert")
    model.preprocessor.tokenizer.split = False
    return model


def reads_padding():
    """Averages all tokens, masked ones too."""
    model = classifier("Bert")
    pooled = keras.ops.mean(model.backbone(model.backbone.input)["sequence_output"], axis=1)
    averaging = keras.Model(model.backbone.input, keras.layers.Dense(3)(pooled), name="averaging")
    averaging.preprocessor = model.preprocessor
    return redraw(averaging)


def unmasked():
    model = classifier("Bert")
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    averaged = keras.ops.mean(keras.layers.Embedding(50, 4)(ids), axis=1)
    other = keras.Model({"token_ids": ids}, keras.layers.Dense(3)(averaged), name="bag_of_words")
    other.preprocessor = model.preprocessor
    return other


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (unsplit, {}, "BertTokenizer.*split=False.*generic model"),
        (
            lambda: with_preprocessor(ByLetters(vocabulary=list(VOCABULARY), lowercase=True)),
            {},
            "ByLetters.*generic model",
        ),
        (reads_padding, {}, "'averaging'.*padding.*generic model"),
        (unmasked, {}, r"'bag_of_words'.*token_ids \(None, None\).*padding_mask"),
        (lambda: classifier("Bert", length=30), {}, "sequence_length=30.*24 positions"),
        (lambda: classifier("Bert", rows=20), {}, "ids up to 38.*20 vectors"),
        (lambda: classifier("Bert"), {"labels": LABELS[:2]}, "labels has 2 names.*3 classes"),
        (
            lambda: classifier("Bert", num_classes=1),
            {"labels": LABELS[:2]},
            "labels.*'linear'.*'sigmoid'",
        ),
        (lambda: classifier("Bert"), {"raw_pixels": True}, "raw_pixels=True.*labels"),
        (
            lambda: classifier("Bert"),
            {"labels": None, "task": "image-classification"},
            "task='image-classification'.*'text-classification'",
        ),
    ],
    ids=shown,
)
def test_unsupported_text_classifiers_raise(make, options, message, tmp_path: Path):
    with pytest.raises(ConfigError, match=message):
        export_onnx(make(), tmp_path / "out", **{"labels": LABELS, **options})
    assert not list(tmp_path.iterdir())

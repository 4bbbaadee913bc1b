"""Folders of BERTs, RoBERTas and DistilBERTs, with the outputs of keras_tx.runtime for texts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

import keras_tx
from keras_tx import contract
from keras_tx.processing import train_byte_bpe, train_wordpiece
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.clients import execution_targets, precisions
from tests.drawing import redraw

CORPUS = [
    "The cat sat on the mat, and the dog slept in the hall.",
    "Ada Lovelace lives in London; her friends live in Paris and in Rome.",
    "Where does Ada live? She lives in London, not in Rome!",
    "A very good film: the best that I have seen, and the actors were good.",
    "We didn't like the film. It was bad, it was long, and the end was weak.",
    "Élan vital, naïve café, über-gut: words with accents are words.",
    "東京 and 大阪 are cities in Japan, and 京都 is one too.",
    "1234567890 + 0.5 = (what?) [nothing] {much} <more> & \"so\" it's #1 @home / 50 % ~ * _ ^",
] * 3  # fmt: skip

# Of different lengths, so that a batch has padding. What is unknown to the vocabulary is in them too.
TEXTS = [
    "The cat lives in London.",
    "Ada, naïve ÉLAN vital, über-gut!",
    "東京 zzz \U0001f600 was\tgood,\n\nwasn't it?  (50 %)",
    "good",
]
PAIRS = [
    "Where does the cat live?",
    "bad",
    "Is it the best film that I have seen, or was the end weak?",
    "a 大阪",
]
LONG = ["London and Paris! " * 40, "The film was good. " * 30]
MASKED = ["The {} lives in London.", "{}!", "We didn't like the {}, it was bad.", "Ada and {}"]
SIZES = {"width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 48, "max_length": 96}
WIDE = {"width": 64, "mlp_dim": 128}  # there is something to quantize

ROBERTA_TOKENS = {
    "bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "cls_token": "<s>",
    "sep_token": "</s>", "mask_token": "<mask>",
}  # fmt: skip
UNCASED = train_wordpiece(CORPUS, 200)
CASED = train_wordpiece(CORPUS, 200, lowercase=False)
BYTES = train_byte_bpe(CORPUS, 330, segments=False, **ROBERTA_TOKENS)

BERT = {"processing": UNCASED}
ROBERTA = {"processing": BYTES, "segments": 0, "position_offset": BYTES.pad_id + 1, "norm_epsilon": 1e-5}
DISTILBERT = {"processing": dataclasses.replace(UNCASED, segments=False), "segments": 0, "pooler": "relu"}

THREE = ["negative", "neutral, so to say", "päonie"]
TAGS = ["O", "B-PER", "I-PER", "B-LOC"]
CLASSIFIER = keras_tx.ClassifierHead(len(THREE))

# The head, the labels, what is special about the model, and whether it is asked about pairs.
CASES: dict[str, tuple[Any, list[str] | None, dict[str, Any], bool]] = {
    "classify": (CLASSIFIER, THREE, BERT, False),
    "pairs": (CLASSIFIER, THREE, BERT, True),
    "alike": (keras_tx.RegressionHead(), None, BERT, True),
    "tags": (keras_tx.TokenClassifierHead(len(TAGS)), TAGS, {"processing": CASED}, False),
    "spans": (keras_tx.SpanHead(), None, BERT, True),
    "fill": (keras_tx.MaskedLMHead(), None, BERT, False),
    "bert": (None, None, BERT, False),
    "embed": (keras_tx.SentenceEmbeddingHead(), None, BERT, False),
    "embed_class": (keras_tx.SentenceEmbeddingHead("class", normalize=False), None, BERT, False),
    "roberta_classify": (CLASSIFIER, THREE, ROBERTA, False),
    "roberta_pairs": (CLASSIFIER, THREE, ROBERTA, True),
    "roberta_tags": (keras_tx.TokenClassifierHead(len(TAGS)), TAGS, ROBERTA, False),
    "roberta_spans": (keras_tx.SpanHead(), None, ROBERTA, True),
    "roberta_fill": (keras_tx.MaskedLMHead(), None, ROBERTA, False),
    "roberta_embed": (keras_tx.SentenceEmbeddingHead(), None, {**ROBERTA, "pooler": None}, False),
    "distilbert_classify": (CLASSIFIER, THREE, DISTILBERT, False),
    "distilbert_tags": (keras_tx.TokenClassifierHead(len(TAGS)), TAGS, DISTILBERT, False),
    "distilbert_spans": (keras_tx.SpanHead(), None, DISTILBERT, True),
    "distilbert_fill": (keras_tx.MaskedLMHead(), None, DISTILBERT, False),
    "distilbert_embed": (keras_tx.SentenceEmbeddingHead(), None, {**DISTILBERT, "pooler": None}, False),
    "bert_opset_17": (CLASSIFIER, THREE, BERT, False),
    "bert_padded": (CLASSIFIER, THREE, BERT, False),
    "bert_for_webgpu": (CLASSIFIER, THREE, BERT, False),
    "bert_for_openvino": (CLASSIFIER, THREE, BERT, False),
    "next_sentence": (keras_tx.NextSentenceHead(), None, BERT, True),
    "pretraining": (keras_tx.PretrainingHead(), None, BERT, True),
    "ladder_classify": (CLASSIFIER, THREE, {**BERT, **WIDE}, False),
    "ladder_pairs": (CLASSIFIER, THREE, {**BERT, **WIDE}, True),
    "ladder_fill": (keras_tx.MaskedLMHead(), None, {**BERT, **WIDE}, False),
    "ladder_vocabulary": (CLASSIFIER, THREE, {**BERT, **WIDE, "vocabulary_size": 2**14}, False),
    "ladder_embed": (keras_tx.SentenceEmbeddingHead(), None, {**BERT, **WIDE}, False),
}  # fmt: skip


def make(out: Path, name: str) -> dict[str, dict[str, Any]]:
    """The folder, and what is asked about each of its files."""
    head, labels, options, paired = CASES[name]
    model = redraw(keras_tx.bert("tiny", head=head, **{**SIZES, **options}))
    opset = 17 if name.endswith("opset_17") else None
    unpad = False if name.endswith("padded") else None
    export_onnx(
        model,
        out / name,
        labels=labels,
        opset=opset,
        target=execution_targets.of(name),
        unpad=unpad,
        precision=precisions.of(name),
        overwrite=True,
    )
    texts, pairs = TEXTS, PAIRS if paired else None
    if model.task == contract.FILL_MASK:
        texts = [text.format(model.processing.mask_token) for text in MASKED]
    transform = model.processing
    batch = transform(texts, pairs)
    cut = dataclasses.replace(transform, too_long="cut")
    long = {"text": cut(LONG[0]), "pair": cut(LONG[0], LONG[1])}

    def answer(precision: str) -> dict[str, Any]:
        with load(out / name, provider="cpu", precision=precision) as loaded:
            outputs = loaded.session.run({spec.name: batch[spec.name] for spec in loaded.session.inputs})
            answers = None if model.task is None else _answers(loaded, texts, pairs, batch, outputs)
        return {
            "kind": "texts",
            "task": model.task,
            "texts": texts,
            "pairs": pairs,
            "batch": {name: array.tolist() for name, array in batch.items()},
            "outputs": {name: array.tolist() for name, array in outputs.items()},
            "answers": answers,
            "plain": _plain(loaded, batch, answers) if model.task == contract.QUESTION_ANSWERING else None,
            "pooling": getattr(head, "pooling", "mean" if head is None else None),
            "normalize": getattr(head, "normalize", True),
            "long": LONG,
            "long_ids": {name: batch[contract.INPUT_IDS][0].tolist() for name, batch in long.items()},
        }

    return precisions.cases(name, answer)


def _answers(
    loaded: Any,
    texts: list[str],
    pairs: list[str] | None,
    batch: dict[str, np.ndarray],
    outputs: dict[str, np.ndarray],
) -> Any:
    """What the runtime's task says, in the words of Hugging Face's pipelines."""
    task = loaded.folder.manifest.task
    if task == contract.TEXT_CLASSIFICATION:
        return loaded(texts, pairs, top_k=9)
    if task == contract.QUESTION_ANSWERING:
        return [answer[0] for answer in loaded(texts, pairs, top_k=1)]
    if task == contract.FILL_MASK:
        return loaded(texts, top_k=3)
    if task == contract.FEATURE_EXTRACTION:
        return loaded(texts).tolist()
    return _of_tokens(loaded, batch, outputs[contract.LOGITS])


def _plain(loaded: Any, batch: dict[str, np.ndarray], answers: list[dict[str, Any]]) -> list[bool]:
    """Whether there is an answer, and nothing in a row is unknown."""
    unknown = loaded.transform.id_of(loaded.transform.unk_token)
    known = (batch[contract.INPUT_IDS] != unknown).all(axis=1)
    return [bool(row and answer["answer"]) for row, answer in zip(known, answers, strict=True)]


def _of_tokens(loaded: Any, batch: dict[str, np.ndarray], logits: np.ndarray) -> Any:
    """A label and a score for every token of a text, as those clients give them that do not merge words."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    scores = exponentials / exponentials.sum(axis=-1, keepdims=True)
    unknown = loaded.transform.id_of(loaded.transform.unk_token)
    special = loaded.transform.special_ids() - {unknown}
    return [
        [
            {"label": loaded.labels[int(x.argmax())], "score": float(x.max()), "unknown": number == unknown}
            for number, x in zip(ids.tolist(), of_row, strict=True)
            if number not in special
        ]
        for ids, of_row in zip(batch[contract.INPUT_IDS], scores, strict=True)
    ]

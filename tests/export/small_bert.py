"""A small BERT with each head, a batch with padding, and a function that runs its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import keras_tx
from tests.drawing import redraw
from tests.wordpiece import VOCABULARY

TINY = {
    "width": 16,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 24,
    "vocabulary_size": len(VOCABULARY),
    "max_length": 70,
}
ROBERTA = {"segments": 1, "position_offset": 2, "pad_id": 1}
DISTILBERT = {"segments": 0, "pooler": None}
RELU = {"pooler": "relu"}
HEADS = {
    "none": None,
    "masked": keras_tx.MaskedLMHead(),
    "next": keras_tx.NextSentenceHead(),
    "pretraining": keras_tx.PretrainingHead(),
    "classifier": keras_tx.ClassifierHead(3),
    "regression": keras_tx.RegressionHead(),
    "tags": keras_tx.TokenClassifierHead(4),
    "span": keras_tx.SpanHead(),
    "sentence": keras_tx.SentenceEmbeddingHead(),
    "class sentence": keras_tx.SentenceEmbeddingHead("class", normalize=False),
}
OUTPUTS = {
    "none": {"last_hidden_state", "pooler_output"},
    "pretraining": {"prediction_logits", "seq_relationship_logits"},
    "span": {"start_logits", "end_logits"},
    "sentence": {"last_hidden_state", "sentence_embedding"},
    "class sentence": {"last_hidden_state", "sentence_embedding"},
}
MASK = np.array([[1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
EXAMPLE = {
    "input_ids": np.arange(18).reshape(3, 6) * MASK + (1 - MASK),
    "attention_mask": MASK,
    "token_type_ids": (np.arange(6) > 2) * MASK,
}


def tiny(head: Any = None, **options: Any) -> Any:
    return redraw(keras_tx.bert("tiny", head=head, **{**TINY, **options}))


def run(folder: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(folder / "onnx/model.onnx", providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]
    outputs = session.run(None, {name: inputs[name].astype("int64") for name in names})
    return dict(zip([node.name for node in session.get_outputs()], outputs, strict=True))

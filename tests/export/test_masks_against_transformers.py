"""The folder equals transformers with every kind of mask, every head and every precision.

A row without any real token has no key to attend to. Attention then adds nothing to its tokens, as in
transformers by default ("sdpa"); "eager" attention averages all tokens of that row.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.runtime import Session
from keras_tx.runtime.example_inputs import MASKS, token_mask
from keras_tx_onnx import export_onnx
from tests.tolerances import FP32, difference

pytestmark = pytest.mark.thorough

torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')

LENGTH, VOCABULARY = 9, 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 16,
}
ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1}
DISTILBERT = {
    **{"vocab_size": VOCABULARY, "dim": 64, "n_layers": 2, "n_heads": 2},
    **{"hidden_dim": 128, "max_position_embeddings": 16},
}
LABELS = {"num_labels": 3}
# The class and its options, and a head other than that of the checkpoint.
MODELS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "no head": ("BertModel", {}, None),
    "mean": ("BertModel", {}, keras_tx.SentenceEmbeddingHead(normalize=False)),
    "class": ("BertModel", {}, keras_tx.SentenceEmbeddingHead("class", normalize=False)),
    "masked language": ("BertForMaskedLM", {}, None),
    "next sentence": ("BertForNextSentencePrediction", {}, None),
    "pretraining": ("BertForPreTraining", {}, None),
    "classifier": ("BertForSequenceClassification", LABELS, None),
    "labels": ("BertForSequenceClassification", {**LABELS, "problem_type": contract.MULTI_LABEL}, None),
    "regression": ("BertForSequenceClassification", {"num_labels": 1}, None),
    "tags": ("BertForTokenClassification", LABELS, None),
    "span": ("BertForQuestionAnswering", {}, None),
    "roberta": ("RobertaModel", {}, None),
    "roberta classifier": ("RobertaForSequenceClassification", LABELS, None),
    "roberta tags": ("RobertaForTokenClassification", LABELS, None),
    "distilbert": ("DistilBertModel", {}, None),
    "distilbert classifier": ("DistilBertForSequenceClassification", LABELS, None),
    "distilbert span": ("DistilBertForQuestionAnswering", {}, None),
}


def their_model(name: str, options: dict[str, Any], attention: str = "sdpa") -> Any:
    """A model with random weights whose outputs are near 1."""
    sizes = DISTILBERT if name.startswith("Distil") else SIZES
    more = ROBERTA if name.startswith("Roberta") else {}
    model_class = getattr(transformers, name)
    settings = model_class.config_class(**{**sizes, **more, **options, "attn_implementation": attention})
    model = model_class(settings).eval()
    random = np.random.default_rng(1)
    with torch.no_grad():
        for parameter in model.parameters():
            shape = tuple(parameter.shape)
            if len(shape) == 1:
                values = random.uniform(0.5, 1.5, shape) * random.choice((-1, 1), shape)
            else:
                values = random.standard_normal(shape) / math.sqrt(shape[1])
            parameter.copy_(torch.from_numpy(values.astype("float32")))
    return model


def inputs_of(name: str) -> dict[str, np.ndarray]:
    """A row for each kind of mask, with padding ids at masked places; then these rows with any ids there."""
    random = np.random.default_rng(0)
    mask = token_mask((2 * len(MASKS), LENGTH), MASKS)
    ids = random.integers(2, VOCABULARY, mask.shape)
    padding = 1 if name.startswith("Roberta") else 0
    ids[: len(MASKS)] = np.where(mask[: len(MASKS)], ids[: len(MASKS)], padding)
    inputs = {contract.INPUT_IDS: ids, contract.ATTENTION_MASK: mask.astype("int64")}
    if name.startswith("Bert"):
        inputs[contract.TOKEN_TYPE_IDS] = random.integers(0, 2, mask.shape)
    return inputs


def their_outputs(model: Any, inputs: dict[str, np.ndarray], head: Any) -> dict[str, np.ndarray]:
    with torch.no_grad():
        result = model(**{key: torch.from_numpy(x) for key, x in inputs.items()})
    outputs = {key: x.numpy() for key, x in result.items()}
    if head is None:
        return outputs
    tokens, real = outputs["last_hidden_state"], inputs[contract.ATTENTION_MASK][..., None]
    mean = (tokens * real).sum(1) / np.maximum(real.sum(1), 1)
    return {contract.SENTENCE_EMBEDDING: tokens[:, 0] if head.pooling == "class" else mean}


def at_masked_tokens(name: str, outputs: dict[str, np.ndarray], mask: np.ndarray) -> dict[str, np.ndarray]:
    """The documented values: 0, and -10,000 for the logits of a span."""
    result = {}
    for key, value in outputs.items():
        if value.shape[:2] == mask.shape:
            real = mask.reshape(*mask.shape, *(1,) * (value.ndim - 2)) != 0
            value = np.where(real, value, -1e4 if value.ndim == 2 else 0)
        result[key] = value
    return result


@pytest.mark.parametrize("name", MODELS)
def test_every_precision_equals_transformers(name: str, tmp_path: Path):
    kind, options, head = MODELS[name]
    theirs = their_model(kind, options)
    theirs.save_pretrained(tmp_path / "theirs")
    model = keras_tx.from_checkpoint(tmp_path / "theirs", **({} if head is None else {"head": head}))
    precisions = ["fp32", "fp16", "int8", "int8-blocks", "int4"]
    manifest = export_onnx(model, tmp_path / "x", precision=precisions).manifest
    export_onnx(model, tmp_path / "padded", precision=precisions, unpad=False)
    inputs = inputs_of(kind)
    mask = inputs[contract.ATTENTION_MASK]
    expected = at_masked_tokens(name, their_outputs(theirs, inputs, head), mask)
    for precision, graph in manifest.precisions.items():
        with Session(tmp_path / "x" / graph, provider="cpu") as session:
            computed = session.run({spec.name: inputs[spec.name] for spec in session.inputs})
        noise = 0.0 if precision == "fp32" else manifest.variants[precision].noise
        assert set(expected) <= set(computed)
        for output, value in expected.items():
            for row, mask_name in enumerate((*MASKS, *MASKS)):
                mine = computed[output][row].astype("float32")
                scale = np.abs(value[np.abs(value) < 1e4]).max()
                gap = np.abs(mine - value[row]).max() / scale
                assert gap <= FP32 + 5 * noise, f"{output}, {precision}, {mask_name}: {gap:.1e}"
        if precision in ("int8-blocks", "int4"):  # whose rounding does not depend on other rows
            with Session(tmp_path / "padded" / graph, provider="cpu") as session:
                padded = session.run({spec.name: inputs[spec.name] for spec in session.inputs})
            same = at_masked_tokens(name, {key: padded[key] for key in expected}, mask)
            # A number between two steps may be rounded either way, which changes its row. No mask has that in
            # both of its rows.
            for output, value in same.items():
                gaps = [difference(x, y) for x, y in zip(computed[output], value, strict=True)]
                best = np.reshape(gaps, (2, len(MASKS))).min(0)
                assert best.max() <= FP32, f"{output}, {precision}: {best}"


def test_rows_without_any_token_in_transformers():
    """ "sdpa" attends to nothing in them and "eager" to all tokens; they agree on all other rows."""
    inputs = inputs_of("BertModel")
    sdpa, eager = (
        their_outputs(their_model("BertModel", {}, attention), inputs, None)["last_hidden_state"]
        for attention in ("sdpa", "eager")
    )
    none = inputs[contract.ATTENTION_MASK].sum(1) == 0
    assert difference(eager[~none], sdpa[~none]) <= FP32
    assert difference(eager[none], sdpa[none]) > 0.1

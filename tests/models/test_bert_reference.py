"""BERT and its relatives give what Hugging Face's give, with the same weights, at every real token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from tests.drawing import as_numpy
from tests.models.reference_bert import load
from tests.tolerances import assert_close

GOLDEN = Path(__file__).parents[1] / "golden" / "bert.npz"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
SIZES = {"width": 16, "depth": 2, "num_heads": 4, "mlp_dim": 24, "vocabulary": 40, "max_length": 12}
ROBERTA = {"segments": 0, "position_offset": 2, "pad_id": 1}
DISTILBERT = {"segments": 0, "pooler": None}


def compare(
    state: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    *,
    family: str = "bert",
    head: Any = None,
    **options: Any,
) -> None:
    model = keras_tx.bert("tiny", head=head, **{**SIZES, **options})
    load(model, state, family)
    inputs = {name: expected[name] for name in INPUTS if name in expected}
    real = expected["attention_mask"].astype(bool)
    blocks = [model.get_layer(f"block_{index}").output for index in range(2)]
    parts = keras.Model(model.input, blocks)
    for mine, theirs in zip(parts(model.complete(inputs)), expected["hidden"], strict=True):
        assert_close(as_numpy(mine)[real], theirs[real])
    outputs = as_numpy(model(inputs))
    outputs = outputs if isinstance(outputs, dict) else {"logits": outputs}
    compared = 0
    for name, theirs in expected.items():
        if name not in (*INPUTS, "hidden") and not name.startswith("state/"):
            mine = outputs[name]
            of_tokens = theirs.shape[:2] == real.shape
            assert_close(mine[real] if of_tokens else mine, theirs[real] if of_tokens else theirs)
            compared += 1
    assert compared == len(outputs)


def test_equals_the_golden_file():
    with np.load(GOLDEN, allow_pickle=False) as golden:
        arrays = dict(golden)
    state = {
        name.removeprefix("state/"): value for name, value in arrays.items() if name.startswith("state/")
    }
    compare(state, arrays, head=keras_tx.PretrainingHead())


CASES = {
    "BertModel": {},
    "BertForPreTraining": {"head": keras_tx.PretrainingHead()},
    "BertForSequenceClassification": {"head": keras_tx.ClassifierHead(3)},
    "BertForTokenClassification": {"head": keras_tx.TokenClassifierHead(3)},
    "BertForQuestionAnswering": {"head": keras_tx.SpanHead()},
    "RobertaModel": {},
    "RobertaForSequenceClassification": {"head": keras_tx.ClassifierHead(3)},
    "DistilBertModel": {},
    "DistilBertForSequenceClassification": {"head": keras_tx.ClassifierHead(3), "pooler": "relu"},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("activation", "theirs"), [("gelu", "gelu"), ("gelu_tanh", "gelu_new"), ("relu", "relu")]
)
def test_equals_transformers(name: str, activation: str, theirs: str):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    from tests.golden import make_bert

    options: dict[str, Any] = {"activation": activation, **CASES[name]}
    extra: dict[str, Any] = {"num_labels": 3} if "Classification" in name else {}
    if activation == "relu" and not name.startswith("DistilBert"):  # which has no such field
        options["norm_epsilon"] = extra["layer_norm_eps"] = 0.01
    if name.startswith("DistilBert"):
        family, config = "distilbert", {**make_bert.DISTILBERT, "activation": theirs}
        options = {**DISTILBERT, **options}
    elif name.startswith("Roberta"):
        family, config = "roberta", {**make_bert.ROBERTA, "hidden_act": theirs}
        options = {**ROBERTA, **options}
    else:
        family, config = "bert", {**make_bert.BERT, "hidden_act": theirs}
        if name in ("BertForTokenClassification", "BertForQuestionAnswering"):
            options["pooler"] = None
    compare(*make_bert.reference(3, name, {**config, **extra}), family=family, **options)

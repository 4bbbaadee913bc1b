"""Heads of Hugging Face's decoders: the architectures, their fields in config.json, and their tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_tx import contract
from keras_tx.heads import (
    ClassifierHead,
    Head,
    MultiLabelHead,
    RegressionHead,
    TokenClassifierHead,
)
from keras_tx.weights.config_json import Fields, labels_of
from keras_tx.weights.tensor_map import HEAD, Entry, linear

SEQUENCES, TOKENS = "ForSequenceClassification", "ForTokenClassification"
SAMPLE_HEADS = (ClassifierHead, MultiLabelHead, RegressionHead)
PROBLEMS = {
    RegressionHead: contract.REGRESSION,
    MultiLabelHead: contract.MULTI_LABEL,
    ClassifierHead: contract.SINGLE_LABEL,
}


def read_head(config: Fields, architecture: str) -> Head | None:
    """Returns the head of a classifier's architecture; None for other architectures."""
    if architecture.endswith(TOKENS):
        config.refuse("token_classification_bias", True)
        default = config.real("hidden_dropout", 0.1) if config.get("hidden_dropout") is not None else 0.1
        count, labels = labels_of(config)
        return TokenClassifierHead(count, _dropout(config, default), labels)
    if not architecture.endswith(SEQUENCES):
        return None
    count, labels = labels_of(config)
    dropout = _dropout(config, 0.0)
    problem = config.get("problem_type")
    if problem == contract.MULTI_LABEL:
        return MultiLabelHead(count, dropout, labels)
    if problem == contract.REGRESSION or count == 1:
        return RegressionHead(count, dropout, labels)
    return ClassifierHead(count, dropout, labels)


def _dropout(config: Fields, default: float) -> float:
    return default if config.get("classifier_dropout") is None else config.real("classifier_dropout", default)


def architecture_of(head: Head | None, language_model: str) -> str:
    """Returns the end of the name of the class; `language_model` is that of a CausalLMHead."""
    if head is None:
        return "Model"
    if isinstance(head, TokenClassifierHead):
        return TOKENS
    return SEQUENCES if isinstance(head, SAMPLE_HEADS) else language_model


def head_fields(head: Head | None) -> dict[str, Any]:
    """Returns the entries of config.json for a classifier; its labels are those of every family."""
    fields: dict[str, Any] = {}
    if isinstance(head, (*SAMPLE_HEADS, TokenClassifierHead)):
        fields["classifier_dropout"] = head.dropout
    for kind, problem in PROBLEMS.items():
        if isinstance(head, kind):
            fields["problem_type"] = problem
    return fields


def unsupported(head: Head | None) -> list[str]:
    """Returns the options of a head that no decoder of transformers has."""
    pooling = getattr(head, "pooling", None)
    return [] if pooling is None else [f"a {type(head).__name__} with pooling={pooling!r}"]


def head_entries(head: Head | None, stored: Head | None, tokens: str) -> list[Entry]:
    """Returns the map of a classifier's tensors.

    Args:
        head: head of the model.
        stored: head of the checkpoint; None if it is unknown.
        tokens: the name of the layer of a token classifier, which differs between decoders.
    """
    if isinstance(head, TokenClassifierHead):
        entries = linear(tokens, contract.LOGITS, part=HEAD)
    elif isinstance(head, SAMPLE_HEADS):
        entries = linear("score", contract.LOGITS, bias=False, part=HEAD)
    else:
        return []
    if stored is None or (type(stored) is type(head) and stored.default_labels() == head.default_labels()):
        return entries
    # Heads of other kinds have tensors of the same names.
    return [dataclasses.replace(entry, name="new " + entry.name) for entry in entries]

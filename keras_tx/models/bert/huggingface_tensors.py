"""The tensor maps between a Bert and Hugging Face's BERT, RoBERTa and DistilBERT."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.heads import (
    ClassifierHead,
    Head,
    MaskedLMHead,
    MultiLabelHead,
    MultipleChoiceHead,
    NextSentenceHead,
    PretrainingHead,
    RegressionHead,
    SentenceEmbeddingHead,
    TokenClassifierHead,
)
from keras_tx.models.bert.model import Bert, BertConfig
from keras_tx.weights.tensor_map import (
    HEAD,
    POOLER,
    TRANSPOSED,
    Copy,
    Entry,
    Form,
    Plan,
    Zeros,
    first_rows,
    layer_norm,
    linear,
)
from keras_tx.weights.tensor_source import Tensors
from keras_tx.weights.weight_values import array_of

PREFIXES = ("bert.", "roberta.", "distilbert.")
WORDS = "embeddings.word_embeddings.weight"

BERT_BLOCK = {
    "attention/query": "attention.self.query",
    "attention/key": "attention.self.key",
    "attention/value": "attention.self.value",
    "attention/output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward/up": "intermediate.dense",
    "feed_forward/down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
DISTILBERT_BLOCK = {
    "attention/query": "attention.q_lin",
    "attention/key": "attention.k_lin",
    "attention/value": "attention.v_lin",
    "attention/output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "feed_forward/up": "ffn.lin1",
    "feed_forward/down": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}
# Dense, norm and bias of the masked-language head, and the layer that repeats the embeddings and the bias.
LANGUAGE = {
    "bert": (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
        "cls.predictions.decoder",
    ),
    "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder"),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector"),
}
NEXT = "next sentence"
OTHERS = (
    *("pooler.", "cls.", "classifier.", "qa_outputs.", "lm_head.", "pre_classifier."),
    *("vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
)
CLASSIFIERS = (
    ClassifierHead,
    MultiLabelHead,
    RegressionHead,
    TokenClassifierHead,
    NextSentenceHead,
    MultipleChoiceHead,
)
ONE_ROW = Form(reshape=(1, -1))


def canonical(name: str) -> str:
    """Returns the name without the prefix of the family, and with PyTorch's names of norms."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name


def model_type_of(config: BertConfig) -> str:
    """Returns the most similar of "bert", "roberta" and "distilbert"."""
    if config.position_offset:
        return "roberta"
    return "bert" if config.segments else "distilbert"


def has_pooler(tensors: Tensors) -> bool:
    """Whether a checkpoint has a pooler that is not all zeros."""
    for name in tensors.shapes:
        if canonical(name) == "pooler.dense.weight":
            return bool(np.any(tensors.read(name)))
    return False


def plan(model: Bert, tensors: Tensors | None = None, stored: Head | None = None) -> Plan:
    """Returns the tensor map of a model; `stored` is the head of the checkpoint, None if it is unknown."""
    head = model.head
    family = model_type_of(model.config)
    prefix = "" if head is None or isinstance(head, SentenceEmbeddingHead) else f"{family}."
    there = {canonical(name) for name in (tensors.shapes if tensors is not None else ())}
    entries = [*_body(model, family, prefix), *_head(model, family, prefix, there)]
    copies: dict[str, str] = {}
    computed = ["embeddings.position_ids", "embeddings.token_type_ids"]
    if tensors is None:
        entries += _zeros(model, family, prefix)
    if isinstance(head, MaskedLMHead | PretrainingHead):
        if head.tied:
            entries, copies = _tied(entries, family, there)
        elif tensors is None:
            entries += _unused_bias(model, head, family)
        else:
            computed += _unused_biases(family, there)
    # Sentence embeddings need no pooler; a pooler of zeros exists only because BertModel requires one.
    if isinstance(head, SentenceEmbeddingHead) or (tensors is not None and not has_pooler(tensors)):
        computed += ["pooler.dense.weight", "pooler.dense.bias"]
    other = _of_other_heads(stored, head)
    entries = [
        dataclasses.replace(x, name="new " + x.name) if x.name.startswith(other) else x for x in entries
    ]
    return Plan(tuple(entries), canonical, copies, tuple(computed), OTHERS)


def _tied(entries: list[Entry], family: str, there: Collection[str]) -> tuple[list[Entry], dict[str, str]]:
    """Returns the entries of a model with a tied head, and the copies that a checkpoint may contain.

    A file may contain a tensor only under the name of its copy.
    """
    bias, decoder = LANGUAGE[family][2:]
    copies = {f"{decoder}.weight": WORDS, f"{decoder}.bias": bias}
    swapped = {usual: other for other, usual in copies.items() if other in there and usual not in there}
    entries = [
        dataclasses.replace(x, name=swapped[canonical(x.name)]) if canonical(x.name) in swapped else x
        for x in entries
    ]
    return entries, {
        other: usual for other, usual in copies.items() if usual not in swapped and other != usual
    }


def _unused_bias(model: Bert, head: MaskedLMHead | PretrainingHead, family: str) -> list[Entry]:
    """Returns the second bias of an untied head, which the class of transformers has but does not use."""
    bias, decoder = LANGUAGE[family][2:]
    if bias == f"{decoder}.bias":
        return []
    values = array_of(model.get_layer(_logits_of(head)).bias)
    return [Entry(bias, (), Copy(values=values), part=HEAD)]


def _unused_biases(family: str, there: Collection[str]) -> list[str]:
    bias, decoder = LANGUAGE[family][2:]
    return [bias] if f"{decoder}.bias" in there and bias != f"{decoder}.bias" else []


def _of_other_heads(stored: Head | None, head: Any) -> tuple[str, ...]:
    """Returns prefixes of tensors that belong to another head in the checkpoint.

    Classifiers of other kinds have the same tensor names; one with other classes has the same pooler.
    """
    if stored is None or not isinstance(head, CLASSIFIERS):
        return ()
    if type(stored) is not type(head):
        return ("classifier.",)
    sizes = [getattr(x, "num_classes", None) or getattr(x, "outputs", None) for x in (stored, head)]
    last = ("classifier.weight", "classifier.bias", "classifier.out_proj.")
    return () if sizes[0] == sizes[1] else last


def _body(model: Bert, family: str, prefix: str) -> list[Entry]:
    config = model.config
    tables = f"{prefix}embeddings"
    entries = [
        Entry(f"{prefix}{WORDS}", ("token_embedding/table",)),
        Entry(f"{tables}.position_embeddings.weight", ("positions/table",), fit=first_rows),
    ]
    if config.segments == 1:
        entries.append(Entry(f"{tables}.token_type_embeddings.weight", ("segments/bias",), ONE_ROW))
    elif config.segments:
        entries.append(Entry(f"{tables}.token_type_embeddings.weight", ("segments/table",)))
    entries += layer_norm(f"{tables}.LayerNorm", "embedding_norm")
    where, block = ("transformer", DISTILBERT_BLOCK) if family == "distilbert" else ("encoder", BERT_BLOCK)
    for index in range(config.depth):
        for path, name in block.items():
            make = layer_norm if path.endswith("norm") else linear
            entries += make(f"{prefix}{where}.layer.{index}.{name}", f"block_{index}/{path}")
    return entries


def _logits_of(head: MaskedLMHead | PretrainingHead) -> str:
    return contract.LOGITS if isinstance(head, MaskedLMHead) else contract.PREDICTION_LOGITS


def _head(model: Bert, family: str, prefix: str, there: Collection[str]) -> list[Entry]:
    head = model.head
    layers = {layer.name for layer in model.layers if layer.weights}
    entries: list[Entry] = []
    if "pooler" in layers:
        entries += linear(_pooler(head, family, prefix), "pooler", part=POOLER)
    if isinstance(head, MaskedLMHead | PretrainingHead):
        entries += _language(head, family, there)
    if isinstance(head, PretrainingHead):
        entries += linear("cls.seq_relationship", "seq_relationship_logits", part=NEXT)
    elif isinstance(head, NextSentenceHead) and family == "bert":
        entries += linear("cls.seq_relationship", "logits", part=HEAD)
    elif "span" in layers:
        entries += linear("qa_outputs", "span", part=HEAD)
    elif "logits" in layers and not isinstance(head, MaskedLMHead):
        deep = family == "roberta" and not isinstance(head, TokenClassifierHead | MultipleChoiceHead)
        entries += linear("classifier.out_proj" if deep else "classifier", "logits", part=HEAD)
    return entries


def _pooler(head: Head | None, family: str, prefix: str) -> str:
    """Returns the name of the pooler, which the classifiers of RoBERTa and DistilBERT have of their own."""
    if family == "distilbert":
        return "pre_classifier"
    if family == "bert" or isinstance(head, MultipleChoiceHead):
        return f"{prefix}pooler.dense"
    return "pooler.dense" if head is None else "classifier.dense"


def _language(head: MaskedLMHead | PretrainingHead, family: str, there: Collection[str]) -> list[Entry]:
    dense, norm, bias, decoder = LANGUAGE[family]
    logits = _logits_of(head)
    entries = linear(dense, "prediction_dense", part=HEAD) + layer_norm(norm, "prediction_norm", part=HEAD)
    if not head.tied:
        entries.append(Entry(f"{decoder}.weight", (f"{logits}/kernel",), TRANSPOSED, part=HEAD))
        # Files of transformers before 5 may contain the bias only under its second name.
        if f"{decoder}.bias" in there or bias not in there:
            bias = f"{decoder}.bias"
    return [*entries, Entry(bias, (f"{logits}/bias",), part=HEAD)]


def _zeros(model: Bert, family: str, prefix: str) -> list[Entry]:
    """Tensors that transformers would initialize at random, with a warning, if the file lacked them."""
    config, head = model.config, model.head
    width = config.width
    missing: dict[str, tuple[int, ...]] = {}
    if family == "roberta" and not config.segments:
        missing[f"{prefix}embeddings.token_type_embeddings.weight"] = (1, width)
    pooled = any(layer.name == "pooler" for layer in model.layers)
    if family != "distilbert" and not pooled and (head is None or isinstance(head, SentenceEmbeddingHead)):
        missing |= {"pooler.dense.weight": (width, width), "pooler.dense.bias": (width,)}
    return [Entry(name, (), Zeros(shape=shape)) for name, shape in missing.items()]

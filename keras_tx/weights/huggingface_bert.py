"""Hugging Face's names for what a BERT, RoBERTa or DistilBERT of ours is."""

from __future__ import annotations

from typing import Any

from keras_tx.heads import (
    ClassifierHead,
    MaskedLMHead,
    NextSentenceHead,
    PretrainingHead,
    RegressionHead,
    SpanHead,
    TokenClassifierHead,
)
from keras_tx.models.bert import Bert, BertConfig
from keras_tx.weights.huggingface import ACTIVATIONS

PREFIXES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}
HEADS = {
    MaskedLMHead: "ForMaskedLM",
    NextSentenceHead: "ForNextSentencePrediction",
    PretrainingHead: "ForPreTraining",
    ClassifierHead: "ForSequenceClassification",
    RegressionHead: "ForSequenceClassification",
    TokenClassifierHead: "ForTokenClassification",
    SpanHead: "ForQuestionAnswering",
}


def bert_to_config(model: Bert, labels: list[str] | None) -> tuple[dict[str, Any], list[str]]:
    """A config.json for a BERT, and why it has no model_type where no class can be like it."""
    family = family_of(model.config)
    fields = _distilbert(model) if family == "distilbert" else _bert(model, family)
    if labels is not None:
        fields["id2label"] = {str(index): label for index, label in enumerate(labels)}
        fields["label2id"] = {label: index for index, label in enumerate(labels)}
    if isinstance(model.head, RegressionHead):
        fields["problem_type"] = "regression"
    elif isinstance(model.head, ClassifierHead):
        fields["problem_type"] = "single_label_classification"
    reasons = _beyond(model, family)
    if reasons:
        return fields, reasons
    architecture = PREFIXES[family] + HEADS.get(type(model.head), "Model")
    if isinstance(model.head, NextSentenceHead) and family != "bert":
        architecture = PREFIXES[family] + HEADS[ClassifierHead]  # the same computation
    return {"model_type": family, "architectures": [architecture], **fields}, []


def family_of(config: BertConfig) -> str:
    """The model_type that is nearest."""
    if config.position_offset:
        return "roberta"
    return "bert" if config.segments else "distilbert"


def _bert(model: Bert, family: str) -> dict[str, Any]:
    config = model.config
    return {
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "classifier_dropout": getattr(model.head, "dropout", None),
        "max_position_embeddings": config.max_length + config.position_offset,
        # RoBERTa's single type, which every token has, is part of the positions here.
        "type_vocab_size": config.segments or 1,
        "initializer_range": 0.02,
        "layer_norm_eps": config.norm_epsilon,
        "position_embedding_type": "absolute",
        "pad_token_id": config.pad_id,
        "is_decoder": False,
        "tie_word_embeddings": True,
    }


def _distilbert(model: Bert) -> dict[str, Any]:
    config = model.config
    dropout = getattr(model.head, "dropout", 0.0)
    return {
        "vocab_size": config.vocabulary,
        "dim": config.width,
        "n_layers": config.depth,
        "n_heads": config.num_heads,
        "hidden_dim": config.mlp_dim,
        "activation": ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "seq_classif_dropout": dropout,
        "qa_dropout": dropout,
        "max_position_embeddings": config.max_length,
        "sinusoidal_pos_embds": False,
        "initializer_range": 0.02,
        "pad_token_id": config.pad_id,
        "tie_word_embeddings": True,
    }


def _beyond(model: Bert, family: str) -> list[str]:
    config, head = model.config, model.head
    differences: dict[str, bool] = {}
    if family == "roberta":
        differences[f"position_offset={config.position_offset} with pad_id={config.pad_id}"] = (
            config.position_offset != config.pad_id + 1
        )
        # RobertaLMHead has this activation, whatever the config says.
        differences[f"a MaskedLMHead with activation={config.activation!r}"] = (
            isinstance(head, MaskedLMHead) and config.activation != "gelu"
        )
    if family == "distilbert":
        differences[f"norm_epsilon={config.norm_epsilon}"] = config.norm_epsilon != 1e-12
    if family != "bert":
        differences["a PretrainingHead"] = isinstance(head, PretrainingHead)
    pooler = {"bert": ("tanh",), "roberta": ("tanh",), "distilbert": ("relu",)}[family]
    samples = isinstance(head, PretrainingHead) or (head is not None and head.takes_sample)
    if samples:
        differences[f"pooler={config.pooler!r}"] = config.pooler not in pooler
    elif head is None:  # without a pooler there is one output less, and what is left is theirs
        without = (None,) if family == "distilbert" else (None, *pooler)
        differences[f"pooler={config.pooler!r}"] = config.pooler not in without
    return [difference for difference, present in differences.items() if present]

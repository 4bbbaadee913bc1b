"""Converts config.json of Hugging Face's BERT, RoBERTa and DistilBERT, in both directions.

Fields that transformers does not read are ignored. Unsupported values of other fields raise a ConfigError.
XLM-RoBERTa and CamemBERT are RoBERTa with another vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, nearest
from keras_tx.heads import (
    ClassifierHead,
    Head,
    MaskedLMHead,
    MultiLabelHead,
    MultipleChoiceHead,
    NextSentenceHead,
    PretrainingHead,
    RegressionHead,
    SpanHead,
    TokenClassifierHead,
)
from keras_tx.models import sentence_transformers
from keras_tx.models.bert.huggingface_tensors import canonical, has_pooler, model_type_of, plan
from keras_tx.models.bert.model import Bert, BertConfig
from keras_tx.models.families import HuggingFace, HuggingFaceConfig, WeightSource, label_fields
from keras_tx.weights.config_json import ACTIVATIONS, Fields, labels_of
from keras_tx.weights.tensor_source import Checkpoint, Tensors

MODEL_TYPES = ("bert", "roberta", "distilbert", "xlm-roberta", "camembert")
PREFIXES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}
HEADS = {
    MaskedLMHead: "ForMaskedLM",
    NextSentenceHead: "ForNextSentencePrediction",
    PretrainingHead: "ForPreTraining",
    ClassifierHead: "ForSequenceClassification",
    MultiLabelHead: "ForSequenceClassification",
    RegressionHead: "ForSequenceClassification",
    TokenClassifierHead: "ForTokenClassification",
    SpanHead: "ForQuestionAnswering",
    MultipleChoiceHead: "ForMultipleChoice",
}
# All names of the three functions in transformers.
THEIR_ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh"), "gelu_tanh"),
    "relu": "relu",
}
# Keys in config.json by fields of BertConfig.
KEYS = {
    "head.num_classes": "num_labels",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "mlp_dim": "intermediate_size",
    "vocabulary_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "segments": "type_vocab_size",
    "pad_id": "pad_token_id",
    "norm_epsilon": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
DISTILBERT_KEYS = {
    "width": "dim",
    "depth": "n_layers",
    "num_heads": "n_heads",
    "mlp_dim": "hidden_dim",
    "vocabulary_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "pad_id": "pad_token_id",
}
POOLERS = {"bert": "tanh", "roberta": "tanh", "distilbert": "relu"}


def read(checkpoint: Checkpoint) -> WeightSource:
    """Describes a checkpoint.

    Raises:
        ConfigError: for a field of config.json that is not supported.
    """
    tensors = checkpoint.tensors
    config = Fields(checkpoint)
    kind = config.text("model_type", MODEL_TYPES)
    family = kind if kind in PREFIXES else "roberta"
    config.names = DISTILBERT_KEYS if family == "distilbert" else KEYS
    fields = _distilbert_fields(config) if family == "distilbert" else _bert_fields(config, family)
    config.refuse("is_encoder_decoder", False)
    config.refuse("pruned_heads", {})
    config.refuse("quantization_config", None)
    head, stored = _head_of(checkpoint, config, family, fields)

    def adapted(made: BertConfig, head: Head | None, overrides: dict[str, Any]) -> BertConfig:
        """Sets the pooler: a head has one; without a head, only if the checkpoint has one."""
        if "pooler" in overrides:
            return made
        pooler = POOLERS[family] if head is not None or has_pooler(tensors) else None
        return dataclasses.replace(made, pooler=pooler)

    return WeightSource(
        where=tensors.where,
        model_class=Bert,
        fields=fields,
        head=head,
        processing=sentence_transformers.text_transform(checkpoint.folder),
        tensors=tensors,
        config=config,
        plan=lambda model: plan(model, tensors, stored),
        adapted=adapted,
    )


def _bert_fields(config: Fields, family: str) -> dict[str, Any]:
    for name in ("is_decoder", "add_cross_attention"):
        config.refuse(name, False)
    config.refuse("position_embedding_type", "absolute")
    padding = config.number("pad_token_id", 1 if family == "roberta" else 0, none=family == "bert")
    fields = {
        "width": config.number("hidden_size", 768),
        "depth": config.number("num_hidden_layers", 12),
        "num_heads": config.number("num_attention_heads", 12),
        "mlp_dim": config.number("intermediate_size", 3072),
        "vocabulary_size": config.number("vocab_size", 50265 if family == "roberta" else 30522),
        "max_length": config.number("max_position_embeddings", 512),
        "segments": config.number("type_vocab_size", 2),
        "pad_id": padding or 0,
        "activation": THEIR_ACTIVATIONS[config.text("hidden_act", THEIR_ACTIVATIONS, "gelu")],
        "norm_epsilon": config.real("layer_norm_eps", 1e-12),
        "dropout": config.real("hidden_dropout_prob", 0.1),
        "attention_dropout": config.real("attention_probs_dropout_prob", 0.1),
    }
    if family == "roberta":  # padding has a position; other tokens are counted from the next one
        fields["position_offset"] = fields["pad_id"] + 1
        fields["max_length"] -= fields["position_offset"]
    return fields


def _distilbert_fields(config: Fields) -> dict[str, Any]:
    # sinusoidal_pos_embds is only the initial value of the table, which is in the checkpoint.
    return {
        "width": config.number("dim", 768),
        "depth": config.number("n_layers", 6),
        "num_heads": config.number("n_heads", 12),
        "mlp_dim": config.number("hidden_dim", 3072),
        "vocabulary_size": config.number("vocab_size", 30522),
        "max_length": config.number("max_position_embeddings", 512),
        "segments": 0,
        "pad_id": config.number("pad_token_id", 0, none=True) or 0,
        "activation": THEIR_ACTIVATIONS[config.text("activation", THEIR_ACTIVATIONS, "gelu")],
        "norm_epsilon": 1e-12,
        "dropout": config.real("dropout", 0.1),
        "attention_dropout": config.real("attention_dropout", 0.1),
    }


# Branches: one for each architecture, of three families.
def _head_of(
    checkpoint: Checkpoint, config: Fields, family: str, fields: dict[str, Any]
) -> tuple[Head | ConfigError | None, Head | None]:
    """Returns the head, or an error if it is not supported; and the head whose tensors are stored."""
    sentence = sentence_transformers.head_of(checkpoint.folder)
    if sentence is not None:
        return sentence, None
    architecture = config.architecture()
    name = architecture.removeprefix(
        {"xlm-roberta": "XLM", "camembert": "Camembert"}.get(config["model_type"], "")
    )
    name = name.removeprefix(PREFIXES[family])
    dropout = fields["dropout"]
    if name == "Model":
        return None, None
    tied = config.get("tie_word_embeddings", True) or not _untied(checkpoint.tensors)
    # RobertaLMHead always has this activation.
    other = "gelu" if family == "roberta" and fields["activation"] != "gelu" else None
    plain = {
        "ForMaskedLM": MaskedLMHead(other, tied=tied),
        "ForPreTraining": PretrainingHead(tied=tied),
        "ForNextSentencePrediction": NextSentenceHead(),
        "ForQuestionAnswering": SpanHead(config.real("qa_dropout", 0.1) if family == "distilbert" else 0.0),
    }
    if name in plain and (family == "bert" or name in ("ForMaskedLM", "ForQuestionAnswering")):
        return plain[name], plain[name]
    if name not in ("ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice"):
        known = ["Model", *dict.fromkeys(HEADS.values())]
        return ConfigError(
            f"{config.where} has the architecture {architecture!r}, whose head is not supported "
            f"({nearest(name, known)}) Pass the head that you want: head=None loads the encoder alone."
        ), None
    if family == "distilbert":
        if name != "ForTokenClassification":
            dropout = config.real("seq_classif_dropout", 0.2)
    elif config.get("classifier_dropout") is not None and (family, name) != ("roberta", "ForMultipleChoice"):
        dropout = config.real("classifier_dropout", 0.0)
    if name == "ForMultipleChoice":
        return MultipleChoiceHead(dropout), MultipleChoiceHead(dropout)
    count, labels = labels_of(config)
    if name == "ForTokenClassification":
        head: Head = TokenClassifierHead(count, dropout, labels)
        return head, head
    problem = config.get("problem_type")
    if problem == contract.MULTI_LABEL:
        head = MultiLabelHead(count, dropout, labels)
    elif problem == contract.REGRESSION or count == 1:
        head = RegressionHead(count, dropout, labels)
    else:
        head = ClassifierHead(count, dropout, labels)
    return head, head


def _untied(tensors: Tensors) -> bool:
    """Whether a masked-language head has an output matrix that differs from the embeddings."""
    names = {canonical(name): name for name in tensors.shapes}
    table = names.get("embeddings.word_embeddings.weight")
    for name in ("cls.predictions.decoder.weight", "lm_head.decoder.weight", "vocab_projector.weight"):
        if name in names and table is not None:
            return not np.array_equal(tensors.read(names[name]), tensors.read(table))
    return False


def to_config(model: Bert, labels: Sequence[str] | None = None, processing: Any = None) -> HuggingFaceConfig:
    """Returns the config.json of a BERT."""
    family = model_type_of(model.config)
    fields = _distilbert(model) if family == "distilbert" else _bert(model, family)
    fields |= label_fields(labels)
    if isinstance(model.head, RegressionHead):
        fields["problem_type"] = contract.REGRESSION
    elif isinstance(model.head, MultiLabelHead):
        fields["problem_type"] = contract.MULTI_LABEL
    elif isinstance(model.head, ClassifierHead):
        fields["problem_type"] = contract.SINGLE_LABEL
    reasons = _unsupported_options(model, family)
    if reasons:
        return HuggingFaceConfig(fields, reasons)
    architecture = PREFIXES[family] + HEADS.get(type(model.head), "Model")
    if isinstance(model.head, NextSentenceHead) and family != "bert":
        architecture = PREFIXES[family] + HEADS[ClassifierHead]  # the same computation
    return HuggingFaceConfig({"model_type": family, "architectures": [architecture], **fields})


def files(model: Bert) -> dict[str, Any]:
    """Returns the files of sentence-transformers for a model with a SentenceEmbeddingHead."""
    longest = None if model.processing is None else model.processing.max_length
    return sentence_transformers.sentence_files(
        model.head, model.config.width, longest or model.config.max_length
    )


def _bert(model: Bert, family: str) -> dict[str, Any]:
    config = model.config
    return {
        "vocab_size": config.vocabulary_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "classifier_dropout": getattr(model.head, "dropout", None),
        "max_position_embeddings": config.max_length + config.position_offset,
        "type_vocab_size": config.segments or 1,  # without segments, one of zeros
        "initializer_range": 0.02,
        "layer_norm_eps": config.norm_epsilon,
        "position_embedding_type": "absolute",
        "pad_token_id": config.pad_id,
        "is_decoder": False,
        "tie_word_embeddings": getattr(model.head, "tied", True),
    }


def _distilbert(model: Bert) -> dict[str, Any]:
    config = model.config
    dropout = getattr(model.head, "dropout", 0.0)
    return {
        "vocab_size": config.vocabulary_size,
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
        "tie_word_embeddings": getattr(model.head, "tied", True),
    }


def _unsupported_options(model: Bert, family: str) -> list[str]:
    config, head = model.config, model.head
    differences: dict[str, bool] = {}
    if family == "roberta":
        differences[f"position_offset={config.position_offset} with pad_id={config.pad_id}"] = (
            config.position_offset != config.pad_id + 1
        )
    if family == "distilbert":
        differences[f"norm_epsilon={config.norm_epsilon}"] = config.norm_epsilon != 1e-12
    if isinstance(head, MaskedLMHead):
        activation = head.activation or config.activation
        fixed = "gelu" if family == "roberta" else config.activation
        differences[f"a MaskedLMHead with activation={activation!r}"] = activation != fixed
        differences[f"a MaskedLMHead with norm_epsilon={head.norm_epsilon}"] = head.norm_epsilon not in (
            None,
            config.norm_epsilon,
        )
    pooling = getattr(head, "pooling", None)
    differences[f"a {type(head).__name__} with pooling={pooling!r}"] = pooling == "average"
    if family != "bert":
        differences["a PretrainingHead"] = isinstance(head, PretrainingHead)
    pooler = {"bert": ("tanh",), "roberta": ("tanh",), "distilbert": ("relu",)}[family]
    samples = isinstance(head, PretrainingHead) or (head is not None and head.takes_sample)
    if samples:
        differences[f"pooler={config.pooler!r}"] = config.pooler not in pooler
    elif head is None:  # a model without a pooler has one output less
        without = (None,) if family == "distilbert" else (None, *pooler)
        differences[f"pooler={config.pooler!r}"] = config.pooler not in without
    return [difference for difference, present in differences.items() if present]


CONVERTER = HuggingFace(MODEL_TYPES, read, plan, to_config, files)

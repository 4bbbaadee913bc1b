"""Converts configs and tensors of Hugging Face's DeBERTa (version 2 and 3), in both directions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError, nearest
from keras_tx.heads import (
    ClassifierHead,
    Head,
    MaskedLMHead,
    MultiLabelHead,
    RegressionHead,
    SentenceEmbeddingHead,
    SpanHead,
    TokenClassifierHead,
)
from keras_tx.models import sentence_transformers
from keras_tx.models.deberta.model import Deberta, DebertaConfig
from keras_tx.models.families import HuggingFace, HuggingFaceConfig, WeightSource, label_fields
from keras_tx.weights.config_json import ACTIVATIONS, Fields, labels_of
from keras_tx.weights.tensor_map import HEAD, POOLER, Entry, Plan, layer_norm, linear
from keras_tx.weights.tensor_source import Checkpoint, Tensors

WORDS = "embeddings.word_embeddings.weight"
# The head of masked tokens has two spellings: that of the authors' checkpoints, and an older one of
# transformers.
MASKED, OLD_MASKED = "lm_predictions.lm_head", "cls.predictions"
HEADS = {
    MaskedLMHead: "ForMaskedLM",
    ClassifierHead: "ForSequenceClassification",
    MultiLabelHead: "ForSequenceClassification",
    RegressionHead: "ForSequenceClassification",
    TokenClassifierHead: "ForTokenClassification",
    SpanHead: "ForQuestionAnswering",
}
CLASSIFIERS = (ClassifierHead, MultiLabelHead, RegressionHead, TokenClassifierHead)
TANH = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh")
READ_ACTIVATIONS = {"gelu": "gelu", "gelu_python": "gelu", **dict.fromkeys(TANH, "gelu_tanh"), "relu": "relu"}
READ_POOLERS = {**READ_ACTIVATIONS, "tanh": "tanh"}
TERMS = {"c2p": "content_to_position", "p2c": "position_to_content"}
# Keys in config.json by fields of DebertaConfig.
KEYS = {
    "head.num_classes": "num_labels",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "mlp_dim": "intermediate_size",
    "vocabulary_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "pad_id": "pad_token_id",
    "max_distance": "max_relative_positions",
    "buckets": "position_buckets",
    "shared_projections": "share_att_key",
    "norm_epsilon": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "pooler_dropout": "pooler_dropout",
}


def read(checkpoint: Checkpoint) -> WeightSource:
    """Describes a checkpoint.

    Raises:
        ConfigError: for a field of config.json that is not supported.
    """
    tensors = checkpoint.tensors
    config = Fields(checkpoint)
    config.names = KEYS
    fields = _fields(config)
    head, stored = _head_of(checkpoint, config, fields["dropout"])
    return WeightSource(
        where=tensors.where,
        model_class=Deberta,
        fields=fields,
        head=head,
        processing=sentence_transformers.text_transform(checkpoint.folder),
        tensors=tensors,
        config=config,
        plan=lambda model: plan(model, tensors, stored),
    )


def _fields(config: Fields) -> dict[str, Any]:
    for name in ("is_decoder", "add_cross_attention", "is_encoder_decoder"):
        config.refuse(name, False)
    config.refuse("quantization_config", None)
    width, heads = config.number("hidden_size", 1536), config.number("num_attention_heads", 24)
    _require(config, "relative_attention", False, True)
    _require(config, "position_biased_input", True, False)
    for name in ("type_vocab_size", "conv_kernel_size"):
        _require(config, name, 0, 0)
    for name in ("embedding_size", "pooler_hidden_size"):
        config.refuse(name, width)
    config.refuse("attention_head_size", width // heads if heads else None)
    longest = config.number("max_position_embeddings", 512)
    return {
        "width": width,
        "depth": config.number("num_hidden_layers", 24),
        "num_heads": heads,
        "mlp_dim": config.number("intermediate_size", 6144),
        "vocabulary_size": config.number("vocab_size", 128100),
        "max_length": longest,
        "pad_id": config.number("pad_token_id", 0, none=True) or 0,
        "max_distance": _positive(config, "max_relative_positions") or longest,
        "buckets": _positive(config, "position_buckets"),
        **_terms(config),
        "shared_projections": config.flag("share_att_key", False),
        "normalize_positions": _normalize_positions(config),
        "pooler": READ_POOLERS[config.text("pooler_hidden_act", READ_POOLERS, "gelu")],
        "activation": READ_ACTIVATIONS[config.text("hidden_act", READ_ACTIVATIONS, "gelu")],
        "norm_epsilon": config.real("layer_norm_eps", 1e-7),
        "dropout": config.real("hidden_dropout_prob", 0.1),
        "attention_dropout": config.real("attention_probs_dropout_prob", 0.1),
        "pooler_dropout": config.real("pooler_dropout", 0.0),
    }


def _require(config: Fields, name: str, default: Any, only: Any) -> None:
    """Raises a ConfigError unless the field, or its default in transformers, is the only supported value."""
    value = config.get(name, default)
    if type(value) is not type(only) or value != only:
        raise ConfigError(f"{config.where} has {name}={value!r}; only {name}={only!r} is supported.")


def _positive(config: Fields, name: str) -> int | None:
    """Returns an integer field; None if it is missing, 0 or less."""
    value = config.get(name, -1)
    if type(value) is not int:
        raise config.error(name, "expected a whole number")
    return value if value > 0 else None


def _terms(config: Fields) -> dict[str, bool]:
    """Reads pos_att_type: a list, or the same joined by "|"."""
    value = config.get("pos_att_type") or []
    names = [x.strip() for x in value.lower().split("|")] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not set(names) <= TERMS.keys():
        raise config.error("pos_att_type", "expected c2p, p2c or both")
    return {field: name in names for name, field in TERMS.items()}


def _normalize_positions(config: Fields) -> bool:
    value = config.get("norm_rel_ebd", "none")
    if value not in ("none", "layer_norm"):
        raise config.error("norm_rel_ebd", "expected 'none' or 'layer_norm'")
    return value == "layer_norm"


# Branches: one for each architecture.
def _head_of(
    checkpoint: Checkpoint, config: Fields, dropout: float
) -> tuple[Head | ConfigError | None, Head | None]:
    """Returns the head, or an error if it is not supported; and the head whose tensors are stored."""
    sentence = sentence_transformers.head_of(checkpoint.folder)
    if sentence is not None:
        return sentence, None
    if not config.get("architectures"):  # the authors' checkpoints do not name one
        return None, None
    architecture = config.architecture()
    name = architecture.removeprefix("DebertaV2")
    if name == "Model":
        return None, None
    if name == "ForMaskedLM":
        if config.flag("legacy", True):  # the newer form has no matrix of its own
            config.refuse("tie_word_embeddings", True)
        head: Head = MaskedLMHead()
    elif name == "ForQuestionAnswering":
        if labels_of(config)[0] != 2:
            raise config.error("id2label", "expected two, of the start and the end of an answer")
        head = SpanHead()
    elif name == "ForTokenClassification":
        count, labels = labels_of(config)
        head = TokenClassifierHead(count, dropout, labels)
    elif name == "ForSequenceClassification":
        if config.get("cls_dropout") is not None:
            dropout = config.real("cls_dropout", 0.0)
        head = _sample_head(config, dropout)
    else:
        known = ["Model", *dict.fromkeys(HEADS.values())]
        return ConfigError(
            f"{config.where} has the architecture {architecture!r}, whose head is not supported "
            f"({nearest(name, known)}) Pass the head that you want: head=None loads the encoder alone."
        ), None
    return head, head


def _sample_head(config: Fields, dropout: float) -> Head:
    count, labels = labels_of(config)
    problem = config.get("problem_type")
    if problem == contract.MULTI_LABEL:
        return MultiLabelHead(count, dropout, labels)
    if problem == contract.REGRESSION or count == 1:
        return RegressionHead(count, dropout, labels)
    return ClassifierHead(count, dropout, labels)


def plan(model: Deberta, tensors: Tensors | None = None, stored: Head | None = None) -> Plan:
    """Returns the tensor map of a model; `stored` is the head of the checkpoint, None if it is unknown."""
    config, head = model.config, model.head
    prefix = "" if head is None or isinstance(head, SentenceEmbeddingHead) else "deberta."
    entries = [Entry(f"{prefix}{WORDS}", ("token_embedding/table",))]
    entries += layer_norm(f"{prefix}embeddings.LayerNorm", "embedding_norm")
    entries.append(Entry(f"{prefix}encoder.rel_embeddings.weight", ("positions/table",)))
    if config.normalize_positions:
        entries += layer_norm(f"{prefix}encoder.LayerNorm", "positions/norm")
    for index in range(config.depth):
        entries += _block(config, f"{prefix}encoder.layer.{index}", f"block_{index}")
    layers = {layer.name for layer in model.layers}
    if "pooler" in layers:
        entries += linear("pooler.dense", "pooler", part=POOLER)
    copies: dict[str, str] = {}
    if isinstance(head, MaskedLMHead):
        masked, copies = _masked(tensors)
        entries += masked
    elif isinstance(head, SpanHead):
        entries += linear("qa_outputs", "span", part=HEAD)
    elif isinstance(head, CLASSIFIERS):
        entries += linear("classifier", "logits", part=HEAD)
    if _is_other(stored, head):  # a classifier of another kind has the same tensor names
        entries = [
            dataclasses.replace(x, name=f"new {x.name}") if x.name.startswith("classifier.") else x
            for x in entries
        ]
    others = ("pooler.", "classifier.", "qa_outputs.", "cls.", "lm_predictions.", "mask_predictions.")
    return Plan(tuple(entries), canonical, copies, computed=("embeddings.position_ids",), others=others)


def canonical(name: str) -> str:
    return name.removeprefix("deberta.")


def _block(config: DebertaConfig, name: str, path: str) -> list[Entry]:
    parts = {
        "attention.self.query_proj": "attention/query",
        "attention.self.key_proj": "attention/key",
        "attention.self.value_proj": "attention/value",
        "attention.output.dense": "attention/output",
        "intermediate.dense": "feed_forward/up",
        "output.dense": "feed_forward/down",
    }
    if not config.shared_projections:
        if config.content_to_position:
            parts["attention.self.pos_key_proj"] = "attention/position_key"
        if config.position_to_content:
            parts["attention.self.pos_query_proj"] = "attention/position_query"
    entries = [
        entry for theirs, ours in parts.items() for entry in linear(f"{name}.{theirs}", f"{path}/{ours}")
    ]
    entries += layer_norm(f"{name}.attention.output.LayerNorm", f"{path}/attention_norm")
    return entries + layer_norm(f"{name}.output.LayerNorm", f"{path}/feed_forward_norm")


def _masked(tensors: Tensors | None) -> tuple[list[Entry], dict[str, str]]:
    """The entries of the head of masked tokens, and its copies of other tensors."""
    is_old = tensors is not None and any(name.startswith(OLD_MASKED) for name in tensors.shapes)
    name, inner = (OLD_MASKED, f"{OLD_MASKED}.transform") if is_old else (MASKED, MASKED)
    entries = linear(f"{inner}.dense", "prediction_dense", part=HEAD)
    entries += layer_norm(f"{inner}.LayerNorm", "prediction_norm", part=HEAD)
    entries.append(Entry(f"{name}.bias", ("logits/bias",), part=HEAD))
    if not is_old:
        return entries, {}
    return entries, {f"{name}.decoder.bias": f"{name}.bias", f"{name}.decoder.weight": WORDS}


def _is_other(stored: Head | None, head: Any) -> bool:
    """Whether the classifier in the checkpoint is that of another head."""
    if stored is None or not isinstance(head, CLASSIFIERS):
        return False
    sizes = [getattr(x, "num_classes", None) or getattr(x, "outputs", None) for x in (stored, head)]
    return type(stored) is not type(head) or sizes[0] != sizes[1]


def to_config(
    model: Deberta, labels: Sequence[str] | None = None, processing: Any = None
) -> HuggingFaceConfig:
    """Returns the config.json of a DeBERTa."""
    head = model.head
    fields = {**_written(model.config), **label_fields(labels)}
    if head is not None and head.takes_sample:
        fields["cls_dropout"] = getattr(head, "dropout", 0.0)
    if isinstance(head, RegressionHead):
        fields["problem_type"] = contract.REGRESSION
    elif isinstance(head, MultiLabelHead):
        fields["problem_type"] = contract.MULTI_LABEL
    elif isinstance(head, ClassifierHead):
        fields["problem_type"] = contract.SINGLE_LABEL
    unsupported = _unsupported_options(model)
    if unsupported:
        return HuggingFaceConfig(fields, unsupported)
    architecture = f"DebertaV2{HEADS.get(type(head), 'Model')}"  # type: ignore[arg-type]
    return HuggingFaceConfig({"model_type": "deberta-v2", "architectures": [architecture], **fields})


def _unsupported_options(model: Deberta) -> tuple[str, ...]:
    config, head = model.config, model.head
    pooling = getattr(head, "pooling", None)
    differences: dict[str, bool] = {
        f"a {type(head).__name__} with pooling={pooling!r}": pooling == "average",
    }
    if isinstance(head, MaskedLMHead):
        differences |= {
            f"a MaskedLMHead with activation={head.activation!r}": head.activation
            not in (None, config.activation),
            f"a MaskedLMHead with norm_epsilon={head.norm_epsilon}": head.norm_epsilon
            not in (None, config.norm_epsilon),
            "a MaskedLMHead with tied=False": not head.tied,
        }
    return tuple(difference for difference, is_there in differences.items() if is_there)


def _written(config: DebertaConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocabulary_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_length,
        "initializer_range": 0.02,
        "layer_norm_eps": config.norm_epsilon,
        "relative_attention": True,
        "position_biased_input": False,
        "max_relative_positions": config.max_distance,
        "position_buckets": config.buckets or -1,
        "pos_att_type": [name for name, field in TERMS.items() if getattr(config, field)],
        "share_att_key": config.shared_projections,
        "norm_rel_ebd": "layer_norm" if config.normalize_positions else "none",
        "pad_token_id": config.pad_id,
        "legacy": False,
        "pooler_dropout": config.pooler_dropout,
        "pooler_hidden_act": {**ACTIVATIONS, "tanh": "tanh"}[config.pooler],
        "pooler_hidden_size": config.width,
    }


def files(model: Deberta) -> dict[str, Any]:
    """Returns the files of sentence-transformers for a model with a SentenceEmbeddingHead."""
    longest = None if model.processing is None else model.processing.max_length
    return sentence_transformers.sentence_files(
        model.head, model.config.width, longest or model.config.max_length
    )


CONVERTER = HuggingFace(("deberta-v2",), read, plan, to_config, files)

"""Converts configs and tensors of Hugging Face's ModernBERT, in both directions."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError, nearest, user_stacklevel
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
from keras_tx.models.families import HuggingFace, HuggingFaceConfig, WeightSource, label_fields
from keras_tx.models.modernbert.model import ModernBert, ModernBertConfig
from keras_tx.weights.config_json import ACTIVATIONS, Fields, labels_of
from keras_tx.weights.tensor_map import HEAD, POOLER, TRANSPOSED, Entry, Plan, layer_norm, linear
from keras_tx.weights.tensor_source import Checkpoint, Tensors

WORDS = "embeddings.tok_embeddings.weight"
CLASSIFIERS = (ClassifierHead, MultiLabelHead, RegressionHead, TokenClassifierHead, SpanHead)
HEADS = {
    MaskedLMHead: "ForMaskedLM",
    ClassifierHead: "ForSequenceClassification",
    MultiLabelHead: "ForSequenceClassification",
    RegressionHead: "ForSequenceClassification",
    TokenClassifierHead: "ForTokenClassification",
    SpanHead: "ForQuestionAnswering",
}
GATES = {"geglu_exact": "gelu", "geglu": "gelu_pytorch_tanh", "swiglu": "silu"}
TANH = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh")
READ_GATES = {
    "gelu": "geglu_exact",
    "gelu_python": "geglu_exact",
    **dict.fromkeys(TANH, "geglu"),
    "silu": "swiglu",
    "swish": "swiglu",
}
READ_ACTIVATIONS = {"gelu": "gelu", "gelu_python": "gelu", **dict.fromkeys(TANH, "gelu_tanh"), "relu": "relu"}
# Keys in config.json by fields of ModernBertConfig.
KEYS = {
    "head.num_classes": "num_labels",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "mlp_dim": "intermediate_size",
    "vocabulary_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "pad_id": "pad_token_id",
    "window": "local_attention",
    "global_every": "global_attn_every_n_layers",
    "rotary_base": "global_rope_theta",
    "local_rotary_base": "local_rope_theta",
    "norm_epsilon": "norm_eps",
    "dropout": "embedding_dropout",
    "hidden_dropout": "mlp_dropout",
    "attention_dropout": "attention_dropout",
}
GLOBAL, LOCAL = "full_attention", "sliding_attention"


def read(checkpoint: Checkpoint) -> WeightSource:
    """Describes a checkpoint.

    Raises:
        ConfigError: for a field of config.json that is not supported.
    """
    tensors = checkpoint.tensors
    config = Fields(checkpoint)
    config.names = KEYS
    fields = _fields(config)
    head, stored = _head_of(checkpoint, config)
    return WeightSource(
        where=tensors.where,
        model_class=ModernBert,
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
    config.refuse("decoder_bias", True)
    bias = config.flag("attention_bias", False)
    for name in ("mlp_bias", "norm_bias"):
        if config.flag(name, False) != bias:
            raise config.error(name, f"only {name} equal to attention_bias={bias} is supported")
    depth = config.number("num_hidden_layers", 22)
    attention_dropout = config.real("attention_dropout", 0.0)
    if attention_dropout:
        warnings.warn(
            f"{config.where} has attention_dropout={attention_dropout}, which transformers also applies to "
            "the output of attention; keras-tx applies it to the weights only. It affects training.",
            stacklevel=user_stacklevel(),
        )
    return {
        "width": config.number("hidden_size", 768),
        "depth": depth,
        "num_heads": config.number("num_attention_heads", 12),
        "mlp_dim": config.number("intermediate_size", 1152),
        "vocabulary_size": config.number("vocab_size", 50368),
        "max_length": config.number("max_position_embeddings", 8192),
        "pad_id": config.number("pad_token_id", 50283, none=True),
        "window": config.number("local_attention", 128),
        "global_every": _global_every(config, depth),
        **_rotary(config),
        "activation": READ_GATES[config.text("hidden_activation", READ_GATES, "gelu")],
        "use_bias": bias,
        "head_activation": READ_ACTIVATIONS[config.text("classifier_activation", READ_ACTIVATIONS, "gelu")],
        "head_bias": config.flag("classifier_bias", False),
        "norm_epsilon": config.real("norm_eps", 1e-5),
        "dropout": config.real("embedding_dropout", 0.0),
        "hidden_dropout": config.real("mlp_dropout", 0.0),
        "attention_dropout": attention_dropout,
    }


def _global_every(config: Fields, depth: int) -> int:
    """Reads the period of the global blocks, or the list of all blocks that transformers 5 writes."""
    every = config.number("global_attn_every_n_layers", 3)
    types = config.get("layer_types")
    if types is None:
        return every
    for period in (every, *range(1, len(types) + 1)) if isinstance(types, list) else ():
        if period and types == _layer_types(depth, period):
            return period
    raise config.error(
        "layer_types",
        f"expected {depth} types, {GLOBAL!r} for every nth from the first one on, else {LOCAL!r}",
    )


def _layer_types(depth: int, every: int) -> list[str]:
    return [LOCAL if index % every else GLOBAL for index in range(depth)]


def _rotary(config: Fields) -> dict[str, float]:
    """Reads the bases: two fields of transformers before 5, or rope_parameters for each kind of block."""
    config.refuse("rope_scaling", {"rope_type": "default"})
    bases = {
        "rotary_base": _base(config, "global_rope_theta", GLOBAL),
        "local_rotary_base": _base(config, "local_rope_theta", LOCAL),
    }
    # Without a local base, transformers before 5 uses the global one.
    no_local = "local_rope_theta" in config and bases["local_rotary_base"] is None
    defaults = {"rotary_base": 160000.0, "local_rotary_base": 10000.0}
    if no_local:
        defaults["local_rotary_base"] = bases["rotary_base"] or defaults["rotary_base"]
    return {name: defaults[name] if base is None else base for name, base in bases.items()}


def _base(config: Fields, name: str, kind: str) -> Any:
    """Returns the base of a kind of block, or None."""
    parameters = config.get("rope_parameters") or {}
    rope = (parameters.get(kind) or {}) if isinstance(parameters, dict) else None
    if not isinstance(rope, dict) or not {GLOBAL, LOCAL}.issuperset(parameters):
        raise config.error("rope_parameters", f"expected an object for each of {GLOBAL!r} and {LOCAL!r}")
    numbers = {key: x for key, x in rope.items() if key not in ("rope_theta", "rope_type") and x is not None}
    if numbers or rope.get("rope_type", "default") != "default":
        raise config.error("rope_parameters", "only the rope_type 'default' is supported")
    base = rope.get("rope_theta", config.get(name))
    if config.get(name) not in (None, base):
        raise config.error(name, f"rope_parameters has {base!r}. Make them equal")
    return base


# Branches: one for each architecture.
def _head_of(checkpoint: Checkpoint, config: Fields) -> tuple[Head | ConfigError | None, Head | None]:
    """Returns the head, or an error if it is not supported; and the head whose tensors are stored."""
    sentence = sentence_transformers.head_of(checkpoint.folder)
    if sentence is not None:
        return sentence, None
    architecture = config.architecture()
    name = architecture.removeprefix("ModernBert")
    dropout = config.real("classifier_dropout", 0.0)
    if name == "Model":
        return None, None
    if name == "ForMaskedLM":
        head: Head = MaskedLMHead(tied=config.flag("tie_word_embeddings", True))
    elif name == "ForQuestionAnswering":
        if labels_of(config)[0] != 2:
            raise config.error("id2label", "expected two, of the start and the end of an answer")
        head = SpanHead(dropout)
    elif name == "ForTokenClassification":
        count, labels = labels_of(config)
        head = TokenClassifierHead(count, dropout, labels)
    elif name == "ForSequenceClassification":
        head = _sample_head(config, dropout)
    else:
        known = ["Model", *dict.fromkeys(HEADS.values())]
        return ConfigError(
            f"{config.where} has the architecture {architecture!r}, whose head is not supported "
            f"({nearest(name, known)}) Pass the head that you want: head=None loads the encoder alone."
        ), None
    return head, head


def _sample_head(config: Fields, dropout: float) -> Head:
    pooling = {"cls": None, "mean": "average"}[config.text("classifier_pooling", ("cls", "mean"), "cls")]
    count, labels = labels_of(config)
    problem = config.get("problem_type")
    if problem == contract.MULTI_LABEL:
        return MultiLabelHead(count, dropout, labels, pooling)
    if problem == contract.REGRESSION or count == 1:
        return RegressionHead(count, dropout, labels, pooling)
    return ClassifierHead(count, dropout, labels, pooling)


def plan(model: ModernBert, tensors: Tensors | None = None, stored: Head | None = None) -> Plan:
    """Returns the tensor map of a model; `stored` is the head of the checkpoint, None if it is unknown."""
    config, head = model.config, model.head
    prefix = "" if head is None or isinstance(head, SentenceEmbeddingHead) else "model."
    bias = config.use_bias
    entries = [Entry(f"{prefix}{WORDS}", ("token_embedding/table",))]
    entries += layer_norm(f"{prefix}embeddings.norm", "embedding_norm", bias=bias)
    for index in range(config.depth):
        entries += _block(f"{prefix}layers.{index}", f"block_{index}", bias, first=index == 0)
    entries += layer_norm(f"{prefix}final_norm", "norm", bias=bias)
    layers = {layer.name for layer in model.layers}
    if "prediction_dense" in layers:
        entries += linear("head.dense", "prediction_dense", bias=config.head_bias, part=POOLER)
        entries += layer_norm("head.norm", "prediction_norm", bias=bias, part=POOLER)
    copies = {}
    if isinstance(head, MaskedLMHead):
        entries.append(Entry("decoder.bias", ("logits/bias",), part=HEAD))
        if head.tied:
            copies["decoder.weight"] = WORDS
        else:
            entries.append(Entry("decoder.weight", ("logits/kernel",), TRANSPOSED, part=HEAD))
    elif isinstance(head, CLASSIFIERS):
        entries += linear("classifier", "span" if "span" in layers else "logits", part=HEAD)
    if _is_other(stored, head):  # a classifier of another kind has the same tensor names
        entries = [
            dataclasses.replace(x, name=f"new {x.name}") if x.name.startswith("classifier.") else x
            for x in entries
        ]
    return Plan(tuple(entries), canonical, copies, others=("head.", "decoder.", "classifier."))


def canonical(name: str) -> str:
    return name.removeprefix("model.")


def _block(name: str, path: str, bias: bool, first: bool) -> list[Entry]:
    parts = {
        "attn.Wqkv": ("attention/query", "attention/key", "attention/value"),
        "attn.Wo": ("attention/output",),
        "mlp.Wi": ("feed_forward/gate", "feed_forward/up"),
        "mlp.Wo": ("feed_forward/down",),
    }
    entries = [] if first else layer_norm(f"{name}.attn_norm", f"{path}/attention_norm", bias=bias)
    entries += layer_norm(f"{name}.mlp_norm", f"{path}/feed_forward_norm", bias=bias)
    for theirs, ours in parts.items():
        kernels = tuple(f"{path}/{part}/kernel" for part in ours)
        entries.append(Entry(f"{name}.{theirs}.weight", kernels, TRANSPOSED))
        if bias:
            entries.append(Entry(f"{name}.{theirs}.bias", tuple(f"{path}/{part}/bias" for part in ours)))
    return entries


def _is_other(stored: Head | None, head: Any) -> bool:
    """Whether the classifier in the checkpoint is that of another head."""
    if stored is None or not isinstance(head, CLASSIFIERS):
        return False
    sizes = [getattr(x, "num_classes", None) or getattr(x, "outputs", None) for x in (stored, head)]
    return type(stored) is not type(head) or sizes[0] != sizes[1]


def to_config(
    model: ModernBert, labels: Sequence[str] | None = None, processing: Any = None
) -> HuggingFaceConfig:
    """Returns the config.json of a ModernBERT."""
    config, head = model.config, model.head
    fields = {**_written(config), **_special_ids(model, processing), **label_fields(labels)}
    fields["tie_word_embeddings"] = getattr(head, "tied", True)
    fields["classifier_dropout"] = getattr(head, "dropout", 0.0)
    fields["classifier_pooling"] = "mean" if getattr(head, "pooling", None) == "average" else "cls"
    if isinstance(head, MaskedLMHead):
        fields["classifier_activation"] = ACTIVATIONS[head.activation or config.head_activation]
    if isinstance(head, RegressionHead):
        fields["problem_type"] = contract.REGRESSION
    elif isinstance(head, MultiLabelHead):
        fields["problem_type"] = contract.MULTI_LABEL
    elif isinstance(head, ClassifierHead):
        fields["problem_type"] = contract.SINGLE_LABEL
    epsilon = getattr(head, "norm_epsilon", None)
    if epsilon not in (None, config.norm_epsilon):
        return HuggingFaceConfig(fields, (f"a MaskedLMHead with norm_epsilon={epsilon}",))
    architecture = f"ModernBert{HEADS.get(type(head), 'Model')}"  # type: ignore[arg-type]
    return HuggingFaceConfig({"model_type": "modernbert", "architectures": [architecture], **fields})


def _written(config: ModernBertConfig) -> dict[str, Any]:
    bases = {GLOBAL: config.rotary_base, LOCAL: config.local_rotary_base}
    return {
        "vocab_size": config.vocabulary_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_activation": GATES[config.activation],
        "max_position_embeddings": config.max_length,
        "initializer_range": 0.02,
        "norm_eps": config.norm_epsilon,
        "norm_bias": config.use_bias,
        "attention_bias": config.use_bias,
        "mlp_bias": config.use_bias,
        "attention_dropout": config.attention_dropout,
        "embedding_dropout": config.dropout,
        "mlp_dropout": config.hidden_dropout,
        "local_attention": config.window,
        "global_attn_every_n_layers": config.global_every,  # this and the next two for transformers before 5
        "global_rope_theta": config.rotary_base,
        "local_rope_theta": config.local_rotary_base,
        "layer_types": _layer_types(config.depth, config.global_every),
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()
        },
        "decoder_bias": True,
        "classifier_activation": ACTIVATIONS[config.head_activation],
        "classifier_bias": config.head_bias,
        "pad_token_id": config.pad_id,
    }


def _special_ids(model: ModernBert, processing: Any) -> dict[str, int | None]:
    """Returns the ids of the class token and the separator, whose defaults may be out of the vocabulary."""
    transform = processing or model.processing
    ids = {
        name: None if token is None else transform.id_of(token)
        for name in ("cls", "sep")
        for token in [getattr(transform, f"{name}_token", None)]
    }
    return {
        f"{theirs}_token_id": ids[name]
        for theirs, name in (("bos", "cls"), ("cls", "cls"), ("eos", "sep"), ("sep", "sep"))
    }


def files(model: ModernBert) -> dict[str, Any]:
    """Returns the files of sentence-transformers for a model with a SentenceEmbeddingHead."""
    longest = None if model.processing is None else model.processing.max_length
    return sentence_transformers.sentence_files(
        model.head, model.config.width, longest or model.config.max_length
    )


CONVERTER = HuggingFace(("modernbert",), read, plan, to_config, files)

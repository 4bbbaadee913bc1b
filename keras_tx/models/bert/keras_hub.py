"""Converts keras-hub's BERT, RoBERTa and DistilBERT backbones and tasks, in both directions."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tx.errors import ConfigError, user_stacklevel
from keras_tx.heads import ClassifierHead, Head, MaskedLMHead, RegressionHead, SentenceEmbeddingHead
from keras_tx.models.bert.huggingface_tensors import ONE_ROW, model_type_of
from keras_tx.models.bert.model import Bert, BertConfig
from keras_tx.models.families import KerasHub, WeightSource
from keras_tx.weights.assignment import model_tensors
from keras_tx.weights.keras_hub_tokenizers import text_transform, tokenizer_of
from keras_tx.weights.tensor_map import (
    HEAD,
    POOLER,
    Entry,
    Form,
    Plan,
    Shape,
    attention_layer,
    dense_layer,
    first_rows,
    norm_layer,
)
from keras_tx.weights.tensor_source import Tensors

KINDS = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}
TASKS = ("Backbone", "TextClassifier", "MaskedLM")
CLASSES = (*(f"{kind}{task}" for kind in KINDS.values() for task in TASKS), "BertTextEmbedder")
POOLERS = {"bert": "tanh", "roberta": "tanh", "distilbert": "relu"}
OFFSET = 2  # RoBERTa's first position, which is the first row of keras-hub's table
PADDING = 1
MODES = {"mean": "mean", "cls": "class"}


@dataclasses.dataclass(frozen=True)
class Counted(Form):
    """RoBERTa's positions: without the rows before the first, plus the vector of the only segment."""

    offset: int = OFFSET

    def to_tensor(self, variables: Sequence[np.ndarray]) -> np.ndarray:
        table = variables[0][self.offset :]
        return table if len(variables) == 1 else table + variables[1]

    def to_variables(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        before = np.zeros((self.offset, tensor.shape[1]), tensor.dtype)
        return [np.concatenate([before, tensor]), *(np.zeros(shape, tensor.dtype) for shape in shapes[1:])]

    def tensor_shape(self, shapes: Sequence[Shape]) -> Shape:
        return (shapes[0][0] - self.offset, shapes[0][1])


def read(source: keras.Model) -> WeightSource:
    """Describes a backbone or task; an unsupported option raises a ConfigError."""
    backbone: Any = getattr(source, "backbone", source)
    where = f"keras-hub's {type(source).__name__} {source.name!r}"
    kind = _kind(backbone)
    activation, epsilon = _block(backbone, where)
    fields = {
        "width": backbone.hidden_dim,
        "depth": backbone.num_layers,
        "num_heads": backbone.num_heads,
        "mlp_dim": backbone.intermediate_dim,
        "vocabulary_size": backbone.vocabulary_size,
        "max_length": backbone.max_sequence_length,
        "segments": backbone.num_segments if kind == "bert" else 0,
        "position_offset": OFFSET if kind == "roberta" else 0,
        "pad_id": PADDING if kind == "roberta" else 0,
        "activation": activation,
        "norm_epsilon": epsilon,
        "dropout": backbone.dropout,
        "attention_dropout": backbone.dropout,
    }
    head = None if source is backbone else _head(source, where, fields)
    processing = text_transform(getattr(source, "preprocessor", None), where)
    if processing is not None and processing.pad_token is not None:
        fields["pad_id"] = processing.pad_id
    variables = {_canonical(variable.path): variable for variable in source.weights}
    tensors = Tensors(
        where=where,
        shapes={path: tuple(variable.shape) for path, variable in variables.items()},
        read=lambda path: ops.convert_to_numpy(variables[path]),
    )

    def adapted(made: BertConfig, chosen: Head | None, overrides: dict[str, Any]) -> BertConfig:
        """Sets the pooler: classifiers have one, and of the backbones only BERT's."""
        if "pooler" in overrides:
            return made
        pooler = POOLERS[kind] if chosen is not None or kind == "bert" else None
        return dataclasses.replace(made, pooler=pooler)

    classes = getattr(source, "num_classes", 0)
    unsupported = ClassifierHead(classes) if classes > 1 else None  # for the tensor map
    stored = unsupported if isinstance(head, ConfigError) else head
    return WeightSource(
        where=where,
        model_class=Bert,
        fields=fields,
        head=head,
        processing=processing,
        tensors=tensors,
        plan=lambda model: _plan(model, kind, stored),
        adapted=adapted,
    )


def to_keras_hub(model: Bert) -> Any:
    """Returns a backbone, text classifier, masked-language model or text embedder with the model's weights.

    A task has a preprocessor with the model's tokenizer; a warning is issued if keras-hub does not support
    it. keras-hub's RoBERTa counts padding as positions, so outputs differ if padding is on the left.
    """
    import keras_hub

    config, head = model.config, model.head
    kind = model_type_of(config)
    name = KINDS[kind]
    reasons = _unsupported_options(model, kind)
    if reasons:
        raise ConfigError(
            f"Model {model.name!r} has {', '.join(reasons)}, which keras-hub's {name} classes do not "
            "support. Save it with model.save or keras_tx.save_checkpoint."
        )
    if config.attention_dropout != config.dropout:
        warnings.warn(
            f"attention_dropout={config.attention_dropout} becomes {config.dropout}: keras-hub has one "
            "dropout rate. It affects training only.",
            stacklevel=user_stacklevel(),
        )
    classes: Any = keras_hub.models
    backbone = getattr(classes, f"{name}Backbone")(
        vocabulary_size=config.vocabulary_size,
        num_layers=config.depth,
        num_heads=config.num_heads,
        hidden_dim=config.width,
        intermediate_dim=config.mlp_dim,
        dropout=config.dropout,
        max_sequence_length=config.max_length,
        dtype=model.layers_policy,
        **({"num_segments": config.segments} if kind == "bert" else {}),
    )
    if head is None:
        made = backbone
    elif isinstance(head, MaskedLMHead):
        made = getattr(classes, f"{name}MaskedLM")(backbone, _preprocessor(model, name, "MaskedLM"))
    elif isinstance(head, SentenceEmbeddingHead):
        mode = next(mode for mode, pooling in MODES.items() if pooling == head.pooling)
        preprocessor = _preprocessor(model, name, "TextEmbedder")
        made = classes.BertTextEmbedder(backbone, preprocessor, pooling_mode=mode, normalize=head.normalize)
    else:
        count = head.num_classes if isinstance(head, ClassifierHead) else head.outputs  # type: ignore[union-attr]
        dropout = head.dropout  # type: ignore[union-attr]
        preprocessor = _preprocessor(model, name, "TextClassifier")
        made = getattr(classes, f"{name}TextClassifier")(backbone, count, preprocessor, dropout=dropout)
    variables = {_canonical(variable.path): variable for variable in made.weights}
    for entry, value in model_tensors(model, _plan(model, kind, head)):
        variables.pop(entry.name).assign(value)
    for path, variable in variables.items():  # BertBackbone has a pooler, used or not
        assert path.startswith("pooled_dense/"), path
        variable.assign(np.zeros(variable.shape, "float32"))
    return made


def _preprocessor(model: Bert, name: str, task: str) -> Any:
    if model.processing is None:
        return None
    import keras_hub

    try:
        tokenizer = tokenizer_of(model.processing, f"{name}Tokenizer")
    except ConfigError as error:
        warnings.warn(
            f"The tokenizer of model {model.name!r} is not supported by keras-hub and is omitted: {error}.",
            stacklevel=user_stacklevel(),
        )
        return None
    length = model.processing.max_length or model.config.max_length
    return getattr(keras_hub.models, f"{name}{task}Preprocessor")(tokenizer, sequence_length=length)


def _kind(backbone: Any) -> str:
    names = [kind.__name__ for kind in type(backbone).__mro__]
    return next(kind for kind, name in KINDS.items() if f"{name}Backbone" in names)


def _canonical(path: str) -> str:
    """Returns the path without the number that Keras appends to the default name of a layer."""
    return re.sub(r"^(token_and_position_embedding(_\d+)?|embeddings)/", "embeddings/", path)


def _block(backbone: Any, where: str) -> tuple[str, float]:
    """Returns activation and epsilon, which only the layers of a backbone have."""
    known = {"gelu": "gelu", "relu": "relu", "gelu_approximate": "gelu_tanh"}
    settings = set()
    for layer in backbone.transformer_layers:
        config = layer.get_config()
        activation = config["activation"]
        if not isinstance(activation, str):
            activation = str(activation["config"]).rpartition(">")[2]
        if activation not in known or config["normalize_first"]:
            raise ConfigError(
                f"{where}: layer {layer.name!r} has activation={activation!r} and normalize_first="
                f"{config['normalize_first']}. Only normalize_first=False is supported, with one of the "
                f"activations {', '.join(known)}."
            )
        settings.add((known[activation], config["layer_norm_epsilon"]))
    embedding = backbone.get_layer("embeddings_layer_norm").epsilon
    if len(settings) != 1 or next(iter(settings))[1] != embedding:
        raise ConfigError(
            f"{where}: its layers differ in activation or layer_norm_epsilon. Only equal layers are "
            "supported."
        )
    return next(iter(settings))


def _head(task: Any, where: str, fields: dict[str, Any]) -> Head | ConfigError:
    if hasattr(task, "masked_lm_head"):
        config = task.masked_lm_head.get_config()
        activations = (config["intermediate_activation"], config["activation"])
        if activations != ("gelu", "linear"):
            return ConfigError(
                f"{where}: its head has the activations {activations}. Only gelu and linear are supported."
            )
        activation, epsilon = "gelu", config["layer_norm_epsilon"]
        return MaskedLMHead(
            None if activation == fields["activation"] else activation,
            None if epsilon == fields["norm_epsilon"] else epsilon,
        )
    if hasattr(task, "pooling_mode"):
        if task.pooling_mode not in MODES:
            return ConfigError(
                f"{where} has pooling_mode={task.pooling_mode!r}. Only {', '.join(MODES)} are supported; "
                "pass head=."
            )
        return SentenceEmbeddingHead(MODES[task.pooling_mode], bool(task.normalize))
    if task.activation is not keras.activations.linear:
        activation = keras.activations.serialize(task.activation)
        return ConfigError(
            f"{where} has activation={activation!r}, but heads return logits. "
            f"Create it with activation=None, or pass head=keras_tx.ClassifierHead({task.num_classes})."
        )
    hidden = getattr(task, "hidden_dim", fields["width"])
    if hidden != fields["width"]:
        return ConfigError(
            f"{where} has hidden_dim={hidden}. Only hidden_dim={fields['width']} is supported; pass head=."
        )
    if task.num_classes == 1:
        return RegressionHead(1, task.dropout)
    return ClassifierHead(task.num_classes, task.dropout)


def _unsupported_options(model: Bert, kind: str) -> list[str]:
    config, head = model.config, model.head
    fixed = {"bert": ("gelu_tanh", 1e-12), "roberta": ("gelu", 1e-5), "distilbert": ("gelu", 1e-12)}
    expected = fixed[kind]
    differences = {
        f"activation={config.activation!r}": config.activation != expected[0],
        f"norm_epsilon={config.norm_epsilon}": config.norm_epsilon != expected[1],
    }
    if isinstance(head, MaskedLMHead):
        activation = head.activation or config.activation
        epsilon = config.norm_epsilon if head.norm_epsilon is None else head.norm_epsilon
        differences[f"a MaskedLMHead with activation={activation!r}"] = activation != "gelu"
        differences[f"a MaskedLMHead with norm_epsilon={epsilon}"] = epsilon != 1e-5
        differences["a MaskedLMHead with tied=False"] = not head.tied
    elif isinstance(head, ClassifierHead | RegressionHead):
        differences[f"pooler={config.pooler!r}"] = config.pooler != POOLERS[kind]
        differences[f"a {type(head).__name__} with pooling={head.pooling!r}"] = head.pooling is not None
    elif isinstance(head, SentenceEmbeddingHead):
        differences["a SentenceEmbeddingHead"] = kind != "bert"
    elif head is None:
        without = (None, "tanh") if kind == "bert" else (None,)
        differences[f"pooler={config.pooler!r}"] = config.pooler not in without
    else:
        differences[f"a {type(head).__name__}"] = True
    if kind == "roberta":
        differences[f"segments={config.segments}"] = config.segments > 1
    return [difference for difference, present in differences.items() if present]


def _plan(model: Bert, kind: str, stored: Head | None) -> Plan:
    config = model.config
    entries = _embedding_entries(config, kind)
    for index in range(config.depth):
        entries += _block_entries(config, f"transformer_layer_{index}", f"block_{index}")
    pooler = any(layer.name == "pooler" for layer in model.layers)
    if pooler:
        entries += dense_layer("pooled_dense", "pooler", part=POOLER)
    same_head = stored is not None and type(model.head) is type(stored)
    entries += _head_entries(model, same_head)
    # BERT's backbone always has a pooler; if the head of the task does not use it, no warning is issued.
    computed = ("pooled_dense/kernel", "pooled_dense/bias") if same_head and not pooler else ()
    return Plan(tuple(entries), computed=computed, others=("pooled_dense/", "mlm_head/", "logits/"))


def _embedding_entries(config: BertConfig, kind: str) -> list[Entry]:
    tables = "" if kind == "bert" else "embeddings/"
    entries = [Entry(f"{tables}token_embedding/embeddings", ("token_embedding/table",))]
    position = f"{tables}position_embedding/embeddings"
    if kind == "roberta":
        segment = ("segments/bias",) if config.segments else ()
        form = Counted(offset=config.position_offset)
        entries.append(Entry(position, ("positions/table", *segment), form, fit=first_rows))
    else:
        entries.append(Entry(position, ("positions/table",), fit=first_rows))
    if kind == "bert" and config.segments == 1:
        entries.append(Entry("segment_embedding/embeddings", ("segments/bias",), ONE_ROW))
    elif kind == "bert":
        entries.append(Entry("segment_embedding/embeddings", ("segments/table",)))
    return [*entries, *norm_layer("embeddings_layer_norm", "embedding_norm")]


def _block_entries(config: BertConfig, source: str, block: str) -> list[Entry]:
    size = config.width // config.num_heads
    return [
        *attention_layer(f"{source}/self_attention_layer", f"{block}/attention", config.num_heads, size),
        *norm_layer(f"{source}/self_attention_layer_norm", f"{block}/attention_norm"),
        *dense_layer(f"{source}/feedforward_intermediate_dense", f"{block}/feed_forward/up"),
        *dense_layer(f"{source}/feedforward_output_dense", f"{block}/feed_forward/down"),
        *norm_layer(f"{source}/feedforward_layer_norm", f"{block}/feed_forward_norm"),
    ]


def _head_entries(model: Bert, same_head: bool) -> list[Entry]:
    if isinstance(model.head, MaskedLMHead):
        return [
            *dense_layer("mlm_head/intermediate_dense", "prediction_dense", part=HEAD),
            *norm_layer("mlm_head/intermediate_layer_norm", "prediction_norm", part=HEAD),
            Entry("mlm_head/output_bias", ("logits/bias",), part=HEAD),
        ]
    entries = []
    for layer in model.head_layers():  # keras-hub has those of a classifier; others are new
        name = layer.name if same_head else f"new {layer.name}"
        for variable in layer.weights:
            end = variable.path.rpartition("/")[2]
            entries.append(Entry(f"{name}/{end}", (variable.path,), part=HEAD))
    return entries


CONVERTER = KerasHub(CLASSES, read, to_keras_hub, tokenizers=True)

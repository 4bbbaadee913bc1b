"""Converts configs and tensors of Hugging Face's Marian, BART and mBART, in both directions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.heads import Seq2SeqLMHead
from keras_tx.layers.position_tables import sine_cosine
from keras_tx.models.encoder_decoder_checkpoint import source_of
from keras_tx.models.families import HuggingFace, HuggingFaceConfig, WeightSource
from keras_tx.models.generation_defaults import (
    generation_files,
    generation_value,
    task_fields,
)
from keras_tx.models.transformer.model import Transformer, TransformerConfig
from keras_tx.processing import TextTransform
from keras_tx.weights.config_json import Fields
from keras_tx.weights.tensor_map import HEAD, Entry, Form, Plan, Shape, first_rows, layer_norm, linear
from keras_tx.weights.tensor_source import Checkpoint, Tensors

OFFSET = 2  # rows of BART's position tables before the first position
WORDS = "shared.weight"
POSITIONS = "embed_positions.weight"
SAME = {  # fields of which the encoder and the decoder have one each, with the default of transformers
    "attention_heads": ("num_heads", 16),
    "ffn_dim": ("mlp_dim", 4096),
}
# Keys in config.json by fields of TransformerConfig.
KEYS = {
    "width": "d_model",
    "depth": "encoder_layers",
    "decoder_depth": "decoder_layers",
    "num_heads": "encoder_attention_heads",
    "mlp_dim": "encoder_ffn_dim",
    "vocabulary_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "activation": "activation_function",
    "dropout": "dropout",
    "hidden_dropout": "activation_dropout",
    "attention_dropout": "attention_dropout",
    "scale_embedding": "scale_embedding",
    "pad_id": "pad_token_id",
    "start_id": "decoder_start_token_id",
    "tied": "tie_word_embeddings",
}
ACTIVATIONS = {"relu": "relu", "silu": "swish", "gelu": "gelu", "gelu_tanh": "gelu_new"}
READ_ACTIVATIONS = {
    **{theirs: activation for activation, theirs in ACTIVATIONS.items()},
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclasses.dataclass(frozen=True)
class OffsetRows(Form):
    """A position table after OFFSET rows that no token has."""

    def to_tensor(self, variables: Sequence[np.ndarray]) -> np.ndarray:
        return np.pad(variables[0], ((OFFSET, 0), (0, 0)))

    def to_variables(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        return [tensor[OFFSET:]]

    def tensor_shape(self, shapes: Sequence[Shape]) -> Shape:
        return (shapes[0][0] + OFFSET, *shapes[0][1:])


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a model type of transformers has without an option in config.json.

    Args:
        classes: of the model with a head, and without.
        positions, embedding_norm, norm_position: fields of TransformerConfig.
        pad_id, start_id: the defaults of its config class.
    """

    classes: tuple[str, str]
    positions: str
    embedding_norm: bool
    norm_position: str
    pad_id: int
    start_id: int | None


KINDS = {
    "marian": Kind(("MarianMTModel", "MarianModel"), "sine-cosine-halves", False, "post", 58100, 58100),
    "bart": Kind(("BartForConditionalGeneration", "BartModel"), "learned", True, "post", 1, 2),
    "mbart": Kind(("MBartForConditionalGeneration", "MBartModel"), "learned", True, "pre", 1, None),
}
OF_OTHER_HEADS = ("classification_head.", "qa_outputs.")


def read(checkpoint: Checkpoint) -> WeightSource:
    """Describes a checkpoint.

    Raises:
        ConfigError: for a field of config.json that is not supported.
    """
    tensors = checkpoint.tensors
    config = Fields(checkpoint)
    config.names = KEYS
    kind = KINDS[config.text("model_type", KINDS)]
    fields = _fields(config, kind)
    _check_tables(tensors, fields)
    head = _head_of(config, kind)
    return source_of(tensors, config, Transformer, fields, head, lambda model: plan(model, tensors))


def _fields(config: Fields, kind: Kind) -> dict[str, Any]:
    for name, only in (
        ("is_encoder_decoder", True),
        ("share_encoder_decoder_embeddings", True),
        ("decoder_vocab_size", config.get("vocab_size")),
        # Options of checkpoints of transformers before 4.
        ("normalize_before", kind.norm_position == "pre"),
        ("normalize_embedding", kind.embedding_norm),
        ("add_final_layer_norm", kind.norm_position == "pre"),
        ("static_position_embeddings", kind.positions != "learned"),
        ("add_bias_logits", False),
        ("encoder_layerdrop", 0.0),
        ("decoder_layerdrop", 0.0),
    ):
        config.refuse(name, only)
    same = {}
    for name, (field, default) in SAME.items():
        parts = [config.number(f"{part}_{name}", default) for part in ("encoder", "decoder")]
        if parts[0] != parts[1]:
            raise config.error(f"decoder_{name}", f"only encoder_{name}={parts[0]} for both is supported")
        same[field] = parts[0]
    names = READ_ACTIVATIONS
    return {
        **same,
        "width": config.number("d_model", 1024),
        "depth": config.number("encoder_layers", 12),
        "decoder_depth": config.number("decoder_layers", 12),
        "vocabulary_size": config.number("vocab_size", 58101 if kind.positions != "learned" else 50265),
        "max_length": config.number("max_position_embeddings", 1024),
        "positions": kind.positions,
        "embedding_norm": kind.embedding_norm,
        "norm_position": kind.norm_position,
        "activation": names[config.text("activation_function", names, "gelu")],
        "scale_embedding": config.flag("scale_embedding", False),
        "tied": config.flag("tie_word_embeddings", True),
        "logits_bias": True,
        "norm_epsilon": 1e-5,
        "dropout": config.real("dropout", 0.1),
        "hidden_dropout": config.real("activation_dropout", 0.0),
        "attention_dropout": config.real("attention_dropout", 0.0),
        "pad_id": config.number("pad_token_id", kind.pad_id),
        "start_id": _start_id(config, kind),
    }


def _start_id(config: Fields, kind: Kind) -> int:
    name = "decoder_start_token_id"
    value = generation_value(config, name, kind.start_id)
    if type(value) is not int:
        raise config.error(name, "expected the id of the first token of the decoder")
    return value


def _check_tables(tensors: Tensors, fields: dict[str, Any]) -> None:
    """Raises a ConfigError if stored sinusoidal positions are not those that the model computes."""
    if fields["positions"] == "learned":
        return
    for name in tensors.shapes:
        if name.endswith(POSITIONS):
            table = tensors.read(name)
            expected = sine_cosine((len(table),), fields["width"], halves=True)
            if table.shape != expected.shape or not np.allclose(table, expected, atol=1e-3):
                raise ConfigError(
                    f"{tensors.where}: {name} differs from the sines and cosines of Marian's positions. "
                    "Trained positions of a Marian model are not supported."
                )


def _head_of(config: Fields, kind: Kind) -> Seq2SeqLMHead | ConfigError | None:
    architecture = config.architecture()
    if architecture == kind.classes[0]:
        return Seq2SeqLMHead()
    if architecture == kind.classes[1]:
        return None
    return config.error(
        "architectures",
        f"only {kind.classes[0]} and {kind.classes[1]} are supported. Pass head=None to load the model "
        "without a head",
    )


def plan(model: Transformer, tensors: Tensors | None = None) -> Plan:
    """Returns the tensor map between a model and a checkpoint."""
    config: TransformerConfig = model.config
    kind = _kind_of(config)
    if isinstance(kind, list):
        raise ConfigError(
            f"Model {model.name!r} has {', '.join(kind)}, which Hugging Face's Marian, BART and mBART do not "
            "support, so their weights do not fit."
        )
    body = "model." if model.head is not None else ""
    entries = [Entry(f"{body}{WORDS}", ("token_embedding/table",))]
    for part, depth in (("encoder", config.depth), ("decoder", config.decoder_depth or config.depth)):
        prefix = f"{body}{part}"
        if config.positions == "learned":
            table = (f"{part}_positions/table",)
            entries.append(Entry(f"{prefix}.{POSITIONS}", table, OffsetRows(), fit=_first_positions))
        if config.embedding_norm:
            entries += layer_norm(f"{prefix}.layernorm_embedding", f"{part}_embedding_norm")
        for index in range(depth):
            entries += _block(f"{prefix}.layers.{index}", f"{part}_block_{index}", part == "decoder")
        if config.norm_position == "pre":
            entries += layer_norm(f"{prefix}.layer_norm", f"{part}_norm")
    copies = {f"{part}.embed_tokens.weight": WORDS for part in ("encoder", "decoder")}
    if model.head is not None:
        bias = Form(reshape=(1, config.vocabulary_size))
        if config.tied:
            copies["lm_head.weight"] = WORDS
        else:
            entries += linear("lm_head", contract.LOGITS, bias=False, part=HEAD)
        entries.append(Entry("final_logits_bias", (f"{contract.LOGITS}/bias",), bias, part=HEAD))
    fixed = () if config.positions == "learned" else (POSITIONS,)
    return Plan(
        entries=tuple(entries),
        canonical=lambda name: name.removeprefix("model."),
        copies=copies,
        computed=fixed,
        others=OF_OTHER_HEADS
        if model.head is not None
        else ("lm_head.", "final_logits_bias", *OF_OTHER_HEADS),
    )


def _first_positions(table: np.ndarray, shape: Shape) -> np.ndarray:
    rows = first_rows(table[OFFSET:], (shape[0] - OFFSET, *shape[1:]))
    return np.concatenate([table[:OFFSET], rows])


def _block(name: str, block: str, decoder: bool) -> list[Entry]:
    attentions = {"self_attn": "attention"} | ({"encoder_attn": "cross_attention"} if decoder else {})
    entries = []
    for source, path in attentions.items():
        for theirs in ("q_proj", "k_proj", "v_proj", "out_proj"):
            layer = {"q": "query", "k": "key", "v": "value", "out": "output"}[theirs.removesuffix("_proj")]
            entries += linear(f"{name}.{source}.{theirs}", f"{block}/{path}/{layer}")
        entries += layer_norm(f"{name}.{source}_layer_norm", f"{block}/{path}_norm")
    for theirs, layer in (("fc1", "up"), ("fc2", "down")):
        entries += linear(f"{name}.{theirs}", f"{block}/feed_forward/{layer}")
    return [*entries, *layer_norm(f"{name}.final_layer_norm", f"{block}/feed_forward_norm")]


def _kind_of(config: TransformerConfig) -> str | list[str]:
    """Returns the model type of a config, or the options that no model type supports."""
    options = ("positions", "embedding_norm", "norm_position")
    fitting = [
        name for name, kind in KINDS.items() if all(getattr(config, x) == getattr(kind, x) for x in options)
    ]
    if not fitting:
        return [f"{option}={getattr(config, option)!r}" for option in options]
    differences = {
        f"logits_bias={config.logits_bias}": not config.logits_bias,
        f"norm_epsilon={config.norm_epsilon}": config.norm_epsilon != 1e-5,
    }
    return [difference for difference, present in differences.items() if present] or fitting[0]


def to_config(
    model: Transformer, labels: Sequence[str] | None = None, processing: TextTransform | None = None
) -> HuggingFaceConfig:
    """Returns the config.json of a Transformer as Marian, BART or mBART."""
    config: TransformerConfig = model.config
    kind = _kind_of(config)
    values = {key: getattr(config, name) for name, key in KEYS.items()}
    values |= {
        "decoder_layers": config.decoder_depth or config.depth,
        "decoder_attention_heads": config.num_heads,
        "decoder_ffn_dim": config.mlp_dim,
        "activation_function": ACTIVATIONS[config.activation],
        "is_encoder_decoder": True,
        "use_cache": True,
        **model.special_ids(processing),
        **task_fields(config),
    }
    if isinstance(kind, list):
        names = ("positions", "embedding_norm", "norm_position", "logits_bias", "norm_epsilon")
        return HuggingFaceConfig({**values, **{name: getattr(config, name) for name in names}}, kind)
    if kind == "marian":
        values |= {"decoder_vocab_size": config.vocabulary_size, "share_encoder_decoder_embeddings": True}
    architecture = KINDS[kind].classes[model.head is None]
    return HuggingFaceConfig({"model_type": kind, "architectures": [architecture], **values})


CONVERTER = HuggingFace(tuple(KINDS), read, plan, to_config, generation_files)

"""Converts configs and tensors of Hugging Face's T5 and mT5, in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.heads import Seq2SeqLMHead
from keras_tx.models.encoder_decoder_checkpoint import source_of
from keras_tx.models.families import HuggingFace, HuggingFaceConfig, WeightSource
from keras_tx.models.generation_defaults import (
    generation_files,
    generation_value,
    task_fields,
)
from keras_tx.models.t5.model import T5, T5Config
from keras_tx.processing import TextTransform
from keras_tx.weights.config_json import Fields
from keras_tx.weights.tensor_map import HEAD, Entry, Plan, linear
from keras_tx.weights.tensor_source import Checkpoint, Tensors

MODEL_TYPES = ("t5", "mt5")
SEQ2SEQ_LM = ("T5ForConditionalGeneration", "MT5ForConditionalGeneration", "T5WithLMHeadModel")
BODIES = ("T5Model", "MT5Model")
FEED_FORWARD = {"relu": "relu", "geglu": "gated-gelu"}
READ_FEED_FORWARD = {theirs: activation for activation, theirs in FEED_FORWARD.items()}
INNER_ACTIVATIONS = {"relu": "relu", "geglu": "gelu_new"}
# Keys in config.json by fields of T5Config.
KEYS = {
    "width": "d_model",
    "depth": "num_layers",
    "decoder_depth": "num_decoder_layers",
    "num_heads": "num_heads",
    "head_dim": "d_kv",
    "mlp_dim": "d_ff",
    "vocabulary_size": "vocab_size",
    "max_length": "n_positions",
    "relative_buckets": "relative_attention_num_buckets",
    "relative_max_distance": "relative_attention_max_distance",
    "norm_epsilon": "layer_norm_epsilon",
    "dropout": "dropout_rate",
    "pad_id": "pad_token_id",
    "start_id": "decoder_start_token_id",
}
WORDS = "shared.weight"


def read(checkpoint: Checkpoint) -> WeightSource:
    """Describes a checkpoint.

    Raises:
        ConfigError: for a field of config.json that is not supported.
    """
    tensors = checkpoint.tensors
    config = Fields(checkpoint)
    config.names = KEYS
    kind = config.text("model_type", MODEL_TYPES)
    fields = _fields(config, tensors, multilingual=kind == "mt5")
    head = _head_of(config)
    return source_of(tensors, config, T5, fields, head, lambda model: plan(model, tensors))


def _fields(config: Fields, tensors: Tensors, multilingual: bool) -> dict[str, Any]:
    config.refuse("is_encoder_decoder", True)
    default = "gated-gelu" if multilingual else "relu"
    activation = READ_FEED_FORWARD[config.text("feed_forward_proj", READ_FEED_FORWARD, default)]
    config.refuse("dense_act_fn", INNER_ACTIVATIONS[activation])
    config.refuse("is_gated_act", activation == "geglu")
    tied = config.flag("tie_word_embeddings", not multilingual)
    # transformers 5 writes the scale. Before, T5 scaled if the embeddings were tied; mT5 of transformers 5
    # never scales, and ties unless lm_head differs.
    scaled = config.flag("scale_decoder_outputs", tied and not multilingual)
    depth = config.number("num_layers", 8 if multilingual else 6)
    return {
        "vocabulary_size": config.number("vocab_size", 250112 if multilingual else 32128),
        "max_length": config.number("n_positions", 512),
        "width": config.number("d_model", 512),
        "depth": depth,
        "decoder_depth": config.number("num_decoder_layers", depth, none=True),
        "num_heads": config.number("num_heads", 6 if multilingual else 8),
        "head_dim": config.number("d_kv", 64),
        "mlp_dim": config.number("d_ff", 1024 if multilingual else 2048),
        "activation": activation,
        "tied": tied and not _has_own_projection(tensors),
        "scale_logits": scaled,
        "relative_buckets": config.number("relative_attention_num_buckets", 32),
        "relative_max_distance": config.number("relative_attention_max_distance", 128),
        "norm_epsilon": config.real("layer_norm_epsilon", 1e-6),
        "dropout": config.real("dropout_rate", 0.1),
        "pad_id": config.number("pad_token_id", 0),
        "start_id": generation_value(config, "decoder_start_token_id"),
    }


def _has_own_projection(tensors: Tensors) -> bool:
    """Whether lm_head differs from the token embedding, as transformers decides about tying."""
    if "lm_head.weight" not in tensors.shapes or WORDS not in tensors.shapes:
        return False
    return not np.array_equal(tensors.read("lm_head.weight"), tensors.read(WORDS))


def _head_of(config: Fields) -> Seq2SeqLMHead | ConfigError | None:
    architecture = config.architecture()
    if architecture in SEQ2SEQ_LM:
        return Seq2SeqLMHead()
    if architecture in BODIES:
        return None
    return config.error(
        "architectures",
        "only models with an encoder and a decoder, and no other head, are supported. Pass head=None to load "
        "them without a head",
    )


def plan(model: T5, tensors: Tensors | None = None) -> Plan:
    """Returns the tensor map between a model and a checkpoint of T5."""
    config: T5Config = model.config
    entries = [Entry(WORDS, ("token_embedding/table",))]
    for part, depth in (("encoder", config.depth), ("decoder", config.decoder_depth or config.depth)):
        entries.append(
            Entry(
                f"{part}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                (f"{part}_relative_bias/table",),
            )
        )
        for index in range(depth):
            entries += _block(
                config, f"{part}.block.{index}.layer", f"{part}_block_{index}", part == "decoder"
            )
        entries.append(Entry(f"{part}.final_layer_norm.weight", (f"{part}_norm/scale",)))
    if model.head is not None and not config.tied:
        entries += linear("lm_head", contract.LOGITS, bias=False, part=HEAD)
    copies: dict[str, str] = dict.fromkeys(
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), WORDS
    )
    if config.tied:
        copies["lm_head.weight"] = WORDS
    return Plan(
        entries=tuple(entries),
        copies=copies,
        # Checkpoints of the first version have a bias that no layer reads.
        computed=("layer.1.EncDecAttention.relative_attention_bias.weight",),
        others=() if model.head is not None else ("lm_head.",),
    )


def _block(config: T5Config, name: str, block: str, decoder: bool) -> list[Entry]:
    attentions = {f"{name}.0.SelfAttention": "attention"}
    norms = {f"{name}.0": "attention_norm"}
    if decoder:
        attentions[f"{name}.1.EncDecAttention"] = "cross_attention"
        norms[f"{name}.1"] = "cross_attention_norm"
    last = f"{name}.{2 if decoder else 1}"
    norms[last] = "feed_forward_norm"
    layers = {
        f"{source}.{letter}": f"{path}/{layer}"
        for source, path in attentions.items()
        for letter, layer in zip("qkvo", ("query", "key", "value", "output"), strict=True)
    }
    dense = (
        {"wi": "up", "wo": "down"}
        if config.activation == "relu"
        else {"wi_0": "gate", "wi_1": "up", "wo": "down"}
    )
    layers |= {f"{last}.DenseReluDense.{theirs}": f"feed_forward/{ours}" for theirs, ours in dense.items()}
    entries = [
        Entry(f"{source}.layer_norm.weight", (f"{block}/{path}/scale",)) for source, path in norms.items()
    ]
    for source, path in layers.items():
        entries += linear(source, f"{block}/{path}", bias=False)
    return entries


def to_config(
    model: T5, labels: Sequence[str] | None = None, processing: TextTransform | None = None
) -> HuggingFaceConfig:
    """Returns the config.json of a T5."""
    config: T5Config = model.config
    values = {key: getattr(config, name) for name, key in KEYS.items()}
    values |= {
        "num_decoder_layers": config.decoder_depth or config.depth,
        "feed_forward_proj": FEED_FORWARD[config.activation],
        "dense_act_fn": INNER_ACTIVATIONS[config.activation],
        "is_gated_act": config.activation == "geglu",
        "is_encoder_decoder": True,
        "tie_word_embeddings": config.tied,
        "scale_decoder_outputs": config.scale_logits,
        "use_cache": True,
        **model.special_ids(processing),
        **task_fields(config),
    }
    name = "T5Model" if model.head is None else "T5ForConditionalGeneration"
    return HuggingFaceConfig({"model_type": "t5", "architectures": [name], **values})


CONVERTER = HuggingFace(MODEL_TYPES, read, plan, to_config, generation_files)

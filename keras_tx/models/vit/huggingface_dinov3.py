"""Converts configs and tensors of Hugging Face's DINOv3 ViTs, in both directions."""

from __future__ import annotations

import re
from typing import Any

from keras_tx.errors import ConfigError
from keras_tx.models.vit.model import ViT, ViTConfig
from keras_tx.weights.config_json import Fields
from keras_tx.weights.tensor_map import (
    CONVOLUTION,
    Entry,
    Form,
    Plan,
    Zeros,
    layer_norm,
    linear,
)
from keras_tx.weights.tensor_source import Tensors

MODEL_TYPE = "dinov3_vit"
REGISTERS = "embeddings.register_tokens"
TANH = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh")
# Names of activations in transformers by ours, of ordinary and of gated feed-forward layers.
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu", "relu": "relu"}
GATES = {"swiglu": "silu", "geglu": "gelu_pytorch_tanh", "geglu_exact": "gelu"}
READ_ACTIVATIONS = {
    **{theirs: ours for ours, theirs in ACTIVATIONS.items()},
    "gelu_python": "gelu",
    **dict.fromkeys(TANH, "gelu_tanh"),
}
READ_GATES = {
    "silu": "swiglu",
    "swish": "swiglu",
    **dict.fromkeys(TANH, "geglu"),
    **dict.fromkeys(("gelu", "gelu_python"), "geglu_exact"),
}
BLOCK = {
    "attention/query": "attention.q_proj",
    "attention/key": "attention.k_proj",
    "attention/value": "attention.v_proj",
    "attention/output": "attention.o_proj",
    "feed_forward/gate": "mlp.gate_proj",
    "feed_forward/up": "mlp.up_proj",
    "feed_forward/down": "mlp.down_proj",
}


def read_fields(config: Fields) -> dict[str, Any]:
    """Returns the fields of ViTConfig that only DINOv3 has, or that have other defaults there.

    Fields for the augmentation of positions (pos_embed_shift, pos_embed_jitter, pos_embed_rescale) have an
    effect on training only, and are ignored.

    Raises:
        ConfigError: a field is not supported.
    """
    for name in ("proj_bias", "mlp_bias"):
        config.refuse(name, True)
    query, key, value = (
        config.flag(name, default)
        for name, default in (("query_bias", True), ("key_bias", False), ("value_bias", True))
    )
    if query != value:
        raise config.error("value_bias", f"only value_bias equal to query_bias={query} is supported")
    gated = config.flag("use_gated_mlp", False)
    known = READ_GATES if gated else READ_ACTIVATIONS
    scale = config.real("layerscale_value", 1.0)
    return {
        "mlp_dim": config.number("intermediate_size", 1536),
        "activation": known[config.text("hidden_act", known, "gelu")],
        "positions": "rotary",
        "rotary_base": config.real("rope_theta", 100.0),
        "registers": config.number("num_register_tokens", 0),
        "qkv_bias": query,
        "key_bias": key,
        "norm_epsilon": config.real("layer_norm_eps", 1e-5),
        "attention_dropout": config.real("attention_dropout", 0.0),
        "drop_path": config.real("drop_path_rate", 0.0),
        "layer_scale": scale,
    }


def canonical(name: str) -> str:
    """Returns the name of a tensor in files, for that in the class of transformers 5."""
    return re.sub(r"^model\.layer\.", "layer.", name)


def module_name(name: str) -> str:
    """Returns the name of a dense layer in the class of transformers 5, for its name in files."""
    return f"model.{name}" if name.startswith("layer.") else name


def plan(model: ViT, tensors: Tensors | None) -> Plan:
    """Returns the tensor map of a model for the names of a checkpoint, or for the names to write."""
    config: ViTConfig = model.config
    row = Form(reshape=(1, 1, -1))
    entries = [
        Entry("embeddings.cls_token", ("class_token/tokens",), row),
        Entry("embeddings.patch_embeddings.weight", ("patch_embedding/kernel",), CONVOLUTION),
        Entry("embeddings.patch_embeddings.bias", ("patch_embedding/bias",)),
    ]
    if config.mask_token:
        entries.append(Entry("embeddings.mask_token", ("mask_token/token",), row))
    elif tensors is None:
        entries.append(Entry("embeddings.mask_token", (), Zeros(shape=(1, 1, config.width))))
    if config.registers:
        form = Form(reshape=(1, config.registers, -1))
        entries.append(Entry(REGISTERS, ("registers/tokens",), form))
    elif tensors is None:
        entries.append(Entry(REGISTERS, (), Zeros(shape=(1, 0, config.width))))
    for index in range(config.depth):
        entries += _block(config, f"layer.{index}", f"block_{index}")
    entries += layer_norm("norm", "norm")
    # Without registers, the class has a tensor of no numbers.
    empty = [name for name, shape in (tensors.shapes if tensors else {}).items() if 0 in shape]
    return Plan(tuple(entries), canonical, computed=tuple(map(canonical, empty)))


def _block(config: ViTConfig, name: str, path: str) -> list[Entry]:
    entries: list[Entry] = []
    for half, part in enumerate(("attention", "feed_forward"), 1):
        entries += layer_norm(f"{name}.norm{half}", f"{path}/{part}_norm")
        entries.append(Entry(f"{name}.layer_scale{half}.lambda1", (f"{path}/{part}_scale",)))
    biases = {
        "attention/query": config.qkv_bias,
        "attention/key": config.qkv_bias if config.key_bias is None else config.key_bias,
        "attention/value": config.qkv_bias,
    }
    for layer, tensor in BLOCK.items():
        if layer != "feed_forward/gate" or config.activation in GATES:
            entries += linear(f"{name}.{tensor}", f"{path}/{layer}", bias=biases.get(layer, True))
    return entries


def written(config: ViTConfig) -> dict[str, Any]:
    """Returns the entries of config.json that only DINOv3 has, or that have other names there."""
    gated = config.activation in GATES
    return {
        "intermediate_size": config.mlp_dim,
        "hidden_act": GATES[config.activation] if gated else ACTIVATIONS.get(config.activation),
        "use_gated_mlp": gated,
        "rope_theta": config.rotary_base,
        "num_register_tokens": config.registers,
        "query_bias": config.qkv_bias,
        "key_bias": config.qkv_bias if config.key_bias is None else config.key_bias,
        "value_bias": config.qkv_bias,
        "proj_bias": True,
        "mlp_bias": True,
        "attention_dropout": config.attention_dropout,
        "drop_path_rate": config.drop_path,
        "layerscale_value": config.layer_scale,
    }


def unsupported_options(model: ViT) -> list[str]:
    """Returns the options of a model with rotary positions that DINOv3's class does not support."""
    config = model.config
    head = f"a {type(model.head).__name__} with positions='rotary'"
    differences = {
        head: model.head is not None,
        f"pooling={config.pooling!r}": config.pooling not in ("token", "none"),
        "class_token=False": not config.has_class_token and "token" not in config.pooling,
        "distillation=True": config.distillation,
        f"activation={config.activation!r}": config.activation not in {**ACTIVATIONS, **GATES},
        f"layer_scale={config.layer_scale}": config.layer_scale is None,
        f"dropout={config.dropout}": config.dropout > 0,
        "patch_bias=False": not config.patch_bias,
        f"stem={config.stem!r}": config.stem != "patches",
        "pre_norm=True": config.pre_norm,
        "qk_norm=True": config.qk_norm,
        "pooled_norm=True": config.pooled_norm,
        f"pooler={config.pooler!r}": config.pooler is not None,
    }
    return [difference for difference, present in differences.items() if present]


def head_of(config: Fields) -> ConfigError | None:
    """Returns None for a checkpoint without a head, or an error."""
    architecture = config.architecture()
    if architecture in ("DINOv3ViTModel", "DINOv3ViTBackbone"):
        return None
    return ConfigError(
        f"{config.where} has the architecture {architecture!r}, whose head is not supported. Pass the head "
        "that you want: head=None loads the encoder alone."
    )

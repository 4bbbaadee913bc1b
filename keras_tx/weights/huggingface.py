"""Hugging Face's names for what our configs say."""

from __future__ import annotations

from typing import Any

from keras_tx.models.vit import ViT, ViTConfig

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}


def vit_to_config(model: ViT, labels: list[str] | None) -> tuple[dict[str, Any], list[str]]:
    """A config.json for a ViT, and why it has no model_type where Hugging Face's ViT cannot be like it."""
    config: ViTConfig = model.config
    fields: dict[str, Any] = {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": ACTIVATIONS.get(config.activation, config.activation),
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "initializer_range": 0.02,
        "layer_norm_eps": config.norm_epsilon,
        "image_size": config.size[0] if config.size[0] == config.size[1] else list(config.size),
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "qkv_bias": True,
    }
    if labels is not None:
        fields["id2label"] = {str(index): label for index, label in enumerate(labels)}
        fields["label2id"] = {label: index for index, label in enumerate(labels)}
    reasons = _beyond_vit(config)
    if reasons:
        return fields, reasons
    architecture = "ViTModel" if model.head is None else "ViTForImageClassification"
    return {"model_type": "vit", "architectures": [architecture], **fields}, []


def _beyond_vit(config: ViTConfig) -> list[str]:
    differences = {
        f"pooling={config.pooling!r}": config.pooling == "average",
        f"positions={config.positions!r}": config.positions != "learned",
        f"registers={config.registers}": config.registers != 0,
        f"layer_scale={config.layer_scale}": config.layer_scale is not None,
        f"activation={config.activation!r}": config.activation not in ACTIVATIONS,
    }
    return [difference for difference, present in differences.items() if present]

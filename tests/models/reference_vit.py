"""Hugging Face's ViT weights put into ours, for comparing the two."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from keras_tx.models import ViT


def load(model: ViT, state: Mapping[str, np.ndarray]) -> None:
    """Assigns every tensor of a ViTForImageClassification; each is used exactly once."""
    left = dict(state)

    def put(variable: object, name: str, change=lambda x: x) -> None:
        variable.assign(change(left.pop(name)))

    def dense(layer: object, name: str) -> None:
        put(layer.kernel, f"{name}.weight", np.transpose)
        put(layer.bias, f"{name}.bias")

    def norm(layer: object, name: str) -> None:
        put(layer.gamma, f"{name}.weight")
        put(layer.beta, f"{name}.bias")

    patches = model.get_layer("patch_embedding")
    projection = "vit.embeddings.patch_embeddings.projection"
    put(patches.kernel, f"{projection}.weight", lambda w: w.transpose(2, 3, 1, 0))
    put(patches.bias, f"{projection}.bias")
    put(model.get_layer("class_token").tokens, "vit.embeddings.cls_token", lambda t: t[0])
    put(model.get_layer("positions").table, "vit.embeddings.position_embeddings", lambda t: t[0])
    for index in range(model.config.depth):
        block, name = model.get_layer(f"block_{index}"), f"vit.layers.{index}"
        norm(block.attention_norm, f"{name}.layernorm_before")
        norm(block.feed_forward_norm, f"{name}.layernorm_after")
        dense(block.attention.query, f"{name}.attention.q_proj")
        dense(block.attention.key, f"{name}.attention.k_proj")
        dense(block.attention.value, f"{name}.attention.v_proj")
        dense(block.attention.output_projection, f"{name}.attention.o_proj")
        dense(block.feed_forward.up, f"{name}.mlp.fc1")
        dense(block.feed_forward.down, f"{name}.mlp.fc2")
    norm(model.get_layer("norm"), "vit.layernorm")
    dense(model.get_layer("logits"), "classifier")
    assert not left, f"not used: {sorted(left)}"

"""Hugging Face's GPT-2 and Llama weights put into ours, for comparing the two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_tx.models import GPT


def load(model: GPT, state: Mapping[str, np.ndarray]) -> None:
    """Assigns every tensor of the state; each is used exactly once, and no weight of ours is left out."""
    left = {name.removeprefix("transformer.").removeprefix("model."): x for name, x in state.items()}
    taken: list[str] = []

    def put(variable: Any, value: np.ndarray) -> None:
        variable.assign(value)
        taken.append(variable.path)

    llama = model.config.positions == "rotary"
    words = left.pop("embed_tokens.weight" if llama else "wte.weight")
    put(model.get_layer("token_embedding").table, words)
    head = left.pop("lm_head.weight", words)
    if model.config.tied:
        assert np.array_equal(head, words)  # a state dict has it twice
    elif model.head is not None:
        put(model.get_layer("logits").kernel, head.T)
    for index in range(model.config.depth):
        block = model.get_layer(f"block_{index}")
        if llama:
            _llama_block(block, f"layers.{index}", left, put)
        else:
            _gpt2_block(block, f"h.{index}", left, put)
    norm = model.get_layer("norm")
    if llama:
        put(norm.scale, left.pop("norm.weight"))
    else:
        put(model.get_layer("positions").table, left.pop("wpe.weight"))
        put(norm.gamma, left.pop("ln_f.weight"))
        put(norm.beta, left.pop("ln_f.bias"))
    assert not left, f"not used: {sorted(left)}"
    assert sorted(taken) == sorted(v.path for v in model.weights), "a weight of ours was left out"


def _gpt2_block(block: Any, name: str, left: dict[str, np.ndarray], put: Any) -> None:
    attention, feed_forward = block.attention, block.feed_forward
    # Its Conv1D has (in, out), as Keras has it; query, key and value side by side.
    kernels = np.split(left.pop(f"{name}.attn.c_attn.weight"), 3, axis=1)
    biases = np.split(left.pop(f"{name}.attn.c_attn.bias"), 3)
    for layer, kernel, bias in zip(
        (attention.query, attention.key, attention.value), kernels, biases, strict=True
    ):
        put(layer.kernel, kernel)
        put(layer.bias, bias)
    for layer, theirs in (
        (attention.output_projection, "attn.c_proj"),
        (feed_forward.up, "mlp.c_fc"),
        (feed_forward.down, "mlp.c_proj"),
    ):
        put(layer.kernel, left.pop(f"{name}.{theirs}.weight"))
        put(layer.bias, left.pop(f"{name}.{theirs}.bias"))
    for layer, theirs in ((block.attention_norm, "ln_1"), (block.feed_forward_norm, "ln_2")):
        put(layer.gamma, left.pop(f"{name}.{theirs}.weight"))
        put(layer.beta, left.pop(f"{name}.{theirs}.bias"))


def _llama_block(block: Any, name: str, left: dict[str, np.ndarray], put: Any) -> None:
    attention, feed_forward = block.attention, block.feed_forward
    for layer, theirs in (
        (attention.query, "self_attn.q_proj"),
        (attention.key, "self_attn.k_proj"),
        (attention.value, "self_attn.v_proj"),
        (attention.output_projection, "self_attn.o_proj"),
        (feed_forward.gate, "mlp.gate_proj"),
        (feed_forward.up, "mlp.up_proj"),
        (feed_forward.down, "mlp.down_proj"),
    ):
        put(layer.kernel, left.pop(f"{name}.{theirs}.weight").T)
    put(block.attention_norm.scale, left.pop(f"{name}.input_layernorm.weight"))
    put(block.feed_forward_norm.scale, left.pop(f"{name}.post_attention_layernorm.weight"))

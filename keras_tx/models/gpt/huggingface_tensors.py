"""Maps the tensors of Hugging Face's decoders to the variables of a GPT."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_tx.models.gpt.model import GPTConfig
from keras_tx.weights.tensor_map import Entry, Form, Shape, first_rows, layer_norm, linear


@dataclasses.dataclass(frozen=True)
class OneLess(Form):
    """A scale that is stored as its difference from 1, as in Gemma's norms."""

    def to_tensor(self, variables: Sequence[np.ndarray]) -> np.ndarray:
        return super().to_tensor([(x.astype("float32") - 1).astype(x.dtype) for x in variables])

    def to_variables(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        return super().to_variables(np.float32(1) + tensor.astype("float32"), shapes)


def gpt2_entries(config: GPTConfig, body: str, scales: Sequence[float] | None) -> list[Entry]:
    """Returns the map of a GPT-2; for `scales`, see `huggingface.plan`."""
    entries = [
        Entry(f"{body}wte.weight", ("token_embedding/table",)),
        Entry(f"{body}wpe.weight", ("positions/table",), fit=first_rows),
    ]
    for index in range(config.depth):
        entries += _conv1d_block(
            f"{body}h.{index}", f"block_{index}", None if scales is None else scales[index]
        )
    return [*entries, *layer_norm(f"{body}ln_f", "norm")]


def gpt1_entries(config: GPTConfig, body: str) -> list[Entry]:
    """Returns the map of an openai-gpt, whose blocks have the names of GPT-2 and no norm follows them."""
    entries = [
        Entry(f"{body}tokens_embed.weight", ("token_embedding/table",)),
        Entry(f"{body}positions_embed.weight", ("positions/table",), fit=first_rows),
    ]
    for index in range(config.depth):
        entries += _conv1d_block(f"{body}h.{index}", f"block_{index}")
    return entries


def _conv1d_block(prefix: str, block: str, scale: float | None = None) -> list[Entry]:
    """The map of a block, whose queries absorb the scale of its attention scores."""
    packed = [f"{block}/attention/{part}" for part in ("query", "key", "value")]
    factors = None if scale is None else (scale, 1.0, 1.0)
    return [
        *layer_norm(f"{prefix}.ln_1", f"{block}/attention_norm"),
        # Conv1D has (in, out), as Keras does; query, key and value are concatenated.
        Entry(
            f"{prefix}.attn.c_attn.weight",
            tuple(f"{path}/kernel" for path in packed),
            Form(join=1, factors=factors),
        ),
        Entry(f"{prefix}.attn.c_attn.bias", tuple(f"{path}/bias" for path in packed), Form(factors=factors)),
        *_conv1d(f"{prefix}.attn.c_proj", f"{block}/attention/output"),
        *layer_norm(f"{prefix}.ln_2", f"{block}/feed_forward_norm"),
        *_conv1d(f"{prefix}.mlp.c_fc", f"{block}/feed_forward/up"),
        *_conv1d(f"{prefix}.mlp.c_proj", f"{block}/feed_forward/down"),
    ]


def _conv1d(name: str, path: str) -> list[Entry]:
    return [Entry(f"{name}.weight", (f"{path}/kernel",)), Entry(f"{name}.bias", (f"{path}/bias",))]


def llama_entries(config: GPTConfig, body: str) -> list[Entry]:
    """Returns the map of a Llama, and of the decoders with its names: Mistral, Qwen2, Qwen3 and Gemma."""
    scale = OneLess() if config.scale_embedding else Form()
    qkv_bias = config.use_bias if config.qkv_bias is None else config.qkv_bias
    entries = [Entry(f"{body}embed_tokens.weight", ("token_embedding/table",))]
    for index in range(config.depth):
        prefix, block = f"{body}layers.{index}", f"block_{index}"
        layers = {
            "self_attn.q_proj": ("attention/query", qkv_bias),
            "self_attn.k_proj": ("attention/key", qkv_bias),
            "self_attn.v_proj": ("attention/value", qkv_bias),
            "self_attn.o_proj": ("attention/output", config.use_bias),
            "mlp.gate_proj": ("feed_forward/gate", config.use_bias),
            "mlp.up_proj": ("feed_forward/up", config.use_bias),
            "mlp.down_proj": ("feed_forward/down", config.use_bias),
        }
        for name, (path, bias) in layers.items():
            entries += linear(f"{prefix}.{name}", f"{block}/{path}", bias=bias)
        norms = {"input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm"}
        if config.qk_norm:
            norms |= {"self_attn.q_norm": "attention/query_norm", "self_attn.k_norm": "attention/key_norm"}
        entries += [
            Entry(f"{prefix}.{name}.weight", (f"{block}/{x}/scale",), scale) for name, x in norms.items()
        ]
    return [*entries, Entry(f"{body}norm.weight", ("norm/scale",), scale)]

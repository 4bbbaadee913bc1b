"""Weights of transformers' causal language models in those of keras-hub, which does not convert these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

State = Mapping[str, Any]  # transformers' tensors by name


def copy_weights(backbone: Any, state: State) -> None:
    """Assigns the weights of a Phi-3, GPT-NeoX, BLOOM, Falcon or OPT."""
    name = type(backbone).__name__.removesuffix("Backbone")
    prefix, embeddings, norm, copy_layer = FAMILIES[name]
    _assign(backbone.token_embedding.embeddings, state[f"{prefix}.{embeddings}.weight"].T)
    if "lm_head.weight" in state and hasattr(backbone.token_embedding, "reverse_embeddings"):
        _assign(backbone.token_embedding.reverse_embeddings, state["lm_head.weight"])
    final = getattr(backbone, "final_layernorm", None) or backbone.layer_norm
    _norm(final, state, f"{prefix}.{norm}")
    if name == "Bloom":
        _norm(backbone.embeddings_layer_norm, state, f"{prefix}.word_embeddings_layernorm")
    if name == "OPT":
        positions = state[f"{prefix}.embed_positions.weight"]
        _assign(backbone.embeddings.position_embedding.position_embeddings, positions[2:].T)
    layers = "h" if name in ("Bloom", "Falcon") else "layers"
    for index, layer in enumerate(backbone.transformer_layers):
        start = f"{prefix}.{layers}.{index}."
        inside = {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
        copy_layer(layer, inside)


def _assign(variable: Any, tensor: Any) -> None:
    """Transposed, because PyTorch has the outputs first."""
    variable.assign(tensor.numpy().T.reshape(variable.shape))


def _dense(layer: Any, state: State, name: str) -> None:
    _assign(layer.kernel, state[f"{name}.weight"])
    if getattr(layer, "bias", None) is not None:
        _assign(layer.bias, state[f"{name}.bias"])


def _norm(layer: Any, state: State, name: str) -> None:
    _assign(layer.gamma if hasattr(layer, "gamma") else layer.scale, state[f"{name}.weight"])
    if getattr(layer, "beta", None) is not None:
        _assign(layer.beta, state[f"{name}.bias"])


def _phi3(layer: Any, state: State) -> None:
    attention = layer.attention
    heads = [attention.query_dense, attention.key_dense, attention.value_dense]
    sizes = [dense.kernel.shape[1] * dense.kernel.shape[2] for dense in heads]
    for dense, part in zip(heads, state["self_attn.qkv_proj.weight"].split(sizes), strict=True):
        _assign(dense.kernel, part)
    _dense(attention.output_dense, state, "self_attn.o_proj")
    gate, up = state["mlp.gate_up_proj.weight"].chunk(2)
    _assign(layer.feedforward_gate_dense.kernel, gate)
    _assign(layer.feedforward_intermediate_dense.kernel, up)
    _dense(layer.feedforward_output_dense, state, "mlp.down_proj")
    _norm(layer.pre_attention_layernorm, state, "input_layernorm")
    _norm(layer.post_attention_layernorm, state, "post_attention_layernorm")


def _gpt_neox(layer: Any, state: State) -> None:
    attention = layer._self_attention_layer
    _dense(attention._qkv_dense, state, "attention.query_key_value")
    _dense(attention._output_dense, state, "attention.dense")
    _dense(layer._feedforward_intermediate_dense, state, "mlp.dense_h_to_4h")
    _dense(layer._feedforward_output_dense, state, "mlp.dense_4h_to_h")
    _norm(layer._self_attention_layer_norm, state, "input_layernorm")
    _norm(layer._feedforward_layer_norm, state, "post_attention_layernorm")


def _split_heads(denses: list[Any], state: State, name: str) -> None:
    """Queries, keys and values of each head are neighbours."""
    count, size = denses[0].bias.shape
    for kind in ("weight", "bias"):
        parts = state[f"{name}.{kind}"].reshape(count, 3, size, -1)
        for index, dense in enumerate(denses):
            variable = dense.kernel if kind == "weight" else dense.bias
            _assign(variable, parts[:, index].reshape(count * size, -1))


def _bloom(layer: Any, state: State) -> None:
    attention = layer._self_attention_layer
    denses = [attention._query_dense, attention._key_dense, attention._value_dense]
    _split_heads(denses, state, "self_attention.query_key_value")
    _dense(attention._output_dense, state, "self_attention.dense")
    _dense(layer._mlp_intermediate_dense, state, "mlp.dense_h_to_4h")
    _dense(layer._mlp_output_dense, state, "mlp.dense_4h_to_h")
    _norm(layer._pre_attention_layernorm, state, "input_layernorm")
    _norm(layer._post_attention_layernorm, state, "post_attention_layernorm")


def _falcon(layer: Any, state: State) -> None:
    attention = layer.attention_layer
    denses = [attention.query_dense, attention.key_dense, attention.value_dense]
    _split_heads(denses, state, "self_attention.query_key_value")
    _dense(attention.output_dense, state, "self_attention.dense")
    _dense(layer.dense_h_to_4h, state, "mlp.dense_h_to_4h")
    _dense(layer.dense_4h_to_h, state, "mlp.dense_4h_to_h")
    _norm(layer.input_layernorm, state, "input_layernorm")
    _norm(layer.post_attention_layernorm, state, "post_attention_layernorm")


def _opt(layer: Any, state: State) -> None:
    attention = layer._self_attention_layer
    _dense(attention._query_dense, state, "self_attn.q_proj")
    _dense(attention._key_dense, state, "self_attn.k_proj")
    _dense(attention._value_dense, state, "self_attn.v_proj")
    _dense(attention._output_dense, state, "self_attn.out_proj")
    _dense(layer._feedforward_intermediate_dense, state, "fc1")
    _dense(layer._feedforward_output_dense, state, "fc2")
    _norm(layer._self_attention_layer_norm, state, "self_attn_layer_norm")
    _norm(layer._feedforward_layer_norm, state, "final_layer_norm")


FAMILIES: dict[str, tuple[str, str, str, Callable[[Any, State], None]]] = {
    "Phi3": ("model", "embed_tokens", "norm", _phi3),
    "GPTNeoX": ("gpt_neox", "embed_in", "final_layer_norm", _gpt_neox),
    "Bloom": ("transformer", "word_embeddings", "ln_f", _bloom),
    "OPT": ("model.decoder", "embed_tokens", "final_layer_norm", _opt),
    "Falcon": ("transformer", "word_embeddings", "ln_f", _falcon),
}

"""config.json of keras-hub's causal language models, as the same models of transformers have it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_tx.models.families import HuggingFaceConfig

Fields = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class DecoderSizes:
    """The sizes of a causal language model of keras-hub.

    Args:
        width: of a token's vector.
        depth: number of layers.
        num_heads: number of query heads.
        kv_heads: number of key and value heads.
        head_size: width of a head.
        context: the maximum number of tokens.
    """

    width: int
    depth: int
    num_heads: int
    kv_heads: int
    head_size: int
    context: int


def decoder_config(backbone: Any, fields: Fields, context: int) -> HuggingFaceConfig:
    """Returns the config.json of a backbone; without model_type if transformers does not have the same model.

    Args:
        backbone: of a CausalLM.
        fields: other fields of the file.
        context: the maximum number of tokens.
    """
    name = _name(backbone)
    if name not in FAMILIES:
        return HuggingFaceConfig(fields, (f"the architecture of keras-hub's {type(backbone).__name__}",))
    sizes = _sizes(backbone, context)
    model_type, own, unsupported = FAMILIES[name](backbone, sizes)
    unsupported = [*unsupported, *_list_uneven_epsilons(backbone)]
    content = {
        **fields,
        "hidden_size": sizes.width,
        "num_hidden_layers": sizes.depth,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.kv_heads,
        "use_cache": True,
        **own,
    }
    if unsupported:
        return HuggingFaceConfig(content, unsupported)
    return HuggingFaceConfig(
        {"model_type": model_type, "architectures": [ARCHITECTURES[model_type]], **content}
    )


def _sizes(backbone: Any, context: int) -> DecoderSizes:
    names = ("num_query_heads", "num_attention_heads", "num_heads")
    heads = next(getattr(backbone, name) for name in names if hasattr(backbone, name))
    return DecoderSizes(
        width=backbone.hidden_dim,
        depth=backbone.num_layers,
        num_heads=heads,
        kv_heads=getattr(backbone, "num_key_value_heads", heads),
        head_size=getattr(backbone, "head_dim", None) or backbone.hidden_dim // heads,
        context=context,
    )


ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel",
    "opt": "OPTForCausalLM",
    "bloom": "BloomForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "falcon": "FalconForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
Config = tuple[str, Fields, list[str]]  # model_type, fields, and options that transformers does not have


def _name(backbone: Any) -> str:
    """The name of the family: the class of keras-hub without "Backbone"."""
    kinds = [kind.__name__.removesuffix("Backbone") for kind in type(backbone).__mro__]
    return next((name for name in kinds if name in FAMILIES), kinds[0])


def _gpt2(backbone: Any, sizes: DecoderSizes) -> Config:
    fields = {
        "n_positions": sizes.context,
        "n_embd": sizes.width,
        "n_layer": sizes.depth,
        "n_head": sizes.num_heads,
        "n_inner": backbone.intermediate_dim,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
    }
    return "gpt2", fields, []


def _opt(backbone: Any, sizes: DecoderSizes) -> Config:
    fields = {
        "ffn_dim": backbone.intermediate_dim,
        "word_embed_proj_dim": sizes.width,
        "activation_function": "relu",
        "tie_word_embeddings": True,
    }
    return "opt", fields, []


def _bloom(backbone: Any, sizes: DecoderSizes) -> Config:
    fields = {
        "n_layer": sizes.depth,
        "n_head": sizes.num_heads,
        "layer_norm_epsilon": backbone.layer_norm_epsilon,
        "tie_word_embeddings": True,
    }
    return "bloom", fields, _list_wider(backbone, sizes, 4)


def _gpt_neox(backbone: Any, sizes: DecoderSizes) -> Config:
    fields = {
        "intermediate_size": backbone.intermediate_dim,
        "rotary_pct": backbone.rotary_percentage,
        "rotary_emb_base": backbone.rotary_max_wavelength,
        "rope_theta": backbone.rotary_max_wavelength,
        "layer_norm_eps": backbone.layer_norm_epsilon,
        "hidden_act": "gelu_fast",
        "tie_word_embeddings": True,
    }
    return "gpt_neox", fields, []


def _falcon(backbone: Any, sizes: DecoderSizes) -> Config:
    fields = {
        "ffn_hidden_size": backbone.intermediate_dim,
        "layer_norm_epsilon": backbone.layer_norm_epsilon,
        "alibi": True,
        "bias": True,
        "multi_query": False,
        "new_decoder_architecture": False,
        "parallel_attn": False,
        "tie_word_embeddings": True,
    }
    return "falcon", fields, []


def _rms(backbone: Any, sizes: DecoderSizes) -> Fields:
    """The fields of models with RMS norms and rotary positions."""
    return {
        "head_dim": sizes.head_size,
        "rms_norm_eps": backbone.layer_norm_epsilon,
        "rope_theta": float(
            getattr(backbone, "rope_max_wavelength", None) or getattr(backbone, "rope_theta", 1e4)
        ),
        "tie_word_embeddings": bool(getattr(backbone, "tie_word_embeddings", False)),
    }


def _gated(backbone: Any, sizes: DecoderSizes) -> Fields:
    """The same, with a feed-forward that is gated by SiLU."""
    return {**_rms(backbone, sizes), "intermediate_size": backbone.intermediate_dim, "hidden_act": "silu"}


def _llama(backbone: Any, sizes: DecoderSizes) -> Config:
    """rope_position_scaling_factor is no field: keras-hub's layer does not use it."""
    fields = _gated(backbone, sizes)
    if backbone.rope_frequency_adjustment_factor is not None:
        fields["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": backbone.rope_frequency_adjustment_factor,
            "low_freq_factor": backbone.rope_low_freq_factor,
            "high_freq_factor": backbone.rope_high_freq_factor,
            "original_max_position_embeddings": backbone.rope_pretraining_sequence_length,
        }
    return "llama", fields, []


def _mistral(backbone: Any, sizes: DecoderSizes) -> Config:
    fields = {**_gated(backbone, sizes), "sliding_window": backbone.sliding_window}
    return "mistral", fields, _scaled(backbone)


def _mixtral(backbone: Any, sizes: DecoderSizes) -> Config:
    _, fields, unsupported = _mistral(backbone, sizes)
    experts = {"num_local_experts": backbone.num_experts, "num_experts_per_tok": backbone.top_k}
    return "mixtral", {**fields, **experts}, unsupported


def _gemma(backbone: Any, sizes: DecoderSizes) -> Config:
    fields = {
        **_rms(backbone, sizes),
        "intermediate_size": backbone.intermediate_dim // 2,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    }
    second = backbone.use_post_ffw_norm and backbone.use_post_attention_norm
    if not second:
        options = {
            "attention_logit_soft_cap": None,
            "final_logit_soft_cap": None,
            "use_sliding_window_attention": False,
            "use_post_ffw_norm": False,
            "use_post_attention_norm": False,
        }
        return "gemma", {**fields, "hidden_act": "gelu_pytorch_tanh"}, _list_differing(backbone, options)
    more = {
        "query_pre_attn_scalar": sizes.head_size,  # keras-hub's blocks ignore query_head_dim_normalize
        "final_logit_softcapping": backbone.final_logit_soft_cap,
        "attn_logit_softcapping": backbone.attention_logit_soft_cap,
        "sliding_window": backbone.sliding_window_size,
        "layer_types": _layer_types(sizes, 2 if backbone.use_sliding_window_attention else 1),
    }
    return "gemma2", {**fields, **more}, []


def _gemma3(backbone: Any, sizes: DecoderSizes) -> Config:
    options = {
        "vision_encoder": None,
        "use_query_key_norm": True,
        "use_post_ffw_norm": True,
        "use_post_attention_norm": True,
        "use_bidirectional_attention": False,
        "local_rope_scaling_factor": 1.0,
        "attention_logit_soft_cap": None,  # a field of transformers, whose attention does not read it
    }
    fields = {
        "head_dim": sizes.head_size,
        "rms_norm_eps": backbone.layer_norm_epsilon,
        "intermediate_size": backbone.intermediate_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": sizes.head_size,  # keras-hub's blocks ignore query_head_dim_normalize
        "final_logit_softcapping": backbone.final_logit_soft_cap,
        "sliding_window": backbone.sliding_window_size,
        "layer_types": _layer_types(sizes, 6 if backbone.use_sliding_window_attention else 1),
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "tie_word_embeddings": True,
    }
    if backbone.global_rope_scaling_factor != 1.0:
        fields["rope_scaling"] = {"rope_type": "linear", "factor": backbone.global_rope_scaling_factor}
    return "gemma3_text", fields, _list_differing(backbone, options)


def _phi3(backbone: Any, sizes: DecoderSizes) -> Config:
    fields = {
        **_gated(backbone, sizes),
        "original_max_position_embeddings": backbone.pretraining_sequence_length,
    }
    return "phi3", fields, _list_differing(backbone, {"rope_scaling_type": None})


def _layer_types(sizes: DecoderSizes, period: int) -> list[str]:
    """The last layer of each period attends to all tokens, the others within a sliding window."""
    kinds = ["sliding_attention"] * (period - 1) + ["full_attention"]
    return [kinds[index % period] for index in range(sizes.depth)]


def _window(size: int | None, sizes: DecoderSizes) -> Fields:
    """A sliding window in all layers or in none; by default, transformers has it in some."""
    kind = "full_attention" if size is None else "sliding_attention"
    return {
        "use_sliding_window": size is not None,
        "sliding_window": size,
        "max_window_layers": 0,
        "layer_types": [kind] * sizes.depth,
    }


def _qwen2(backbone: Any, sizes: DecoderSizes) -> Config:
    window = backbone.sliding_window_size if backbone.use_sliding_window_attention else None
    fields = {**_gated(backbone, sizes), **_window(window, sizes)}
    return "qwen2", fields, _scaled(backbone)


def _qwen3(backbone: Any, sizes: DecoderSizes) -> Config:
    fields = {**_gated(backbone, sizes), **_window(backbone.sliding_window_size, sizes)}
    return "qwen3", fields, _scaled(backbone)


def _experts(backbone: Any) -> Fields:
    """The layers without experts are listed: keras-hub's QwenMoe treats each layer as the first."""
    layers = enumerate(backbone.transformer_layers)
    return {
        "moe_intermediate_size": backbone.moe_intermediate_dim,
        "num_experts": backbone.num_experts,
        "num_experts_per_tok": backbone.top_k,
        "norm_topk_prob": backbone.norm_top_k_prob,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [index for index, layer in layers if not hasattr(layer.mlp, "expert_bank")],
    }


def _qwen2_moe(backbone: Any, sizes: DecoderSizes) -> Config:
    _, fields, unsupported = _qwen2(backbone, sizes)
    shared = {"shared_expert_intermediate_size": backbone.shared_expert_intermediate_dim}
    return "qwen2_moe", {**fields, **_experts(backbone), **shared}, unsupported


def _qwen3_moe(backbone: Any, sizes: DecoderSizes) -> Config:
    _, fields, unsupported = _qwen3(backbone, sizes)
    return "qwen3_moe", {**fields, **_experts(backbone)}, unsupported


def _smollm3(backbone: Any, sizes: DecoderSizes) -> Config:
    enabled_rope = [*backbone.rope_layer_enabled_list, *[True] * sizes.depth][: sizes.depth]
    fields = {
        **_gated(backbone, sizes),
        "attention_bias": False,
        "mlp_bias": backbone.mlp_bias,
        "no_rope_layers": [int(enabled) for enabled in enabled_rope],
        "layer_types": ["full_attention"] * sizes.depth,  # keras-hub does not use its own list
        "tie_word_embeddings": True,
    }
    # With biases, transformers also has one in the output of attention.
    options = {"partial_rotary_factor": 1.0, "attention_bias": False}
    return "smollm3", fields, _list_differing(backbone, options)


def _list_wider(backbone: Any, sizes: DecoderSizes, factor: int) -> list[str]:
    """The width of the feed-forward, if it is not this multiple of the width."""
    wide = backbone.intermediate_dim
    return [] if wide == factor * sizes.width else [f"intermediate_dim={wide} with hidden_dim={sizes.width}"]


def _list_uneven_epsilons(backbone: Any) -> list[str]:
    """The epsilons of the norms, if some differ from that of the backbone; transformers has one.

    They may differ by 1e-5: keras-hub's Qwen 3 has this epsilon in the norms of its heads, without an option.
    """
    expected = getattr(backbone, "layer_norm_epsilon", None)
    values = {layer.epsilon for layer in backbone._flatten_layers() if hasattr(layer, "epsilon")}
    if expected is None or all(abs(value - expected) <= 1e-5 for value in values):
        return []
    return [f"layer_norm_epsilon={expected!r} with {min(values - {expected})!r} in some norms"]


def _scaled(backbone: Any) -> list[str]:
    return _list_differing(backbone, {"rope_scaling_factor": 1.0})


def _list_differing(backbone: Any, options: Fields) -> list[str]:
    """The options of a backbone with other values than these."""
    values = {name: getattr(backbone, name, expected) for name, expected in options.items()}
    return [f"{name}={value!r:.40}" for name, value in values.items() if value != options[name]]


FAMILIES: dict[str, Callable[[Any, DecoderSizes], Config]] = {  # by the class without "Backbone"
    "GPT2": _gpt2,
    "OPT": _opt,
    "Bloom": _bloom,
    "GPTNeoX": _gpt_neox,
    "Falcon": _falcon,
    "Llama": _llama,
    "Mistral": _mistral,
    "Mixtral": _mixtral,
    "Gemma": _gemma,
    "Gemma3": _gemma3,
    "Phi3": _phi3,
    "Qwen": _qwen2,
    "Qwen3": _qwen3,
    "QwenMoe": _qwen2_moe,
    "Qwen3Moe": _qwen3_moe,
    "SmolLM3": _smollm3,
}

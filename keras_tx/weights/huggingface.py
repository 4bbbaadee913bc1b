"""Hugging Face's names for what our configs say."""

from __future__ import annotations

from typing import Any

from keras_tx import contract
from keras_tx.models.gpt import GPT, GPTConfig
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


def gpt_to_config(model: GPT, special: dict[str, int | None]) -> tuple[dict[str, Any], list[str]]:
    """A config.json for a GPT as GPT-2 or Llama, and why it has no model_type where it is like neither.

    Dropout acts only in training; Llama's config has the rate of attention alone.
    """
    config: GPTConfig = model.config
    rotary = config.positions == "rotary"
    whole = "ForCausalLM" if rotary else "LMHeadModel"
    body = "Model" if model.head is None else whole
    reasons = _beyond_llama(config) if rotary else _beyond_gpt2(config)
    fields: dict[str, Any] = {
        "vocab_size": config.vocabulary,
        "tie_word_embeddings": config.tied,
        "initializer_range": 0.02,
        "use_cache": True,
        **special,
    }
    if rotary or reasons:
        fields |= {
            "hidden_size": config.width,
            "num_hidden_layers": config.depth,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.kv_heads or config.num_heads,
            "head_dim": config.width // config.num_heads,
            "intermediate_size": config.mlp_dim,
            "max_position_embeddings": config.max_length,
            "attention_dropout": config.attention_dropout,
        }
    if reasons:
        differing = ("positions", "norm", "activation", "use_bias", "norm_epsilon", "rotary_base", "dropout")
        return {**fields, **{name: getattr(config, name) for name in differing}}, reasons
    if rotary:
        rope = {"rope_type": "default", "rope_theta": config.rotary_base}
        fields |= {
            "hidden_act": "silu",
            "rms_norm_eps": config.norm_epsilon,
            "attention_bias": config.use_bias,
            "mlp_bias": config.use_bias,
            "rope_theta": config.rotary_base,  # as transformers before 5 reads it
            "rope_parameters": rope,
        }
        return {"model_type": "llama", "architectures": [f"Llama{body}"], **fields}, []
    fields |= {
        "n_embd": config.width,
        "n_layer": config.depth,
        "n_head": config.num_heads,
        "n_inner": config.mlp_dim,
        "n_positions": config.max_length,
        "n_ctx": config.max_length,
        "activation_function": ACTIVATIONS[config.activation],
        "layer_norm_epsilon": config.norm_epsilon,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
    }
    return {"model_type": "gpt2", "architectures": [f"GPT2{body}"], **fields}, []


def _beyond_gpt2(config: GPTConfig) -> list[str]:
    differences = {
        f"norm={config.norm!r} with learned positions": config.norm != "layer",
        f"activation={config.activation!r} with learned positions": config.activation not in ACTIVATIONS,
        f"use_bias={config.use_bias} with learned positions": not config.use_bias,
        f"kv_heads={config.kv_heads} with learned positions": config.kv_heads not in (None, config.num_heads),
    }
    return [difference for difference, present in differences.items() if present]


def _beyond_llama(config: GPTConfig) -> list[str]:
    differences = {
        f"norm={config.norm!r} with rotary positions": config.norm != "rms",
        f"activation={config.activation!r} with rotary positions": config.activation != "swiglu",
    }
    return [difference for difference, present in differences.items() if present]


def genai_config(model: GPT, special: dict[str, int | None]) -> dict[str, Any]:
    """genai_config.json, by which onnxruntime-genai opens the folder."""
    config: GPTConfig = model.config
    known = {name: 0 if i is None else i for name, i in special.items()}  # it wants a number for each
    if special["pad_token_id"] is None:
        known["pad_token_id"] = known["eos_token_id"]
    return {
        "model": {
            **known,
            "type": "decoder",
            "context_length": config.max_length,
            "vocab_size": config.vocabulary,
            "decoder": {
                "session_options": {"provider_options": []},
                "filename": contract.MODEL,
                "hidden_size": config.width,
                "head_size": config.width // config.num_heads,
                "num_attention_heads": config.num_heads,
                "num_key_value_heads": config.kv_heads or config.num_heads,
                "num_hidden_layers": config.depth,
                "inputs": {
                    "input_ids": contract.INPUT_IDS,
                    "attention_mask": contract.ATTENTION_MASK,
                    "position_ids": contract.POSITION_IDS,
                    "past_key_names": contract.PAST[0].replace("{}", "%d"),
                    "past_value_names": contract.PAST[1].replace("{}", "%d"),
                },
                "outputs": {
                    "logits": contract.LOGITS,
                    "present_key_names": contract.PRESENT[0].replace("{}", "%d"),
                    "present_value_names": contract.PRESENT[1].replace("{}", "%d"),
                },
            },
        },
        "search": {
            "do_sample": False,
            "max_length": config.max_length,
            "past_present_share_buffer": False,
            "temperature": 1.0,
            "top_k": 50,
            "top_p": 1.0,
        },
    }

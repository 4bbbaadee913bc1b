"""Reads and writes the architecture in config.json of Hugging Face's decoders."""

from __future__ import annotations

import warnings
from typing import Any

from keras_tx.errors import ConfigError, user_stacklevel
from keras_tx.layers.rotary import check_scaling
from keras_tx.models.gpt.model import GPTConfig
from keras_tx.weights.config_json import Fields

# The beginning of the names of the classes of each model_type.
CLASSES = {
    "openai-gpt": "OpenAIGPT",
    "gpt2": "GPT2",
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gemma": "Gemma",
}
WITH_LEARNED_POSITIONS = ("openai-gpt", "gpt2")

# The names that are written; other names of the same functions are read.
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
READ_ACTIVATIONS = {
    **{name: activation for activation, name in ACTIVATIONS.items()},
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
}
# In openai-gpt, "gelu" is the approximation with tanh.
GPT1_ACTIVATIONS = {"gelu_tanh": "gelu", "relu": "relu", "silu": "silu"}
READ_GPT1_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
# Of the gate in feed-forward layers with one.
GATES = {"swiglu": "silu", "geglu": "gelu_pytorch_tanh"}
READ_GATES = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu_pytorch_tanh": "geglu",
    "gelu_new": "geglu",
    "gelu_fast": "geglu",
}
# Keys in config.json by fields of GPTConfig.
GPT2_KEYS = {
    "width": "n_embd",
    "depth": "n_layer",
    "num_heads": "n_head",
    "mlp_dim": "n_inner",
    "vocabulary_size": "vocab_size",
    "max_length": "n_positions",
    "norm_epsilon": "layer_norm_epsilon",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
}
LLAMA_KEYS = {
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "mlp_dim": "intermediate_size",
    "vocabulary_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "rotary_base": "rope_theta",
    "norm_epsilon": "rms_norm_eps",
}
# The defaults of the classes of transformers. Those of Llama hold for the fields that another type does not
# have here.
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 11008,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    "mistral": {
        "max_position_embeddings": 4096 * 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "sliding_window": 4096,
    },
    "qwen2": {
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "intermediate_size": 22016,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "gemma": {
        "vocab_size": 256000,
        "max_position_embeddings": 8192,
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "intermediate_size": 24576,
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
    },
}
DEFAULTS["qwen3"] = {**DEFAULTS["qwen2"], "head_dim": 128}


def read_fields(config: Fields, model_type: str) -> dict[str, Any]:
    """Returns the fields of GPTConfig that describe the architecture.

    Raises:
        ConfigError: a field is not supported.
    """
    config.refuse("is_causal", True)
    if model_type in WITH_LEARNED_POSITIONS:
        config.names = GPT2_KEYS
        return _gpt1_fields(config) if model_type == "openai-gpt" else _gpt2_fields(config)
    config.names = LLAMA_KEYS
    for name, value in {**DEFAULTS["llama"], **DEFAULTS[model_type]}.items():
        config.setdefault(name, value)
    return _llama_fields(config, model_type)


def _gpt2_fields(config: Fields) -> dict[str, Any]:
    config.refuse("add_cross_attention", False)
    fields = _learned_fields(config, vocabulary_size=50257, max_length=1024)
    return {
        **fields,
        "mlp_dim": config.number("n_inner", 0, none=True) or 4 * fields["width"],
        "activation": READ_ACTIVATIONS[config.text("activation_function", READ_ACTIVATIONS, "gelu_new")],
    }


def _gpt1_fields(config: Fields) -> dict[str, Any]:
    fields = _learned_fields(config, vocabulary_size=40478, max_length=512)
    return {
        **fields,
        "mlp_dim": 4 * fields["width"],
        "norm_position": "post",
        "activation": READ_GPT1_ACTIVATIONS[config.text("afn", READ_GPT1_ACTIVATIONS, "gelu")],
    }


def _learned_fields(config: Fields, vocabulary_size: int, max_length: int) -> dict[str, Any]:
    """The fields that GPT-1 and GPT-2 share, with the defaults of one of them."""
    rates = {name: config.real(name, 0.1) for name in ("resid_pdrop", "embd_pdrop")}
    if rates["embd_pdrop"] != rates["resid_pdrop"]:
        warnings.warn(
            f"{config.where} has {rates}; keras-tx has one rate for both and uses that of "
            "resid_pdrop. It affects training only.",
            stacklevel=user_stacklevel(),
        )
    return {
        "vocabulary_size": config.number("vocab_size", vocabulary_size),
        "max_length": config.number("n_positions", max_length),
        "width": config.number("n_embd", 768),
        "depth": config.number("n_layer", 12),
        "num_heads": config.number("n_head", 12),
        "norm_epsilon": config.real("layer_norm_epsilon", 1e-5),
        "tied": config.flag("tie_word_embeddings", True),
        "dropout": rates["resid_pdrop"],
        "attention_dropout": config.real("attn_pdrop", 0.1),
    }


def _llama_fields(config: Fields, model_type: str) -> dict[str, Any]:
    gemma = model_type == "gemma"
    length = config.number("max_position_embeddings", 0)
    depth = config.number("num_hidden_layers", 0)
    heads = config.number("num_attention_heads", 0)
    _check_window(config, model_type, length, depth)
    config.refuse("rope_interleaved", False)
    config.refuse("use_bidirectional_attention", False)
    return {
        "vocabulary_size": config.number("vocab_size", 0),
        "max_length": length,
        "width": config.number("hidden_size", 0),
        "depth": depth,
        "num_heads": heads,
        "kv_heads": config.number("num_key_value_heads", heads, none=not gemma) or heads,
        "head_dim": config.number("head_dim", 0, none=model_type not in ("qwen3", "gemma")) or None,
        "mlp_dim": config.number("intermediate_size", 0),
        "positions": "rotary",
        **_rotary(config, length),
        "norm": "rms",
        "qk_norm": model_type == "qwen3",
        "norm_epsilon": config.real("rms_norm_eps", 1e-6),
        "activation": _gated_activation(config, model_type),
        **_biases(config, model_type),
        "scale_embedding": gemma,
        "tied": config.flag("tie_word_embeddings", False),
        "dropout": 0.0,
        "attention_dropout": config.real("attention_dropout", 0.0),
    }


def _check_window(config: Fields, model_type: str, length: int, depth: int) -> None:
    """Raises a ConfigError if a layer attends to fewer tokens than a text may have."""
    if model_type not in ("mistral", "qwen2", "qwen3"):
        return
    window = config.number("sliding_window", 0, none=True)
    if model_type != "mistral":
        enabled = config.flag("use_sliding_window", False)
        windowed = _has_windowed_layers(config, depth)
        if windowed and not (enabled and window):
            raise config.error(
                "layer_types", "sliding_attention requires use_sliding_window=true and a window"
            )
        if not enabled or not windowed:
            return
    if window is not None and window < length:
        raise config.error("sliding_window", f"expected null or at least max_position_embeddings={length}")


def _has_windowed_layers(config: Fields, depth: int) -> bool:
    """Whether a layer of a Qwen has a sliding window."""
    types = config.get("layer_types")
    if types is None:
        return config.flag("use_sliding_window", False) and config.number("max_window_layers", 0) < depth
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != depth or any(x not in known for x in types):
        raise config.error("layer_types", f"expected a list of {depth}, each {' or '.join(known)}")
    return "sliding_attention" in types


def _biases(config: Fields, model_type: str) -> dict[str, Any]:
    if model_type == "qwen2":  # these do not depend on the config
        return {"use_bias": False, "qkv_bias": True}
    if model_type == "mistral":
        return {"use_bias": False}
    if model_type in ("qwen3", "gemma"):
        config.refuse("attention_bias", False)
        return {"use_bias": False}
    bias = config.flag("attention_bias", False)
    if config.flag("mlp_bias", False) != bias:
        raise config.error("mlp_bias", f"only mlp_bias equal to attention_bias={bias} is supported")
    return {"use_bias": bias}


def _gated_activation(config: Fields, model_type: str) -> str:
    if model_type != "gemma":
        return READ_GATES[config.text("hidden_act", READ_GATES)]
    # The first Gemma checkpoints have "gelu" for the approximation, and versions of transformers before 4.48
    # read hidden_activation.
    activation = {**READ_GATES, "gelu": "geglu"}[config.text("hidden_act", (*READ_GATES, "gelu"))]
    other = config.get("hidden_activation")
    if other is not None and READ_GATES.get(str(other)) != activation:
        raise config.error(
            "hidden_activation", f"expected the function of hidden_act={config['hidden_act']!r}"
        )
    return activation


def _rotary(config: Fields, length: int) -> dict[str, Any]:
    """Reads rope_theta and rope_scaling of transformers before 5, or rope_parameters, which has both."""
    parameters, scaling = (_object(config, name) for name in ("rope_parameters", "rope_scaling"))
    base = config.get("rope_theta")
    base = config.real("rope_theta", 0.0) if base is not None else parameters.get("rope_theta", 10000.0)
    if parameters.get("rope_theta", base) != base:
        raise config.error("rope_theta", f"rope_parameters has {parameters['rope_theta']!r}. Make them equal")
    rope = {**scaling, **parameters}
    kind = rope.get("rope_type", rope.get("type", "default"))
    numbers = {
        x: rope[x] for x in rope if x not in ("rope_type", "type", "rope_theta") and rope[x] is not None
    }
    if numbers.pop("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise config.error("partial_rotary_factor", "only partial_rotary_factor=1 is supported")
    if kind == "llama3":
        numbers.setdefault("original_max_position_embeddings", length)
    if kind == "default" and not numbers:
        return {"rotary_base": base}
    try:
        return {"rotary_base": base, "rotary_scaling": check_scaling({"rope_type": kind, **numbers})}
    except ConfigError as error:
        name = "rope_parameters" if parameters else "rope_scaling"
        raise config.error(name, f"{error}".rstrip(".")) from error


def _object(config: Fields, name: str) -> dict[str, Any]:
    value = config.get(name)
    if value is not None and not isinstance(value, dict):
        raise config.error(name, "expected an object")
    return value or {}


def model_type_of(config: GPTConfig) -> str:
    """Returns the model_type of the class that supports most of a config; see `beyond`."""
    if config.positions == "learned":
        return "openai-gpt" if config.norm_position == "post" else "gpt2"
    if config.scale_embedding:
        return "gemma"
    if config.qk_norm:
        return "qwen3"
    return "qwen2" if config.qkv_bias else "llama"


def beyond(config: GPTConfig) -> list[str]:
    """Returns the options of a config that its class of transformers does not support."""
    model_type = model_type_of(config)
    if model_type in WITH_LEARNED_POSITIONS:
        activations = ACTIVATIONS if model_type == "gpt2" else GPT1_ACTIVATIONS
        where = "with learned positions"
        differences = {
            "norm": config.norm != "layer",
            "activation": config.activation not in activations,
            "use_bias": not config.use_bias,
            "qkv_bias": config.qkv_bias is not None,
            "qk_norm": config.qk_norm,
            "scale_embedding": config.scale_embedding,
            "kv_heads": config.kv_heads not in (None, config.num_heads),
            "head_dim": config.head_dim is not None,
        }
        if model_type == "openai-gpt" and config.mlp_dim != 4 * config.width:
            differences["mlp_dim"] = True
            where += " and norm_position='post'"
    else:
        where = {"gemma": "with scale_embedding=True", "qwen3": "with qk_norm=True"}.get(
            model_type, "with rotary positions"
        )
        differences = {
            "norm": config.norm != "rms",
            "norm_position": config.norm_position != "pre",
            "activation": config.activation not in GATES,
            "use_bias": config.use_bias and model_type != "llama",
            "qkv_bias": config.qkv_bias is not None and model_type != "qwen2",
            "qk_norm": config.qk_norm and model_type != "qwen3",
        }
    return [f"{name}={getattr(config, name)!r} {where}" for name, differs in differences.items() if differs]


def write_fields(config: GPTConfig) -> dict[str, Any]:
    """Returns the entries of config.json that describe the architecture, without the vocabulary."""
    model_type = model_type_of(config)
    if model_type in WITH_LEARNED_POSITIONS:
        fields = {
            "n_embd": config.width,
            "n_layer": config.depth,
            "n_head": config.num_heads,
            "n_positions": config.max_length,
            "n_ctx": config.max_length,
            "layer_norm_epsilon": config.norm_epsilon,
            "embd_pdrop": config.dropout,
            "resid_pdrop": config.dropout,
            "attn_pdrop": config.attention_dropout,
        }
        if model_type == "gpt2":
            return {
                **fields,
                "n_inner": config.mlp_dim,
                "activation_function": ACTIVATIONS[config.activation],
            }
        return {**fields, "afn": GPT1_ACTIVATIONS[config.activation]}
    scaling = config.rotary_scaling or {"rope_type": "default"}
    activation = GATES[config.activation]
    return {
        **sizes(config),
        "hidden_act": activation,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rotary_base,  # this and rope_scaling for transformers before 5
        "rope_scaling": config.rotary_scaling,
        "rope_parameters": {**scaling, "rope_theta": config.rotary_base},
        **{
            "llama": {"attention_bias": config.use_bias, "mlp_bias": config.use_bias},
            "qwen2": {"use_sliding_window": False},
            "qwen3": {"use_sliding_window": False, "attention_bias": False},
            "gemma": {"hidden_activation": activation, "attention_bias": False},
        }[model_type],
    }


def sizes(config: GPTConfig) -> dict[str, Any]:
    """Returns the entries of config.json with the sizes of a decoder, by the names of Llama."""
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.kv_heads or config.num_heads,
        "head_dim": config.head_size,
        "intermediate_size": config.mlp_dim,
        "max_position_embeddings": config.max_length,
        "attention_dropout": config.attention_dropout,
    }

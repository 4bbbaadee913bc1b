"""Converts configs and tensors of Hugging Face's GPT-2, Llama and Mistral, in both directions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError, user_stacklevel
from keras_tx.heads import CausalLMHead
from keras_tx.layers.rotary import check_scaling
from keras_tx.models.families import HuggingFace, HuggingFaceConfig, WeightSource
from keras_tx.models.generation_defaults import read_stop_ids
from keras_tx.models.gpt.model import GPT, GPTConfig
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.processing import TextTransform
from keras_tx.weights.config_json import Fields
from keras_tx.weights.tensor_map import HEAD, Entry, Form, Plan, first_rows, layer_norm, linear
from keras_tx.weights.tensor_source import Checkpoint, Tensors

MODEL_TYPES = ("gpt2", "llama", "mistral")
BODIES = ("GPT2Model", "LlamaModel", "MistralModel")
CAUSAL_LM = ("GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM")
SENTENCEPIECE = "tokenizer.model"

# The names that are written; other names of the same functions are read.
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
READ_ACTIVATIONS = {
    **{name: activation for activation, name in ACTIVATIONS.items()},
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
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
OF_OTHER_HEADS = ("score.", "classifier.", "qa_outputs.", "multiple_choice_head.")


def read(checkpoint: Checkpoint) -> WeightSource:
    """Describes a checkpoint. The BOS id is that of the tokenizer.

    Raises:
        ConfigError: for a field of config.json that is not supported.
    """
    tensors = checkpoint.tensors
    config = Fields(checkpoint)
    kind = config.text("model_type", MODEL_TYPES)
    config.names = GPT2_KEYS if kind == "gpt2" else LLAMA_KEYS
    fields = _gpt2_fields(config) if kind == "gpt2" else _llama_fields(config, mistral=kind == "mistral")
    processing = _processing(checkpoint.folder)
    fields["pad_id"] = _pad_id(config, fields["vocabulary_size"])
    fields["stop_ids"] = read_stop_ids(config, processing, fields["vocabulary_size"])
    config.refuse("quantization_config", None)

    def planned(model: TransformerModel) -> Plan:
        assert isinstance(model, GPT)
        return plan(model, tensors, _score_scales(config, model.config) if kind == "gpt2" else None)

    return WeightSource(
        where=tensors.where,
        model_class=GPT,
        fields=fields,
        head=_head_of(config),
        processing=processing,
        tensors=tensors,
        config=config,
        plan=planned,
    )


def plan(model: GPT, tensors: Tensors | None = None, scales: Sequence[float] | None = None) -> Plan:
    """Returns the tensor map between a model and a checkpoint of GPT-2 or Llama.

    `scales` are the scales of the attention scores of each block of a GPT-2, relative to 1 / sqrt(head size).
    The queries absorb them, so that the model is an ordinary GPT-2 with the same outputs.
    """
    config: GPTConfig = model.config
    reasons = beyond(config)
    if reasons:
        raise ConfigError(
            f"Model {model.name!r} has {', '.join(reasons)}, which Hugging Face's GPT-2 and Llama do not "
            "support, so their weights do not fit."
        )
    llama = config.positions == "rotary"
    body = ("model." if llama else "transformer.") if model.head is not None else ""
    entries = _llama_entries(config, body) if llama else _gpt2_entries(config, body, scales)
    if model.head is not None and not config.tied:
        entries += linear("lm_head", contract.LOGITS, bias=False, part=HEAD)
    words = "embed_tokens.weight" if llama else "wte.weight"
    return Plan(
        entries=tuple(entries),
        canonical=_canonical,
        copies={"lm_head.weight": words} if config.tied else {},
        computed=(".rotary_emb.inv_freq",) if llama else (".attn.bias", ".attn.masked_bias"),
        others=OF_OTHER_HEADS if model.head is not None else ("lm_head.", *OF_OTHER_HEADS),
    )


def _canonical(name: str) -> str:
    return name.removeprefix("transformer.").removeprefix("model.")


def _score_scales(config: Fields, gpt: GPTConfig) -> list[float] | None:
    """Returns the scale of the scores of each block, relative to 1 / sqrt(head size); None if all are 1."""
    plain = config.flag("scale_attn_weights", True)
    by_block = config.flag("scale_attn_by_inverse_layer_idx", False)
    if plain and not by_block:
        return None
    whole = 1.0 if plain else math.sqrt(gpt.head_size)
    return [whole / (index + 1 if by_block else 1) for index in range(gpt.depth)]


def _gpt2_entries(config: GPTConfig, body: str, scales: Sequence[float] | None) -> list[Entry]:
    entries = [
        Entry(f"{body}wte.weight", ("token_embedding/table",)),
        Entry(f"{body}wpe.weight", ("positions/table",), fit=first_rows),
    ]
    for index in range(config.depth):
        prefix, block = f"{body}h.{index}", f"block_{index}"
        packed = [f"{block}/attention/{part}" for part in ("query", "key", "value")]
        factors = None if scales is None else (scales[index], 1.0, 1.0)
        entries += [
            *layer_norm(f"{prefix}.ln_1", f"{block}/attention_norm"),
            # Conv1D has (in, out), as Keras does; query, key and value are concatenated.
            Entry(
                f"{prefix}.attn.c_attn.weight",
                tuple(f"{path}/kernel" for path in packed),
                Form(join=1, factors=factors),
            ),
            Entry(
                f"{prefix}.attn.c_attn.bias", tuple(f"{path}/bias" for path in packed), Form(factors=factors)
            ),
            *_conv1d(f"{prefix}.attn.c_proj", f"{block}/attention/output"),
            *layer_norm(f"{prefix}.ln_2", f"{block}/feed_forward_norm"),
            *_conv1d(f"{prefix}.mlp.c_fc", f"{block}/feed_forward/up"),
            *_conv1d(f"{prefix}.mlp.c_proj", f"{block}/feed_forward/down"),
        ]
    return [*entries, *layer_norm(f"{body}ln_f", "norm")]


def _conv1d(name: str, path: str) -> list[Entry]:
    return [Entry(f"{name}.weight", (f"{path}/kernel",)), Entry(f"{name}.bias", (f"{path}/bias",))]


def _llama_entries(config: GPTConfig, body: str) -> list[Entry]:
    entries = [Entry(f"{body}embed_tokens.weight", ("token_embedding/table",))]
    for index in range(config.depth):
        prefix, block = f"{body}layers.{index}", f"block_{index}"
        layers = {
            "self_attn.q_proj": "attention/query",
            "self_attn.k_proj": "attention/key",
            "self_attn.v_proj": "attention/value",
            "self_attn.o_proj": "attention/output",
            "mlp.gate_proj": "feed_forward/gate",
            "mlp.up_proj": "feed_forward/up",
            "mlp.down_proj": "feed_forward/down",
        }
        for name, path in layers.items():
            entries += linear(f"{prefix}.{name}", f"{block}/{path}", bias=config.use_bias)
        entries += [
            Entry(f"{prefix}.input_layernorm.weight", (f"{block}/attention_norm/scale",)),
            Entry(f"{prefix}.post_attention_layernorm.weight", (f"{block}/feed_forward_norm/scale",)),
        ]
    return [*entries, Entry(f"{body}norm.weight", ("norm/scale",))]


def _gpt2_fields(config: Fields) -> dict[str, Any]:
    config.refuse("add_cross_attention", False)
    rates = {name: config.real(name, 0.1) for name in ("resid_pdrop", "embd_pdrop")}
    if rates["embd_pdrop"] != rates["resid_pdrop"]:
        warnings.warn(
            f"{config.where} has {rates}; keras-tx has one rate for both and uses that of "
            "resid_pdrop. It affects training only.",
            stacklevel=user_stacklevel(),
        )
    width = config.number("n_embd", 768)
    return {
        "vocabulary_size": config.number("vocab_size", 50257),
        "max_length": config.number("n_positions", 1024),
        "width": width,
        "depth": config.number("n_layer", 12),
        "num_heads": config.number("n_head", 12),
        "mlp_dim": config.number("n_inner", 0, none=True) or 4 * width,
        "activation": READ_ACTIVATIONS[config.text("activation_function", READ_ACTIVATIONS, "gelu_new")],
        "norm_epsilon": config.real("layer_norm_epsilon", 1e-5),
        "tied": config.flag("tie_word_embeddings", True),
        "dropout": rates["resid_pdrop"],
        "attention_dropout": config.real("attn_pdrop", 0.1),
    }


def _llama_fields(config: Fields, mistral: bool) -> dict[str, Any]:
    length = config.number("max_position_embeddings", 4096 * 32 if mistral else 2048)
    heads = config.number("num_attention_heads", 32)
    bias = False
    if mistral:
        config.setdefault("sliding_window", 4096)
        window = config.number("sliding_window", 4096, none=True)
        if window is not None and window < length:
            raise config.error(
                "sliding_window", f"expected null or at least max_position_embeddings={length}"
            )
    else:
        bias = config.flag("attention_bias", False)
        if config.flag("mlp_bias", False) != bias:
            raise config.error("mlp_bias", f"only mlp_bias equal to attention_bias={bias} is supported")
    config.text("hidden_act", ("silu", "swish"), "silu")
    config.refuse("rope_interleaved", False)
    return {
        "vocabulary_size": config.number("vocab_size", 32000),
        "max_length": length,
        "width": config.number("hidden_size", 4096),
        "depth": config.number("num_hidden_layers", 32),
        "num_heads": heads,
        "kv_heads": config.number("num_key_value_heads", 8 if mistral else heads, none=True) or heads,
        "head_dim": config.number("head_dim", 0, none=True) or None,
        "mlp_dim": config.number("intermediate_size", 14336 if mistral else 11008),
        "positions": "rotary",
        **_rotary(config, length),
        "norm": "rms",
        "norm_epsilon": config.real("rms_norm_eps", 1e-6),
        "activation": "swiglu",
        "use_bias": bias,
        "tied": config.flag("tie_word_embeddings", False),
        "dropout": 0.0,
        "attention_dropout": config.real("attention_dropout", 0.0),
    }


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


def _head_of(config: Fields) -> CausalLMHead | ConfigError | None:
    architecture = config.architecture()
    if architecture in CAUSAL_LM:
        return CausalLMHead()
    if architecture in BODIES:
        return None
    return config.error(
        "architectures", "only causal language models are supported. Pass head=None to load the decoder alone"
    )


def _pad_id(config: Fields, vocabulary: int) -> int | None:
    """Returns the padding id; None if it is also an EOS or BOS id, as in many configs."""
    pad = config.get("pad_token_id")
    named = [config.get(name) for name in ("eos_token_id", "bos_token_id")]
    others = [number for x in named for number in (x if isinstance(x, list) else [x])]
    return pad if type(pad) is int and pad not in others and 0 <= pad < vocabulary else None


def _processing(folder: Path | None) -> TextTransform | None:
    if folder is None:
        return None
    if any((folder / name).is_file() for name in (contract.TOKENIZER, contract.VOCAB_JSON)):
        return TextTransform.load(folder, segments=False)
    if (folder / SENTENCEPIECE).is_file():
        try:
            return TextTransform.load(folder, segments=False)
        except ConfigError as error:
            warnings.warn(
                f"{folder} has {SENTENCEPIECE} but no {contract.TOKENIZER}, so the model has no tokenizer: "
                f"{error}",
                stacklevel=user_stacklevel(),
            )
    return None


def to_config(
    model: GPT, labels: Sequence[str] | None = None, processing: TextTransform | None = None
) -> HuggingFaceConfig:
    """Returns the config.json of a GPT as GPT-2 or Llama. Llama has no dropout but that of attention."""
    config: GPTConfig = model.config
    rotary = config.positions == "rotary"
    whole = "ForCausalLM" if rotary else "LMHeadModel"
    body = "Model" if model.head is None else whole
    reasons = beyond(config)
    fields: dict[str, Any] = {
        "vocab_size": config.vocabulary_size,
        "tie_word_embeddings": config.tied,
        "initializer_range": 0.02,
        "use_cache": True,
        **model.special_ids(processing),
    }
    if rotary or reasons:
        fields |= {
            "hidden_size": config.width,
            "num_hidden_layers": config.depth,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.kv_heads or config.num_heads,
            "head_dim": config.head_size,
            "intermediate_size": config.mlp_dim,
            "max_position_embeddings": config.max_length,
            "attention_dropout": config.attention_dropout,
        }
    if reasons:
        differing = ("positions", "norm", "activation", "use_bias", "norm_epsilon", "rotary_base", "dropout")
        return HuggingFaceConfig({**fields, **{name: getattr(config, name) for name in differing}}, reasons)
    if rotary:
        scaling = config.rotary_scaling or {"rope_type": "default"}
        fields |= {
            "hidden_act": "silu",
            "rms_norm_eps": config.norm_epsilon,
            "attention_bias": config.use_bias,
            "mlp_bias": config.use_bias,
            "rope_theta": config.rotary_base,  # this and rope_scaling for transformers before 5
            "rope_scaling": config.rotary_scaling,
            "rope_parameters": {**scaling, "rope_theta": config.rotary_base},
        }
        return HuggingFaceConfig({"model_type": "llama", "architectures": [f"Llama{body}"], **fields})
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
    return HuggingFaceConfig({"model_type": "gpt2", "architectures": [f"GPT2{body}"], **fields})


def files(model: GPT) -> dict[str, Any]:
    """Returns generation_config.json for a model with a head."""
    if model.head is None:
        return {}
    known = {name: number for name, number in model.special_ids().items() if number is not None}
    return {contract.GENERATION_CONFIG: known}


def beyond(config: GPTConfig) -> list[str]:
    """Returns the options that neither GPT-2 nor Llama supports."""
    if config.positions == "rotary":
        differences = {
            f"norm={config.norm!r} with rotary positions": config.norm != "rms",
            f"activation={config.activation!r} with rotary positions": config.activation != "swiglu",
        }
    else:
        differences = {
            f"norm={config.norm!r} with learned positions": config.norm != "layer",
            f"activation={config.activation!r} with learned positions": config.activation not in ACTIVATIONS,
            f"use_bias={config.use_bias} with learned positions": not config.use_bias,
            f"kv_heads={config.kv_heads} with learned positions": (
                config.kv_heads not in (None, config.num_heads)
            ),
            f"head_dim={config.head_dim} with learned positions": config.head_dim is not None,
        }
    return [difference for difference, present in differences.items() if present]


CONVERTER = HuggingFace(MODEL_TYPES, read, plan, to_config, files)

"""Converts keras-hub's GPT-2 and Llama, in both directions."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from typing import Any

from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError, user_stacklevel
from keras_tx.heads import CausalLMHead
from keras_tx.models.families import KerasHub, WeightSource
from keras_tx.models.gpt.huggingface_config import beyond, model_type_of
from keras_tx.models.gpt.model import GPT, GPTConfig
from keras_tx.processing import TextTransform, byte_bpe
from keras_tx.weights.assignment import model_tensors
from keras_tx.weights.tensor_map import HEAD, Entry, Plan, attention_layer, dense_layer, norm_layer
from keras_tx.weights.tensor_source import Tensors

TASKS = ("GPT2CausalLM", "LlamaCausalLM", "Llama3CausalLM")
CLASSES = (*TASKS, "GPT2Backbone", "LlamaBackbone")
EPSILON = 1e-5  # of keras-hub's GPT-2
LONGEST = 4096  # Llama 2's max_length, the default: keras-hub's Llama has none


def read(source: Any) -> WeightSource:
    """Describes a live backbone or task; max_length of a Llama is that of its preprocessor."""
    kinds = {kind.__name__ for kind in type(source).__mro__}
    task = bool(kinds & set(TASKS))
    backbone = source.backbone if task else source
    preprocessor = source.preprocessor if task else None
    variables = {variable.path: variable for variable in source.weights}
    tensors = Tensors(
        f"the keras-hub model {source.name!r}",
        {path: tuple(variable.shape) for path, variable in variables.items()},
        lambda path: ops.convert_to_numpy(variables[path]),
        sum(4 * math.prod(variable.shape) for variable in variables.values()),
    )
    gpt2 = "GPT2Backbone" in {kind.__name__ for kind in type(backbone).__mro__}
    length = getattr(preprocessor, "sequence_length", None)
    return WeightSource(
        where=tensors.where,
        model_class=GPT,
        fields=_gpt2_fields(backbone) if gpt2 else _llama_fields(backbone, length),
        head=CausalLMHead() if task else None,
        processing=_processing(getattr(preprocessor, "tokenizer", None), tensors.where),
        tensors=tensors,
        plan=plan,  # type: ignore[arg-type]
    )


def to_keras_hub(model: GPT) -> Any:
    """Returns a GPT2CausalLM or LlamaCausalLM, or a backbone for a model without a head, with equal outputs.

    A byte-level BPE becomes the preprocessor of a GPT-2. keras-hub has one dropout rate, which is `dropout`.
    """
    import keras_hub

    config: GPTConfig = model.config
    reasons = _unsupported_options(config)
    if model.head is not None and not isinstance(model.head, CausalLMHead):
        reasons = [*reasons, f"head={model.head}"]
    if reasons:
        raise ConfigError(
            f"Model {model.name!r} has {', '.join(reasons)}, which keras-hub's GPT-2 and Llama do not "
            "support. Save it with model.save."
        )
    llama = config.positions == "rotary"
    models: Any = keras_hub.models
    shared = {
        "vocabulary_size": config.vocabulary_size,
        "num_layers": config.depth,
        "hidden_dim": config.width,
        "intermediate_dim": config.mlp_dim,
        "dropout": config.dropout,
        "dtype": model.layers_policy,
    }
    if llama:
        backbone = models.LlamaBackbone(
            **shared,
            num_query_heads=config.num_heads,
            num_key_value_heads=config.kv_heads or config.num_heads,
            rope_max_wavelength=config.rotary_base,
            layer_norm_epsilon=config.norm_epsilon,
            tie_word_embeddings=config.tied or model.head is None,
            **_their_scaling(config.rotary_scaling),
        )
    else:
        backbone = models.GPT2Backbone(
            **shared, num_heads=config.num_heads, max_sequence_length=config.max_length
        )
    made = backbone
    if model.head is not None:
        preprocessor = None if llama else _preprocessor(model)
        if model.processing is not None and preprocessor is None:
            warnings.warn(
                f"The tokenizer of model {model.name!r} is not supported by keras-hub and is omitted. Pass "
                "token ids to the task.",
                stacklevel=user_stacklevel(),
            )
        kind = models.LlamaCausalLM if llama else models.GPT2CausalLM
        made = kind(backbone=backbone, preprocessor=preprocessor)
    variables = {variable.path: variable for variable in made.weights}
    for entry, value in model_tensors(model, plan(model)):
        variables.pop(entry.name).assign(value)
    assert not variables, sorted(variables)
    return made


def plan(model: GPT) -> Plan:
    """Returns the tensor map between a model and keras-hub's variables."""
    config: GPTConfig = model.config
    reasons = _unsupported_options(config)
    if reasons:
        raise ConfigError(
            f"Model {model.name!r} has {', '.join(reasons)}, which keras-hub's GPT-2 and Llama do not "
            "support, so their weights do not fit."
        )
    llama = config.positions == "rotary"
    entries = [Entry("token_embedding/embeddings", ("token_embedding/table",))]
    if not llama:
        entries.append(Entry("position_embedding/embeddings", ("positions/table",)))
    for index in range(config.depth):
        entries += _block(config, f"transformer_layer_{index}", f"block_{index}")
    entries += norm_layer(
        "sequence_output_layernorm" if llama else "layer_norm", "norm", rms=config.norm == "rms"
    )
    reverse = "token_embedding/reverse_embeddings"
    if isinstance(model.head, CausalLMHead) and not config.tied:
        entries.append(Entry(reverse, (f"{contract.LOGITS}/kernel",), part=HEAD))
    return Plan(tuple(entries), others=(reverse,))


def _block(config: GPTConfig, source: str, block: str) -> list[Entry]:
    rms = config.norm == "rms"
    norm = "layernorm" if rms else "layer_norm"
    dense = {"intermediate": "up", "output": "down"}
    if config.activation == "swiglu":
        dense["gate"] = "gate"
    entries = attention_layer(
        f"{source}/self_attention",
        f"{block}/attention",
        config.num_heads,
        config.head_size,
        kv_heads=config.kv_heads,
        bias=config.use_bias,
    )
    for name, layer in dense.items():
        entries += dense_layer(
            f"{source}/feedforward_{name}_dense", f"{block}/feed_forward/{layer}", bias=config.use_bias
        )
    entries += norm_layer(f"{source}/self_attention_{norm}", f"{block}/attention_norm", rms=rms)
    return [*entries, *norm_layer(f"{source}/feedforward_{norm}", f"{block}/feed_forward_norm", rms=rms)]


def _gpt2_fields(backbone: Any) -> dict[str, Any]:
    return {
        "vocabulary_size": backbone.vocabulary_size,
        "max_length": backbone.max_sequence_length,
        "width": backbone.hidden_dim,
        "depth": backbone.num_layers,
        "num_heads": backbone.num_heads,
        "mlp_dim": backbone.intermediate_dim,
        "norm_epsilon": EPSILON,
        "dropout": backbone.dropout,
        "attention_dropout": backbone.dropout,
    }


def _llama_fields(backbone: Any, length: int | None) -> dict[str, Any]:
    scaling = _our_scaling(backbone)
    return {
        "vocabulary_size": backbone.vocabulary_size,
        "max_length": length or LONGEST,
        "width": backbone.hidden_dim,
        "depth": backbone.num_layers,
        "num_heads": backbone.num_query_heads,
        "kv_heads": backbone.num_key_value_heads,
        "mlp_dim": backbone.intermediate_dim,
        "positions": "rotary",
        "rotary_base": float(backbone.rope_max_wavelength),
        "rotary_scaling": scaling,
        "norm": "rms",
        "norm_epsilon": backbone.layer_norm_epsilon,
        "activation": "swiglu",
        "use_bias": False,
        "tied": backbone.tie_word_embeddings,
        "dropout": backbone.dropout,
        "attention_dropout": 0.0,
    }


def _our_scaling(backbone: Any) -> dict[str, Any] | None:
    if backbone.rope_position_scaling_factor != 1.0:
        raise ConfigError(
            f"The keras-hub model {backbone.name!r} has rope_position_scaling_factor="
            f"{backbone.rope_position_scaling_factor}, which keras-hub ignores. Create it with 1.0."
        )
    factor = backbone.rope_frequency_adjustment_factor
    if factor is None:
        return None
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": backbone.rope_low_freq_factor,
        "high_freq_factor": backbone.rope_high_freq_factor,
        "original_max_position_embeddings": backbone.rope_pretraining_sequence_length,
    }


def _their_scaling(scaling: dict[str, Any] | None) -> dict[str, Any]:
    if scaling is None:
        return {}
    return {
        "rope_frequency_adjustment_factor": scaling["factor"],
        "rope_low_freq_factor": scaling["low_freq_factor"],
        "rope_high_freq_factor": scaling["high_freq_factor"],
        "rope_pretraining_sequence_length": scaling["original_max_position_embeddings"],
    }


def _unsupported_options(config: GPTConfig) -> list[str]:
    """Returns the options that keras-hub's GPT-2 and Llama do not support."""
    if model_type_of(config) not in ("gpt2", "llama"):
        names = ("norm_position", "qk_norm", "qkv_bias", "scale_embedding")
        default = {field.name: field.default for field in dataclasses.fields(config)}
        return [
            f"{name}={getattr(config, name)!r}" for name in names if getattr(config, name) != default[name]
        ]
    differences = {f"head_dim={config.head_dim}": config.head_dim is not None}
    if config.positions == "rotary":
        differences["use_bias=True with rotary positions"] = config.use_bias
        kind = (config.rotary_scaling or {}).get("rope_type")
        differences[f"rotary_scaling={config.rotary_scaling}"] = kind == "linear"
        differences[f"activation={config.activation!r}"] = config.activation == "geglu"
    else:
        differences |= {
            f"norm_epsilon={config.norm_epsilon} with learned positions": config.norm_epsilon != EPSILON,
            f"activation={config.activation!r} with learned positions": config.activation != "gelu_tanh",
            "tied=False with learned positions": not config.tied,
        }
    unsupported = [difference for difference, present in differences.items() if present]
    return [*beyond(config), *unsupported]


def _processing(tokenizer: Any, where: str) -> TextTransform | None:
    """Converts GPT-2's byte-level BPE; unlike in keras-hub's generate(), no token is prepended to a text."""
    if tokenizer is None:
        return None
    if type(tokenizer).__name__ != "GPT2Tokenizer":
        warnings.warn(
            f"{where} has a {type(tokenizer).__name__}, which has no tokenizer.json, so the model has no "
            "tokenizer. Pass processing=keras_tx.TextTransform.load(...).",
            stacklevel=user_stacklevel(),
        )
        return None
    merges = [merge for merge in tokenizer.merges if not merge.startswith("#version")]
    return byte_bpe(dict(tokenizer.vocabulary), merges, add_prefix_space=tokenizer.add_prefix_space)


def _preprocessor(model: GPT) -> Any:
    """Returns GPT-2's preprocessor, or None if the tokenizer is not a byte-level BPE."""
    import keras_hub

    transform = model.processing
    if transform is None:
        return None
    content = json.loads(transform.tokenizer)
    split, bpe = content["pre_tokenizer"] or {}, content["model"]
    plain = bpe["type"] == "BPE" and split.get("type") == "ByteLevel" and split.get("use_regex", True)
    if not plain or content["normalizer"] is not None or "<|endoftext|>" not in transform.vocabulary:
        return None
    models: Any = keras_hub.models
    tokenizer = models.GPT2Tokenizer(
        vocabulary=dict(transform.vocabulary),
        merges=[x if isinstance(x, str) else " ".join(x) for x in bpe["merges"]],
        add_prefix_space=split["add_prefix_space"],
    )
    length = transform.max_length or model.config.max_length
    return models.GPT2CausalLMPreprocessor(tokenizer=tokenizer, sequence_length=length)


CONVERTER = KerasHub(CLASSES, read, to_keras_hub)

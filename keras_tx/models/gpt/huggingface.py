"""Converts configs and tensors of Hugging Face's decoders, in both directions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.heads import CausalLMHead, Head, TokenClassifierHead
from keras_tx.models.checkpoint_tokenizer import read_tokenizer
from keras_tx.models.families import HuggingFace, HuggingFaceConfig, WeightSource, label_fields
from keras_tx.models.generation_defaults import generation_files, read_generation_defaults, read_stop_ids
from keras_tx.models.gpt.huggingface_config import (
    CLASSES,
    beyond,
    model_type_of,
    read_fields,
    sizes,
    write_fields,
)
from keras_tx.models.gpt.huggingface_heads import (
    SAMPLE_HEADS,
    architecture_of,
    head_entries,
    head_fields,
    read_head,
    unsupported,
)
from keras_tx.models.gpt.huggingface_tensors import gpt1_entries, gpt2_entries, llama_entries
from keras_tx.models.gpt.model import GPT, GPTConfig
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.processing import TextTransform
from keras_tx.weights.config_json import Fields
from keras_tx.weights.tensor_map import HEAD, Plan, linear
from keras_tx.weights.tensor_source import Checkpoint, Tensors

MODEL_TYPES = tuple(CLASSES)
BODIES = tuple(f"{name}Model" for name in CLASSES.values())
CAUSAL_LM = tuple(f"{name}{end}" for name in CLASSES.values() for end in ("LMHeadModel", "ForCausalLM"))
BUFFERS = (".attn.bias", ".attn.masked_bias", "position_ids")  # of GPT-1 and GPT-2, in old checkpoints
# Fields of GPTConfig in a config.json without model_type.
DIFFERING = (
    "positions",
    "norm",
    "norm_position",
    "qk_norm",
    "activation",
    "use_bias",
    "qkv_bias",
    "scale_embedding",
    "norm_epsilon",
    "rotary_base",
    "dropout",
)
OF_OTHER_HEADS = ("score.", "classifier.", "qa_outputs.", "multiple_choice_head.")


def read(checkpoint: Checkpoint) -> WeightSource:
    """Describes a checkpoint. The BOS id is that of the tokenizer.

    Raises:
        ConfigError: for a field of config.json that is not supported.
    """
    tensors = checkpoint.tensors
    config = Fields(checkpoint)
    kind = config.text("model_type", MODEL_TYPES)
    fields = read_fields(config, kind)
    processing = read_tokenizer(checkpoint.folder)
    fields["pad_id"] = _pad_id(config, fields["vocabulary_size"])
    fields["stop_ids"] = read_stop_ids(config, processing, fields["vocabulary_size"])
    config.refuse("quantization_config", None)
    head = _head_of(config)
    if isinstance(head, CausalLMHead):
        fields["generation"] = read_generation_defaults(config)
    if isinstance(head, SAMPLE_HEADS):  # transformers reads the last token that is not this id
        fields["pad_id"] = _pad_id(config, fields["vocabulary_size"], distinct=False)

    def planned(model: TransformerModel) -> Plan:
        assert isinstance(model, GPT)
        scales = _score_scales(config, model.config) if kind == "gpt2" else None
        return plan(model, tensors, scales, head if isinstance(head, Head) else None)

    return WeightSource(
        where=tensors.where,
        model_class=GPT,
        fields=fields,
        head=head,
        processing=processing,
        tensors=tensors,
        config=config,
        plan=planned,
    )


def plan(
    model: GPT,
    tensors: Tensors | None = None,
    scales: Sequence[float] | None = None,
    stored: Head | None = None,
) -> Plan:
    """Returns the tensor map between a model and a checkpoint of the decoder of transformers that it equals.

    `scales` are the scales of the attention scores of each block of a GPT-2, relative to 1 / sqrt(head size).
    The queries absorb them, so that the model is an ordinary GPT-2 with the same outputs. `stored` is the
    head of the checkpoint, None if it is unknown.
    """
    config: GPTConfig = model.config
    reasons = beyond(config)
    if reasons:
        raise ConfigError(
            f"Model {model.name!r} has {', '.join(reasons)}, which no decoder of transformers supports, so "
            "its weights do not fit."
        )
    llama = config.positions == "rotary"
    body = ("model." if llama else "transformer.") if model.head is not None else ""
    model_type = model_type_of(config)
    if llama:
        entries, words = llama_entries(config, body), "embed_tokens.weight"
    elif model_type == "openai-gpt":
        entries, words = gpt1_entries(config, body), "tokens_embed.weight"
    else:
        entries, words = gpt2_entries(config, body, scales), "wte.weight"
    entries += head_entries(model.head, stored, "score" if llama else "classifier")
    if isinstance(model.head, CausalLMHead) and not config.tied:
        entries += linear("lm_head", contract.LOGITS, bias=False, part=HEAD)
    return Plan(
        entries=tuple(entries),
        canonical=_canonical,
        copies={"lm_head.weight": words} if config.tied and isinstance(model.head, CausalLMHead) else {},
        computed=(".rotary_emb.inv_freq",) if llama else BUFFERS,
        others=OF_OTHER_HEADS if isinstance(model.head, CausalLMHead) else ("lm_head.", *OF_OTHER_HEADS),
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


def _head_of(config: Fields) -> Head | ConfigError | None:
    architecture = config.architecture()
    if architecture in CAUSAL_LM:
        return CausalLMHead()
    if architecture in BODIES:
        return None
    return read_head(config, architecture) or config.error(
        "architectures",
        "only causal language models and classifiers of sequences and tokens are supported. Pass head=None "
        "to load the decoder alone",
    )


def _pad_id(config: Fields, vocabulary: int, distinct: bool = True) -> int | None:
    """Returns the padding id; with `distinct`, None if it is also an EOS or BOS id, as in many configs."""
    pad = config.get("pad_token_id")
    named = [config.get(name) for name in ("eos_token_id", "bos_token_id")]
    others = [] if not distinct else [number for x in named for number in (x if isinstance(x, list) else [x])]
    return pad if type(pad) is int and pad not in others and 0 <= pad < vocabulary else None


def to_config(
    model: GPT, labels: Sequence[str] | None = None, processing: TextTransform | None = None
) -> HuggingFaceConfig:
    """Returns the config.json of a GPT; with rotary positions, it has no dropout but that of attention."""
    config: GPTConfig = model.config
    model_type = model_type_of(config)
    body = architecture_of(model.head, "ForCausalLM" if config.positions == "rotary" else "LMHeadModel")
    reasons = [*beyond(config), *unsupported(model.head)]
    if model_type == "openai-gpt" and isinstance(model.head, TokenClassifierHead):
        reasons.append("a TokenClassifierHead with norm_position='post'")
    fields: dict[str, Any] = {
        "vocab_size": config.vocabulary_size,
        "tie_word_embeddings": config.tied,
        "initializer_range": 0.02,
        "use_cache": True,
        **model.special_ids(processing),
        **label_fields(labels),
        **head_fields(model.head),
    }
    if reasons:
        content = {**fields, **sizes(config), **{name: getattr(config, name) for name in DIFFERING}}
        return HuggingFaceConfig(content, reasons)
    names = {"model_type": model_type, "architectures": [f"{CLASSES[model_type]}{body}"]}
    return HuggingFaceConfig({**names, **fields, **write_fields(config)})


def files(model: GPT) -> dict[str, Any]:
    """Returns generation_config.json for a model that generates text."""
    return generation_files(model) if isinstance(model.head, CausalLMHead) else {}


CONVERTER = HuggingFace(MODEL_TYPES, read, plan, to_config, files)

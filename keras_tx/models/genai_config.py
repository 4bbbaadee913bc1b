"""genai_config.json, with which onnxruntime-genai loads an exported decoder."""

from __future__ import annotations

from typing import Any

from keras_tx import contract
from keras_tx.models.generation_defaults import generation_defaults
from keras_tx.models.text_model import DecoderModel

# The default options of `generate` that mean the same there.
DEFAULTS = ("repetition_penalty",)


def genai_config(model: DecoderModel, special: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of the file; `special` are the BOS, EOS and padding ids."""
    config = model.config
    return genai_content(
        context_length=config.max_length,
        vocabulary_size=config.vocabulary_size,
        width=config.width,
        num_heads=config.num_heads,
        cache_shape=model.cache_shape,
        special=special,
        defaults=generation_defaults(model),
    )


def genai_content(
    *,
    context_length: int,
    vocabulary_size: int,
    width: int,
    num_heads: int,
    cache_shape: tuple[int, int, int],
    special: dict[str, Any],
    defaults: dict[str, Any],
) -> dict[str, Any]:
    """Returns the content of the file for a decoder.

    Args:
        context_length: the maximum number of tokens.
        vocabulary_size: the number of logits.
        width: of a token's vector.
        num_heads: the number of heads of queries.
        cache_shape: layers, heads of keys and values, and the size of a head.
        special: the BOS, EOS and padding ids.
        defaults: options of `generate`.
    """
    layers, kv_heads, head_size = cache_shape
    end, pad = special["eos_token_id"], special["pad_token_id"]
    first = end[0] if isinstance(end, list) else end
    known = {  # onnxruntime-genai requires numbers for BOS and padding
        "bos_token_id": special["bos_token_id"] or 0,
        "eos_token_id": [] if end is None else end,
        "pad_token_id": (first or 0) if pad is None else pad,
    }
    return {
        "model": {
            **known,
            "type": "decoder",
            "context_length": context_length,
            "vocab_size": vocabulary_size,
            "decoder": {
                "session_options": {"provider_options": []},
                "filename": contract.MODEL,
                "hidden_size": width,
                "head_size": head_size,
                "num_attention_heads": num_heads,
                "num_key_value_heads": kv_heads,
                "num_hidden_layers": layers,
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
            "max_length": context_length,
            "past_present_share_buffer": False,
            **{name: value for name, value in defaults.items() if name in DEFAULTS},
            "temperature": 1.0,
            "top_k": 50,
            "top_p": 1.0,
        },
    }

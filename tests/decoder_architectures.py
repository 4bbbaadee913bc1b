"""Tiny GPTs with the options of each decoder of Hugging Face: a variant, and fields that differ from it."""

from __future__ import annotations

from typing import Any

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "openai-gpt": ("pico", {"norm_position": "post"}),
    "qwen2": ("llama-tiny", {"qkv_bias": True}),
    "qwen3": ("llama-tiny", {"qk_norm": True, "head_dim": 8, "tied": True}),
    "gemma": ("llama-tiny", {"scale_embedding": True, "activation": "geglu", "head_dim": 24, "tied": True}),
}

"""Typed overrides of the factories, so that editors complete them: the fields of each config dataclass.

tests/models/test_overrides.py compares them with the dataclasses, and prints what is missing.
"""

from __future__ import annotations

from typing import Any, TypedDict

from keras_tx.arguments import Count, Epsilon, Positive, Rate, Size


class ViTOverrides(TypedDict, total=False):
    """Fields of ViTConfig."""

    patch_size: Size | tuple[Size, Size]
    width: Size
    depth: Size
    mlp_dim: Size
    num_heads: Size
    image_size: Size | tuple[Size, Size]
    channels: Size
    drop_remainder: bool
    stem: str
    pooling: str
    class_token: bool | None
    positions: str
    rotary_base: Positive
    registers: Count
    distillation: bool
    mask_token: bool
    patch_bias: bool
    qkv_bias: bool
    key_bias: bool | None
    qk_norm: bool
    pre_norm: bool
    pooled_norm: bool
    pooler: str | None
    pooler_dim: Size | None
    activation: str
    norm_epsilon: Epsilon
    dropout: Rate
    attention_dropout: Rate
    drop_path: Rate
    layer_scale: float | None


class BertOverrides(TypedDict, total=False):
    """Fields of BertConfig."""

    width: Size
    depth: Size
    num_heads: Size
    mlp_dim: Size
    vocabulary_size: Size
    max_length: Size
    segments: Count
    position_offset: Count
    pad_id: Count
    pooler: str | None
    position_ids: bool
    activation: str
    norm_epsilon: Epsilon
    dropout: Rate
    attention_dropout: Rate


class DebertaOverrides(TypedDict, total=False):
    """Fields of DebertaConfig."""

    width: Size
    depth: Size
    num_heads: Size
    mlp_dim: Size
    vocabulary_size: Size
    max_length: Size
    pad_id: Count
    max_distance: Size
    buckets: Size | None
    content_to_position: bool
    position_to_content: bool
    shared_projections: bool
    normalize_positions: bool
    pooler: str
    activation: str
    norm_epsilon: Epsilon
    dropout: Rate
    attention_dropout: Rate
    pooler_dropout: Rate


class ModernBertOverrides(TypedDict, total=False):
    """Fields of ModernBertConfig."""

    width: Size
    depth: Size
    num_heads: Size
    mlp_dim: Size
    vocabulary_size: Size
    max_length: Size
    pad_id: Count | None
    window: Size
    global_every: Size
    rotary_base: Positive
    local_rotary_base: Positive
    activation: str
    use_bias: bool
    head_activation: str
    head_bias: bool
    norm_epsilon: Epsilon
    dropout: Rate
    hidden_dropout: Rate
    attention_dropout: Rate


class TransformerOverrides(TypedDict, total=False):
    """Fields of TransformerConfig."""

    width: Size
    depth: Size
    num_heads: Size
    mlp_dim: Size
    decoder_depth: Size | None
    vocabulary_size: Size
    max_length: Size
    positions: str
    scale_embedding: bool
    embedding_norm: bool
    norm_position: str
    activation: str
    tied: bool
    logits_bias: bool
    pad_id: Count
    start_id: Count | None
    stop_ids: tuple[int, ...] | None
    generation: dict[str, Any] | None
    task_options: dict[str, Any] | None
    norm_epsilon: Epsilon
    dropout: Rate
    hidden_dropout: Rate
    attention_dropout: Rate


class T5Overrides(TypedDict, total=False):
    """Fields of T5Config."""

    width: Size
    depth: Size
    num_heads: Size
    mlp_dim: Size
    head_dim: Size
    decoder_depth: Size | None
    vocabulary_size: Size
    max_length: Size
    activation: str
    tied: bool
    scale_logits: bool
    relative_buckets: Size
    relative_max_distance: Size
    pad_id: Count
    start_id: Count | None
    stop_ids: tuple[int, ...] | None
    generation: dict[str, Any] | None
    task_options: dict[str, Any] | None
    norm_epsilon: Epsilon
    dropout: Rate


class GPTOverrides(TypedDict, total=False):
    """Fields of GPTConfig."""

    width: Size
    depth: Size
    num_heads: Size
    mlp_dim: Size
    vocabulary_size: Size
    max_length: Size
    kv_heads: Size | None
    head_dim: Size | None
    positions: str
    rotary_base: Positive
    rotary_scaling: dict[str, Any] | None
    norm: str
    norm_position: str
    qk_norm: bool
    activation: str
    use_bias: bool
    qkv_bias: bool | None
    scale_embedding: bool
    tied: bool
    pad_id: Count | None
    stop_ids: tuple[int, ...] | None
    generation: dict[str, Any] | None
    norm_epsilon: Epsilon
    dropout: Rate
    attention_dropout: Rate

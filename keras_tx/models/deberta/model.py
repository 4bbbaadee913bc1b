"""DeBERTa: "DeBERTaV3: Improving DeBERTa using ELECTRA-Style Pre-Training" (He et al.)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Unpack

import keras
from keras import ops

from keras_tx import contract
from keras_tx.arguments import Count, Epsilon, Rate, Size, check_fields
from keras_tx.errors import ConfigError, nearest
from keras_tx.heads import (
    CausalLMHead,
    ClassifierHead,
    DistilledClassifierHead,
    Encoded,
    Head,
    MaskedLMHead,
    MultiLabelHead,
    MultipleChoiceHead,
    NextSentenceHead,
    PretrainingHead,
    RegressionHead,
    SentenceEmbeddingHead,
    SpanHead,
    TokenClassifierHead,
)
from keras_tx.layers import TokenEmbedding, TransformerBlock
from keras_tx.layers.disentangled_attention import POSITION_OPTIONS, DisentangledAttention, check_buckets
from keras_tx.layers.relative_embeddings import RelativeEmbeddings
from keras_tx.models.config import make_config, unknown_variant
from keras_tx.models.overrides import DebertaOverrides
from keras_tx.models.text_model import EncoderModel
from keras_tx.models.transformer_model import AUTO
from keras_tx.processing import TextTransform

ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
POOLERS = ("gelu", "gelu_tanh", "relu", "tanh")
OTHER_HEADS = (CausalLMHead, DistilledClassifierHead, MultipleChoiceHead, NextSentenceHead, PretrainingHead)

VARIANTS: dict[str, dict[str, int]] = {
    # the checkpoints of He et al., table 2
    "xsmall": {"depth": 12, "width": 384, "num_heads": 6, "mlp_dim": 1536},
    "small": {"depth": 6, "width": 768, "num_heads": 12, "mlp_dim": 3072},
    "base": {"depth": 12, "width": 768, "num_heads": 12, "mlp_dim": 3072},
    "large": {"depth": 24, "width": 1024, "num_heads": 16, "mlp_dim": 4096},
    "tiny": {"depth": 2, "width": 64, "num_heads": 2, "mlp_dim": 128},  # a toy for tests
}


@dataclasses.dataclass(frozen=True)
class DebertaConfig:
    """The config of a DeBERTa; `DebertaConfig.variant("base")` returns that of a published size.

    Args:
        width: size of the token vectors.
        depth: number of blocks.
        num_heads: number of attention heads.
        mlp_dim: hidden size of the feed-forward layers.
        vocabulary_size: number of token embeddings.
        max_length: the largest number of tokens of a text; positions are relative, and any is possible.
        pad_id: id of padding tokens, which the default attention_mask masks.
        max_distance: the distance from which on all tokens have the same relative position.
        buckets: half of the number of relative positions; None for `max_distance`.
        content_to_position: whether tokens attend to relative positions.
        position_to_content: whether relative positions attend to tokens.
        shared_projections: whether the dense layers of query and key also project relative positions.
        normalize_positions: whether a layer norm follows the embeddings of relative positions.
        pooler: activation of the dense layer on the class token, below the logits of a whole text.
        activation: of the feed-forward layers: "gelu", "gelu_tanh" or "relu".
        norm_epsilon: of the norms.
        dropout: rate after the embeddings, those of positions included, and in the blocks.
        attention_dropout: rate of the attention weights.
        pooler_dropout: rate before the pooler.
    """

    width: Size
    depth: Size
    num_heads: Size
    mlp_dim: Size
    vocabulary_size: Size = 128100
    max_length: Size = 512
    pad_id: Count = 0
    max_distance: Size = 512
    buckets: Size | None = 256
    content_to_position: bool = True
    position_to_content: bool = True
    shared_projections: bool = True
    normalize_positions: bool = True
    pooler: str = "gelu"
    activation: str = "gelu"
    norm_epsilon: Epsilon = 1e-7
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    pooler_dropout: Rate = 0.0

    # Fields that may differ from those of the initial weights.
    FREE: ClassVar[frozenset[str]] = frozenset(
        {"attention_dropout", "dropout", "max_length", "pooler", "pooler_dropout"}
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.width % self.num_heads:
            raise ConfigError(f"width={self.width} is not divisible by num_heads={self.num_heads}.")
        if self.pad_id >= self.vocabulary_size:
            raise ConfigError(
                f"pad_id={self.pad_id} is out of range for vocabulary_size={self.vocabulary_size}."
            )
        for name, known in (("activation", ACTIVATIONS), ("pooler", POOLERS)):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"{name}={value!r} is unknown. {nearest(str(value), known)}")
        check_buckets(self.buckets, self.max_distance)
        if not self.content_to_position and not self.position_to_content:
            raise ConfigError(
                "content_to_position and position_to_content are both False, so tokens have no positions. "
                "Set one of them to True."
            )

    @classmethod
    def variant(cls, name: str, **overrides: Any) -> DebertaConfig:
        """The config of a published size.

        >>> DebertaConfig.variant("large").width
        1024
        """
        if name not in VARIANTS:
            raise unknown_variant(name, VARIANTS)
        return make_config(cls, {**VARIANTS[name], **overrides})

    @property
    def position_count(self) -> int:
        """The number of embeddings of relative positions."""
        return 2 * (self.buckets or self.max_distance)


@keras.saving.register_keras_serializable("keras_tx")
class DisentangledBlock(TransformerBlock):
    """A block with DisentangledAttention, whose `positions` it accepts."""

    def __init__(self, num_heads: int, mlp_dim: int, **options: Any):
        # The base class creates the layer.
        self.position_options = {name: options.pop(name) for name in POSITION_OPTIONS if name in options}
        super().__init__(num_heads, mlp_dim, **options)

    def _self_attention(self, num_heads: int, **options: Any) -> DisentangledAttention:
        return DisentangledAttention(num_heads, **self.position_options, **options)

    def _draws(self) -> list[tuple[keras.layers.Dropout, int]]:
        dropout = self.attention.positions_dropout
        return [*super()._draws(), *([(dropout, 1)] if dropout.rate > 0 else [])]

    def get_config(self) -> dict[str, Any]:
        attention = self.attention.get_config()
        return {**super().get_config(), **{name: attention[name] for name in POSITION_OPTIONS}}


@keras.saving.register_keras_serializable("keras_tx")
class Deberta(EncoderModel):
    """A bidirectional encoder with relative positions; see `deberta`."""

    config_class = DebertaConfig
    heads = (
        MaskedLMHead,
        ClassifierHead,
        MultiLabelHead,
        RegressionHead,
        TokenClassifierHead,
        SpanHead,
        SentenceEmbeddingHead,
    )

    @classmethod
    def check_head(cls, head: Any) -> None:
        if isinstance(head, OTHER_HEADS):
            known = ", ".join(kind.__name__ for kind in cls.heads)
            raise ConfigError(f"head={head!r} is not supported by a DeBERTa. Pass one of {known}, or None.")
        if head is not None and not isinstance(head, Head):  # a head of the user's own is supported
            super().check_head(head)

    @classmethod
    def input_names(cls, config: DebertaConfig) -> list[str]:
        return [contract.INPUT_IDS, contract.ATTENTION_MASK]

    @classmethod
    def encode(cls, config: DebertaConfig, inputs: dict[str, Any], dtype: Any) -> Encoded:
        return _encode(config, inputs, dtype)

    @classmethod
    def features(cls, encoded: Encoded) -> dict[str, Any]:
        return {contract.LAST_HIDDEN_STATE: encoded.tokens}


def deberta(
    variant: str = "base",
    *,
    num_classes: int | None = None,
    head: Head | str | None = AUTO,
    weights: Any = None,
    processing: TextTransform | None = None,
    name: str | None = None,
    dtype: Any = None,
    **overrides: Unpack[DebertaOverrides],
) -> Deberta:
    """A bidirectional encoder with relative positions, DeBERTa-v3, as a functional keras.Model.

    Its inputs are `input_ids` (batch, sequence), alone or in a dict with `attention_mask` (by default 0 where
    the id is `pad_id`). The head defines the outputs; without one they are {"last_hidden_state": (batch,
    sequence, width)}.

    Args:
        variant: "xsmall", "small", "base" or "large".
        num_classes: number of classes; short for `head=ClassifierHead(num_classes)`.
        head: MaskedLMHead, ClassifierHead, MultiLabelHead, RegressionHead, TokenClassifierHead, SpanHead or
            SentenceEmbeddingHead. None, the default of this family, returns hidden states.
        weights: source of the initial weights: a Hugging Face folder, a .safetensors file, "hf://owner/name",
            a .keras or .weights.h5 file. The variant must be that of the source; keras_tx.from_checkpoint
            reads it from the source's config.
        processing: converts texts to ids. It determines `vocabulary_size` and `pad_id`, and truncates texts
            to `max_length`.
        name: of the model.
        dtype: a dtype policy ("mixed_bfloat16"); by default Keras's global one.
        overrides: fields of DebertaConfig: `vocabulary_size=8000`, `dropout=0.0` ...

    Returns:
        A Deberta.

    Raises:
        ConfigError: for an unknown variant or field, a value out of range, or weights that do not fit.

    Example:

    >>> import numpy as np
    >>> import keras_tx
    >>> model = keras_tx.deberta("tiny", num_classes=2, vocabulary_size=100)
    >>> tuple(model(np.array([[1, 15, 2, 0], [1, 15, 27, 2]])).shape)
    (2, 2)
    """
    return Deberta.from_variant(
        variant,
        num_classes=num_classes,
        head=head,
        weights=weights,
        processing=processing,
        name=name,
        dtype=dtype,
        **overrides,
    )


def _encode(config: DebertaConfig, inputs: dict[str, Any], dtype: Any) -> Encoded:
    ids, mask = inputs[contract.INPUT_IDS], inputs[contract.ATTENTION_MASK]
    initializer = keras.initializers.TruncatedNormal(stddev=0.02)
    embedding = TokenEmbedding(
        config.vocabulary_size, config.width, initializer=initializer, dtype=dtype, name="token_embedding"
    )
    x = embedding(ids)
    x = keras.layers.LayerNormalization(epsilon=config.norm_epsilon, dtype=dtype, name="embedding_norm")(x)
    if config.dropout:
        x = keras.layers.Dropout(config.dropout, dtype=dtype, name="dropout")(x)
    positions = RelativeEmbeddings(
        config.position_count,
        config.width,
        normalize=config.normalize_positions,
        norm_epsilon=config.norm_epsilon,
        initializer=initializer,
        dtype=dtype,
        name="positions",
    )(ids)
    for index in range(config.depth):
        x = DisentangledBlock(
            config.num_heads,
            config.mlp_dim,
            max_distance=config.max_distance,
            buckets=config.buckets,
            content_to_position=config.content_to_position,
            position_to_content=config.position_to_content,
            shared_projections=config.shared_projections,
            position_dropout=config.dropout,
            activation=config.activation,
            norm_position="post",
            norm_epsilon=config.norm_epsilon,
            dropout=config.dropout,
            hidden_dropout=0.0,
            attention_dropout=config.attention_dropout,
            kernel_initializer=initializer,
            dtype=dtype,
            name=f"block_{index}",
        )(x, padding_mask=mask, positions=positions)

    def pool() -> Any:
        first = x[:, 0]
        if config.pooler_dropout:
            first = keras.layers.Dropout(config.pooler_dropout, dtype=dtype, name="pooler_dropout")(first)
        dense = keras.layers.Dense(config.width, kernel_initializer=initializer, dtype=dtype, name="pooler")
        return _activated(dense(first), config.pooler)

    return Encoded(x, mask, embedding, config, pool)


def _activated(x: Any, activation: str) -> Any:
    if activation in ("tanh", "relu"):
        return getattr(ops, activation)(x)
    return ops.gelu(x, approximate=activation == "gelu_tanh")

"""ModernBERT: "Smarter, Better, Faster, Longer" (Warner et al.)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Unpack

import keras
from keras import ops

from keras_tx import contract
from keras_tx.arguments import Count, Epsilon, Positive, Rate, Size, check_fields
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
from keras_tx.heads.base import average_tokens
from keras_tx.heads.language_model import ACTIVATIONS as HEAD_ACTIVATIONS
from keras_tx.heads.language_model import word_logits
from keras_tx.layers import TokenEmbedding, TransformerBlock
from keras_tx.layers.feed_forward import GATED
from keras_tx.layers.sliding_window import SlidingWindow
from keras_tx.models.config import make_config, unknown_variant
from keras_tx.models.overrides import ModernBertOverrides
from keras_tx.models.text_model import EncoderModel
from keras_tx.models.transformer_model import AUTO
from keras_tx.processing import TextTransform

VOCABULARY, PAD_ID = 50368, 50283  # of the checkpoints
OTHER_HEADS = (CausalLMHead, DistilledClassifierHead, MultipleChoiceHead, NextSentenceHead, PretrainingHead)

VARIANTS: dict[str, dict[str, int]] = {
    # the checkpoints of Warner et al., section 2.1
    "base": {"depth": 22, "width": 768, "num_heads": 12, "mlp_dim": 1152},
    "large": {"depth": 28, "width": 1024, "num_heads": 16, "mlp_dim": 2624},
    "tiny": {"depth": 4, "width": 64, "num_heads": 2, "mlp_dim": 96},  # a toy for tests
}


@dataclasses.dataclass(frozen=True)
class ModernBertConfig:
    """The config of a ModernBERT; `ModernBertConfig.variant("base")` returns that of a published size.

    Args:
        width: size of the token vectors.
        depth: number of blocks.
        num_heads: number of attention heads.
        mlp_dim: hidden size of the feed-forward layers.
        vocabulary_size: number of token embeddings.
        max_length: the largest number of tokens of a text; positions are rotary, and have no table.
        pad_id: id of padding tokens, which the default attention_mask masks; None for none.
        window: number of neighbours, half of them on each side, to which tokens attend in local blocks.
        global_every: every how many blocks, from the first one on, tokens attend to all others.
        rotary_base: base of the rotary frequencies in global blocks.
        local_rotary_base: base of the rotary frequencies in local blocks.
        activation: of the feed-forward layers: "geglu_exact", "geglu" or "swiglu".
        use_bias: whether dense layers and norms have biases.
        head_activation: of the dense layer below the logits: "gelu", "gelu_tanh" or "relu".
        head_bias: whether this layer has a bias.
        norm_epsilon: of the norms.
        dropout: rate after the embeddings.
        hidden_dropout: rate inside the feed-forward layers.
        attention_dropout: rate of the attention weights.
    """

    width: Size
    depth: Size
    num_heads: Size
    mlp_dim: Size
    vocabulary_size: Size = VOCABULARY
    max_length: Size = 8192
    pad_id: Count | None = None
    window: Size = 128
    global_every: Size = 3
    rotary_base: Positive = 160000.0
    local_rotary_base: Positive = 10000.0
    activation: str = "geglu_exact"
    use_bias: bool = False
    head_activation: str = "gelu"
    head_bias: bool = False
    norm_epsilon: Epsilon = 1e-5
    dropout: Rate = 0.0
    hidden_dropout: Rate = 0.0
    attention_dropout: Rate = 0.0

    positions: ClassVar[str] = "rotary"

    # Fields that may differ from those of the initial weights.
    FREE: ClassVar[frozenset[str]] = frozenset(
        {"attention_dropout", "dropout", "hidden_dropout", "max_length", "pad_id"}
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.width % self.num_heads:
            raise ConfigError(f"width={self.width} is not divisible by num_heads={self.num_heads}.")
        if self.pad_id is not None and self.pad_id >= self.vocabulary_size:
            raise ConfigError(
                f"pad_id={self.pad_id} is out of range for vocabulary_size={self.vocabulary_size}."
            )
        for name, known in (("activation", GATED), ("head_activation", HEAD_ACTIVATIONS)):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"{name}={value!r} is unknown. {nearest(str(value), known)}")

    @classmethod
    def variant(cls, name: str, **overrides: Any) -> ModernBertConfig:
        """The config of a published size.

        >>> ModernBertConfig.variant("large").width
        1024
        """
        if name not in VARIANTS:
            raise unknown_variant(name, VARIANTS)
        own_vocabulary = {} if "vocabulary_size" in overrides else {"pad_id": PAD_ID}
        return make_config(cls, {**VARIANTS[name], **own_vocabulary, **overrides})

    def is_global(self, index: int) -> bool:
        """Whether tokens attend to all others in this block."""
        return index % self.global_every == 0


@keras.saving.register_keras_serializable("keras_tx")
class FirstBlock(TransformerBlock):
    """The first block, which has no norm before its attention, because that of the embeddings precedes it."""

    def _norm(self, name: str, use_bias: bool) -> keras.layers.Layer:
        if name == "attention_norm":
            return keras.layers.Identity(dtype=self.dtype_policy, name=name)
        return super()._norm(name, use_bias)


@keras.saving.register_keras_serializable("keras_tx")
class ModernBert(EncoderModel):
    """A bidirectional encoder of long texts; see `modernbert`."""

    config_class = ModernBertConfig
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
            raise ConfigError(
                f"head={head!r} is not supported by a ModernBert. Pass one of {known}, or None."
            )
        if head is not None and not isinstance(head, Head):  # a head of the user's own is supported
            super().check_head(head)

    @classmethod
    def input_names(cls, config: ModernBertConfig) -> list[str]:
        return [contract.INPUT_IDS, contract.ATTENTION_MASK]

    @classmethod
    def encode(cls, config: ModernBertConfig, inputs: dict[str, Any], dtype: Any) -> Encoded:
        return _encode(config, inputs, dtype)

    @classmethod
    def features(cls, encoded: Encoded) -> dict[str, Any]:
        return {contract.LAST_HIDDEN_STATE: encoded.tokens}

    @classmethod
    def logits(cls, head: Head, encoded: Encoded) -> Any:
        """Returns the outputs of a head; a dense layer and a norm are below the logits."""
        if isinstance(head, MaskedLMHead):
            tokens = _predicted(encoded.tokens, encoded.config, head)
            return word_logits(tokens, encoded, contract.LOGITS, head.tied)
        if isinstance(head, TokenClassifierHead | SpanHead):
            return head(dataclasses.replace(encoded, tokens=_predicted(encoded.tokens, encoded.config)))
        if head.takes_sample and getattr(head, "pooling", None) == "average":
            return head(_predicted(average_tokens(encoded), encoded.config))
        return super().logits(head, encoded)


def modernbert(
    variant: str = "base",
    *,
    num_classes: int | None = None,
    head: Head | str | None = AUTO,
    weights: Any = None,
    processing: TextTransform | None = None,
    name: str | None = None,
    dtype: Any = None,
    **overrides: Unpack[ModernBertOverrides],
) -> ModernBert:
    """A bidirectional encoder of long texts as a functional keras.Model.

    Its inputs are `input_ids` (batch, sequence), alone or in a dict with `attention_mask` (by default 0 where
    the id is `pad_id`). The head defines the outputs; without one they are {"last_hidden_state": (batch,
    sequence, width)}.

    Args:
        variant: "base" or "large".
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
        overrides: fields of ModernBertConfig: `vocabulary_size=8000`, `window=64` ...

    Returns:
        A ModernBert.

    Raises:
        ConfigError: for an unknown variant or field, a value out of range, or weights that do not fit.

    Example:

    >>> import numpy as np
    >>> import keras_tx
    >>> model = keras_tx.modernbert("tiny", num_classes=2, vocabulary_size=100)
    >>> tuple(model(np.array([[2, 15, 3, 7], [2, 15, 27, 3]])).shape)
    (2, 2)
    """
    model = ModernBert.from_variant(
        variant,
        num_classes=num_classes,
        head=head,
        weights=weights,
        processing=processing,
        name=name,
        dtype=dtype,
        **overrides,
    )
    if weights is not None:
        return model
    # Megatron's initialization: what is added to the residual starts smaller the more blocks there are.
    for index in range(model.config.depth):
        block = model.get_layer(f"block_{index}")
        for layer in (block.attention.output_projection, block.feed_forward.down):
            layer.kernel.assign(layer.kernel / math.sqrt(2 * model.config.depth))
    return model


def _encode(config: ModernBertConfig, inputs: dict[str, Any], dtype: Any) -> Encoded:
    ids, mask = inputs[contract.INPUT_IDS], inputs[contract.ATTENTION_MASK]
    initializer = keras.initializers.TruncatedNormal(stddev=0.02)
    embedding = TokenEmbedding(
        config.vocabulary_size, config.width, initializer=initializer, dtype=dtype, name="token_embedding"
    )
    x = _norm(config, dtype, "embedding_norm")(embedding(ids))
    if config.dropout:
        x = keras.layers.Dropout(config.dropout, dtype=dtype, name="dropout")(x)
    near = None
    if not all(map(config.is_global, range(config.depth))):
        near = SlidingWindow(config.window // 2, name="window")(ids)
    for index in range(config.depth):
        kind = TransformerBlock if index else FirstBlock
        everywhere = config.is_global(index)
        x = kind(
            config.num_heads,
            config.mlp_dim,
            rotary_base=config.rotary_base if everywhere else config.local_rotary_base,
            activation=config.activation,
            norm_epsilon=config.norm_epsilon,
            hidden_dropout=config.hidden_dropout,
            attention_dropout=config.attention_dropout,
            use_bias=config.use_bias,
            kernel_initializer=initializer,
            dtype=dtype,
            name=f"block_{index}",
        )(x, attention_mask=None if everywhere else near, padding_mask=mask)
    x = _norm(config, dtype, "norm")(x)
    return Encoded(x, mask, embedding, config, lambda: _predicted(x[:, 0], config))


def _norm(config: ModernBertConfig, dtype: Any, name: str) -> keras.layers.Layer:
    return keras.layers.LayerNormalization(
        epsilon=config.norm_epsilon, center=config.use_bias, dtype=dtype, name=name
    )


def _predicted(x: Any, config: ModernBertConfig, head: MaskedLMHead | None = None) -> Any:
    """A dense layer, an activation and a norm below the logits; a MaskedLMHead may have its own options."""
    activation = (head and head.activation) or config.head_activation
    epsilon = (head and head.norm_epsilon) or config.norm_epsilon
    x = keras.layers.Dense(
        config.width,
        use_bias=config.head_bias,
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        dtype="float32",
        name="prediction_dense",
    )(x)
    x = ops.relu(x) if activation == "relu" else ops.gelu(x, activation == "gelu_tanh")
    return keras.layers.LayerNormalization(
        epsilon=epsilon, center=config.use_bias, dtype="float32", name="prediction_norm"
    )(x)

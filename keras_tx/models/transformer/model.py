"""The Transformer: "Attention Is All You Need" (Vaswani et al.), and its relatives Marian and BART."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Unpack

import keras
from keras import ops

from keras_tx import contract
from keras_tx.arguments import Count, Epsilon, Rate, Size, check_fields
from keras_tx.errors import ConfigError, nearest
from keras_tx.heads import Encoded, Head
from keras_tx.layers import PositionalEmbedding, TokenEmbedding, TransformerBlock
from keras_tx.layers.transformer_block import NORM_POSITIONS
from keras_tx.models.config import check_token_ids, make_config, unknown_variant
from keras_tx.models.encoder_decoder_model import EncoderDecoderModel
from keras_tx.models.generation_defaults import check_generation_defaults, check_task_options
from keras_tx.models.overrides import TransformerOverrides
from keras_tx.models.transformer_model import AUTO
from keras_tx.processing import TextTransform

POSITIONS = ("sine-cosine", "sine-cosine-halves", "learned")
ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh")
_BART = {
    "positions": "learned",
    "scale_embedding": False,
    "embedding_norm": True,
    "activation": "gelu",
    "logits_bias": True,
    "vocabulary_size": 50265,
    "max_length": 1024,
    "pad_id": 1,
    "start_id": 2,
    "norm_epsilon": 1e-5,
}

VARIANTS: dict[str, dict[str, Any]] = {
    # table 3 of Vaswani et al.
    "base": {"depth": 6, "width": 512, "mlp_dim": 2048, "num_heads": 8},
    "big": {"depth": 6, "width": 1024, "mlp_dim": 4096, "num_heads": 16, "dropout": 0.3},
    # the translation models of Helsinki-NLP; their vocabularies differ
    "marian": {
        "depth": 6,
        "width": 512,
        "mlp_dim": 2048,
        "num_heads": 8,
        "positions": "sine-cosine-halves",
        "activation": "silu",
        "logits_bias": True,
        "vocabulary_size": 58101,
        "pad_id": 58100,
        "norm_epsilon": 1e-5,
    },
    "bart-base": {"depth": 6, "width": 768, "mlp_dim": 3072, "num_heads": 12, **_BART},
    "bart-large": {"depth": 12, "width": 1024, "mlp_dim": 4096, "num_heads": 16, **_BART},
    "tiny": {  # a toy for tests
        "depth": 2,
        "width": 32,
        "mlp_dim": 64,
        "num_heads": 2,
        "vocabulary_size": 256,
        "max_length": 64,
    },
}


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """The config of a Transformer; `TransformerConfig.variant("base")` returns that of a published size.

    Args:
        width: size of the token vectors.
        depth: number of blocks of the encoder.
        num_heads: number of attention heads.
        mlp_dim: hidden size of the feed-forward layers.
        decoder_depth: number of blocks of the decoder; None means depth.
        vocabulary_size: number of token embeddings, which source, target and logits share.
        max_length: maximum number of tokens in a source and in a target.
        positions: "sine-cosine", "sine-cosine-halves" (all sines before all cosines, as in Marian), or
            "learned", with a table for the source and one for the target (BART).
        scale_embedding: whether token vectors are multiplied by sqrt(width).
        embedding_norm: whether the sum of token vectors and positions is normalized (BART).
        norm_position: "post", or "pre" with another norm after the last block (mBART).
        activation: of the feed-forward layers: "relu", "silu" (Marian), "gelu" (BART) or "gelu_tanh".
        tied: whether logits are computed with the token embedding.
        logits_bias: whether logits have a bias.
        pad_id: id of padding tokens, which the default attention_mask masks.
        start_id: id of the first token of every target; None means pad_id.
        stop_ids: ids that end a target; None means the tokenizer's end token.
        generation: default options of `generate`, such as {"num_beams": 4, "bad_words_ids": [[0]]}.
        task_options: prefix of sources and options by task, as `task_specific_params` of Hugging Face's
            config.json: {"summarization": {"prefix": "summarize: ", "num_beams": 4}}.
        norm_epsilon: of the norms.
        dropout: rate after the embeddings and of the output of each half of a block.
        hidden_dropout: rate inside the feed-forward layers.
        attention_dropout: rate of the attention weights.
    """

    width: Size
    depth: Size
    num_heads: Size
    mlp_dim: Size
    decoder_depth: Size | None = None
    vocabulary_size: Size = 37000
    max_length: Size = 512
    positions: str = "sine-cosine"
    scale_embedding: bool = True
    embedding_norm: bool = False
    norm_position: str = "post"
    activation: str = "relu"
    tied: bool = True
    logits_bias: bool = False
    pad_id: Count = 0
    start_id: Count | None = None
    stop_ids: tuple[int, ...] | None = None
    generation: dict[str, Any] | None = None
    task_options: dict[str, Any] | None = None
    norm_epsilon: Epsilon = 1e-6
    dropout: Rate = 0.1
    hidden_dropout: Rate = 0.0
    attention_dropout: Rate = 0.0

    # Fields that may differ from those of the initial weights.
    FREE: ClassVar[frozenset[str]] = frozenset(
        {
            "attention_dropout",
            "dropout",
            "generation",
            "task_options",
            "hidden_dropout",
            "max_length",
            "pad_id",
            "start_id",
            "stop_ids",
        }
    )
    logits_scale: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.width % self.num_heads:
            raise ConfigError(f"width={self.width} is not divisible by num_heads={self.num_heads}.")
        for name, known in (
            ("positions", POSITIONS),
            ("norm_position", NORM_POSITIONS),
            ("activation", ACTIVATIONS),
        ):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"{name}={value!r} is unknown. {nearest(str(value), known)}")
        if self.decoder_depth == self.depth:
            object.__setattr__(self, "decoder_depth", None)
        if self.start_id == self.pad_id:
            object.__setattr__(self, "start_id", None)
        check_token_ids(self)
        check_generation_defaults(self.generation)
        check_task_options(self.task_options)

    @classmethod
    def variant(cls, name: str, **overrides: Any) -> TransformerConfig:
        """The config of a published size.

        >>> TransformerConfig.variant("big").width
        1024
        """
        if name not in VARIANTS:
            raise unknown_variant(name, VARIANTS)
        return make_config(cls, {**VARIANTS[name], **overrides})


@keras.saving.register_keras_serializable("keras_tx")
class Transformer(EncoderDecoderModel):
    """An encoder-decoder with absolute positions; see `transformer`."""

    config_class = TransformerConfig

    @classmethod
    def encode(cls, config: TransformerConfig, inputs: dict[str, Any], dtype: Any) -> Encoded:
        return _encode(config, inputs, dtype)


def transformer(
    variant: str = "base",
    *,
    num_classes: int | None = None,
    head: Head | str | None = AUTO,
    weights: Any = None,
    processing: TextTransform | None = None,
    name: str | None = None,
    dtype: Any = None,
    **overrides: Unpack[TransformerOverrides],
) -> Transformer:
    """The encoder-decoder of "Attention Is All You Need" as a functional keras.Model.

    Its inputs are a dict of `input_ids` (batch, source), `decoder_input_ids` (batch, target), and optionally
    `attention_mask` (by default 0 where the id is `pad_id`) and `decoder_attention_mask` (by default 1). Its
    output are logits (batch, target, vocabulary) of the token after each of the target.

    Args:
        variant: "base" or "big" (Vaswani et al.), "marian", "bart-base", "bart-large", or "tiny".
        num_classes: not supported, as a Transformer has no classifier head.
        head: Seq2SeqLMHead, the default of this family; None returns the decoder's hidden states.
        weights: source of the initial weights: a Hugging Face folder, a .safetensors file, "hf://owner/name",
            a .keras or .weights.h5 file. The variant must be that of the source; keras_tx.from_checkpoint
            reads it from the source's config.
        processing: converts texts to ids. It determines `vocabulary_size` and `pad_id`, and truncates texts
            to `max_length`.
        name: of the model.
        dtype: a dtype policy ("mixed_bfloat16"); by default Keras's global one.
        overrides: fields of TransformerConfig: `vocabulary_size=8000`, `decoder_depth=2`, `dropout=0.3` ...

    Returns:
        A Transformer.

    Raises:
        ConfigError: for an unknown variant or field, a value out of range, or weights that do not fit.

    Example:

    >>> import numpy as np
    >>> import keras_tx
    >>> model = keras_tx.transformer("tiny")
    >>> source, target = np.array([[37, 9, 4, 1]]), np.array([[0, 52]])
    >>> tuple(model({"input_ids": source, "decoder_input_ids": target}).shape)
    (1, 2, 256)
    """
    return Transformer.from_variant(
        variant,
        num_classes=num_classes,
        head=head,
        weights=weights,
        processing=processing,
        name=name,
        dtype=dtype,
        **overrides,
    )


def _encode(config: TransformerConfig, inputs: dict[str, Any], dtype: Any) -> Encoded:
    embedding = TokenEmbedding(
        config.vocabulary_size,
        config.width,
        initializer=keras.initializers.RandomNormal(stddev=config.width**-0.5),
        dtype=dtype,
        name="token_embedding",
    )
    mask, target_mask = inputs[contract.ATTENTION_MASK], inputs[contract.DECODER_ATTENTION_MASK]
    source = _stack(config, "encoder", config.depth, embedding(inputs[contract.INPUT_IDS]), mask, dtype)
    target = _stack(
        config,
        "decoder",
        config.decoder_depth or config.depth,
        embedding(inputs[contract.DECODER_INPUT_IDS]),
        target_mask,
        dtype,
        value=source,
        value_padding_mask=mask,
    )
    return Encoded(target, target_mask, embedding if config.tied else None, config, source=source)


def _stack(
    config: TransformerConfig, part: str, depth: int, x: Any, mask: Any, dtype: Any, **cross_attention: Any
) -> Any:
    """The blocks of the encoder or decoder."""

    def norm(name: str) -> keras.layers.Layer:
        return keras.layers.LayerNormalization(
            epsilon=config.norm_epsilon, dtype=dtype, name=f"{part}_{name}"
        )

    if config.scale_embedding:
        x = ops.multiply(x, math.sqrt(config.width))
    x = PositionalEmbedding(config.max_length, config.positions, dtype=dtype, name=f"{part}_positions")(x)
    if config.embedding_norm:
        x = norm("embedding_norm")(x)
    if config.dropout:
        x = keras.layers.Dropout(config.dropout, dtype=dtype, name=f"{part}_dropout")(x)
    for index in range(depth):
        x = TransformerBlock(
            config.num_heads,
            config.mlp_dim,
            causal=part == "decoder",
            activation=config.activation,
            norm_position=config.norm_position,
            norm_epsilon=config.norm_epsilon,
            dropout=config.dropout,
            hidden_dropout=config.hidden_dropout,
            attention_dropout=config.attention_dropout,
            cross_attention=bool(cross_attention),
            dtype=dtype,
            name=f"{part}_block_{index}",
        )(x, padding_mask=mask, **cross_attention)
    return norm("norm")(x) if config.norm_position == "pre" else x

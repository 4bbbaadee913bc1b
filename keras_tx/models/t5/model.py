"""T5: "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (Raffel et al.)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Unpack

import keras

from keras_tx import contract
from keras_tx.arguments import Count, Epsilon, Rate, Size, check_fields
from keras_tx.errors import ConfigError, nearest
from keras_tx.heads import Encoded, Head
from keras_tx.layers import RelativePositionBias, TokenEmbedding, TransformerBlock
from keras_tx.models.config import check_token_ids, make_config, unknown_variant
from keras_tx.models.encoder_decoder_model import EncoderDecoderModel
from keras_tx.models.generation_defaults import check_generation_defaults, check_task_options
from keras_tx.models.overrides import T5Overrides
from keras_tx.models.transformer_model import AUTO
from keras_tx.processing import TextTransform

ACTIVATIONS = ("relu", "geglu")
_FIRST = {"activation": "relu", "tied": True, "scale_logits": True}
_SECOND = {"activation": "geglu", "tied": False, "scale_logits": False}  # version 1.1, FLAN and mT5

VARIANTS: dict[str, dict[str, Any]] = {
    # depth, width, mlp_dim, heads, head_dim: section 3.7 of Raffel et al.
    "small": {"depth": 6, "width": 512, "mlp_dim": 2048, "num_heads": 8, **_FIRST},
    "base": {"depth": 12, "width": 768, "mlp_dim": 3072, "num_heads": 12, **_FIRST},
    "large": {"depth": 24, "width": 1024, "mlp_dim": 4096, "num_heads": 16, **_FIRST},
    "3B": {"depth": 24, "width": 1024, "mlp_dim": 16384, "num_heads": 32, "head_dim": 128, **_FIRST},
    "11B": {"depth": 24, "width": 1024, "mlp_dim": 65536, "num_heads": 128, "head_dim": 128, **_FIRST},
    "v1.1-small": {"depth": 8, "width": 512, "mlp_dim": 1024, "num_heads": 6, **_SECOND},
    "v1.1-base": {"depth": 12, "width": 768, "mlp_dim": 2048, "num_heads": 12, **_SECOND},
    "v1.1-large": {"depth": 24, "width": 1024, "mlp_dim": 2816, "num_heads": 16, **_SECOND},
    "v1.1-xl": {"depth": 24, "width": 2048, "mlp_dim": 5120, "num_heads": 32, **_SECOND},
    "v1.1-xxl": {"depth": 24, "width": 4096, "mlp_dim": 10240, "num_heads": 64, **_SECOND},
    "tiny": {  # a toy for tests
        "depth": 2,
        "width": 32,
        "mlp_dim": 64,
        "num_heads": 2,
        "head_dim": 16,
        "vocabulary_size": 256,
        "max_length": 64,
        **_FIRST,
    },
}


@dataclasses.dataclass(frozen=True)
class T5Config:
    """The config of a T5; `T5Config.variant("small")` returns that of a published size.

    Version 1.1 and FLAN have `activation="geglu", tied=False, scale_logits=False`; mT5 also has
    `vocabulary_size=250112`.

    Args:
        width: size of the token vectors.
        depth: number of blocks of the encoder.
        num_heads: number of attention heads.
        mlp_dim: hidden size of the feed-forward layers.
        head_dim: size of a head, which does not depend on the width.
        decoder_depth: number of blocks of the decoder; None means depth.
        vocabulary_size: number of token embeddings.
        max_length: maximum number of tokens in a source and in a target. No weight depends on it.
        activation: of the feed-forward layers: "relu" or "geglu".
        tied: whether logits are computed with the token embedding.
        scale_logits: whether the decoder's output is multiplied by width ** -0.5 before the logits.
        relative_buckets: number of learned position biases of each head.
        relative_max_distance: distances from this one on share a bias.
        pad_id: id of padding tokens, which the default attention_mask masks.
        start_id: id of the first token of every target; None means pad_id.
        stop_ids: ids that end a target; None means the tokenizer's end token.
        generation: default options of `generate`, such as {"num_beams": 4, "bad_words_ids": [[0]]}.
        task_options: prefix of sources and options by task, as `task_specific_params` of Hugging Face's
            config.json: {"summarization": {"prefix": "summarize: ", "num_beams": 4}}.
        norm_epsilon: of the norms.
        dropout: rate after the embeddings, in the blocks, of the attention weights, and after the last norms.
    """

    width: Size
    depth: Size
    num_heads: Size
    mlp_dim: Size
    head_dim: Size = 64
    decoder_depth: Size | None = None
    vocabulary_size: Size = 32128
    max_length: Size = 512
    activation: str = "relu"
    tied: bool = True
    scale_logits: bool = True
    relative_buckets: Size = 32
    relative_max_distance: Size = 128
    pad_id: Count = 0
    start_id: Count | None = None
    stop_ids: tuple[int, ...] | None = None
    generation: dict[str, Any] | None = None
    task_options: dict[str, Any] | None = None
    norm_epsilon: Epsilon = 1e-6
    dropout: Rate = 0.1

    # Fields that may differ from those of the initial weights.
    FREE: ClassVar[frozenset[str]] = frozenset(
        {"dropout", "generation", "max_length", "pad_id", "start_id", "stop_ids", "task_options"}
    )
    logits_bias: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.activation not in ACTIVATIONS:
            raise ConfigError(
                f"activation={self.activation!r} is unknown. {nearest(str(self.activation), ACTIVATIONS)}"
            )
        if self.decoder_depth == self.depth:
            object.__setattr__(self, "decoder_depth", None)
        if self.start_id == self.pad_id:
            object.__setattr__(self, "start_id", None)
        check_token_ids(self)
        check_generation_defaults(self.generation)
        check_task_options(self.task_options)

    @property
    def head_size(self) -> int:
        """The size of a head."""
        return self.head_dim

    @property
    def logits_scale(self) -> float:
        """The factor of the decoder's output before the logits."""
        return self.width**-0.5 if self.scale_logits else 1.0

    @classmethod
    def variant(cls, name: str, **overrides: Any) -> T5Config:
        """The config of a published size.

        >>> T5Config.variant("v1.1-base").mlp_dim
        2048
        """
        if name not in VARIANTS:
            raise unknown_variant(name, VARIANTS)
        return make_config(cls, {**VARIANTS[name], **overrides})


@keras.saving.register_keras_serializable("keras_tx")
class T5(EncoderDecoderModel):
    """An encoder-decoder with relative positions; see `t5`."""

    config_class = T5Config

    @classmethod
    def encode(cls, config: T5Config, inputs: dict[str, Any], dtype: Any) -> Encoded:
        return _encode(config, inputs, dtype)


def t5(
    variant: str = "small",
    *,
    num_classes: int | None = None,
    head: Head | str | None = AUTO,
    weights: Any = None,
    processing: TextTransform | None = None,
    name: str | None = None,
    dtype: Any = None,
    **overrides: Unpack[T5Overrides],
) -> T5:
    """A text-to-text encoder-decoder as a functional keras.Model.

    Its inputs are a dict of `input_ids` (batch, source), `decoder_input_ids` (batch, target), and optionally
    `attention_mask` (by default 0 where the id is `pad_id`) and `decoder_attention_mask` (by default 1). Its
    output are logits (batch, target, vocabulary) of the token after each of the target.

    Args:
        variant: "small", "base", "large", "3B" or "11B" (version 1.0), the same with gated units as
            "v1.1-small", "v1.1-base", "v1.1-large", "v1.1-xl" or "v1.1-xxl" (also FLAN and mT5), or "tiny".
        num_classes: not supported, as a T5 has no classifier head: it writes the name of the class.
        head: Seq2SeqLMHead, the default of this family; None returns the decoder's hidden states.
        weights: source of the initial weights: a Hugging Face folder, a .safetensors file, "hf://owner/name",
            a keras-hub preset or model, a .keras or .weights.h5 file. The variant must be that of the source;
            keras_tx.from_checkpoint reads it from the source's config.
        processing: converts texts to ids. It determines `vocabulary_size` and `pad_id`, and truncates texts
            to `max_length`.
        name: of the model.
        dtype: a dtype policy ("mixed_bfloat16"); by default Keras's global one.
        overrides: fields of T5Config: `vocabulary_size=8000`, `decoder_depth=2`, `dropout=0.0` ...

    Returns:
        A T5.

    Raises:
        ConfigError: for an unknown variant or field, a value out of range, or weights that do not fit.

    Example:

    >>> import numpy as np
    >>> import keras_tx
    >>> model = keras_tx.t5("tiny")
    >>> source, target = np.array([[37, 9, 4, 1]]), np.array([[0, 52]])
    >>> tuple(model({"input_ids": source, "decoder_input_ids": target}).shape)
    (1, 2, 256)
    """
    model = T5.from_variant(
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
    # Scores are not divided by sqrt(head size), so queries start smaller by this factor.
    for layer in model.layers:
        if isinstance(layer, TransformerBlock):
            for attention in (layer.attention, layer.cross_attention):
                if attention is not None:
                    attention.query.kernel.assign(attention.query.kernel * model.config.head_dim**-0.5)
    return model


def _encode(config: T5Config, inputs: dict[str, Any], dtype: Any) -> Encoded:
    embedding = TokenEmbedding(
        config.vocabulary_size,
        config.width,
        initializer=keras.initializers.RandomNormal(stddev=1.0),
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
    config: T5Config, part: str, depth: int, x: Any, mask: Any, dtype: Any, **cross_attention: Any
) -> Any:
    """The blocks of the encoder or decoder, which share one position bias."""

    def dropped(x: Any, name: str) -> Any:
        if not config.dropout:
            return x
        return keras.layers.Dropout(config.dropout, dtype=dtype, name=f"{part}_{name}")(x)

    initializer = keras.initializers.VarianceScaling(1.0, "fan_in", "untruncated_normal")
    bias = RelativePositionBias(
        config.num_heads,
        config.relative_buckets,
        config.relative_max_distance,
        bidirectional=part == "encoder",
        initializer=keras.initializers.RandomNormal(stddev=config.width**-0.5),
        dtype=dtype,
        name=f"{part}_relative_bias",
    )(x)
    x = dropped(x, "dropout")
    for index in range(depth):
        x = TransformerBlock(
            config.num_heads,
            config.mlp_dim,
            key_dim=config.head_dim,
            causal=part == "decoder",
            scale=1.0,
            activation=config.activation,
            norm="rms",
            norm_epsilon=config.norm_epsilon,
            dropout=config.dropout,
            attention_dropout=config.dropout,
            use_bias=False,
            cross_attention=bool(cross_attention),
            kernel_initializer=initializer,
            dtype=dtype,
            name=f"{part}_block_{index}",
        )(x, padding_mask=mask, bias=bias, **cross_attention)
    norm = keras.layers.RMSNormalization(epsilon=config.norm_epsilon, dtype=dtype, name=f"{part}_norm")
    return dropped(norm(x), "last_dropout")

"""GPT: "Language Models are Unsupervised Multitask Learners" (Radford et al.), and related decoders."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Unpack

import keras
from keras import ops

from keras_tx import contract
from keras_tx.arguments import Count, Epsilon, Positive, Rate, Size, check_fields
from keras_tx.errors import ConfigError, nearest, whole_number
from keras_tx.heads import (
    CausalLMHead,
    ClassifierHead,
    DistilledClassifierHead,
    Encoded,
    Head,
    MultiLabelHead,
    RegressionHead,
    TokenClassifierHead,
)
from keras_tx.heads.base import average_tokens
from keras_tx.layers import TokenEmbedding, TransformerBlock
from keras_tx.layers.rotary import check_scaling
from keras_tx.layers.transformer_block import NORM_POSITIONS
from keras_tx.models.config import check_token_ids, make_config, unknown_variant
from keras_tx.models.generation_defaults import check_generation_defaults
from keras_tx.models.overrides import GPTOverrides
from keras_tx.models.quantized_layers import CALIBRATED, calibrated_structure
from keras_tx.models.text_model import DecoderModel
from keras_tx.models.transformer_model import AUTO
from keras_tx.processing import TextTransform

POSITIONS = ("learned", "rotary")
GPT_3 = {"max_length": 2048}

VARIANTS: dict[str, dict[str, Any]] = {
    # GPT-1: section 4.1 of Radford et al., "Improving Language Understanding by Generative Pre-Training"
    "117M": {
        "depth": 12,
        "width": 768,
        "num_heads": 12,
        "vocabulary_size": 40478,
        "max_length": 512,
        "norm_position": "post",
    },
    # depth, width, heads: table 2 of Radford et al., whose parameter counts were corrected later
    "124M": {"depth": 12, "width": 768, "num_heads": 12},
    "355M": {"depth": 24, "width": 1024, "num_heads": 16},
    "774M": {"depth": 36, "width": 1280, "num_heads": 20},
    "1558M": {"depth": 48, "width": 1600, "num_heads": 25},
    # GPT-3: table 2.1 of Brown et al. Every other block of theirs has sparse attention; these are dense.
    "125M": {"depth": 12, "width": 768, "num_heads": 12, **GPT_3},
    "350M": {"depth": 24, "width": 1024, "num_heads": 16, **GPT_3},
    "760M": {"depth": 24, "width": 1536, "num_heads": 16, **GPT_3},
    # The table has 24 heads of 128 channels for a width of 2048: 1.5 B parameters. 16 heads are 1.3 B.
    "1.3B": {"depth": 24, "width": 2048, "num_heads": 16, **GPT_3},
    "2.7B": {"depth": 32, "width": 2560, "num_heads": 32, **GPT_3},
    "6.7B": {"depth": 32, "width": 4096, "num_heads": 32, **GPT_3},
    "13B": {"depth": 40, "width": 5140, "num_heads": 40, "head_dim": 128, **GPT_3},
    "175B": {"depth": 96, "width": 12288, "num_heads": 96, **GPT_3},
    # nanoGPT's configuration for characters: exact gelu, no biases, Shakespeare's 65 characters
    "char": {
        "depth": 6,
        "width": 384,
        "num_heads": 6,
        "vocabulary_size": 65,
        "max_length": 256,
        "activation": "gelu",
        "use_bias": False,
        "dropout": 0.2,
        "attention_dropout": 0.2,
    },
    "nano": {"depth": 3, "width": 48, "num_heads": 3},  # minGPT's
    "pico": {
        "depth": 2,
        "width": 32,
        "num_heads": 2,
        "vocabulary_size": 256,
        "max_length": 64,
    },  # a toy for tests
    # the shape of Touvron et al., "Llama 2", at the size of a toy
    "llama-tiny": {
        "depth": 2,
        "width": 64,
        "num_heads": 4,
        "kv_heads": 2,
        "mlp_dim": 176,
        "vocabulary_size": 256,
        "max_length": 128,
        "positions": "rotary",
        "norm": "rms",
        "activation": "swiglu",
        "use_bias": False,
        "tied": False,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
}


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """The config of a GPT; `GPTConfig.variant("124M")` returns that of a published size.

    Args:
        width: size of the token vectors.
        depth: number of blocks.
        num_heads: number of attention heads.
        mlp_dim: hidden size of the feed-forward layers.
        vocabulary_size: number of token embeddings.
        max_length: number of positions, and so of tokens in a text.
        kv_heads: number of heads of keys and values, for grouped queries; None means num_heads.
        head_dim: size of a head; None means width / num_heads.
        positions: "learned", or "rotary" for rotary position embeddings of queries and keys.
        rotary_base: base of the rotary frequencies.
        rotary_scaling: of the rotary frequencies, as in MultiHeadAttention.
        norm: "layer" or "rms".
        norm_position: "pre", with a norm after the last block, or "post" (GPT-1).
        qk_norm: whether each head of query and key has a norm of the same kind (Qwen3).
        activation: of the feed-forward layers: "gelu_tanh", "gelu", "relu", "silu", "swiglu" or "geglu".
        use_bias: whether dense layers, and norms of the kind "layer", have biases.
        qkv_bias: whether query, key and value have biases; None means use_bias. True in Qwen2.
        scale_embedding: whether token vectors are multiplied by sqrt(width) (Gemma).
        tied: whether logits are computed with the token embedding.
        pad_id: id of padding tokens, which the default attention_mask masks; None for none.
        stop_ids: ids that end a text; None means the tokenizer's end token.
        generation: default options of `generate`, such as {"repetition_penalty": 1.1}.
        norm_epsilon: of the norms.
        dropout: rate after the embeddings and in the blocks.
        attention_dropout: rate of the attention weights.
    """

    width: Size
    depth: Size
    num_heads: Size
    mlp_dim: Size
    vocabulary_size: Size = 50257
    max_length: Size = 1024
    kv_heads: Size | None = None
    head_dim: Size | None = None
    positions: str = "learned"
    rotary_base: Positive = 10000.0
    rotary_scaling: dict[str, Any] | None = None
    norm: str = "layer"
    norm_position: str = "pre"
    qk_norm: bool = False
    activation: str = "gelu_tanh"
    use_bias: bool = True
    qkv_bias: bool | None = None
    scale_embedding: bool = False
    tied: bool = True
    pad_id: Count | None = None
    stop_ids: tuple[int, ...] | None = None
    generation: dict[str, Any] | None = None
    norm_epsilon: Epsilon = 1e-5
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1

    # Fields that may differ from those of the initial weights.
    FREE: ClassVar[frozenset[str]] = frozenset(
        {"attention_dropout", "dropout", "generation", "max_length", "pad_id", "stop_ids"}
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.head_dim is None and self.width % self.num_heads:
            raise ConfigError(f"width={self.width} is not divisible by num_heads={self.num_heads}.")
        if self.kv_heads is not None and self.num_heads % self.kv_heads:
            raise ConfigError(f"num_heads={self.num_heads} is not divisible by kv_heads={self.kv_heads}.")
        if self.head_dim == self.width / self.num_heads:
            object.__setattr__(self, "head_dim", None)
        if self.qkv_bias == self.use_bias:
            object.__setattr__(self, "qkv_bias", None)
        check_token_ids(self)
        check_generation_defaults(self.generation)
        for name, known in (("positions", POSITIONS), ("norm_position", NORM_POSITIONS)):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"{name}={value!r} is unknown. {nearest(str(value), known)}")
        object.__setattr__(self, "rotary_scaling", check_scaling(self.rotary_scaling))
        if self.rotary_scaling is not None and self.positions != "rotary":
            raise ConfigError(
                f"rotary_scaling={self.rotary_scaling} requires positions='rotary', not {self.positions!r}."
            )

    @property
    def head_size(self) -> int:
        """The size of a head."""
        return self.head_dim or self.width // self.num_heads

    @classmethod
    def variant(cls, name: str, **overrides: Any) -> GPTConfig:
        """The config of a published size.

        >>> GPTConfig.variant("774M").width
        1280
        """
        if name not in VARIANTS:
            raise unknown_variant(name, VARIANTS)
        fields = {**VARIANTS[name], **overrides}
        fields.setdefault("mlp_dim", 4 * whole_number("width", fields["width"]))
        return make_config(cls, fields)


@keras.saving.register_keras_serializable("keras_tx")
class GPT(DecoderModel):
    """A decoder of text; see `gpt`."""

    config_class = GPTConfig
    heads = (CausalLMHead, ClassifierHead, MultiLabelHead, RegressionHead, TokenClassifierHead)

    def get_quantization_layer_structure(self, mode: str | None = None) -> dict[str, list[Any]] | None:
        """Returns the blocks that `quantize` calibrates with GPTQ or AWQ."""
        return calibrated_structure(self) if mode in CALIBRATED else None

    @classmethod
    def check_head(cls, head: Any) -> None:
        if isinstance(head, DistilledClassifierHead):
            raise ConfigError(
                "head=DistilledClassifierHead(...) is not supported by a GPT, which has no distillation "
                "token. Use ClassifierHead."
            )
        super().check_head(head)

    @classmethod
    def logits(cls, head: Head, encoded: Encoded) -> Any:
        if not isinstance(head, ClassifierHead | MultiLabelHead | RegressionHead):
            return super().logits(head, encoded)
        assert encoded.pool is not None
        features = average_tokens(encoded) if head.pooling == "average" else encoded.pool()
        return head(features, use_bias=False)  # as in all decoders of transformers

    @classmethod
    def encode(cls, config: GPTConfig, inputs: dict[str, Any], dtype: Any) -> Encoded:
        return _decode(config, inputs, dtype)


def gpt(
    variant: str = "124M",
    *,
    num_classes: int | None = None,
    head: Head | str | None = AUTO,
    weights: Any = None,
    processing: TextTransform | None = None,
    name: str | None = None,
    dtype: Any = None,
    **overrides: Unpack[GPTOverrides],
) -> GPT:
    """A decoder of text as a functional keras.Model.

    Its inputs are `input_ids` (batch, sequence), alone or in a dict with `attention_mask` (by default 1; 0
    where the id is `pad_id`, if there is one) and `position_ids` (by default counted along the mask). Its
    output are logits (batch, sequence, vocabulary) of the token after each.

    Args:
        variant: "117M" (GPT-1); "124M", "355M", "774M" or "1558M" (GPT-2); "125M", "350M", "760M", "1.3B",
            "2.7B", "6.7B", "13B" or "175B" (GPT-3); "char" (nanoGPT's for characters), "nano", "pico", or
            "llama-tiny".
        num_classes: number of classes; short for `head=ClassifierHead(num_classes)`.
        head: CausalLMHead, the default of this family; ClassifierHead, MultiLabelHead or RegressionHead,
            which use the vector of the last token; TokenClassifierHead. None returns hidden states (batch,
            sequence, width).
        weights: source of the initial weights: a Hugging Face folder, a .safetensors file, "hf://owner/name",
            a keras-hub preset or model, a .keras or .weights.h5 file. The variant must be that of the source;
            keras_tx.from_checkpoint reads it from the source's config.
        processing: converts texts to ids. It determines `vocabulary_size` and `pad_id`, and truncates texts
            to `max_length`.
        name: of the model.
        dtype: a dtype policy ("mixed_bfloat16"); by default Keras's global one.
        overrides: fields of GPTConfig: `vocabulary_size=8000`, `max_length=256`, `dropout=0.0`,
            `positions="rotary"` ...

    Returns:
        A GPT.

    Raises:
        ConfigError: for an unknown variant or field, a value out of range, or weights that do not fit.

    Example:

    >>> import numpy as np
    >>> import keras_tx
    >>> model = keras_tx.gpt("pico")
    >>> tuple(model(np.array([[5, 17, 99]])).shape)
    (1, 3, 256)
    """
    model = GPT.from_variant(
        variant,
        num_classes=num_classes,
        head=head,
        weights=weights,
        processing=processing,
        name=name,
        dtype=dtype,
        **overrides,
    )
    if weights is not None or model.config.norm_position == "post":
        return model
    # Radford et al., section 2.3: what is added to the residual starts smaller the more blocks there are.
    for index in range(model.config.depth):
        block = model.get_layer(f"block_{index}")
        for layer in (block.attention.output_projection, block.feed_forward.down):
            layer.kernel.assign(layer.kernel / math.sqrt(2 * model.config.depth))
    return model


def _decode(config: GPTConfig, inputs: dict[str, Any], dtype: Any) -> Encoded:
    ids, mask = inputs[contract.INPUT_IDS], inputs[contract.ATTENTION_MASK]
    position_ids = inputs[contract.POSITION_IDS]
    initializer = keras.initializers.RandomNormal(stddev=0.02)
    shared = {"initializer": initializer, "dtype": dtype}
    embedding = TokenEmbedding(config.vocabulary_size, config.width, name="token_embedding", **shared)
    x = embedding(ids)
    if config.scale_embedding:
        x = ops.multiply(x, math.sqrt(config.width))
    rotary = {}
    if config.positions == "rotary":
        rotary["positions"] = position_ids
    else:
        table = TokenEmbedding(config.max_length, config.width, name="positions", **shared)
        x = ops.add(x, table(position_ids))
    if config.dropout:
        x = keras.layers.Dropout(config.dropout, dtype=dtype, name="dropout")(x)
    for index in range(config.depth):
        x = TransformerBlock(
            config.num_heads,
            config.mlp_dim,
            kv_heads=config.kv_heads,
            key_dim=config.head_dim,
            causal=True,
            rotary_base=config.rotary_base if rotary else None,
            rotary_scaling=config.rotary_scaling,
            activation=config.activation,
            norm=config.norm,
            norm_position=config.norm_position,
            norm_epsilon=config.norm_epsilon,
            qk_norm="rms" if config.qk_norm and config.norm == "rms" else config.qk_norm,
            dropout=config.dropout,
            hidden_dropout=0.0,
            attention_dropout=config.attention_dropout,
            use_bias=config.use_bias,
            qkv_bias=config.qkv_bias,
            kernel_initializer=initializer,
            dtype=dtype,
            name=f"block_{index}",
        )(x, padding_mask=mask, **rotary)
    if config.norm_position == "pre":
        x = _last_norm(config, dtype)(x)

    def pool() -> Any:
        return _last_token(x, ids, mask, config.pad_id)

    return Encoded(x, mask, embedding if config.tied else None, config, pool)


def _last_norm(config: GPTConfig, dtype: Any) -> keras.layers.Layer:
    options = {"epsilon": config.norm_epsilon, "dtype": dtype, "name": "norm"}
    if config.norm == "rms":
        return keras.layers.RMSNormalization(**options)
    return keras.layers.LayerNormalization(center=config.use_bias, **options)


def _last_token(tokens: Any, ids: Any, mask: Any, pad_id: int | None) -> Any:
    """The vector of the last token that is not masked or padding (batch, width); the first if all are."""
    real = ops.cast(ops.not_equal(mask, 0), "int32")
    if pad_id is not None:  # transformers excludes the padding token even where the mask includes it
        real = ops.multiply(real, ops.cast(ops.not_equal(ids, pad_id), "int32"))
    places = ops.subtract(ops.cumsum(ops.ones_like(real), axis=1), 1)  # 0, 1, 2 ...
    last = ops.argmax(ops.multiply(places, real), axis=1)
    index = ops.expand_dims(ops.expand_dims(last, -1), -1)  # (b, 1, 1)
    return ops.squeeze(ops.take_along_axis(tokens, index, axis=1), axis=1)

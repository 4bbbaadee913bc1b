"""BERT: "Pre-training of Deep Bidirectional Transformers" (Devlin et al.), its sizes and relatives."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Unpack

import keras
from keras import ops

from keras_tx import contract
from keras_tx.arguments import Count, Epsilon, Rate, Size, check_fields
from keras_tx.errors import ConfigError, nearest, whole_number
from keras_tx.heads import (
    CausalLMHead,
    ClassifierHead,
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
from keras_tx.layers import Bias, PositionalEmbedding, TokenEmbedding, TransformerBlock
from keras_tx.models.config import make_config, unknown_variant
from keras_tx.models.overrides import BertOverrides
from keras_tx.models.quantized_layers import CALIBRATED, calibrated_structure
from keras_tx.models.text_model import EncoderModel
from keras_tx.models.transformer_model import AUTO
from keras_tx.processing import TextTransform

POOLERS = ("tanh", "relu")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu")

# depth, width, heads: the 24 of Turc et al., "Well-Read Students Learn Better", under the names of their
# checkpoints; large from Devlin et al., section 3; MiniLM from Wang et al.; XLM-R from Conneau et al.,
# "Unsupervised Cross-lingual Representation Learning at Scale", section 3. The mlp is four times as wide.
VARIANTS: dict[str, tuple[int, int, int]] = {
    **{
        f"L-{depth}_H-{width}": (depth, width, width // 64)
        for depth in (2, 4, 6, 8, 10, 12)
        for width in (128, 256, 512, 768)
    },
    "large": (24, 1024, 16),
    "minilm-l6": (6, 384, 12),
    "minilm-l12": (12, 384, 12),
    "xlm-r-base": (12, 768, 12),
    "xlm-r-large": (24, 1024, 16),
}
XLM_R = {"vocabulary_size": 250002, "segments": 1, "position_offset": 2, "pad_id": 1, "norm_epsilon": 1e-5}
ALIASES = {
    "tiny": "L-2_H-128",
    "mini": "L-4_H-256",
    "small": "L-4_H-512",
    "medium": "L-8_H-512",
    "base": "L-12_H-768",
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The config of a BERT; `BertConfig.variant("base")` returns that of a published size.

    RoBERTa is `vocabulary_size=50265, segments=1, position_offset=2, pad_id=1, norm_epsilon=1e-5`, and
    `pooler=None` if its checkpoint has none; XLM-R is a RoBERTa with `vocabulary_size=250002`; DistilBERT is
    `depth=6, segments=0, pooler=None`, and `pooler="relu"` with a classifier.

    Args:
        width: size of the token vectors.
        depth: number of blocks.
        num_heads: number of attention heads.
        mlp_dim: hidden size of the feed-forward layers.
        vocabulary_size: number of token embeddings.
        max_length: number of positions, and so of tokens in a text.
        segments: number of token types. With 1, all tokens have the same, as in RoBERTa; with 0 or 1 there is
            no input `token_type_ids`.
        position_offset: if above 0, positions are counted along real tokens and begin here, as in RoBERTa;
            padding has the position before.
        pad_id: id of padding tokens, which the default attention_mask masks.
        pooler: activation of the dense layer on the class token, "tanh" or "relu"; None for no such layer.
        position_ids: whether the model has an input `position_ids`; an exported graph has none.
        activation: of the feed-forward layers: "gelu", "gelu_tanh" or "relu".
        norm_epsilon: of the norms.
        dropout: rate after the embeddings and in the blocks.
        attention_dropout: rate of the attention weights.
    """

    width: Size
    depth: Size
    num_heads: Size
    mlp_dim: Size
    vocabulary_size: Size = 30522
    max_length: Size = 512
    segments: Count = 2
    position_offset: Count = 0
    pad_id: Count = 0
    pooler: str | None = "tanh"
    position_ids: bool = False
    activation: str = "gelu"
    norm_epsilon: Epsilon = 1e-12
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1

    # Fields that may differ from those of the initial weights.
    FREE: ClassVar[frozenset[str]] = frozenset(
        {"attention_dropout", "dropout", "max_length", "pooler", "position_ids"}
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.width % self.num_heads:
            raise ConfigError(f"width={self.width} is not divisible by num_heads={self.num_heads}.")
        if self.pad_id >= self.vocabulary_size:
            raise ConfigError(
                f"pad_id={self.pad_id} is out of range for vocabulary_size={self.vocabulary_size}."
            )
        if self.pooler is not None and self.pooler not in POOLERS:
            raise ConfigError(f"pooler={self.pooler!r} is unknown. {nearest(str(self.pooler), POOLERS)}")
        if self.activation not in ACTIVATIONS:
            raise ConfigError(
                f"activation={self.activation!r} is unknown. {nearest(str(self.activation), ACTIVATIONS)}"
            )

    @classmethod
    def variant(cls, name: str, **overrides: Any) -> BertConfig:
        """The config of a published size.

        >>> BertConfig.variant("medium").width
        512
        """
        known = ALIASES.get(name, name)
        if known not in VARIANTS:
            raise unknown_variant(name, [*ALIASES, *VARIANTS])
        depth, width, num_heads = VARIANTS[known]
        relatives = XLM_R if known.startswith("xlm-r") else {}
        fields = {"width": width, "depth": depth, "num_heads": num_heads, **relatives, **overrides}
        fields.setdefault("mlp_dim", 4 * whole_number("width", fields["width"]))
        return make_config(cls, fields)


@keras.saving.register_keras_serializable("keras_tx")
class Bert(EncoderModel):
    """A bidirectional encoder of text; see `bert`."""

    config_class = BertConfig
    heads = (
        MaskedLMHead,
        NextSentenceHead,
        PretrainingHead,
        ClassifierHead,
        MultiLabelHead,
        RegressionHead,
        TokenClassifierHead,
        SpanHead,
        MultipleChoiceHead,
        SentenceEmbeddingHead,
    )

    def get_quantization_layer_structure(self, mode: str | None = None) -> dict[str, list[Any]] | None:
        """Returns the blocks that `quantize` calibrates with GPTQ or AWQ."""
        return calibrated_structure(self) if mode in CALIBRATED else None

    @classmethod
    def check_head(cls, head: Any) -> None:
        if isinstance(head, CausalLMHead):
            raise ConfigError(
                "head=CausalLMHead() is not supported by a Bert, whose tokens attend to later ones. Use "
                "MaskedLMHead, or a GPT."
            )
        if head is not None and not isinstance(head, Head):  # a head of the user's own is supported
            super().check_head(head)

    @classmethod
    def input_names(cls, config: BertConfig) -> list[str]:
        names = [contract.INPUT_IDS, contract.ATTENTION_MASK]
        if config.segments > 1:
            names.append(contract.TOKEN_TYPE_IDS)
        if config.position_ids:
            names.append(contract.POSITION_IDS)
        return names

    @classmethod
    def encode(cls, config: BertConfig, inputs: dict[str, Any], dtype: Any) -> Encoded:
        return _encode(config, inputs, dtype)

    @classmethod
    def features(cls, encoded: Encoded) -> dict[str, Any]:
        outputs = {contract.LAST_HIDDEN_STATE: encoded.tokens}
        if encoded.config.pooler is not None and encoded.pool is not None:
            outputs[contract.POOLER_OUTPUT] = encoded.pool()
        return outputs

    def derive(self, inputs: dict[str, Any]) -> dict[str, Any]:
        super().derive(inputs)
        if self.config.segments > 1 and contract.TOKEN_TYPE_IDS not in inputs:
            inputs[contract.TOKEN_TYPE_IDS] = ops.zeros_like(inputs[contract.INPUT_IDS])
        if self.config.position_ids and contract.POSITION_IDS not in inputs:
            inputs[contract.POSITION_IDS] = _positions(self.config, inputs[contract.INPUT_IDS])
        return inputs

    @property
    def positions(self) -> int:
        return self.config.max_length + self.config.position_offset

    def without_position_ids(self) -> Bert:
        """A copy without that input, with the same weights."""
        config = dataclasses.replace(self.config, position_ids=False)
        copy = self.assemble(
            config, head=self.head, processing=self.processing, name=self.name, dtype=self.layers_policy
        )
        copy.assign_weights(self)
        return copy


def bert(
    variant: str = "base",
    *,
    num_classes: int | None = None,
    head: Head | str | None = AUTO,
    weights: Any = None,
    processing: TextTransform | None = None,
    name: str | None = None,
    dtype: Any = None,
    **overrides: Unpack[BertOverrides],
) -> Bert:
    """A bidirectional encoder of text as a functional keras.Model.

    Its inputs are `input_ids` (batch, sequence), alone or in a dict with `attention_mask` (by default 0 where
    the id is `pad_id`), `token_type_ids` (by default 0: one text) and, with `position_ids=True`,
    `position_ids` (by default 0, 1, 2 ...). The head defines the outputs; without one they are
    {"last_hidden_state": (batch, sequence, width), "pooler_output": (batch, width)}.

    Args:
        variant: a size as the papers name it: "base", "large", "tiny", "mini", "small", "medium", any of the
            24 miniatures as "L-10_H-256", "minilm-l6", "minilm-l12", "xlm-r-base" or "xlm-r-large".
        num_classes: number of classes; short for `head=ClassifierHead(num_classes)`.
        head: MaskedLMHead, NextSentenceHead, PretrainingHead, ClassifierHead, MultiLabelHead, RegressionHead,
            TokenClassifierHead, SpanHead, MultipleChoiceHead or SentenceEmbeddingHead. None, the default of
            this family, returns hidden states.
        weights: source of the initial weights: a Hugging Face folder, a .safetensors file, "hf://owner/name",
            a keras-hub preset or model, a .keras or .weights.h5 file. The variant must be that of the source;
            keras_tx.from_checkpoint reads it from the source's config.
        processing: converts texts to ids. It determines `vocabulary_size` and `pad_id`, and truncates texts
            to `max_length`.
        name: of the model.
        dtype: a dtype policy ("mixed_bfloat16"); by default Keras's global one.
        overrides: fields of BertConfig: `vocabulary_size=8000`, `segments=0`, `dropout=0.0` ...

    Returns:
        A Bert.

    Raises:
        ConfigError: for an unknown variant or field, a value out of range, or weights that do not fit.

    Example:

    >>> import numpy as np
    >>> import keras_tx
    >>> model = keras_tx.bert("tiny", num_classes=2, vocabulary_size=100)
    >>> tuple(model(np.array([[2, 15, 3, 0], [2, 15, 27, 3]])).shape)
    (2, 2)
    """
    return Bert.from_variant(
        variant,
        num_classes=num_classes,
        head=head,
        weights=weights,
        processing=processing,
        name=name,
        dtype=dtype,
        **overrides,
    )


def _encode(config: BertConfig, inputs: dict[str, Any], dtype: Any) -> Encoded:
    ids, mask = inputs[contract.INPUT_IDS], inputs[contract.ATTENTION_MASK]
    initializer = keras.initializers.TruncatedNormal(stddev=0.02)
    shared = {"initializer": initializer, "dtype": dtype}
    embedding = TokenEmbedding(config.vocabulary_size, config.width, name="token_embedding", **shared)
    x = embedding(ids)
    if config.segments > 1:
        segments = TokenEmbedding(config.segments, config.width, name="segments", **shared)
        x = ops.add(x, segments(inputs[contract.TOKEN_TYPE_IDS]))
    elif config.segments:
        x = Bias(initializer, dtype=dtype, name="segments")(x)
    if config.position_offset:
        table = TokenEmbedding(
            config.max_length + config.position_offset, config.width, name="positions", **shared
        )
        positions = inputs.get(contract.POSITION_IDS)
        x = ops.add(x, table(_positions(config, ids) if positions is None else positions))
    else:
        positions = PositionalEmbedding(config.max_length, name="positions", **shared)
        x = positions(x, inputs[contract.POSITION_IDS]) if config.position_ids else positions(x)
    x = keras.layers.LayerNormalization(epsilon=config.norm_epsilon, dtype=dtype, name="embedding_norm")(x)
    if config.dropout:
        x = keras.layers.Dropout(config.dropout, dtype=dtype, name="dropout")(x)
    for index in range(config.depth):
        x = TransformerBlock(
            config.num_heads,
            config.mlp_dim,
            activation=config.activation,
            norm_position="post",
            norm_epsilon=config.norm_epsilon,
            dropout=config.dropout,
            hidden_dropout=0.0,
            attention_dropout=config.attention_dropout,
            kernel_initializer=initializer,
            dtype=dtype,
            name=f"block_{index}",
        )(x, padding_mask=mask)

    def pool() -> Any:
        first = x[:, 0]
        if config.pooler is None:
            return first
        return keras.layers.Dense(
            config.width, config.pooler, kernel_initializer=initializer, dtype=dtype, name="pooler"
        )(first)

    return Encoded(x, mask, embedding, config, pool)


def _positions(config: BertConfig, ids: Any) -> Any:
    """The default positions (batch, sequence): 0, 1, 2 ..., or counted along real tokens as in RoBERTa."""
    if not config.position_offset:
        return ops.broadcast_to(ops.arange(ops.shape(ids)[1], dtype="int32"), ops.shape(ids))
    real = ops.cast(ops.not_equal(ids, config.pad_id), "int32")
    return ops.add(ops.multiply(ops.cumsum(real, axis=1), real), config.position_offset - 1)

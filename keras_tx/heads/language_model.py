"""Heads with logits over the vocabulary."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tx import contract
from keras_tx.arguments import Epsilon, Rate
from keras_tx.contract import PREDICTION_LOGITS, SEQ_RELATIONSHIP_LOGITS
from keras_tx.errors import ConfigError, nearest
from keras_tx.heads.base import Encoded, Head, initializer, project
from keras_tx.layers import Bias
from keras_tx.losses import TokenCrossentropy
from keras_tx.metrics import Perplexity, TokenAccuracy

ACTIVATIONS = ("gelu", "gelu_tanh", "relu")


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class MaskedLMHead(Head):
    """Masked tokens: a dense layer, an activation, a norm, then logits (batch, sequence, vocabulary).

    Targets are (batch, sequence), -100 at tokens that are not masked.

    Args:
        activation, norm_epsilon: by default those of the encoder.
        tied: whether the projection is the transposed token embedding with a bias; otherwise it has its own
            weights.
    """

    activation: str | None = None
    norm_epsilon: Epsilon | None = None
    tied: bool = True

    task: ClassVar[str | None] = contract.FILL_MASK
    token_outputs: ClassVar[tuple[str, ...]] = (contract.LOGITS,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activation not in (None, *ACTIVATIONS):
            raise ConfigError(
                f"activation={self.activation!r} is unknown. {nearest(str(self.activation), ACTIVATIONS)}"
            )

    def __call__(self, features: Encoded) -> Any:
        return _masked_lm(features, contract.LOGITS, self.tied, self.activation, self.norm_epsilon)

    def is_tied(self, features: Encoded) -> bool:
        return self.tied

    def loss(self) -> keras.losses.Loss:
        return TokenCrossentropy()

    def metrics(self) -> list[Any]:
        return [TokenAccuracy(name="accuracy")]


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class PretrainingHead(Head):
    """Masked tokens and next sentence together, as in the pre-training of BERT.

    The output is a dict of "prediction_logits" and "seq_relationship_logits". Targets have the same names,
    and are those of MaskedLMHead and NextSentenceHead. The loss is the sum of both.

    Args:
        tied: as for `MaskedLMHead`.
    """

    tied: bool = True

    task: ClassVar[str | None] = contract.FILL_MASK  # and pairs of texts
    token_outputs: ClassVar[tuple[str, ...]] = (PREDICTION_LOGITS,)

    def __call__(self, features: Encoded) -> dict[str, Any]:
        assert features.pool is not None
        return {
            PREDICTION_LOGITS: _masked_lm(features, PREDICTION_LOGITS, self.tied),
            SEQ_RELATIONSHIP_LOGITS: project(features.pool(), 2, SEQ_RELATIONSHIP_LOGITS),
        }

    def is_tied(self, features: Encoded) -> bool:
        return self.tied

    def loss(self) -> dict[str, keras.losses.Loss]:
        return {
            PREDICTION_LOGITS: TokenCrossentropy(),
            SEQ_RELATIONSHIP_LOGITS: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        }

    def metrics(self) -> dict[str, list[Any]]:
        return {
            PREDICTION_LOGITS: [TokenAccuracy(name="accuracy")],
            SEQ_RELATIONSHIP_LOGITS: ["accuracy"],
        }


def _masked_lm(
    features: Encoded,
    name: str,
    tied: bool,
    activation: str | None = None,
    norm_epsilon: float | None = None,
) -> Any:
    config = features.config
    activation = activation or config.activation
    epsilon = config.norm_epsilon if norm_epsilon is None else norm_epsilon
    x = keras.layers.Dense(
        config.width, kernel_initializer=initializer(), dtype="float32", name="prediction_dense"
    )(features.tokens)
    x = ops.relu(x) if activation == "relu" else ops.gelu(x, activation == "gelu_tanh")
    x = keras.layers.LayerNormalization(epsilon=epsilon, dtype="float32", name="prediction_norm")(x)
    return word_logits(x, features, name, tied)


def word_logits(x: Any, features: Encoded, name: str, tied: bool) -> Any:
    """Returns the logits of the vocabulary, with a bias; `tied` ones are computed with the embedding."""
    if not tied:
        return project(x, features.config.vocabulary_size, name)
    assert features.embedding is not None
    return Bias(dtype="float32", name=name)(features.embedding(x, reverse=True))


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class CausalLMHead(Head):
    """The next token: logits (batch, sequence, vocabulary).

    The projection is the transposed token embedding, or has its own weights if the model's config has
    `tied=False`. The target of a position is the token after it: `fit(tokens[:, :-1], tokens[:, 1:])`, -100
    for positions that the loss ignores.

    Args:
        label_smoothing: as for `TokenCrossentropy`.
    """

    label_smoothing: Rate = 0.0

    task: ClassVar[str | None] = contract.TEXT_GENERATION
    token_outputs: ClassVar[tuple[str, ...]] = (contract.LOGITS,)

    def __call__(self, features: Encoded) -> Any:
        return _next_token_logits(features)

    def is_tied(self, features: Encoded) -> bool:
        return features.embedding is not None

    def loss(self) -> keras.losses.Loss:
        return TokenCrossentropy(self.label_smoothing)

    def metrics(self) -> list[Any]:
        return [TokenAccuracy(name="accuracy"), Perplexity()]


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class Seq2SeqLMHead(CausalLMHead):
    """The next token of a target sequence: logits (batch, target, vocabulary) of an encoder-decoder.

    The projection is that of `CausalLMHead`, with a bias if the model's config has `logits_bias=True`. The
    target of a position is the token after it, -100 for positions that the loss ignores.

    Args:
        label_smoothing: as for `TokenCrossentropy`.
    """

    task: ClassVar[str | None] = contract.TEXT2TEXT_GENERATION

    def __call__(self, features: Encoded) -> Any:
        config = features.config
        return _next_token_logits(features, config.logits_scale, config.logits_bias)


def _next_token_logits(features: Encoded, scale: float = 1.0, use_bias: bool = False) -> Any:
    tokens = features.tokens if scale == 1.0 else ops.multiply(features.tokens, scale)
    if features.embedding is not None:
        last = Bias if use_bias else keras.layers.Identity
        return last(dtype="float32", name=contract.LOGITS)(features.embedding(tokens, reverse=True))
    dense = keras.layers.Dense(
        features.config.vocabulary_size,
        use_bias=use_bias,
        kernel_initializer=initializer(),
        dtype="float32",
        name=contract.LOGITS,
    )
    return dense(tokens)

"""The base class of the heads, and the names of their logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tx.arguments import check_fields
from keras_tx.errors import ConfigError, nearest
from keras_tx.layers import TokenEmbedding


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The output of a text model's backbone, for heads that need more than one vector per sample.

    Args:
        tokens: (batch, sequence, width).
        mask: (batch, sequence), nonzero at real tokens.
        embedding: the embedding that the logits are tied to; None where they have weights of their own.
        config: of the model.
        pool: returns the vector (batch, width) of the whole sample.
        source: the encoder's output (batch, source, width), if the other fields are those of an
            encoder-decoder's decoder.
    """

    tokens: Any
    mask: Any
    embedding: TokenEmbedding | None
    config: Any
    pool: Callable[[], Any] | None = None
    source: Any = None


class Head:
    """Base class of the heads: frozen dataclasses with the logits, the loss, the metrics and a config.

    Logits are float32 under mixed precision, because losses exponentiate them.

    A field `labels` holds the names of the logits, and is checked against `num_classes` or `outputs`.
    """

    takes_sample: ClassVar[bool] = False  # called with one vector per sample (batch, width), not an Encoded
    has_choices: ClassVar[bool] = False  # the inputs are (batch, choices, sequence)
    task: ClassVar[str | None] = None  # of a text model with this head
    token_outputs: ClassVar[tuple[str, ...]] = ()  # outputs with a label for each token, -100 for none
    class_layers: ClassVar[tuple[str, ...]] = ()  # dense layers with a column and a bias for each of `labels`

    def __post_init__(self) -> None:
        check_fields(self)
        labels = getattr(self, "labels", None)
        if labels is not None:
            object.__setattr__(self, "labels", check_labels(labels, len(self.default_labels() or ())))

    def __call__(self, features: Any) -> Any:
        """Returns the logits of the features, a tensor (batch, width) or an `Encoded`."""
        raise NotImplementedError

    def loss(self) -> Any:
        """Returns the default loss of `compile`."""
        raise NotImplementedError

    def metrics(self) -> Any:
        """Returns the default metrics of `compile`, which apply where no loss is passed."""
        raise NotImplementedError

    def is_tied(self, features: Encoded) -> bool:
        """Returns whether the logits of a model with these features are tied to its token embedding."""
        return False

    def default_labels(self) -> list[str] | None:
        """Returns the names of the logits without `labels`: numbered, as in Hugging Face's configs.

        None for heads whose logits have no names.
        """
        count = getattr(self, "num_classes", None) or getattr(self, "outputs", None)
        return None if count is None else [f"LABEL_{index}" for index in range(count)]

    def joint_metrics(self) -> list[keras.metrics.Metric]:
        """Returns metrics of all outputs together, which Keras's `compile` does not support."""
        return []

    def get_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(**config)


def check_pooling(pooling: Any, known: tuple[str, ...]) -> None:
    """Raises a ConfigError for an unknown pooling."""
    if pooling not in known:
        raise ConfigError(f"pooling={pooling!r} is unknown. {nearest(str(pooling), known)}")


def average_tokens(features: Encoded) -> Any:
    """Returns the mean of the real tokens (batch, width) in float32; zeros for a text without tokens."""
    real = ops.expand_dims(ops.cast(features.mask, "float32"), -1)  # (b, s, 1)
    tokens = ops.cast(features.tokens, "float32")
    return ops.divide(ops.sum(tokens * real, axis=1), ops.maximum(ops.sum(real, axis=1), 1.0))


def label_names(head: Head | None, labels: Any, model: str) -> list[str] | None:
    """Returns the names of a model's logits: `labels`, or those of its head, or LABEL_0, LABEL_1 ...

    Args:
        labels: the names that the user passed, or None.
        model: the name of the model, for messages.

    Returns:
        None where the logits have no names.

    Raises:
        ConfigError: `labels` does not fit the head.
    """
    default = None if head is None else head.default_labels()
    if default is None:
        if labels is not None:
            raise ConfigError(f"labels requires a classifier head, which model {model!r} does not have.")
        return None
    own = getattr(head, "labels", None)
    if labels is None:
        return default if own is None else list(own)
    names = list(check_labels(labels, len(default)))
    if own is not None and names != list(own) and set(names) == set(own):
        raise ConfigError(
            f"labels={names!r} has the classes of model {model!r} in another order: its logits are those of "
            f"{list(own)!r}. Omit labels, or pass other names to rename the classes."
        )
    return names


def check_labels(labels: Any, count: int) -> tuple[str, ...]:
    """Returns the names of `count` classes, in order.

    Raises:
        ConfigError: the names are not as many different strings.
    """
    if not isinstance(labels, list | tuple) or not all(isinstance(x, str) and x for x in labels):
        raise ConfigError(f"labels={labels!r}, expected a list of names, one for each class in order.")
    if len(labels) != count:
        raise ConfigError(f"labels has {len(labels)} names, but the model has {count} classes.")
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise ConfigError(f"labels contains {repeated[0]!r} more than once. Each class needs its own name.")
    return tuple(labels)


def project(features: Any, units: int, name: str, dropout: float = 0.0, use_bias: bool = True) -> Any:
    """Applies dropout and the dense layer that returns the logits."""
    if dropout:
        features = keras.layers.Dropout(dropout, dtype="float32", name="head_dropout")(features)
    dense = keras.layers.Dense(
        units, use_bias=use_bias, kernel_initializer=initializer(), dtype="float32", name=name
    )
    return dense(features)


def initializer() -> keras.initializers.Initializer:
    return keras.initializers.TruncatedNormal(stddev=0.02)

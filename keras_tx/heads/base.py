"""What the heads share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import keras

from keras_tx.arguments import check_fields
from keras_tx.errors import ConfigError
from keras_tx.layers import TokenEmbedding


@dataclasses.dataclass(frozen=True)
class Encoded:
    """What a text model gives to a head that takes more than one vector a sample."""

    tokens: Any  # (batch, sequence, width)
    mask: Any  # (batch, sequence), nonzero where a token is real
    embedding: TokenEmbedding | None  # that logits are tied to; None where they have weights of their own
    config: Any  # of the model
    pool: Callable[[], Any] | None = None  # makes the vector (batch, width) of the whole sample


class Head:
    """Base of the heads, which are frozen dataclasses: turned into logits, loss, metrics and a config.

    Logits stay float32 under mixed precision: the losses take their exponentials.
    """

    takes_sample: ClassVar[bool] = False  # one vector a sample (batch, width); if not, an Encoded
    task: ClassVar[str | None] = None  # of a text model with this head
    token_outputs: ClassVar[tuple[str, ...]] = ()  # outputs with a label for each token, -100 for none

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, features: Any) -> Any:
        raise NotImplementedError

    def loss(self) -> Any:
        """What `compile` takes where no loss is given."""
        raise NotImplementedError

    def metrics(self) -> Any:
        """What `compile` takes where neither loss nor metrics are given."""
        raise NotImplementedError

    def is_tied(self, config: Any) -> bool:
        """Whether the token embedding gives the logits, in a model of this config."""
        return False

    def default_labels(self) -> list[str] | None:
        """What the logits are called where nobody has named them; None where each is nothing by itself.

        By default a head with `num_classes` or `outputs` has numbered ones, as in Hugging Face's configs.
        """
        count = getattr(self, "num_classes", None) or getattr(self, "outputs", None)
        return None if count is None else [f"LABEL_{index}" for index in range(count)]

    def joint_metrics(self) -> list[keras.metrics.Metric]:
        """Metrics that need all the outputs at once, which Keras's `compile` does not know."""
        return []

    def get_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(**config)


def label_names(head: Head | None, labels: Any, model: str) -> list[str] | None:
    """What the logits of the model of this name are called: as given, or as its head says, or LABEL_0 ..."""
    default = None if head is None else head.default_labels()
    if default is None:
        if labels is not None:
            raise ConfigError(f"labels were given, but model {model!r} has no classifier head.")
        return None
    known = getattr(head, "labels", None) if labels is None else labels
    return default if known is None else list(check_labels(known, len(default)))


def check_labels(labels: Any, count: int) -> tuple[str, ...]:
    """Names of the classes, in order; a ConfigError says what is wrong with them."""
    if not isinstance(labels, list | tuple) or not all(isinstance(x, str) and x for x in labels):
        raise ConfigError(f"labels={labels!r}: expected a list of names, one for each class in order.")
    if len(labels) != count:
        raise ConfigError(f"{len(labels)} labels were given, but the model tells {count} classes apart.")
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ConfigError(f"labels has {twice[0]!r} more than once; each class needs a name of its own.")
    return tuple(labels)


def project(features: Any, units: int, name: str, dropout: float = 0.0) -> Any:
    """Dropout, then the dense layer that gives logits."""
    if dropout:
        features = keras.layers.Dropout(dropout, dtype="float32", name="head_dropout")(features)
    dense = keras.layers.Dense(units, kernel_initializer=initializer(), dtype="float32", name=name)
    return dense(features)


def initializer() -> keras.initializers.Initializer:
    return keras.initializers.TruncatedNormal(stddev=0.02)

"""Token metrics. Tokens with the label -100 or weight 0, such as padding, are ignored."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tx.errors import ConfigError
from keras_tx.metrics.base import Ratio, labels_and_weights


@keras.saving.register_keras_serializable("keras_tx")
class TokenAccuracy(Ratio):
    """The fraction of labelled tokens that are predicted correctly, computed from logits.

    Args:
        name: name of the metric.

    Example:

    >>> import numpy as np
    >>> metric = TokenAccuracy()
    >>> metric.update_state(np.array([[1, 0, -100]]), np.array([[[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]]))
    >>> float(metric.result())
    0.5
    """

    def __init__(self, name: str = "token_accuracy", **kwargs: Any):
        super().__init__(name, **kwargs)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        labels, weights = labels_and_weights(y_true, sample_weight)
        correct = ops.cast(ops.equal(labels, ops.cast(ops.argmax(y_pred, axis=-1), "int32")), "float32")
        self.add(correct * weights, weights)


@keras.saving.register_keras_serializable("keras_tx")
class Perplexity(Ratio):
    """Perplexity: the exponential of the mean cross-entropy per token, computed from logits.

    Args:
        name: name of the metric.

    Example:

    >>> import numpy as np
    >>> metric = Perplexity()
    >>> metric.update_state(np.array([[3, 0]]), np.zeros((1, 2, 4)))
    >>> round(float(metric.result()), 3)
    4.0
    """

    def __init__(self, name: str = "perplexity", **kwargs: Any):
        super().__init__(name, **kwargs)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        labels, weights = labels_and_weights(y_true, sample_weight)
        self.add(_nats(labels, y_pred) * weights, weights)

    def result(self) -> Any:
        return ops.exp(super().result())


@keras.saving.register_keras_serializable("keras_tx")
class BitsPerByte(Ratio):
    """Cross-entropy in bits per byte of text; unlike perplexity, comparable between tokenizers.

    Args:
        bytes_per_token: the number of bytes of each token of the vocabulary, or the mean per token.
        name: name of the metric.

    Raises:
        ConfigError: `bytes_per_token` contains negative or infinite numbers.

    Example:

    >>> import numpy as np
    >>> metric = BitsPerByte([1, 1, 2, 4])
    >>> metric.update_state(np.array([[3, 0]]), np.zeros((1, 2, 4)))
    >>> round(float(metric.result()), 3)  # 2 tokens of 2 bits, 5 bytes
    0.8
    """

    def __init__(self, bytes_per_token: float | Sequence[float], name: str = "bits_per_byte", **kwargs: Any):
        super().__init__(name, **kwargs)
        sizes = np.asarray(bytes_per_token, "float32")
        if sizes.ndim > 1 or not sizes.size or not np.isfinite(sizes).all() or (sizes < 0).any():
            raise ConfigError(
                f"bytes_per_token is {reprlib.repr(bytes_per_token)}, expected a number, 0 or more, or one "
                "for each token of the vocabulary."
            )
        self.bytes_per_token = sizes

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        labels, weights = labels_and_weights(y_true, sample_weight)
        sizes: Any = self.bytes_per_token
        if sizes.ndim:
            if sizes.size != y_pred.shape[-1]:
                raise ConfigError(
                    f"bytes_per_token has {sizes.size} numbers, but the model has {y_pred.shape[-1]} tokens. "
                    "Pass one number per token."
                )
            sizes = ops.take(ops.convert_to_tensor(sizes), labels, axis=0)
        else:
            sizes = float(sizes)
        self.add(_nats(labels, y_pred) * weights / math.log(2), weights * sizes)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "bytes_per_token": self.bytes_per_token.tolist()}


def _nats(labels: Any, logits: Any) -> Any:
    """The cross-entropy of each token in nats, shape (batch, sequence)."""
    return ops.sparse_categorical_crossentropy(labels, ops.cast(logits, "float32"), from_logits=True)

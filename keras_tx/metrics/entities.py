"""Entity metrics for B-, I- and O labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tx.errors import ConfigError
from keras_tx.metrics.base import Ratio, labels_and_weights

OUTSIDE, BEGIN, INSIDE = range(3)


@keras.saving.register_keras_serializable("keras_tx")
class EntityF1(Ratio):
    """F1 score of entities: the first token, the last token and the type of an entity must match.

    Entities are counted as by seqeval's default mode: an entity of type x begins at B-x, and at an I-x that
    does not continue an entity of type x. Tokens with the label -100 are ignored.

    Args:
        labels: names of the classes, in order: "O", "B-PER", "I-PER" ...
        name: name of the metric.

    Raises:
        ConfigError: a label is not "O" and begins with neither "B-" nor "I-".

    Example:

    >>> import numpy as np
    >>> metric = EntityF1(["O", "B-PER", "I-PER"])
    >>> metric.update_state(np.array([[1, 2, 0, 1]]), np.eye(3)[[[1, 2, 0, 0]]])
    >>> round(float(metric.result()), 3)  # precision 1, recall 0.5
    0.667
    """

    def __init__(self, labels: Sequence[str], name: str = "entity_f1", **kwargs: Any):
        super().__init__(name, **kwargs)
        self.labels = list(labels)
        for label in self.labels:
            if label != "O" and label[:2] not in ("B-", "I-"):
                raise ConfigError(
                    f"labels contains {label!r}. Each label must be 'O' or begin with 'B-' or 'I-'."
                )
        types = sorted({label[2:] for label in self.labels if label != "O"})
        self.parts = np.array(
            [{"O": OUTSIDE, "B": BEGIN, "I": INSIDE}[label[0]] for label in labels], "int32"
        )
        self.types = np.array([-1 if label == "O" else types.index(label[2:]) for label in labels], "int32")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        if y_pred.shape[-1] != len(self.labels):
            raise ConfigError(
                f"EntityF1 has {len(self.labels)} labels, but the model has {y_pred.shape[-1]} classes. "
                "Pass one label per class."
            )
        labels, weights = labels_and_weights(y_true, sample_weight)
        predicted = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        length = ops.shape(labels)[1]
        positions = ops.arange(length, dtype="int32")[None, :]
        counted = weights > 0
        # Counted tokens are moved to the front, in order, so that ignored tokens do not split entities.
        order = ops.argsort(ops.where(counted, positions, positions + length), axis=1)
        counted = ops.take_along_axis(counted, order, axis=1)
        true = self._entities(ops.take_along_axis(labels, order, axis=1), counted)
        guess = self._entities(ops.take_along_axis(predicted, order, axis=1), counted)
        both = ops.logical_and(true[0], guess[0])
        for first, second in zip(true[1:], guess[1:], strict=True):
            both = ops.logical_and(both, ops.equal(first, second))
        correct, labelled, guessed = (ops.sum(ops.cast(x, "float32")) for x in (both, true[0], guess[0]))
        self.add(2 * correct, labelled + guessed)

    def _entities(self, labels: Any, counted: Any) -> tuple[Any, Any, Any]:
        """For each token: whether an entity begins there, its type, and the position after its last token."""
        parts = ops.where(counted, ops.take(ops.convert_to_tensor(self.parts), labels, axis=0), OUTSIDE)
        types = ops.where(counted, ops.take(ops.convert_to_tensor(self.types), labels, axis=0), -1)
        length = ops.shape(labels)[1]
        before = ops.concatenate([-ops.ones_like(types[:, :1]), types[:, :-1]], axis=1)
        begins = ops.logical_or(
            ops.equal(parts, BEGIN), ops.logical_and(ops.equal(parts, INSIDE), ops.not_equal(types, before))
        )
        stops = ops.logical_or(begins, ops.equal(parts, OUTSIDE))
        positions = ops.arange(length, dtype="int32")
        later = positions[None, :, None] < positions[None, None, :]  # (1, token, later token)
        candidates = ops.where(ops.logical_and(later, stops[:, None, :]), positions[None, None, :], length)
        return begins, types, ops.min(candidates, axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "labels": self.labels}

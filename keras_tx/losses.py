"""Losses on logits, and the check that a loss or metric of Keras expects logits, as all heads return."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError

ON_LOGITS = {  # classes with from_logits=, by the name of their function
    "binary_crossentropy": "BinaryCrossentropy",
    "binary_focal_crossentropy": "BinaryFocalCrossentropy",
    "categorical_crossentropy": "CategoricalCrossentropy",
    "categorical_focal_crossentropy": "CategoricalFocalCrossentropy",
    "sparse_categorical_crossentropy": "SparseCategoricalCrossentropy",
    "AUC": "AUC",
}
PROBABILITIES_ONLY = frozenset(
    "categorical_generalized_cross_entropy dice kl_divergence poisson tversky binary_accuracy BinaryAccuracy "
    "BinaryIoU FalseNegatives FalsePositives Precision PrecisionAtRecall Recall RecallAtPrecision "
    "SensitivityAtSpecificity SpecificityAtSensitivity TrueNegatives TruePositives".split()
)
SUM_TOLERANCE = 1e-2  # of probabilities in half precision
EXCLUDED = -1e9  # the score of rows that a sum of exponentials excludes
AMBIGUOUS = ("crossentropy", "ce")  # Keras chooses the kind by the labels, and expects probabilities


def on_logits(loss: Any, kind: str = "losses") -> Any:
    """Converts losses or metrics so that they are computed from logits.

    The name of a cross-entropy becomes an object with `from_logits=True`. Losses for which it makes no
    difference, such as mean squared error, and functions of the user are returned unchanged.

    Args:
        loss: a loss or metric, its name, or a list, tuple or dict of these.
        kind: "losses" or "metrics", the module of Keras that contains the names.

    Returns:
        `loss`, or a list or dict like it.

    Raises:
        ConfigError: a loss or metric expects probabilities.
    """
    if isinstance(loss, dict):
        return {key: on_logits(value, kind) for key, value in loss.items()}
    if isinstance(loss, (list, tuple)):
        return [on_logits(value, kind) for value in loss]
    if isinstance(loss, str):
        return _named(loss, kind)
    function = function_name(loss)
    known = getattr(keras.losses, function, getattr(keras.metrics, function, None))
    if not isinstance(loss, keras.losses.Loss | keras.metrics.Metric) and loss is not known:
        return loss
    if function in PROBABILITIES_ONLY:
        _refuse(function)
    if function in ON_LOGITS and not _from_logits(loss):
        raise ConfigError(
            f"{type(loss).__name__} {function!r} expects probabilities, but the model outputs logits. Pass "
            f"{ON_LOGITS[function]}(from_logits=True), or the name {function!r}."
        )
    return loss


def refuse_categorical_loss(loss: Any) -> None:
    """Raises a ConfigError for a categorical loss of a multi-label head, whose classes are independent."""
    if isinstance(loss, dict | list | tuple):
        for value in loss.values() if isinstance(loss, dict) else loss:
            refuse_categorical_loss(value)
        return
    name = loss if isinstance(loss, str) else function_name(loss)
    if "categorical" in name.lower():
        raise ConfigError(
            f"The loss {name!r} expects one class per sample, but MultiLabelHead predicts any number. Pass "
            "'binary_crossentropy' or no loss, or use ClassifierHead for one class per sample."
        )


def _named(name: str, kind: str) -> Any:
    module = getattr(keras, kind)
    if kind == "metrics" and name in AMBIGUOUS:
        raise ConfigError(
            f"The metric {name!r} expects probabilities, but the model outputs logits. Pass "
            "'sparse_categorical_crossentropy' or 'categorical_crossentropy'."
        )
    try:
        function = function_name(module.get(name))
    except ValueError:
        return name  # such as "accuracy"; Keras raises an error for unknown names
    if function in PROBABILITIES_ONLY:
        _refuse(function)
    cls = getattr(module, ON_LOGITS.get(function, ""), None)
    return name if cls is None else cls(from_logits=True)


def function_name(loss: Any) -> str:
    """The name of the function that computes a loss or metric, or else of its class."""
    wrapped = getattr(loss, "fn", getattr(loss, "_fn", None))
    return getattr(wrapped or loss, "__name__", type(loss).__name__)


def _from_logits(loss: Any) -> bool:
    arguments = getattr(loss, "_fn_kwargs", None) or {}
    return bool(
        arguments.get("from_logits", getattr(loss, "_from_logits", getattr(loss, "from_logits", False)))
    )


def _refuse(name: str) -> None:
    raise ConfigError(
        f"{name!r} expects probabilities, but the model outputs logits. Use a cross-entropy or "
        "'accuracy', or write a function that applies softmax to y_pred first."
    )


@keras.saving.register_keras_serializable("keras_tx")
class ClassCrossentropy(keras.losses.Loss):
    """Cross-entropy of exclusive classes from logits, with labels as integers or as class probabilities.

    Labels are integers (batch,) or (batch, 1), or class probabilities (batch, classes), as MixUp, CutMix and
    teacher models return. An integer out of range raises an error, or the loss is NaN where the backend
    cannot raise one. Numbers that are not whole, and rows whose sum is not 1, have the loss NaN.

    Args:
        label_smoothing: the fraction of the target that is spread evenly over all classes.
        name: name of the loss.

    Raises:
        ConfigError: `label_smoothing` is out of range.

    Example:

    >>> import numpy as np
    >>> logits, loss = np.log([[0.5, 0.5], [0.1, 0.9]]).astype("float32"), ClassCrossentropy()
    >>> round(float(loss(np.array([0, 1]), logits)), 3)
    0.399
    >>> round(float(loss(np.array([[1.0, 0.0], [0.0, 1.0]]), logits)), 3)
    0.399
    """

    def __init__(self, label_smoothing: float = 0.0, name: str = "class_crossentropy", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.label_smoothing = smoothing_rate(label_smoothing)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The loss of each sample, shape (batch,)."""
        logits = ops.cast(y_pred, "float32")
        classes = logits.shape[-1]
        labels = ops.convert_to_tensor(y_true)
        if has_probabilities(labels, classes):
            # The last axis of labels from tf.data may be unknown.
            shares = ops.reshape(ops.cast(labels, "float32"), (-1, classes))
            loss = ops.categorical_crossentropy(shares, logits, from_logits=True)
            loss = ops.where(are_probabilities(shares), loss, float("nan"))
        else:
            labels = ops.reshape(labels, (-1,))
            loss = ops.sparse_categorical_crossentropy(ops.cast(labels, "int32"), logits, from_logits=True)
            loss = ops.where(are_class_numbers(labels, classes), loss, float("nan"))
        if self.label_smoothing:
            even = ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1)
            loss = (1 - self.label_smoothing) * loss + self.label_smoothing * even
        return loss

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


def has_probabilities(labels: Any, classes: int) -> bool:
    """Whether the labels of a classifier are (batch, classes) rather than class numbers."""
    if len(labels.shape) != 2:
        return False
    if labels.shape[-1] is None:
        return keras.backend.is_float_dtype(keras.backend.standardize_dtype(labels.dtype))
    return labels.shape[-1] == classes


def are_class_numbers(labels: Any, classes: Any) -> Any:
    """Returns whether each label is a whole number from 0 to `classes` - 1, as a tensor of their shape."""
    kind = keras.backend.standardize_dtype(labels.dtype)
    if kind in ("bool", "int8", "uint8", "int16", "uint16"):
        labels, kind = ops.cast(labels, "int32"), "int32"
    valid = ops.logical_and(labels >= 0, labels < ops.cast(classes, kind))
    if keras.backend.is_float_dtype(kind):
        valid = ops.logical_and(valid, ops.equal(labels, ops.floor(labels)))
    return valid


def are_probabilities(rows: Any) -> Any:
    """Returns whether each row of labels has numbers of 0 to 1 whose sum is 1, as a tensor (batch,)."""
    sums = ops.sum(rows, axis=-1)
    return ops.logical_and(are_shares(rows), ops.abs(sums - 1) <= SUM_TOLERANCE)


def are_shares(rows: Any) -> Any:
    """Returns whether all labels of each sample are numbers of 0 to 1, as a tensor (batch,)."""
    valid = ops.logical_and(rows >= 0, rows <= 1)
    return ops.all(valid, axis=tuple(range(1, len(rows.shape))))


def smoothing_rate(label_smoothing: Any) -> float:
    """Returns `label_smoothing`; raises a ConfigError unless it is at least 0 and less than 1."""
    if not 0 <= label_smoothing < 1:
        raise ConfigError(
            f"label_smoothing={label_smoothing!r} is out of range. Pass 0 or more, and less than 1."
        )
    return label_smoothing


@keras.saving.register_keras_serializable("keras_tx")
class TokenCrossentropy(keras.losses.Loss):
    """Cross-entropy per token from logits, averaged over the labelled tokens.

    Tokens with the label -100 or sample weight 0, such as padding, are ignored, so the loss does not depend
    on the amount of padding in a batch. Another label that is out of range raises an error, or the loss is
    NaN where the backend cannot raise one.

    Args:
        label_smoothing: the fraction of the target that is spread evenly over all classes.
        name: name of the loss.

    Raises:
        ConfigError: `label_smoothing` is out of range.

    Example:

    >>> import numpy as np
    >>> logits = np.log([[[0.5, 0.5], [0.1, 0.9]]]).astype("float32")
    >>> round(float(TokenCrossentropy()(np.array([[0, -100]]), logits)), 3)
    0.693
    """

    def __init__(self, label_smoothing: float = 0.0, name: str = "token_crossentropy", **kwargs: Any):
        kwargs.setdefault("reduction", "sum_over_batch_size")
        super().__init__(name=name, **kwargs)
        self.label_smoothing = smoothing_rate(label_smoothing)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        # Keras's reduction divides by the number of all elements, and JAX drops the mask that corrects it.
        losses, weights = self.call(y_true, y_pred), self._weights(y_true, sample_weight)
        if self.reduction in (None, "none"):
            return losses * weights
        total = ops.sum(losses * weights)
        return total if self.reduction == "sum" else ops.divide_no_nan(total, ops.sum(weights))

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The loss of each token, shape (batch, sequence); 0 for tokens without a label."""
        labels, logits = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
        if len(labels.shape) != len(logits.shape) - 1:
            raise ConfigError(
                f"TokenCrossentropy got labels of shape {tuple(labels.shape)} for logits of shape "
                f"{tuple(logits.shape)}. Pass one integer label per token."
            )
        labelled = ops.not_equal(labels, contract.NO_LABEL)
        valid = are_class_numbers(ops.convert_to_tensor(y_true), ops.shape(logits)[-1])
        losses = ops.sparse_categorical_crossentropy(ops.where(labelled, labels, 0), logits, from_logits=True)
        if self.label_smoothing:
            even = ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1)
            losses = (1 - self.label_smoothing) * losses + self.label_smoothing * even
        return ops.where(labelled, ops.where(valid, losses, float("nan")), 0.0)

    def _weights(self, y_true: Any, sample_weight: Any) -> Any:
        weights = ops.cast(ops.not_equal(ops.cast(y_true, "int32"), contract.NO_LABEL), "float32")
        if sample_weight is None:
            return weights
        factors = ops.cast(sample_weight, "float32")
        if len(factors.shape) < len(weights.shape):
            factors = ops.expand_dims(factors, -1)  # one weight for all tokens of a sample
        return weights * factors

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable("keras_tx")
class ContrastiveLoss(keras.losses.Loss):
    """Supervised contrastive loss (Khosla et al., 2020) of the cosines of the vectors in a batch.

    The loss is small when vectors with the same label are close and others are far apart. Vectors whose label
    occurs once in the batch are ignored. For pairs of anchors and positives, MultipleNegativesRankingLoss is
    the loss of sentence-transformers.

    Args:
        temperature: divisor of the cosines; lower values give more weight to hard negatives.
        name: name of the loss.

    Raises:
        ConfigError: `temperature` is 0 or negative.

    Example:

    >>> import numpy as np
    >>> vectors = np.eye(4, dtype="float32")[[0, 0, 1, 1]]
    >>> loss = ContrastiveLoss()
    >>> float(loss(np.array([5, 5, 6, 6]), vectors)) < 1e-6
    True
    >>> float(loss(np.array([5, 6, 5, 6]), vectors)) > 1
    True
    """

    def __init__(self, temperature: float = 0.05, name: str = "contrastive_loss", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.temperature = checked_temperature(temperature)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        labels = ops.reshape(y_true, (-1,))
        count = ops.shape(labels)[0]
        vectors = ops.normalize(ops.cast(y_pred, "float32"), axis=-1)
        others = 1.0 - ops.eye(count, dtype="float32")
        scores = ops.matmul(vectors, ops.transpose(vectors)) / self.temperature - 1e9 * (1.0 - others)
        log_shares = scores - ops.logsumexp(scores, axis=-1, keepdims=True)
        same_label = ops.cast(ops.equal(labels[:, None], labels[None, :]), "float32") * others
        partners = ops.sum(same_label, axis=-1)
        losses = -ops.divide_no_nan(ops.sum(log_shares * same_label, axis=-1), partners)
        # Keras averages over all vectors; only those with a partner count.
        paired = ops.sum(ops.cast(partners > 0, "float32"))
        return losses * ops.divide_no_nan(ops.cast(count, "float32"), paired)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "temperature": self.temperature}


class _EmbeddingLoss(keras.losses.Loss):
    """Base class of the losses on the cosines of a batch's vectors, divided by a temperature."""

    columns: ClassVar[tuple[str, ...]] = ()  # of the labels

    def __init__(self, temperature: float = 0.05, name: str | None = None, **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.temperature = checked_temperature(temperature)

    def cosines(self, y_true: Any, y_pred: Any) -> Any:
        """The cosines of all pairs of vectors, divided by the temperature (rows, rows)."""
        if len(y_true.shape) != 2 or y_true.shape[1] not in (None, len(self.columns)):
            raise ConfigError(
                f"{type(self).__name__} got labels of shape {tuple(y_true.shape)}, expected (rows, "
                f"{len(self.columns)}): the {' and '.join(self.columns)} of each text. Batches of "
                "keras_tx.data have them."
            )
        vectors = ops.normalize(ops.cast(y_pred, "float32"), axis=-1)
        return ops.matmul(vectors, ops.transpose(vectors)) / self.temperature

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "temperature": self.temperature}


@keras.saving.register_keras_serializable("keras_tx")
class MultipleNegativesRankingLoss(_EmbeddingLoss):
    """In-batch negatives: each anchor should be more similar to its positive than to all other documents.

    The loss of an anchor is the cross-entropy of its positive among the positives and negatives of the whole
    batch (Henderson et al., "Efficient Natural Language Response Suggestion for Smart Reply", 2017). The
    labels, which `keras_tx.data.text_ranking_batches` returns, are (rows, 3) integers: the group of the text,
    its role (0 for the anchor, 1 for the positive, 2 and more for hard negatives), and the number of its
    text. A document with the same text as the positive is not a negative.

    Args:
        temperature: divisor of the cosines; 0.05 is `scale=20` in sentence-transformers.
        symmetric: whether to average with the loss of the other direction, in which each positive should be
            more similar to its anchor than to all other anchors.
        name: name of the loss.

    Raises:
        ConfigError: `temperature` is 0 or negative, or the labels have another shape.

    Example:

    >>> import numpy as np
    >>> vectors = np.eye(4, dtype="float32")[[0, 0, 1, 1]]
    >>> loss = MultipleNegativesRankingLoss()
    >>> float(loss(np.array([[0, 0, 0], [0, 1, 1], [1, 0, 2], [1, 1, 3]]), vectors)) < 1e-6
    True
    """

    columns = ("group", "role", "text number")

    def __init__(
        self,
        temperature: float = 0.05,
        symmetric: bool = False,
        name: str = "multiple_negatives_ranking_loss",
        **kwargs: Any,
    ):
        super().__init__(temperature, name, **kwargs)
        self.symmetric = symmetric

    def call(self, y_true: Any, y_pred: Any) -> Any:
        scores = self.cosines(y_true, y_pred)
        group, role, text = (ops.cast(y_true[:, column], "int32") for column in range(3))
        same_group = ops.equal(group[:, None], group[None, :])
        is_anchor, is_positive = ops.equal(role, 0), ops.equal(role, 1)
        pairs = ops.cast(
            same_group & is_anchor[:, None] & is_positive[None, :], "float32"
        )  # anchor, positive
        own_text = ops.sum(pairs * ops.cast(text, "float32")[None, :], axis=-1)  # of each anchor's positive
        same_text = ops.equal(own_text[:, None], ops.cast(text, "float32")[None, :])
        documents = ~is_anchor[None, :] & (~same_text | ops.cast(pairs, "bool"))
        losses = ops.logsumexp(ops.where(documents, scores, EXCLUDED), axis=-1) - ops.sum(
            scores * pairs, axis=-1
        )
        if self.symmetric:
            anchors = is_anchor[:, None] & (~same_text | ops.cast(pairs, "bool"))
            totals = ops.logsumexp(ops.where(anchors, scores, EXCLUDED), axis=0)  # of each positive
            backward = ops.sum(pairs * totals[None, :], axis=-1) - ops.sum(scores * pairs, axis=-1)
            losses = (losses + backward) / 2
        paired = ops.sum(pairs, axis=-1)  # 1 for an anchor with a positive, 0 for other rows
        # Keras averages over all rows; only anchors count.
        count = ops.cast(ops.shape(y_pred)[0], "float32")
        return losses * paired * ops.divide_no_nan(count, ops.sum(paired))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "symmetric": self.symmetric}


@keras.saving.register_keras_serializable("keras_tx")
class CoSENTLoss(_EmbeddingLoss):
    """A ranking loss on pairs of texts: pairs with higher scores should have higher cosines.

    The loss is log(1 + sum exp(s - t)) over all pairs with cosine s and a lower score than a pair with cosine
    t (Huang et al., "CoSENT: Consistent Sentence Embedding via Similarity Ranking", 2024). The labels, which
    `keras_tx.data.text_similarity_batches` returns, are (rows, 2) numbers: the pair of the text, and the
    score of the pair.

    Args:
        temperature: divisor of the cosines; 0.05 is `scale=20` in sentence-transformers.
        name: name of the loss.

    Raises:
        ConfigError: `temperature` is 0 or negative, or the labels have another shape.

    Example:

    >>> import numpy as np
    >>> vectors = np.eye(3, dtype="float32")[[0, 0, 1, 2]]
    >>> loss = CoSENTLoss()
    >>> float(loss(np.array([[0, 0.9], [0, 0.9], [1, 0.1], [1, 0.1]]), vectors)) < 1e-6
    True
    """

    columns = ("pair", "score")

    def __init__(self, temperature: float = 0.05, name: str = "cosent_loss", **kwargs: Any):
        super().__init__(temperature, name, **kwargs)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        scores = self.cosines(y_true, y_pred)
        pair, label = (ops.cast(y_true[:, column], "float32") for column in range(2))
        same_pair = ops.cast(ops.equal(pair[:, None], pair[None, :]), "float32")
        partners = ops.triu(same_pair, k=1)  # the first row of a pair, and its second
        cosine = ops.sum(scores * partners, axis=-1)
        is_first = ops.cast(ops.sum(partners, axis=-1), "bool")
        lower = is_first[:, None] & is_first[None, :] & ops.less(label[:, None], label[None, :])
        differences = ops.where(lower, cosine[:, None] - cosine[None, :], EXCLUDED)
        return ops.logaddexp(0.0, ops.logsumexp(differences))


@keras.saving.register_keras_serializable("keras_tx")
class MatryoshkaLoss(keras.losses.Loss):
    """The weighted sum of a loss over the first dimensions of the vectors, so that vectors can be truncated.

    Kusupati et al., "Matryoshka Representation Learning", 2022. For each `dim` of `dims`, `vectors[:, :dim]`,
    normalized again, is an embedding of the text.

    Args:
        loss: a loss on vectors, such as MultipleNegativesRankingLoss.
        dims: numbers of dimensions, including the width of the vectors.
        weights: one number for each of `dims`; by default 1.
        name: name of the loss.

    Raises:
        ConfigError: `dims` or `weights` is invalid, or the vectors have fewer dimensions than one of `dims`.

    Example:

    >>> loss = MatryoshkaLoss(MultipleNegativesRankingLoss(), dims=[384, 128, 64])
    >>> loss.weights
    (1.0, 1.0, 1.0)
    """

    def __init__(
        self,
        loss: keras.losses.Loss,
        dims: Sequence[int],
        weights: Sequence[float] | None = None,
        name: str = "matryoshka_loss",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        if not isinstance(loss, keras.losses.Loss):
            raise ConfigError(f"loss={loss!r} is a {type(loss).__name__}, expected a keras.losses.Loss.")
        self.loss = loss
        self.dims = tuple(dims) if isinstance(dims, list | tuple) else ()
        if not self.dims or not all(type(dim) is int and dim > 0 for dim in self.dims):
            raise ConfigError(f"dims={dims!r} is invalid. Pass a list of whole numbers above 0.")
        self.weights = (1.0,) * len(self.dims) if weights is None else tuple(weights)
        if len(self.weights) != len(self.dims):
            raise ConfigError(f"weights has {len(self.weights)} numbers, but dims has {len(self.dims)}.")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        width = y_pred.shape[-1]
        if max(self.dims) > width:
            raise ConfigError(f"dims has {max(self.dims)}, but the vectors have {width} dimensions.")
        terms = [
            weight * self.loss.call(y_true, y_pred[:, :dim])
            for dim, weight in zip(self.dims, self.weights, strict=True)
        ]
        return functools.reduce(ops.add, terms)

    def get_config(self) -> dict[str, Any]:
        loss = keras.saving.serialize_keras_object(self.loss)
        return {**super().get_config(), "loss": loss, "dims": self.dims, "weights": self.weights}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> MatryoshkaLoss:
        return cls(**{**config, "loss": keras.saving.deserialize_keras_object(config["loss"])})


def checked_temperature(temperature: Any) -> Any:
    """Returns the temperature; raises a ConfigError if it is 0 or negative."""
    if not temperature > 0:
        raise ConfigError(f"temperature={temperature!r} is out of range. Pass a number above 0.")
    return temperature

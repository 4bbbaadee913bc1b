"""The score of a graph on validation data, by the metric of the task or of the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.tasks import tasks_named
from keras_tx_onnx.quantizing import calibration_inputs

Outputs = Mapping[str, np.ndarray]
Result = tuple[float, float]  # a sum, and the count by which it is divided

BATCH_SIZE = 32  # of arrays
AGREEMENT = "agreement"  # a metric that needs no targets: the share of fp32's answers that stay the same


@dataclasses.dataclass(frozen=True)
class Metric:
    """A score of which more is better.

    Attributes:
        name: for the report.
        score: of a function that runs a batch, and batches of inputs and targets.
    """

    name: str
    score: Callable[[Callable[[Any], Outputs], list[Any]], float]


def batches_of(validation: Any) -> Iterator[tuple[Any, Any]]:
    """Inputs and targets, batch by batch; targets are None if there are none."""
    data: Any = (validation, None) if isinstance(validation, (np.ndarray, Mapping)) else validation
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], (np.ndarray, Mapping)):
        inputs, targets = data
        count = len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)
        for start in range(0, count, BATCH_SIZE):
            yield _rows(inputs, start), _rows(targets, start)
    elif isinstance(data, keras.utils.PyDataset):  # iterating over it would not end
        yield from (_pair(data[index]) for index in range(int(getattr(data, "num_batches", None) or 0)))
    elif hasattr(data, "__iter__") and not isinstance(data, (str, bytes)):
        calibration_inputs.check_is_finite(data, "validation")
        yield from map(_pair, data)
    else:
        raise ConfigError(
            f"validation is a {type(data).__name__}, expected (inputs, targets) as arrays, or an iterable of "
            "such batches: a tf.data.Dataset, a PyDataset, a list."
        )


def _rows(arrays: Any, start: int) -> Any:
    if isinstance(arrays, Mapping):
        return {name: np.asarray(x)[start : start + BATCH_SIZE] for name, x in arrays.items()}
    return None if arrays is None else np.asarray(arrays)[start : start + BATCH_SIZE]


def _pair(batch: Any) -> tuple[Any, Any]:
    return (batch[0], batch[1]) if isinstance(batch, (tuple, list)) and len(batch) > 1 else (batch, None)


def metric_of(folder: Folder, metric: Any) -> Metric:
    """The user's metric, or if it is None that of the folder's task; raises a ConfigError without one."""
    if isinstance(metric, keras.metrics.Metric):
        return _keras_metric(metric)
    if callable(metric):
        return _function_metric(metric)
    if metric == AGREEMENT:
        return BY_AGREEMENT
    if metric is not None:
        raise ConfigError(
            f"metric is a {type(metric).__name__}, expected {AGREEMENT!r}, a function of (outputs by name, "
            "targets), or a keras.metrics.Metric."
        )
    tasks = tasks_named(folder.manifest.task)
    if not tasks or tasks[0].metric is None:
        raise ConfigError(
            f"metric is missing, and the task {folder.manifest.task!r} has no default. Pass a "
            "keras.metrics.Metric, or a function of (outputs by name, targets) of which more is better."
        )
    name = _METRICS_OF_PROBLEMS.get(folder.problem_type, tasks[0].metric)
    measure = _MEASURES[name]

    def score(run: Callable[[Any], Outputs], batches: list[Any]) -> float:
        results = [measure(run(inputs), inputs, targets) for inputs, targets in batches]
        return sum(total for total, _ in results) / max(sum(count for _, count in results), 1)

    return Metric(name, score)


def _runs(run: Callable[[Any], Outputs], batches: list[Any]) -> float:
    """Runs all batches, whose answers the caller compares."""
    for inputs, _ in batches:
        run(inputs)
    return float("nan")


BY_AGREEMENT = Metric(AGREEMENT, _runs)


def _keras_metric(metric: Any) -> Metric:
    sign = -1 if getattr(metric, "_direction", "up") == "down" else 1

    def score(run: Callable[[Any], Outputs], batches: list[Any]) -> float:
        metric.reset_state()
        for inputs, targets in batches:
            outputs = run(inputs)
            metric.update_state(targets, next(iter(outputs.values())))
        return sign * float(np.mean(keras.ops.convert_to_numpy(metric.result())))

    return Metric(metric.name if sign > 0 else f"-{metric.name}", score)


def _function_metric(metric: Callable[..., Any]) -> Metric:
    """The mean over batches, weighted by their rows."""

    def score(run: Callable[[Any], Outputs], batches: list[Any]) -> float:
        values = [float(metric(run(inputs), targets)) for inputs, targets in batches]
        rows = [len(next(iter(inputs.values()))) for inputs, _ in batches]
        return sum(value * count for value, count in zip(values, rows, strict=True)) / sum(rows)

    return Metric(getattr(metric, "__name__", "metric"), score)


def _checked(targets: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Targets of this shape, or of this shape and one more axis of size 1."""
    if targets is None:
        raise ConfigError("validation has no targets, expected (inputs, targets) for the metric of the task.")
    targets = np.asarray(targets)
    if targets.shape not in (shape, (*shape, 1)):
        raise ConfigError(
            f"validation has targets of shape {targets.shape}, expected {shape}: {what}. Pass the targets of "
            "the inputs, in the same order."
        )
    if targets.dtype.kind not in "biuf":
        raise ConfigError(f"validation has targets of type {targets.dtype}, expected numbers: {what}.")
    return targets.reshape(shape)


def _of_output(targets: Any, name: str) -> Any:
    """The targets of one of several outputs."""
    if targets is None:
        return None  # _checked reports it
    if not isinstance(targets, Mapping) or name not in targets:
        kind = f"keys {list(targets)}" if isinstance(targets, Mapping) else f"type {type(targets).__name__}"
        raise ConfigError(
            f"validation has targets of {kind}, expected a dict with {name!r}. Pass the targets of each "
            "output under its name."
        )
    return targets[name]


def _check_range(targets: np.ndarray, in_range: np.ndarray, expected: str) -> None:
    """Raises a ConfigError for the first target that the model cannot predict."""
    wrong = np.argwhere(~in_range)
    if len(wrong):
        place = tuple(int(index) for index in wrong[0])
        raise ConfigError(
            f"validation has the target {targets[place]} at {list(place)} of a batch, expected {expected}. "
            "Pass targets as in training."
        )


def _are_indices(targets: np.ndarray, count: int) -> np.ndarray:
    """Where targets are integers from 0 to count - 1."""
    return (targets >= 0) & (targets < count) & (targets == np.floor(targets))


def _labels(targets: Any, logits: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """The class of each row of logits, and where it counts: not where the label is -100."""
    labels, classes = _checked(targets, logits.shape[:-1], what), logits.shape[-1]
    counted = labels != contract.NO_LABEL
    expected = f"a class from 0 to {classes - 1}, or {contract.NO_LABEL} for none"
    _check_range(labels, _are_indices(labels, classes) | ~counted, expected)
    return labels, counted


def _accuracy(outputs: Outputs, inputs: Outputs, targets: Any) -> Result:
    """Of the classes of inputs or tokens; labels of -100 do not count."""
    logits = outputs[contract.LOGITS]
    predicted, classes = logits.argmax(-1), logits.shape[-1]
    if np.shape(targets) == logits.shape and classes > 1:
        probabilities = _checked(targets, logits.shape, "a probability of each class")
        _check_range(probabilities, (probabilities >= 0) & (probabilities <= 1), "0 to 1 for each class")
        targets = probabilities.argmax(-1)
    labels, counted = _labels(targets, logits, "the class of each input, or of each of its tokens")
    return float((predicted == labels)[counted].sum()), float(counted.sum())


def _accuracy_of_tokens(outputs: Outputs, inputs: Outputs, targets: Any) -> Result:
    """Also of masked tokens of a model that was pre-trained with pairs of texts."""
    if contract.LOGITS in outputs:
        return _accuracy(outputs, inputs, targets)
    labels = _of_output(targets, contract.PREDICTION_LOGITS) if isinstance(targets, Mapping) else targets
    return _accuracy({contract.LOGITS: outputs[contract.PREDICTION_LOGITS]}, inputs, labels)


def _f1(outputs: Outputs, inputs: Outputs, targets: Any) -> Result:
    """Twice the true positives, and all predicted and real positives: their quotient is F1."""
    logits = outputs[contract.LOGITS]
    labels = _checked(targets, logits.shape, "0 or 1 for each class")
    _check_range(labels, _are_indices(labels, 2), "0 or 1 for each class")
    predicted = logits > 0
    return 2.0 * float((predicted * labels).sum()), float(predicted.sum() + labels.sum())


def _negative_absolute_error(outputs: Outputs, inputs: Outputs, targets: Any) -> Result:
    logits = outputs[contract.LOGITS]
    shape = logits.shape[:-1] if logits.shape[-1] == 1 else logits.shape
    numbers = _checked(targets, shape, "a number for each input")
    _check_range(numbers, np.isfinite(numbers), "a finite number")
    return -float(np.abs(logits.reshape(shape) - numbers).sum()), float(logits.size)


def _exact_match(outputs: Outputs, inputs: Outputs, targets: Any) -> Result:
    """Of the first and last tokens of answers."""
    correct = True
    for name in (contract.START_LOGITS, contract.END_LOGITS):
        predicted = outputs[name].argmax(-1)
        labels = _checked(_of_output(targets, name), predicted.shape, f"the token of each answer in {name}")
        tokens = outputs[name].shape[-1]
        _check_range(labels, _are_indices(labels, tokens), f"a token from 0 to {tokens - 1}, in {name}")
        correct = correct & (predicted == labels)
    return float(np.sum(correct)), float(len(outputs[contract.START_LOGITS]))


def _log_probability(outputs: Outputs, inputs: Outputs, targets: Any) -> Result:
    """Of each token after those before it; its mean is minus the logarithm of the perplexity."""
    logits = outputs[contract.LOGITS].astype("float64")
    if contract.DECODER_INPUT_IDS in inputs:
        ids, counted = _labels(targets, logits, "the token after each one of decoder_input_ids")
        ids = np.where(counted, ids, 0).astype("int64")
    else:
        logits, ids, mask = logits[:, :-1], inputs[contract.INPUT_IDS][:, 1:], inputs[contract.ATTENTION_MASK]
        counted = (mask[:, 1:] * mask[:, :-1]) != 0
    logits -= logits.max(-1, keepdims=True)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    log_probabilities = np.take_along_axis(log_probabilities, ids[..., None], axis=-1)[..., 0]
    return float(log_probabilities[counted].sum()), float(counted.sum())


_METRICS_OF_PROBLEMS: dict[str | None, str] = {
    contract.MULTI_LABEL: "F1 of all labels",
    contract.REGRESSION: "-mean absolute error",
}
_MEASURES: dict[str, Callable[[Outputs, Outputs, Any], Result]] = {  # by the name in the record of the task
    "accuracy": _accuracy,
    "accuracy of tokens": _accuracy_of_tokens,
    "exact match": _exact_match,
    "-log(perplexity)": _log_probability,
    "F1 of all labels": _f1,
    "-mean absolute error": _negative_absolute_error,
}

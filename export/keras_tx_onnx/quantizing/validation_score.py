"""How good the answers of a graph are on validation data, by the metric of the task or of the user."""

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
Result = tuple[float, float]  # a sum over what is counted, and how many that are

ROWS = 32  # of arrays, at a time


@dataclasses.dataclass(frozen=True)
class Metric:
    """A score of which more is better."""

    name: str
    score: Callable[[Callable[[Any], Outputs], list[Any]], float]  # of a way to run inputs, and batches


def batches_of(validation: Any) -> Iterator[tuple[Any, Any]]:
    """Inputs and targets, batch by batch; targets are None where there are none."""
    given: Any = (validation, None) if isinstance(validation, (np.ndarray, Mapping)) else validation
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], (np.ndarray, Mapping)):
        inputs, targets = given
        count = len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)
        for start in range(0, count, ROWS):
            yield _rows(inputs, start), _rows(targets, start)
    elif isinstance(given, keras.utils.PyDataset):  # iteration would not end by itself
        yield from (_pair(given[index]) for index in range(int(getattr(given, "num_batches", None) or 0)))
    elif hasattr(given, "__iter__") and not isinstance(given, (str, bytes)):
        calibration_inputs.check_end(given, "validation")
        yield from map(_pair, given)
    else:
        raise ConfigError(
            f"validation is a {type(given).__name__}, expected (inputs, targets) as arrays, or an "
            "iterable of such batches: a tf.data.Dataset, a PyDataset, a list."
        )


def _rows(arrays: Any, start: int) -> Any:
    if isinstance(arrays, Mapping):
        return {name: np.asarray(x)[start : start + ROWS] for name, x in arrays.items()}
    return None if arrays is None else np.asarray(arrays)[start : start + ROWS]


def _pair(batch: Any) -> tuple[Any, Any]:
    return (batch[0], batch[1]) if isinstance(batch, (tuple, list)) and len(batch) > 1 else (batch, None)


def metric_of(folder: Folder, given: Any) -> Metric:
    """The metric to use: the user's, or that of the task."""
    if given is not None:
        return _users(given)
    tasks = tasks_named(folder.manifest.task)
    if not tasks or tasks[0].metric is None:
        raise ConfigError(
            f"metric is missing, and the task {folder.manifest.task!r} has no default. Pass a "
            "keras.metrics.Metric, or a function of (outputs by name, targets) of which more is better."
        )
    name = _OF_PROBLEMS.get(folder.problem_type, tasks[0].metric)
    measure = _MEASURES[name]

    def score(run: Callable[[Any], Outputs], batches: list[Any]) -> float:
        found = [measure(run(inputs), inputs, targets) for inputs, targets in batches]
        return sum(total for total, _ in found) / max(sum(count for _, count in found), 1)

    return Metric(name, score)


def _users(given: Any) -> Metric:
    if isinstance(given, keras.metrics.Metric):
        sign = -1 if getattr(given, "_direction", "up") == "down" else 1

        def score(run: Callable[[Any], Outputs], batches: list[Any]) -> float:
            given.reset_state()
            for inputs, targets in batches:
                outputs = run(inputs)
                given.update_state(targets, next(iter(outputs.values())))
            return sign * float(np.mean(keras.ops.convert_to_numpy(given.result())))

        return Metric(given.name if sign > 0 else f"-{given.name}", score)
    if not callable(given):
        raise ConfigError(
            f"metric is a {type(given).__name__}, expected a function of (outputs by name, targets), or a "
            "keras.metrics.Metric."
        )

    measure: Callable[..., Any] = given

    def average(run: Callable[[Any], Outputs], batches: list[Any]) -> float:
        found = [
            (float(measure(run(inputs), targets)), len(next(iter(inputs.values()))))
            for inputs, targets in batches
        ]
        return sum(value * rows for value, rows in found) / sum(rows for _, rows in found)

    return Metric(getattr(given, "__name__", "metric"), average)


def _targets(targets: Any) -> Any:
    if targets is None:
        raise ConfigError(
            "validation has no targets, which the metric of this task needs: give (inputs, targets)."
        )
    return targets


def _fitting(targets: np.ndarray, expected: tuple[int, ...], what: str) -> np.ndarray:
    """Targets of this shape, which may have one more axis of size 1."""
    if targets.shape not in (expected, (*expected, 1)):
        raise ConfigError(
            f"validation has targets of shape {targets.shape}, expected {expected}: {what}. Give those of "
            "the inputs, in their order."
        )
    if targets.dtype.kind not in "biuf":
        raise ConfigError(f"validation has targets of type {targets.dtype}, expected numbers: {what}.")
    return targets.reshape(expected)


def _check_targets(targets: np.ndarray, right: np.ndarray, expected: str) -> None:
    """Raises a ConfigError for the first target of a batch that the model cannot predict."""
    wrong = np.argwhere(~right)
    if len(wrong):
        place = tuple(int(index) for index in wrong[0])
        raise ConfigError(
            f"validation has the target {targets[place]} at {list(place)} of a batch, expected {expected}. "
            "Pass targets as in training."
        )


def _are_places(targets: np.ndarray, count: int) -> np.ndarray:
    """Where targets are whole numbers from 0 up to, not including, a count."""
    return (targets >= 0) & (targets < count) & (targets == np.floor(targets))


def _accuracy(outputs: Outputs, inputs: Outputs, targets: Any) -> Result:
    """Of classes, of each text or token; labels of -100 count nowhere."""
    labels, logits = np.asarray(_targets(targets)), outputs[contract.LOGITS]
    best, classes = logits.argmax(-1), logits.shape[-1]
    if labels.shape == logits.shape and classes > 1:
        _check_targets(labels, (labels >= 0) & (labels <= 1), "0 to 1 for each class")
        labels = labels.argmax(-1)
    labels = _fitting(labels, best.shape, "the class of each input, or of each of its tokens")
    counted = labels != contract.NO_LABEL
    expected = f"a class from 0 to {classes - 1}, or {contract.NO_LABEL} for none"
    _check_targets(labels, _are_places(labels, classes) | ~counted, expected)
    return float((best == labels)[counted].sum()), float(counted.sum())


def _masked_tokens(outputs: Outputs, inputs: Outputs, targets: Any) -> Result:
    """The result for masked tokens, also of a model that was pre-trained with pairs of texts."""
    if contract.LOGITS in outputs:
        return _accuracy(outputs, inputs, targets)
    labels = _targets(targets)
    labels = labels[contract.PREDICTION_LOGITS] if isinstance(labels, Mapping) else labels
    return _accuracy({contract.LOGITS: outputs[contract.PREDICTION_LOGITS]}, inputs, labels)


def _several_labels(outputs: Outputs, inputs: Outputs, targets: Any) -> Result:
    """Twice the classes that are rightly found, and all that are found or right: their quotient is F1."""
    logits = outputs[contract.LOGITS]
    right = _fitting(np.asarray(_targets(targets)), logits.shape, "0 or 1 for each class")
    _check_targets(right, _are_places(right, 2), "0 or 1 for each class")
    found = logits > 0
    return 2.0 * float((found * right).sum()), float(found.sum() + right.sum())


def _distances(outputs: Outputs, inputs: Outputs, targets: Any) -> Result:
    logits = outputs[contract.LOGITS]
    shape = logits.shape[:-1] if logits.shape[-1] == 1 else logits.shape
    right = _fitting(np.asarray(_targets(targets)), shape, "a number for each input")
    _check_targets(right, np.isfinite(right), "a finite number")
    return -float(np.abs(logits.reshape(shape) - right).sum()), float(logits.size)


def _spans(outputs: Outputs, inputs: Outputs, targets: Any) -> Result:
    right = True
    for name in (contract.START_LOGITS, contract.END_LOGITS):
        best = outputs[name].argmax(-1)
        places = _fitting(
            np.asarray(_targets(targets)[name]), best.shape, f"the place of each answer in {name}"
        )
        tokens = outputs[name].shape[-1]
        _check_targets(places, _are_places(places, tokens), f"a token from 0 to {tokens - 1}, in {name}")
        right = right & (best == places)
    return float(np.sum(right)), float(len(outputs[contract.START_LOGITS]))


def _next_tokens(outputs: Outputs, inputs: Outputs, targets: Any) -> Result:
    """The logarithm of each token's probability behind those before it: minus that of the perplexity."""
    logits, ids = outputs[contract.LOGITS][:, :-1].astype("float64"), inputs[contract.INPUT_IDS][:, 1:]
    logits -= logits.max(-1, keepdims=True)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = np.take_along_axis(log_probabilities, ids[..., None], axis=-1)[..., 0]
    mask = inputs[contract.ATTENTION_MASK]
    counted = (mask[:, 1:] * mask[:, :-1]) != 0
    return float(found[counted].sum()), float(counted.sum())


_Measure = Callable[[Outputs, Outputs, Any], Result]
_OF_PROBLEMS: dict[str | None, str] = {
    contract.MULTI_LABEL: "F1 of all labels",
    contract.REGRESSION: "-mean absolute error",
}
_MEASURES: dict[str, _Measure] = {  # by the metric's name in the record of the task
    "accuracy": _accuracy,
    "accuracy of tokens": _masked_tokens,
    "exact match": _spans,
    "-log(perplexity)": _next_tokens,
    "F1 of all labels": _several_labels,
    "-mean absolute error": _distances,
}

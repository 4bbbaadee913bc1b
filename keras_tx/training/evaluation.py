"""The result of a training on its validation data: metrics, the confusion matrix and the worst mistakes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np

SHOWN = 12  # mistakes in a report


@dataclasses.dataclass(frozen=True)
class Sample:
    """A sample of the validation data.

    Args:
        place: its location, such as a line or the name of a file.
        texts: its texts, by name.
        image: the path of its image, or None.
    """

    place: str
    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    image: str | None = None


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A sample with a large loss.

    Args:
        sample: the sample.
        expected: the label.
        predicted: the prediction.
        detail: further information, such as the probability of the prediction.
    """

    sample: Sample
    expected: str
    predicted: str
    detail: str


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result on the validation data.

    Args:
        metrics: values by name.
        summary: the most important metric as a sentence.
        labels: names of the classes.
        confusion: number of samples (label, prediction), or None.
        mistakes: those with the largest loss first.
        generated: generated texts, by their heading.
        prompt: the text that they continue.
    """

    metrics: dict[str, float]
    summary: str
    labels: tuple[str, ...] = ()
    confusion: np.ndarray | None = None
    mistakes: tuple[Mistake, ...] = ()
    generated: dict[str, str] = dataclasses.field(default_factory=dict)
    prompt: str = ""


SampleOf = Callable[[int], Sample]


def evaluate_classes(
    logits: np.ndarray, targets: np.ndarray, labels: tuple[str, ...], sample: SampleOf
) -> Evaluation:
    """Returns accuracy, confusion matrix and mistakes of a classifier.

    Args:
        logits: (samples, classes).
        targets: class numbers (samples,).
        labels: names of the classes.
        sample: returns a sample by its index.
    """
    log = logits - logits.max(axis=1, keepdims=True)
    probabilities = np.exp(log) / np.exp(log).sum(axis=1, keepdims=True)
    predicted = logits.argmax(axis=1)
    confusion = np.zeros((len(labels), len(labels)), "int64")
    np.add.at(confusion, (targets, predicted), 1)
    right = probabilities[np.arange(len(targets)), targets]
    wrong = predicted != targets

    def mistake(row: int) -> Mistake:
        name = labels[predicted[row]]
        detail = f"{probabilities[row, predicted[row]]:.0%} for {name}"
        return Mistake(sample(row), labels[targets[row]], name, detail)

    accuracy = float(1 - wrong.mean())
    share = np.bincount(targets).max() / len(targets)
    summary = (
        f"validation accuracy {accuracy:.1%} ({len(targets) - wrong.sum():,} of {len(targets):,}); always "
        f"predicting the most frequent label gives {share:.1%}"
    )
    metrics = {"accuracy": accuracy, "most_frequent": float(share)}
    return Evaluation(metrics, summary, labels, confusion, _worst(mistake, 1 - right, wrong))


def evaluate_several(
    logits: np.ndarray, targets: np.ndarray, labels: tuple[str, ...], sample: SampleOf
) -> Evaluation:
    """Returns F1, the share of exact predictions and mistakes of a classifier with several labels per sample.

    Args:
        logits: (samples, classes).
        targets: 0 or 1 for each class (samples, classes).
        labels: names of the classes.
        sample: returns a sample by its index.
    """
    names, truth, predicted = np.array(labels), targets > 0, logits > 0
    both, either = (predicted & truth).sum(), predicted.sum() + truth.sum()
    f1 = float(2 * both / either) if either else 1.0
    exact = float((predicted == truth).all(axis=1).mean())
    losses = np.logaddexp(0, np.where(truth, -logits, logits)).sum(axis=1)

    def mistake(row: int) -> Mistake:
        expected, answer = (", ".join(names[chosen[row]]) or "none" for chosen in (truth, predicted))
        return Mistake(sample(row), expected, answer, f"loss {losses[row]:.2f}")

    summary = f"validation F1 {f1:.3f} over all labels; all labels are correct for {exact:.1%} of the samples"
    mistakes = _worst(mistake, losses, (predicted != truth).any(axis=1))
    return Evaluation({"f1": f1, "exact": exact}, summary, labels, None, mistakes)


def evaluate_numbers(logits: np.ndarray, targets: np.ndarray, sample: SampleOf) -> Evaluation:
    """Returns the mean absolute error and the largest errors of predicted numbers.

    Args:
        logits: (samples, 1).
        targets: (samples,).
        sample: returns a sample by its index.
    """
    errors = logits[:, 0] - targets
    mean = float(np.abs(errors).mean())
    baseline = float(np.abs(targets - np.median(targets)).mean())

    def mistake(row: int) -> Mistake:
        return Mistake(sample(row), f"{targets[row]:g}", f"{logits[row, 0]:.3g}", f"error {errors[row]:+.3g}")

    summary = f"validation mean absolute error {mean:.4g}; always predicting the median gives {baseline:.4g}"
    metrics = {"mean_absolute_error": mean, "median_alone": baseline}
    mistakes = _worst(mistake, np.abs(errors), np.ones(len(targets), bool))
    return Evaluation(metrics, summary, mistakes=mistakes)


def _worst(mistake: Callable[[int], Mistake], losses: np.ndarray, wrong: np.ndarray) -> tuple[Mistake, ...]:
    order: Iterable[int] = np.argsort(-losses, kind="stable").tolist()
    return tuple(mistake(row) for row in [row for row in order if wrong[row]][:SHOWN])

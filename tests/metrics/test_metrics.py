"""Metrics are compared with scikit-learn, SciPy, and results computed by hand."""

from __future__ import annotations

import math
import warnings

import keras
import numpy as np
import pytest

from keras_tx import metrics
from keras_tx.errors import ConfigError
from keras_tx.losses import TokenCrossentropy
from tests.drawing import as_numpy

RANDOM = np.random.default_rng(5)


def one_hot(classes: np.ndarray, count: int) -> np.ndarray:
    """Logits whose largest is the class."""
    return (np.eye(count)[classes] * 3 - 1).astype("float32")


def result_of(metric: keras.metrics.Metric, *batches: tuple) -> float:
    """Over several batches, after a reset, and from a copy made of the config."""
    metric = type(metric).from_config(metric.get_config())
    metric.update_state(*batches[0])
    metric.reset_state()
    for batch in batches:
        metric.update_state(*batch)
    return float(as_numpy(metric.result()))


def halves(*arrays: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    middle = len(arrays[0]) // 3
    return [tuple(array[part] for array in arrays) for part in (slice(middle), slice(middle, None))]


@pytest.mark.parametrize(("classes", "average"), [(2, "binary"), (2, "micro"), (4, "macro"), (4, "micro")])
@pytest.mark.parametrize("occurring", [1, 2, 4])
def test_f1_equals_scikit_learn(classes: int, average: str, occurring: int):
    sklearn = pytest.importorskip("sklearn.metrics")
    true = RANDOM.integers(0, min(classes, occurring), 60)
    predicted = RANDOM.integers(0, min(classes, occurring), 60)
    expected = sklearn.f1_score(true, predicted, average=average, zero_division=0)
    mine = result_of(metrics.F1(classes, average), *halves(true, one_hot(predicted, classes)))
    assert mine == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("average", ["micro", "macro"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_multi_label_f1_equals_scikit_learn(average: str, share: float):
    sklearn = pytest.importorskip("sklearn.metrics")
    true, predicted = (RANDOM.random((60, 4)) < [share, 0.5, 0.2, 0.0]), RANDOM.random((60, 4)) < 0.4
    expected = sklearn.f1_score(true, predicted, average=average, zero_division=0)
    logits = (predicted * 4.0 - 1.0).astype("float32")
    mine = result_of(metrics.MultiLabelF1(4, average), *halves(true.astype("float32"), logits))
    assert mine == pytest.approx(expected, abs=1e-6)
    weights = (RANDOM.random(60) < 0.5).astype("float32")
    weighed = sklearn.f1_score(true, predicted, average=average, zero_division=0, sample_weight=weights)
    assert result_of(metrics.MultiLabelF1(4, average), (true, logits, weights)) == pytest.approx(
        weighed, abs=1e-6
    )


def test_multi_label_accuracy():
    true, predicted = RANDOM.random((60, 4)) < 0.3, RANDOM.random((60, 4)) < 0.4
    logits = (predicted * 4.0 - 1.0).astype("float32")
    mine = result_of(metrics.MultiLabelAccuracy(), *halves(true.astype("float32"), logits))
    assert mine == pytest.approx((true == predicted).mean(), abs=1e-6)
    weights = RANDOM.random(60).astype("float32")
    weighed = np.average((true == predicted).mean(1), weights=weights)
    assert result_of(metrics.MultiLabelAccuracy(), (true, logits, weights)) == pytest.approx(
        weighed, abs=1e-6
    )


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_matthews_equals_scikit_learn(classes: int):
    sklearn = pytest.importorskip("sklearn.metrics")
    true, other = RANDOM.integers(0, classes, (2, 90))
    predicted = np.where(RANDOM.random(90) < 0.5, true, other)
    expected = sklearn.matthews_corrcoef(true, predicted)
    assert result_of(metrics.Matthews(classes), *halves(true, one_hot(predicted, classes))) == pytest.approx(
        expected, abs=1e-6
    )


def test_matthews_of_constant_predictions_is_zero():
    assert result_of(metrics.Matthews(), (np.array([0, 1, 1]), one_hot(np.array([1, 1, 1]), 2))) == 0


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_equals_scipy(ties: bool):
    stats = pytest.importorskip("scipy.stats")
    true, predicted = RANDOM.standard_normal((2, 50)).astype("float32")
    predicted = predicted + true
    if ties:
        true, predicted = np.round(true), np.round(predicted)
    expected = stats.spearmanr(true, predicted).statistic
    mine = result_of(metrics.Spearman(capacity=64), *halves(true, predicted[:, None]))
    assert mine == pytest.approx(expected, abs=1e-6)


def test_spearman_beyond_capacity_is_nan():
    values = np.arange(10.0)
    assert result_of(metrics.Spearman(capacity=10), (values, values)) == pytest.approx(1)
    assert math.isnan(result_of(metrics.Spearman(capacity=9), (values, values)))


LABELS = np.array([[1, 3, -100, 0], [2, -100, -100, -100]])


def test_token_accuracy_counts_labelled_tokens():
    predicted = one_hot(np.array([[1, 0, 3, 0], [1, 1, 1, 1]]), 4)
    assert result_of(metrics.TokenAccuracy(), (LABELS, predicted)) == pytest.approx(2 / 4)
    weights = np.array([[1.0, 0.0, 1.0, 3.0], [0.0, 0.0, 0.0, 0.0]])
    assert result_of(metrics.TokenAccuracy(), (LABELS, predicted, weights)) == pytest.approx(1)
    assert result_of(metrics.TokenAccuracy(), (LABELS, predicted, np.array([0.0, 1.0]))) == 0


def nats(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """The cross-entropies of the labelled tokens, in float64."""
    logits = logits.astype("float64")
    shares = np.log(np.exp(logits).sum(-1, keepdims=True)) - logits
    return np.array([shares[i][labels[i]] for i in np.ndindex(labels.shape) if labels[i] != -100])


def test_perplexity_and_bits_per_byte():
    logits = RANDOM.standard_normal((2, 4, 4)).astype("float32")
    each = nats(LABELS, logits)
    assert result_of(metrics.Perplexity(), (LABELS, logits)) == pytest.approx(np.exp(each.mean()), rel=1e-5)
    bits = each.sum() / math.log(2)
    assert result_of(metrics.BitsPerByte(2.5), (LABELS, logits)) == pytest.approx(bits / 10, rel=1e-5)
    sizes = [1, 2, 3, 8]  # of the labels 1, 3, 0, 2
    assert result_of(metrics.BitsPerByte(sizes), (LABELS, logits)) == pytest.approx(bits / 14, rel=1e-5)


def span(start: list[int], end: list[int], length: int = 8) -> dict[str, np.ndarray]:
    return {"start_logits": one_hot(np.array(start), length), "end_logits": one_hot(np.array(end), length)}


TRUE_SPAN = {"start_logits": np.array([2, 0, 4]), "end_logits": np.array([5, 0, 4])}


@pytest.mark.parametrize(
    ("predicted", "exact", "f1"),
    [
        (span([2, 0, 4], [5, 0, 4]), 1, 1),
        (span([2, 0, 3], [5, 1, 4]), 1 / 3, (1 + 2 / 3 + 2 / 3) / 3),
        (span([4, 1, 5], [7, 1, 6]), 0, (2 * 2 / 8) / 3),
    ],
)
def test_span_metrics(predicted: dict, exact: float, f1: float):
    assert result_of(metrics.SpanExactMatch(), (TRUE_SPAN, predicted)) == pytest.approx(exact)
    assert result_of(metrics.SpanF1(), (TRUE_SPAN, predicted)) == pytest.approx(f1)


def test_spans_end_after_their_start_and_respect_longest():
    start, end = np.full((1, 8), -5.0), np.full((1, 8), -5.0)
    start[0, [6, 0]], end[0, [3, 7]] = (
        (9, 7),
        (9, 6),
    )  # 6..3 is no span; 0..7 is the best, 0..3 the best of four
    logits = {"start_logits": start, "end_logits": end}
    for longest, last in ((30, 3), (4, 3), (2, 7)):
        first = 0 if last == 3 else 6
        true = {"start_logits": np.array([first]), "end_logits": np.array([last])}
        assert result_of(metrics.SpanExactMatch(longest), (true, logits)) == 1


NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def entities(tags: list[str]) -> set[tuple[str, int, int]]:
    """(type, first, after the last), as seqeval's get_entities returns them for one text."""
    result, open_type, begin = set(), None, 0
    for index, tag in enumerate([*tags, "O"]):
        kind = None if tag == "O" else tag[2:]
        if open_type is not None and (kind != open_type or tag[0] == "B"):
            result.add((open_type, begin, index))
            open_type = None
        if kind is not None and open_type is None:
            open_type, begin = kind, index
    return result


@pytest.mark.parametrize("seed", range(5))
def test_entity_f1_counts_whole_entities(seed: int):
    random = np.random.default_rng(seed)
    true = random.integers(0, 5, (6, 12))
    predicted = np.where(random.random(true.shape) < 0.8, true, random.integers(0, 5, true.shape))
    left_out = random.random(true.shape) < 0.2  # subwords
    correct = labelled = guessed = 0
    for t, f, out in zip(true, predicted, left_out, strict=True):
        mine, theirs = (entities([NAMES[i] for i in row[~out]]) for row in (t, f))
        correct += len(mine & theirs)
        labelled, guessed = labelled + len(mine), guessed + len(theirs)
    labels = np.where(left_out, -100, true)
    mine = result_of(metrics.EntityF1(NAMES), *halves(labels, one_hot(predicted, 5)))
    assert mine == pytest.approx(2 * correct / (labelled + guessed), abs=1e-6)
    assert 0 < mine < 1


def test_overlapping_entities_do_not_match():
    true, predicted = [1, 2, 2, 0, 3, 4], [1, 2, 0, 0, 1, 2]
    assert result_of(metrics.EntityF1(NAMES), (np.array([true]), one_hot(np.array([predicted]), 5))) == 0


def test_nearest_neighbor_accuracy():
    angles = np.array([0.0, 10, 50, 55, 90])
    vectors = np.stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))], -1) * [
        [1],
        [5],
        [1],
        [2],
        [1],
    ]
    labels = np.array([1, 1, 1, 2, 3])  # the last two labels occur once
    assert result_of(metrics.NearestNeighborAccuracy(), (labels, vectors)) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "metric",
    [
        metrics.F1(4, "macro"),
        metrics.Matthews(4),
        metrics.TokenAccuracy(),
        metrics.Perplexity(),
        metrics.BitsPerByte([1, 2, 3, 4]),
        metrics.EntityF1(NAMES[:4]),
    ],
    ids=lambda metric: metric.name,
)
def test_token_metrics_run_in_a_compiled_step(metric):
    """The sequence length is dynamic."""
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, keras.layers.Identity()(inputs))
    model.compile(loss=TokenCrossentropy(), metrics=[metric])
    logits = RANDOM.standard_normal((5, 3, 4)).astype("float32")
    labels = RANDOM.integers(0, 4, (5, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns that this model has no weights
        results = model.evaluate(logits, labels, batch_size=2, verbose=0, return_dict=True)
    assert results[metric.name] == pytest.approx(result_of(metric, (labels, logits)), rel=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.F1(3), r"average='binary'.*3"),
        (lambda: metrics.F1(3, "macros"), r"average='macros'.*'macro'"),
        (lambda: metrics.F1().update_state(np.zeros(2), np.zeros((2, 3))), r"'f1'.*num_classes=2.* 3 "),
        (lambda: metrics.EntityF1(["O", "PER"]), r"labels .*'PER'"),
        (
            lambda: metrics.EntityF1(NAMES).update_state(np.zeros((1, 2)), np.zeros((1, 2, 3))),
            r"EntityF1.* 5 labels.* 3 classes",
        ),
        (lambda: metrics.BitsPerByte([1, -1]), r"bytes_per_token is \[1, -1\]"),
        (
            lambda: metrics.BitsPerByte([1, 1]).update_state(np.zeros((1, 2)), np.zeros((1, 2, 3))),
            r"bytes_per_token .* 2 .* 3 ",
        ),
        (
            lambda: metrics.SpanF1().update_state(np.zeros(2), span([0, 0], [1, 1])),
            r"'span_f1'.*'start_logits'",
        ),
        (lambda: metrics.MultiLabelF1(3, "binary"), r"average='binary'"),
        (
            lambda: metrics.MultiLabelF1(3).update_state(np.zeros((2, 1)), np.zeros((2, 3))),
            r"\(2, 1\).*\(2, 3\)",
        ),
        (lambda: metrics.Spearman(0), r"capacity is 0"),
        (lambda: metrics.SpanF1(longest=0), r"longest is 0"),
    ],
)
def test_invalid_arguments_raise(call, message: str):
    with pytest.raises(ConfigError, match=message):
        call()

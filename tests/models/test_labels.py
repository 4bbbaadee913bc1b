"""Invalid labels raise with their row, before the first step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError

IDS = np.array([[5, 6, 7], [8, 9, 3], [4, 2, 1]])
TINY = {"vocabulary_size": 20, "depth": 1, "max_length": 8}


def bert(head: Any) -> Any:
    model = keras_tx.bert("tiny", head=head, **TINY)
    model.compile(run_eagerly=True)  # faster than tracing for one step
    return model


@pytest.mark.parametrize(
    ("head", "labels", "message"),
    [
        (keras_tx.ClassifierHead(3), [0, 1, 3], "Label 3 in row 2.*0 to 2"),
        (keras_tx.ClassifierHead(3), [0, -100, 1], "Label -100 in row 1"),
        (keras_tx.ClassifierHead(3), [0, 0.5, 1], "Label 0.5 in row 1.*0 to 2"),
        (keras_tx.ClassifierHead(3), [0, 1, np.nan], "Label nan in row 2 is not finite"),
        (keras_tx.ClassifierHead(3), ["a", "b", "c"], "labels.*are <U1, such as .*'a'.*names.index"),
        (keras_tx.ClassifierHead(3), np.full((3, 3), 1.5), "Label 1.5 in row 0.*0 to 1"),
        (
            keras_tx.NextSentenceHead(),
            np.eye(2)[[0, 1, 0]],
            r"\(3, 2\), a number for each class.*argmax",
        ),
        (keras_tx.MultiLabelHead(3), [0, 1, 2], r"shape \(3,\), .*3 numbers for each sample"),
        (keras_tx.MultiLabelHead(3), [[0, 1, 0], [0, 0, 1.5], [1, 1, 1]], "Label 1.5 in row 1.*0 to 1"),
        (keras_tx.RegressionHead(2), [0.1, 0.2, 0.3], r"shape \(3,\), .*2 numbers for each sample"),
        (keras_tx.RegressionHead(), [0.1, np.inf, 0.3], "Label inf in row 1 is not finite"),
        (
            keras_tx.SpanHead(),
            {"start_logits": [0, 1, 2], "end_logits": [0, 1, 3]},
            "Label 3 in row 2.*0 to 2",
        ),
        (keras_tx.MultiLabelHead(3), [[0, 1, 0], [0, 0, 2], [1, 1, 1]], "Label 2 in row 1.*0 to 1"),
        (keras_tx.NextSentenceHead(), [0, 2, 1], "Label 2 in row 1.*0 to 1"),
        (
            keras_tx.TokenClassifierHead(4),
            [[0, 1, 2], [-100, 3, 9], [0, 0, 0]],
            "Label 9 in row 1.*0 to 3",
        ),
        (keras_tx.MaskedLMHead(), [[-100, 19, 20]] * 3, "Label 20 in row 0.*0 to 19"),
        (
            keras_tx.PretrainingHead(),
            {"prediction_logits": [[1, 1, 1]] * 3, "seq_relationship_logits": [0, 1, 5]},
            "Label 5 in row 2.*0 to 1",
        ),
    ],
)
def test_invalid_labels_raise(head: Any, labels: Any, message: str):
    model = bert(head)
    labels = {k: np.array(v) for k, v in labels.items()} if isinstance(labels, dict) else np.array(labels)
    with pytest.raises(ConfigError, match=message):
        model.fit({"input_ids": IDS}, labels, verbose=0)
    with pytest.raises(ConfigError, match=message):
        model.evaluate({"input_ids": IDS}, labels, verbose=0)
    assert model.optimizer.iterations == 0


def test_invalid_validation_labels_raise():
    model = bert(keras_tx.ClassifierHead(2))
    with pytest.raises(ConfigError, match="Label 7 in row 0"):
        model.fit(IDS, np.array([0, 1, 0]), validation_data=(IDS, np.array([7, 0, 0])), verbose=0)


def test_shares_of_the_classes_are_labels_of_a_classifier():
    ids, rows = np.array([0, 2, 1]), np.eye(3)[[0, 2, 1]]
    model = bert(keras_tx.ClassifierHead(3, label_smoothing=0.1))
    results = [model.evaluate(IDS, labels, verbose=0) for labels in (ids, ids[:, None], rows)]
    np.testing.assert_allclose(results[1:], results[:1] * 2, rtol=1e-6)
    model.fit(IDS, rows, validation_data=(IDS, ids), verbose=0)
    assert model.history.history["val_accuracy"]


def test_rows_of_several_labels_are_not_shares():
    rows = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1]])
    with pytest.raises(ConfigError, match="row 0 sum to 2.*MultiLabelHead"):
        bert(keras_tx.ClassifierHead(3)).fit(IDS, rows, verbose=0)


def test_valid_labels():
    model = bert(keras_tx.TokenClassifierHead(4))
    model.fit(
        IDS, np.array([[-100, 0, 3]] * 3), validation_data=(IDS, np.array([[1, 2, -100]] * 3)), verbose=0
    )
    one_hot = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    one_hot.compile("adamw", "categorical_crossentropy", run_eagerly=True)
    one_hot.fit(np.zeros((3, 8, 8, 3), "float32"), np.eye(3, dtype="int64"), verbose=0)


def test_invalid_labels_of_images_raise():
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    model.compile(run_eagerly=True)
    with pytest.raises(ConfigError, match=r"Label 3 in row 1 .*'vit' has 3 classes \(0 to 2\)"):
        model.fit(np.zeros((2, 8, 8, 3), "float32"), np.array([0, 3]), verbose=0)


def test_class_numbers_for_a_categorical_loss_raise():
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    model.compile(loss="categorical_crossentropy", run_eagerly=True)
    images = np.zeros((3, 8, 8, 3), "float32")
    with pytest.raises(ConfigError, match=r"shape \(3,\), .*keras.utils.to_categorical\(labels, 3\)"):
        model.fit(images, np.array([0, 1, 2]), verbose=0)
    model.fit(images, np.full((3, 3), 1 / 3), verbose=0)  # shares, as mixing pictures makes them
    with pytest.raises(ConfigError, match=r"y is a list of int, .*np.array\(y\)"):
        model.fit(images, [0, 1, 2], verbose=0)


def test_labels_of_a_custom_loss_are_not_checked():
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    model.compile(loss=lambda labels, logits: logits[:, 0] * labels, run_eagerly=True)
    model.fit(np.zeros((3, 8, 8, 3), "float32"), np.array([0.5, -7.0, 40.0]), verbose=0)

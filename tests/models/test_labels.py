"""Invalid labels raise with their row, before the first step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.heads import DistilledClassifierHead
from keras_tx.training import fit_resumable

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


class Two(keras.utils.PyDataset):
    """Two batches with different labels."""

    def __init__(self, inputs: Any, *labels: Any):
        super().__init__()
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return self.inputs, self.labels[index]


PIXELS = np.zeros((3, 8, 8, 3), "float32")
PAIRS = {"input_ids": IDS, "decoder_input_ids": IDS}
OF_TOKENS = np.zeros((3, 3), "int64")


def vit(head: Any, **options: Any) -> Any:
    return keras_tx.vit("Mu/2", image_size=8, head=head, **options)


def changed(labels: Any, row: int, value: Any) -> np.ndarray:
    labels = np.array(labels)
    labels[row, ...] = value
    return labels


# The model, its inputs, valid labels, labels whose row 1 has the invalid value, and that value.
HEADS: dict[str, Any] = {
    "ClassifierHead": (lambda: bert(keras_tx.ClassifierHead(3)), IDS, [0, 1, 2], 3),
    "ClassifierHead, negative": (lambda: bert(keras_tx.ClassifierHead(3)), IDS, [0, 1, 2], -1),
    "ClassifierHead, ignored by PyTorch": (lambda: bert(keras_tx.ClassifierHead(3)), IDS, [0, 1, 2], -100),
    "ClassifierHead, not whole": (lambda: bert(keras_tx.ClassifierHead(3)), IDS, [0.0, 1.0, 2.0], 0.5),
    "ClassifierHead, shares": (lambda: bert(keras_tx.ClassifierHead(3)), IDS, np.eye(3), 1.0),
    "ClassifierHead of images": (lambda: vit(keras_tx.ClassifierHead(3)), PIXELS, [0, 1, 2], 3),
    "ClassifierHead of a decoder": (
        lambda: keras_tx.gpt("pico", head=keras_tx.ClassifierHead(3)),
        IDS,
        [0, 1, 2],
        3,
    ),
    "DistilledClassifierHead": (
        lambda: vit(DistilledClassifierHead(3), distillation=True),
        PIXELS,
        [0, 1, 2],
        3,
    ),
    "both of DistilledClassifierHead": (
        lambda: vit(DistilledClassifierHead(3, separate=True), distillation=True),
        PIXELS,
        {"cls_logits": np.array([0, 1, 2]), "distillation_logits": [0, 1, 2]},
        3,
    ),
    "MultiLabelHead": (lambda: bert(keras_tx.MultiLabelHead(3)), IDS, np.eye(3), 2.0),
    "MultiLabelHead of images": (lambda: vit(keras_tx.MultiLabelHead(3)), PIXELS, np.eye(3), -1.0),
    "RegressionHead": (lambda: bert(keras_tx.RegressionHead()), IDS, [0.5, 1.0, 2.0], np.nan),
    "NextSentenceHead": (lambda: bert(keras_tx.NextSentenceHead()), IDS, [0, 1, 0], 2),
    "NextSentenceHead, ignored by PyTorch": (
        lambda: bert(keras_tx.NextSentenceHead()),
        IDS,
        [0, 1, 0],
        -100,
    ),
    "TokenClassifierHead": (lambda: bert(keras_tx.TokenClassifierHead(4)), IDS, OF_TOKENS, 4),
    "TokenClassifierHead, negative": (lambda: bert(keras_tx.TokenClassifierHead(4)), IDS, OF_TOKENS, -1),
    "SpanHead": (
        lambda: bert(keras_tx.SpanHead()),
        {"input_ids": IDS},
        {"start_logits": np.array([0, 1, 2]), "end_logits": [0, 1, 2]},
        3,
    ),
    "MaskedLMHead": (lambda: bert(keras_tx.MaskedLMHead()), IDS, OF_TOKENS, 20),
    "PretrainingHead": (
        lambda: bert(keras_tx.PretrainingHead()),
        IDS,
        {"prediction_logits": OF_TOKENS, "seq_relationship_logits": [0, 1, 0]},
        2,
    ),
    "MultipleChoiceHead": (
        lambda: bert(keras_tx.MultipleChoiceHead()),
        {"input_ids": np.stack([IDS, IDS], axis=1)},
        [0, 1, 0],
        2,
    ),
    "CausalLMHead": (lambda: keras_tx.gpt("pico", vocabulary_size=20), IDS, OF_TOKENS, 20),
    "Seq2SeqLMHead": (lambda: keras_tx.t5("tiny", vocabulary_size=20), PAIRS, OF_TOKENS, 20),
    "a loss of Keras": (
        lambda: bert(keras_tx.ClassifierHead(3)),
        IDS,
        [0, 1, 2],
        3,
    ),
}


USUAL = ("ClassifierHead", "ClassifierHead, not whole", "MultiLabelHead", "SpanHead", "TokenClassifierHead")


def with_invalid_row(labels: Any, value: Any) -> Any:
    """The labels, of which row 1 (of the last output) is the value."""
    if isinstance(labels, dict):
        *names, last = labels
        return {**{name: labels[name] for name in names}, last: changed(labels[last], 1, value)}
    return changed(labels, 1, value)


def arrays(labels: Any) -> Any:
    if isinstance(labels, dict):
        return {name: np.array(part) for name, part in labels.items()}
    return np.array(labels)


def loss_of_later_batch(model: Any, data: Any, value: Any) -> float:
    """The loss of a training; NaN if the backend raises an error about the label."""
    try:
        return model.fit(data, shuffle=False, verbose=0).history["loss"][0]
    except Exception as error:  # its class differs
        assert "range" in str(error) or "out of bounds" in str(error)
        assert str(value) in str(error)
        return np.nan


@pytest.mark.parametrize(
    "name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.thorough) for name in HEADS]
)
def test_invalid_labels_of_any_batch_are_not_trained_in_silence(name: str):
    """In arrays and in the first batch they raise with row and value; later they raise or the loss is NaN."""
    make, inputs, labels, value = HEADS[name]
    model = make()
    loss = "sparse_categorical_crossentropy" if name == "a loss of Keras" else None
    model.compile(loss=loss, run_eagerly=True)
    valid, invalid = arrays(labels), with_invalid_row(labels, value)
    match = r"row 1 sum to 3" if name.endswith("shares") else rf"Label {value} in row 1 is"
    for data in ((inputs, invalid), (Two(inputs, invalid, valid),)):
        with pytest.raises(ConfigError, match=match):
            model.fit(*data, verbose=0)
    with pytest.raises(ConfigError, match=match):
        model.fit(inputs, valid, validation_data=Two(inputs, invalid), verbose=0)
    assert model.optimizer.iterations == 0
    assert np.isfinite(model.fit(Two(inputs, valid, valid), verbose=0).history["loss"][0])
    assert np.isnan(loss_of_later_batch(model, Two(inputs, valid, invalid), value))


@pytest.mark.parametrize("name", ["ClassifierHead, not whole", "SpanHead", "TokenClassifierHead"])
def test_invalid_labels_of_a_compiled_step_are_not_trained_in_silence(name: str):
    make, inputs, labels, value = HEADS[name]
    model = make()
    model.compile()
    data = Two(inputs, arrays(labels), with_invalid_row(labels, value))
    assert np.isnan(loss_of_later_batch(model, data, value))


def test_resumable_training_names_an_invalid_label(tmp_path):
    model = bert(keras_tx.MultiLabelHead(3))
    data = Two(IDS, np.eye(3), changed(np.eye(3), 1, 2.0))
    with pytest.raises(
        ConfigError, match="In step 2, the labels of the batch are invalid. Label 2.0 in row 1"
    ):
        fit_resumable(model, data, tmp_path / "state", epochs=1, verbose=0)

"""Class names of data, adapter folders and exports are those of the head, in its order, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

import keras_tx
from keras_tx.data import TextTable, text_classification_batches, text_table, token_classification_batches
from keras_tx.errors import ConfigError
from keras_tx.processing import train_wordpiece
from keras_tx.training import fit_resumable
from tests.drawing import as_numpy, redraw

WORDS = train_wordpiece(["a good film , a bad film"] * 2, 60, max_length=12)
ORDER = "'bad', 'good', but model 'bert' has 'good', 'bad'"


def bert(head: Any) -> Any:
    model = keras_tx.bert("tiny", depth=1, head=head, processing=WORDS)
    model.compile(run_eagerly=True)
    return model


def classifier(*labels: str, count: int = 2) -> Any:
    return bert(keras_tx.ClassifierHead(count, labels=labels or None))


@pytest.fixture
def table(tmp_path: Path) -> TextTable:
    path = tmp_path / "films.csv"
    path.write_text("text,label\n" + "A good film.,good\nA bad film.,bad\n" * 3)
    return text_table(path)


def tokens(*classes: str) -> Any:
    return token_classification_batches([["good", "film"]], [["B", "O"]], WORDS, classes=classes)


DATA: dict[str, Callable[[TextTable], Any]] = {
    "table": lambda table: table.batches(WORDS),
    "tf.data of a table": lambda table: table.batches(WORDS).tf_data(),
    "batches": lambda table: text_classification_batches(
        table.texts, ["good", "bad"] * 3, WORDS, classes=["bad", "good"]
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_names_in_another_order_are_refused(table, name):
    data = DATA[name](table)
    model = classifier("good", "bad")
    before = as_numpy(model.get_layer("logits").kernel).copy()
    for call in (model.fit, model.evaluate):
        with pytest.raises(ConfigError, match=f"The data has the classes {ORDER}"):
            call(data, verbose=0)
    with pytest.raises(ConfigError, match=f"The validation data has the classes {ORDER}"):
        model.fit(model.processing(["good"]), np.array([0]), validation_data=data, verbose=0)
    assert np.array_equal(as_numpy(model.get_layer("logits").kernel), before)
    with pytest.raises(ConfigError, match="2 classes .'bad', 'good'., but model 'bert' has 3"):
        classifier(count=3).fit(data, verbose=0)
    with pytest.raises(ConfigError, match="'bad', 'good', but model 'bert' has 'ham', 'spam'"):
        classifier("ham", "spam").fit(data, verbose=0)


@pytest.mark.parametrize("name", DATA)
def test_head_without_names_gets_those_of_the_data(table, name):
    model = classifier()
    model.fit(DATA[name](table), validation_data=DATA[name](table), shuffle=False, verbose=0)
    assert model.head.labels == ("bad", "good")


def test_training_and_validation_data_are_compared_before_a_head_gets_names(table, tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("text,label\nA good film.,yes\nA bad film.,no\n")
    model = classifier()
    with pytest.raises(ConfigError, match="The validation data has the classes 'no', 'yes'.*'bad', 'good'"):
        model.fit(table.batches(WORDS), validation_data=text_table(path).batches(WORDS), verbose=0)
    assert model.head.labels is None


def test_names_of_several_labels_and_of_tokens(tmp_path):
    path = tmp_path / "topics.csv"
    path.write_text("text,label\nA good film.,x|y\nA bad film.,y\n")
    batches = text_table(path, separator="|").batches(WORDS)
    with pytest.raises(ConfigError, match="'x', 'y', but model 'bert' has 'y', 'x'"):
        bert(keras_tx.MultiLabelHead(2, labels=("y", "x"))).fit(batches, verbose=0)
    model = bert(keras_tx.TokenClassifierHead(2, labels=("O", "B")))
    with pytest.raises(ConfigError, match="'B', 'O', but model 'bert' has 'O', 'B'"):
        model.fit(tokens("B", "O"), verbose=0)
    model.fit(tokens("O", "B"), verbose=0)


def test_classes_are_refused_by_a_head_that_predicts_numbers(tmp_path):
    """Stars 1 to 5 are the classes 0 to 4."""
    path = tmp_path / "stars.csv"
    path.write_text(
        "text,label\n" + "".join(f"A good film {index}.,{index % 5 + 1}\n" for index in range(10))
    )
    with pytest.raises(ConfigError, match="'1', '2', .*RegressionHead.*Pass regression=True"):
        bert(keras_tx.RegressionHead()).fit(text_table(path).batches(WORDS), verbose=0)
    bert(keras_tx.RegressionHead()).fit(text_table(path, regression=True).batches(WORDS), verbose=0)


def test_resumable_training_compares_names(table, tmp_path):
    with pytest.raises(ConfigError, match=ORDER):
        fit_resumable(classifier("good", "bad"), table.batches(WORDS), tmp_path / "state", epochs=1)


def test_dataset_of_keras_has_names(tmp_path):
    tf = pytest.importorskip("tensorflow")
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "a.png")
    data = keras.utils.image_dataset_from_directory(str(tmp_path), image_size=(8, 8), verbose=False)
    assert isinstance(data, tf.data.Dataset)
    head = keras_tx.ClassifierHead(2, labels=("good", "bad"))
    model = keras_tx.vit("Mu/2", image_size=8, head=head)
    model.compile()
    with pytest.raises(ConfigError, match="'bad', 'good', but model 'vit' has 'good', 'bad'"):
        model.fit(data, verbose=0)


def test_adapter_folder_keeps_the_names_of_its_head(tmp_path):
    def base(*labels: str) -> Any:
        head = keras_tx.ClassifierHead(2, labels=labels or None)
        return redraw(keras_tx.bert("tiny", vocabulary_size=30, depth=1, head=head))

    folder = keras_tx.save_adapter(keras_tx.lora(base("bad", "good"), 2), tmp_path / "adapter")
    model = base("good", "bad")
    with pytest.raises(ConfigError, match=f"The head in .*adapter has the classes {ORDER}.*from_checkpoint"):
        keras_tx.load_adapter(model, folder)
    assert len(model.trainable_variables) == len(model.weights)
    assert keras_tx.load_adapter(base(), folder).head.labels == ("bad", "good")
    assert keras_tx.load_adapter(base("bad", "good"), folder).head.labels == ("bad", "good")
    own_head = keras_tx.lora(base("bad", "good"), 2, train_also=())
    folder = keras_tx.save_adapter(own_head, tmp_path / "body")
    assert keras_tx.load_adapter(base("good", "bad"), folder).head.labels == ("good", "bad")


def test_labels_of_an_export_rename_classes_but_do_not_reorder_them(tmp_path):
    model = classifier("good", "bad")
    for write in (keras_tx.save_checkpoint, keras_tx.export_onnx):
        with pytest.raises(ConfigError, match=r"labels=\['bad', 'good'\].*in another order.*'good', 'bad'"):
            write(model, tmp_path / "a", labels=["bad", "good"])
    renamed = keras_tx.save_checkpoint(model, tmp_path / "a", labels=["gut", "schlecht"])
    assert keras_tx.from_checkpoint(renamed).head.labels == ("gut", "schlecht")

"""Labels that no class has are refused by name and row, before a step is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError

IDS = np.array([[5, 6, 7], [8, 9, 3], [4, 2, 1]])
TINY = {"vocabulary": 20, "depth": 1, "max_length": 8}


def bert(head: Any) -> Any:
    model = keras_tx.bert("tiny", head=head, **TINY)
    model.compile()
    return model


@pytest.mark.parametrize(
    ("head", "labels", "said"),
    [
        (keras_tx.ClassifierHead(3), [0, 1, 3], "The label 3 in row 2.*classes 0 to 2"),
        (keras_tx.ClassifierHead(3), [0, -100, 1], "The label -100 in row 1"),
        (keras_tx.MultiLabelHead(3), [[0, 1, 0], [0, 0, 2], [1, 1, 1]], "The label 2 in row 1.*0 to 1"),
        (keras_tx.NextSentenceHead(), [0, 2, 1], "The label 2 in row 1.*0 to 1"),
        (
            keras_tx.TokenClassifierHead(4),
            [[0, 1, 2], [-100, 3, 9], [0, 0, 0]],
            "The label 9 in row 1.*0 to 3",
        ),
        (keras_tx.MaskedLMHead(), [[-100, 19, 20]] * 3, "The label 20 in row 0.*0 to 19"),
        (
            keras_tx.PretrainingHead(),
            {"prediction_logits": [[1, 1, 1]] * 3, "seq_relationship_logits": [0, 1, 5]},
            "The label 5 in row 2.*0 to 1",
        ),
    ],
)
def test_a_label_that_there_is_not(head: Any, labels: Any, said: str):
    model = bert(head)
    labels = {k: np.array(v) for k, v in labels.items()} if isinstance(labels, dict) else np.array(labels)
    with pytest.raises(ConfigError, match=said):
        model.fit(IDS, labels, verbose=0)
    with pytest.raises(ConfigError, match=said):
        model.evaluate(IDS, labels, verbose=0)
    assert model.optimizer.iterations == 0


def test_held_out_labels_too():
    model = bert(keras_tx.ClassifierHead(2))
    with pytest.raises(ConfigError, match="The label 7 in row 0"):
        model.fit(IDS, np.array([0, 1, 0]), validation_data=(IDS, np.array([7, 0, 0])), verbose=0)


def test_labels_that_are_right():
    model = bert(keras_tx.TokenClassifierHead(4))
    model.fit(
        IDS, np.array([[-100, 0, 3]] * 3), validation_data=(IDS, np.array([[1, 2, -100]] * 3)), verbose=0
    )
    one_hot = keras_tx.vit("Mu/2", image_size=8, classes=3)
    one_hot.compile("adamw", "categorical_crossentropy")
    one_hot.fit(np.zeros((3, 8, 8, 3), "float32"), np.eye(3, dtype="int64"), verbose=0)


def test_a_vit():
    model = keras_tx.vit("Mu/2", image_size=8, classes=3)
    model.compile()
    with pytest.raises(
        ConfigError, match="The label 3 in row 1 is none of model 'vit', which has classes 0 to 2"
    ):
        model.fit(np.zeros((2, 8, 8, 3), "float32"), np.array([0, 3]), verbose=0)

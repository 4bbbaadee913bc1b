"""`keras.distillation.Distiller` trains models of keras_tx, as docs/training.md describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

import keras_tx
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import FP32, assert_close

IMAGES, LABELS = draw(12, 8, 8, 3).clip(-1, 1), np.arange(12) % 3
TEMPERATURE = 2.0


def teacher_and_student() -> tuple[Any, Any]:
    keras.utils.set_random_seed(3)
    models = [keras_tx.vit("Mu/2", image_size=8, num_classes=3, depth=depth) for depth in (3, 1)]
    return redraw(models[0]), redraw(models[1])


def distilled(student_loss_weight: float) -> Any:
    teacher, student = teacher_and_student()
    distiller = keras.distillation.Distiller(
        teacher=teacher,
        student=student,
        distillation_losses=keras.distillation.LogitsDistillation(
            temperature=TEMPERATURE, loss=keras.losses.KLDivergence()
        ),
        student_loss_weight=student_loss_weight,
    )
    before = [as_numpy(weight) for weight in teacher.weights]
    distiller.compile(keras.optimizers.SGD(0.05), student.head.loss())
    distiller.fit(IMAGES, LABELS, batch_size=4, epochs=2, shuffle=False, verbose=0)
    for weight, value in zip(teacher.weights, before, strict=True):
        assert (as_numpy(weight) == value).all()
    return student


class Mixture(keras.losses.Loss):
    """Half the loss on the labels, and half of the loss on soft targets of Hinton et al. (2015)."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        labels, soft = y_true[:, 0], y_true[:, 1:]
        hard = keras.losses.sparse_categorical_crossentropy(labels, y_pred, from_logits=True)
        log_student = ops.log_softmax(y_pred / TEMPERATURE)
        divergence = ops.sum(soft * (ops.log(soft) - log_student), axis=-1)
        return hard / 2 + TEMPERATURE**2 * divergence / 2


def assert_same_weights(actual: Any, expected: Any) -> None:
    for mine, theirs in zip(actual.trainable_weights, expected.trainable_weights, strict=True):
        assert_close(as_numpy(mine), as_numpy(theirs), FP32)


def test_without_teacher_it_is_fit():
    _, student = teacher_and_student()
    student.compile(keras.optimizers.SGD(0.05))
    student.fit(IMAGES, LABELS, batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert_same_weights(distilled(1.0), student)


def test_loss_on_the_logits_of_the_teacher():
    teacher, student = teacher_and_student()
    logits = as_numpy(teacher(IMAGES)).astype("float64") / TEMPERATURE
    soft = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    targets = np.concatenate([LABELS[:, None], soft], axis=1).astype("float32")
    student.compile(keras.optimizers.SGD(0.05), Mixture(), metrics=[])
    student.fit(IMAGES, targets, batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert_same_weights(distilled(0.5), student)


def test_default_loss_of_keras_ignores_a_constant_in_all_logits_only_with_an_instance():
    """The softmax of logits does not change with a constant; Keras 3.15 applies it to instances only."""
    teacher, student = np.array([[1.0, 2.0, 3.0]], "float32"), np.array([[3.0, 2.0, 1.0]], "float32")

    def change(distillation: Any) -> float:
        first = distillation.compute_loss(teacher, student)
        return abs(float(first) - float(distillation.compute_loss(teacher + 5, student + 5)))

    assert change(keras.distillation.LogitsDistillation(loss=keras.losses.KLDivergence())) < 1e-5
    assert change(keras.distillation.LogitsDistillation()) > 0.1  # equal in a later Keras: change the page


def test_student_is_exported(tmp_path: Path):
    student = distilled(0.5)
    export_onnx(student, tmp_path / "student")
    with load(tmp_path / "student") as model:
        onnx = model.session.run({"pixel_values": IMAGES.transpose(0, 3, 1, 2)})["logits"]
    assert_close(onnx, as_numpy(student(IMAGES)), FP32)

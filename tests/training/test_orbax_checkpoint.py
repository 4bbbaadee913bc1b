"""`keras.callbacks.OrbaxCheckpoint` saves models of keras_tx, as docs/training.md describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from tests.drawing import as_numpy, draw

pytest.importorskip("orbax.checkpoint", reason="pip install orbax-checkpoint")

IMAGES, LABELS = draw(12, 8, 8, 3).clip(-1, 1), np.arange(12) % 3


def compiled() -> Any:
    keras.utils.set_random_seed(3)
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    model.compile(keras_tx.AdamW(1e-3, weight_decay=0.1), run_eagerly=True)
    return model


def fit(model: Any, **options: Any) -> Any:
    model.fit(IMAGES, LABELS, batch_size=4, shuffle=False, verbose=0, **options)
    return model


def assert_equal(actual: Any, expected: Any) -> None:
    for mine, theirs in zip(actual.variables, expected.variables, strict=True):
        assert (as_numpy(mine) == as_numpy(theirs)).all(), mine.path
    for mine, theirs in zip(actual.optimizer.variables, expected.optimizer.variables, strict=True):
        assert (as_numpy(mine) == as_numpy(theirs)).all(), mine.path


def test_loaded_model_continues_as_if_never_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    callback = keras.callbacks.OrbaxCheckpoint(str(Path("states").absolute()))
    stopped = fit(compiled(), epochs=2, callbacks=[callback])
    model = keras.saving.load_model(str(Path("states").absolute()))
    assert type(model) is type(stopped) and model.processing == stopped.processing
    assert_equal(model, stopped)
    assert_equal(fit(model, epochs=3, initial_epoch=2), fit(compiled(), epochs=3))


def test_load_weights_ignores_the_state_of_an_optimizer_with_another_name(tmp_path: Path):
    stopped = fit(compiled(), epochs=1, callbacks=[keras.callbacks.OrbaxCheckpoint(str(tmp_path))])
    model = compiled()
    assert model.optimizer.name != stopped.optimizer.name  # in another process, they may be equal
    model.optimizer.build(model.trainable_variables)
    model.load_weights(str(tmp_path))
    for mine, theirs in zip(model.variables, stopped.variables, strict=True):
        assert (as_numpy(mine) == as_numpy(theirs)).all()
    assert int(model.optimizer.iterations) == 0

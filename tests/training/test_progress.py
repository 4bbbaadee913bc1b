"""What is seen of a training: speed, logs, and the norm of its gradients."""

from __future__ import annotations

import csv
import json
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.training import fit_resumable
from keras_tx.training.progress import GradientNorm, TrainingLog, TrainingProgress, measured_peak
from tests.drawing import as_numpy, draw

X, Y = draw(24, 4), draw(24, 1)


class Stop(Exception):
    pass


class StopAt(keras.callbacks.Callback):
    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stop


def network(optimizer: Any = None) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer or keras.optimizers.SGD(0.01), "mse")
    return model


def test_the_line_of_progress():
    lines: list[str] = []
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(inputs))
    model.compile("sgd", "mse")
    progress = TrainingProgress(4, peak=1e9, every=0, show=lines.append)
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[progress])
    assert lines[0].startswith("epoch 1 of 2, step 1 of 6, loss ")
    assert "examples/s" not in lines[0]  # the first step compiles
    parts = lines[-1].split(", ")
    assert parts[:2] == ["epoch 2 of 2", "step 6 of 6"]
    rate, share, left = parts[3:]
    examples = float(rate.removesuffix(" examples/s").replace(",", "")) if "," not in rate else None
    assert left == "0 s left"
    assert share.endswith("% of 0.001 TFLOP/s")
    if examples is not None:  # 3 passes of 2 FLOPs for each of 4 weights
        assert abs(float(share.split("%")[0]) - examples * 24 / 1e9 * 100) < 1


def test_tokens_and_a_position():
    model = keras_tx.gpt("pico", vocabulary_size=32, max_length=8)
    model.compile(run_eagerly=True)
    lines: list[str] = []
    progress = TrainingProgress(2, tokens=8, peak=1e12, every=0, show=lines.append)
    progress.resume(1, 3, 5)
    ids = np.zeros((8, 8), int)
    options = {"initial_epoch": 1, "epochs": 2, "batch_size": 2, "verbose": 0}
    model.fit(ids, ids, callbacks=[progress], **options)
    assert lines[0].startswith("epoch 2 of 5, step 4 of 7, loss ")
    assert " tokens/s, " in lines[-1]


def test_the_peak_of_this_machine():
    assert 1e8 < measured_peak() < 1e15


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_rows_of_a_resumed_training_occur_once(tmp_path, suffix):
    def rows(path: Any) -> list[dict[str, Any]]:
        lines = path.read_text().splitlines()
        content = [json.loads(line) for line in lines] if suffix == "jsonl" else list(csv.DictReader(lines))
        return [{k: float(v) for k, v in r.items() if k != "seconds" and v != ""} for r in content]

    def run(name: str, stop: int | None = None) -> None:
        log = TrainingLog(tmp_path / f"{name}.{suffix}", every=2)
        callbacks = [log, *([] if stop is None else [StopAt(stop)])]
        options = {"epochs": 3, "every": 3, "batch_size": 4, "validation_data": (X, Y), "verbose": 0}
        fit_resumable(network(), (X, Y), tmp_path / f"{name}.state", callbacks=callbacks, **options)

    run("whole")
    for stop in (5, 9):
        with pytest.raises(Stop):
            run("a", stop)
        with (tmp_path / f"a.{suffix}").open("a") as file:
            file.write('{"epoch": 1, "st')  # of a process that was killed
    run("a")
    expected = rows(tmp_path / f"whole.{suffix}")
    steps = [(row["epoch"], row.get("step")) for row in expected]
    assert steps == [(e, s) for e in (1, 2, 3) for s in (2, 4, 6, None)]
    assert all("val_loss" in row for row in expected if "step" not in row)
    resumed = rows(tmp_path / f"a.{suffix}")
    assert resumed == expected


def test_a_second_fit_starts_the_log_again(tmp_path):
    for epochs in (3, 2):
        log = TrainingLog(tmp_path / "a.jsonl")
        network().fit(X, Y, epochs=epochs, verbose=0, callbacks=[log])
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 2


def test_invalid_options_of_a_log(tmp_path):
    with pytest.raises(ConfigError, match=r"path is .*a.txt.*\.jsonl or \.csv"):
        TrainingLog(tmp_path / "a.txt")
    with pytest.raises(ConfigError, match="peak is -1"):
        TrainingProgress(1, peak=-1)


def expected_norm(model: keras.Model, x: np.ndarray, y: np.ndarray) -> float:
    """Of the mean squared error of a linear model, written out."""
    kernel, bias = (as_numpy(weight).astype("float64") for weight in model.weights)
    difference = 2 * (x @ kernel + bias - y) / len(x)
    return float(np.sqrt(np.sum((x.T @ difference) ** 2) + np.sum(difference.sum(0) ** 2)))


@pytest.mark.parametrize("scaled", [False, True])
def test_the_norm_equals_a_gradient_written_out(tmp_path, scaled):
    optimizer: Any = keras.optimizers.SGD(0.125)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)
    model = network(optimizer)
    model.optimizer.build(model.trainable_variables)
    before = len(model.optimizer.variables)
    norm, measured = expected_norm(model, X, Y), []
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: measured.append(dict(logs)))
    model.fit(X, Y, batch_size=24, verbose=0, callbacks=[GradientNorm(), watch])
    assert measured[0]["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    assert measured[0]["learning_rate"] == 0.125
    assert len(model.optimizer.variables) == before
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    keras.models.load_model(tmp_path / "model.keras")  # warnings are errors


def test_the_norm_in_a_resumed_training(tmp_path):
    """The state does not contain it, and the weights are those without it."""

    def run(name: str, callbacks: list[Any]) -> list[np.ndarray]:
        model = network(keras.optimizers.Adam(0.1))
        options: dict[str, Any] = {"epochs": 2, "every": 2, "batch_size": 4, "verbose": 0}
        fit_resumable(model, (X, Y), tmp_path / name, callbacks=callbacks, **options)
        return [as_numpy(ops.convert_to_tensor(weight)) for weight in model.weights]

    expected = run("whole", [])
    with pytest.raises(Stop):
        run("a", [GradientNorm(), StopAt(5)])
    log = TrainingLog(tmp_path / "a.jsonl", every=1)
    for mine, theirs in zip(run("a", [GradientNorm(), log]), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert all(row["gradient_norm"] > 0 for row in rows)


@pytest.mark.thorough
def test_keras_tensorboard_writes_the_norm(tmp_path):
    pytest.importorskip("tensorboard")
    board = keras.callbacks.TensorBoard(tmp_path, update_freq=1, write_graph=False)
    network().fit(X, Y, verbose=0, callbacks=[GradientNorm(), board])
    content = b"".join(path.read_bytes() for path in tmp_path.rglob("events*"))
    for name in (b"batch_gradient_norm", b"epoch_learning_rate", b"epoch_loss"):
        assert name in content

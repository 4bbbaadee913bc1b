"""ExportCallback: fails before the first epoch, exports the best one, and does not change the training."""

from __future__ import annotations

import errno
import random

import keras
import numpy as np
import pytest

from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError
from keras_tx.runtime.folder import open_folder, verify_hashes
from keras_tx_onnx import ExportCallback, callback, export, tolerances
from keras_tx_onnx.interfaces import model_graph
from tests.drawing import draw
from tests.export.exporting import outputs_of, run

X, Y = draw(12, 4, seed=3), draw(12, 2, seed=4)


def make(policy: str = "float32", compiled: bool = True) -> keras.Model:
    keras.utils.set_random_seed(5)
    x = keras.Input((4,), name="x")
    hidden = keras.layers.Dense(8, activation="relu", dtype=policy)(x)
    hidden = keras.layers.Dropout(0.3, dtype=policy)(hidden)
    model = keras.Model(x, keras.layers.Dense(2, name="out", dtype=policy)(hidden))
    if compiled:
        model.compile("adam", "mse", metrics=["mae"], run_eagerly=True)  # faster than tracing for a few steps
    return model


class SetLogs(keras.callbacks.Callback):
    """Sets values in the logs, and counts batches."""

    def __init__(self, *values: float, name: str = "val_loss"):
        super().__init__()
        self.values, self.name, self.batches = values, name, 0
        self.weights: list[np.ndarray] = []

    def on_train_batch_begin(self, batch, logs=None):
        self.batches += 1

    def on_epoch_end(self, epoch, logs=None):
        logs[self.name] = self.values[epoch]
        self.weights.append(self.model.get_weights())


def fit(model, *callbacks, epochs: int = 1, **options):
    options = {"batch_size": 4, "verbose": 0, **options}
    return model.fit(X, Y, epochs=epochs, callbacks=list(callbacks), **options)


def assert_holds(folder, model, weights) -> None:
    """Asserts that the folder is intact and has these weights."""
    verify_hashes(open_folder(folder))
    copy = keras.models.clone_model(model)
    copy.set_weights(weights)
    np.testing.assert_allclose(run(folder, X)[0], outputs_of(copy, X)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "values", "best"),
    [
        ("auto", (3.0, 1.0, 2.0), 1),
        ("max", (3.0, 1.0, 2.0), 0),
        ("min", (float("nan"), 2.0, float("nan")), 1),
        ("min", (1.0, 1.0, 1.0), 0),
    ],
    ids=str,
)
def test_folder_has_the_best_epoch(mode: str, values: tuple, best: int, tmp_path):
    model, logs = make(), SetLogs(*values)
    ours = ExportCallback(tmp_path / "out", mode=mode)
    fit(model, logs, ours, epochs=3)
    assert ours.best == values[best]
    assert ours.report.folder == tmp_path / "out"
    assert ours.report.manifest.parity.max_difference <= 1e-4
    assert_holds(tmp_path / "out", model, logs.weights[best])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_direction_is_inferred_from_the_metric(tmp_path):
    model = make(compiled=False)
    model.compile("adam", "mse", metrics=["accuracy"], run_eagerly=True)
    logs = SetLogs(0.3, 0.5, 0.4, name="val_accuracy")
    ours = ExportCallback(tmp_path / "out", monitor="val_accuracy")
    fit(model, logs, ours, epochs=3)
    assert ours.best == 0.5


def test_one_line_per_epoch(tmp_path, capsys):
    fit(make(), SetLogs(3.0, 4.0, 1.0), ExportCallback(tmp_path / "out", verbose=1), epochs=3)
    first, *lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert first.startswith("The model can be exported: 5 nodes, within ")
    folder = tmp_path / "out"
    assert lines[0].startswith(
        f"Epoch 1: val_loss improved from None to 3.00000. Exported to {folder}: 5 nodes"
    )
    assert lines[1] == "Epoch 2: val_loss 4.00000 did not improve from 3.00000."
    assert lines[2].startswith("Epoch 3: val_loss improved from 3.00000 to 1.00000.")


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_callback_does_not_change_training(policy: str, tmp_path):
    histories, weights = [], []
    for ours in ([], [ExportCallback(tmp_path / "out")]):
        model = make(policy, compiled=False)
        model.compile("adam", "mse", metrics=["mae"])
        histories.append(fit(model, *ours, epochs=3, validation_split=0.5).history)
        weights.append([*model.get_weights(), *(np.array(v) for v in model.optimizer.variables)])
        weights[-1].append(np.array([random.random(), np.random.random()]))  # as drawn by a data generator
    assert histories[0] == histories[1]
    for without, with_callback in zip(*weights, strict=True):
        np.testing.assert_array_equal(without, with_callback)


def test_model_saves_and_continues_training(tmp_path):
    model, ours = make(), ExportCallback(tmp_path / "out")
    fit(model, SetLogs(2.0), ours)
    model.save(tmp_path / "model.keras")
    logs = SetLogs(3.0, 1.0)
    fit(model, logs, ours, epochs=2)  # the callback overwrites its folder
    assert ours.best == 1.0
    assert_holds(tmp_path / "out", model, logs.weights[1])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"opset": 3}, ConfigError, "Training was not started.*opset=3"),
        ({"labels": ["a"]}, ConfigError, "Training was not started.*labels"),
    ],
    ids=str,
)
def test_invalid_options_stop_before_the_first_epoch(options: dict, error: type, message: str, tmp_path):
    logs = SetLogs(1.0)
    with pytest.raises(error, match=message):
        fit(make(), logs, ExportCallback(tmp_path / "out", **options))
    assert logs.batches == 0
    assert not list(tmp_path.iterdir())


def test_unsupported_model_stops_before_the_first_epoch(tmp_path, monkeypatch):
    def fail(*args):
        raise ExportError("The layer 'x' has no lowering.")

    monkeypatch.setattr(model_graph, "lower", fail)
    logs = SetLogs(1.0)
    with pytest.raises(ExportError, match="Training was not started.*'x'"):
        fit(make(), logs, ExportCallback(tmp_path / "out"))
    assert logs.batches == 0
    assert not list(tmp_path.iterdir())


def test_failed_verification_stops_before_the_first_epoch(tmp_path, monkeypatch):
    def wrong(*args):
        raise ExportError("Output 'out' differs from Keras.")

    monkeypatch.setattr(export, "verify_graphs", wrong)
    logs = SetLogs(1.0)
    with pytest.raises(ExportError, match="Training was not started.*'out'"):
        fit(make(), logs, ExportCallback(tmp_path / "out"))
    assert logs.batches == 0
    assert not list(tmp_path.iterdir())


def test_verify_false_still_loads_the_trial_in_onnxruntime(tmp_path, monkeypatch):
    loaded = []
    real = callback.Session
    monkeypatch.setattr(callback, "Session", lambda *a, **k: loaded.append(a) or real(*a, **k))
    ours = ExportCallback(tmp_path / "out", monitor="loss", verify=False)
    fit(make(), ours)
    assert len(loaded) == 1
    assert ours.report.manifest.parity is None


def test_existing_folder_raises_before_the_first_epoch(tmp_path):
    fit(make(), ExportCallback(tmp_path / "out", monitor="loss"))
    before = (tmp_path / "out" / contract.MANIFEST).read_bytes()
    logs = SetLogs(1.0)
    with pytest.raises(ExportError, match="out.*overwrite=True"):
        fit(make(), logs, ExportCallback(tmp_path / "out"))
    assert logs.batches == 0
    assert (tmp_path / "out" / contract.MANIFEST).read_bytes() == before
    ours = ExportCallback(tmp_path / "out", overwrite=True)
    fit(make(), logs, ours)
    assert ours.report is not None
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match="file"):
        fit(make(), ExportCallback(tmp_path / "file" / "out"))


def test_model_built_by_its_first_batch_is_checked_after_it(tmp_path, monkeypatch):
    def unbuilt():
        model = keras.Sequential([keras.layers.Dense(3, activation="relu"), keras.layers.Dense(2)])
        model.compile("adam", "mse", run_eagerly=True)
        return model

    model, ours = unbuilt(), ExportCallback(tmp_path / "out", verbose=1)
    fit(model, SetLogs(2.0, 1.0), ours, epochs=2)
    assert ours.report.manifest.inputs[0].shape == ("batch_size", 4)
    (expected,) = outputs_of(model, X)
    np.testing.assert_allclose(run(tmp_path / "out", X)[0], expected, rtol=1e-5, atol=1e-6)

    def fail(*args):
        raise ExportError("No.")

    monkeypatch.setattr(model_graph, "lower", fail)
    logs = SetLogs(1.0)
    with pytest.raises(ExportError, match="Training (was not started|stopped after the first batch).*No."):
        fit(unbuilt(), logs, ExportCallback(tmp_path / "other"))
    assert logs.batches <= 1


def test_full_disk_keeps_the_previous_best(tmp_path, monkeypatch):
    model, logs = make(), SetLogs(3.0, 2.0, 1.0)
    ours = ExportCallback(tmp_path / "out")
    manifest = export._write_manifest

    def fails(*args):
        if len(logs.weights) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return manifest(*args)

    monkeypatch.setattr(export, "_write_manifest", fails)
    with pytest.raises(ExportError, match="Epoch 2.*No space.*previous best"):
        fit(model, logs, ours, epochs=3)
    assert ours.best == 3.0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert_holds(tmp_path / "out", model, logs.weights[0])


def test_failed_verification_keeps_the_previous_best(tmp_path, monkeypatch):
    model, logs = make(), SetLogs(3.0, 2.0)
    difference = tolerances.difference
    monkeypatch.setattr(
        tolerances,
        "difference",
        lambda *a: 1.0 if len(logs.weights) == 2 else difference(*a),
    )
    with pytest.raises(ExportError, match="Epoch 2.*'out'.*previous best"):
        fit(model, logs, ExportCallback(tmp_path / "out"), epochs=2)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert_holds(tmp_path / "out", model, logs.weights[0])


def test_missing_value_in_the_logs_raises(tmp_path):
    with pytest.raises(ConfigError, match="monitor='val_loss'.*'loss', 'mae'.*validation_data"):
        fit(make(), ExportCallback(tmp_path / "out"))
    with pytest.raises(ConfigError, match=r"monitor='f1'.*'loss', 'mae'\.$"):
        fit(make(), ExportCallback(tmp_path / "out", monitor="f1", mode="max"))
    with pytest.raises(ConfigError, match="monitor=f1.*mode='max'"):
        fit(make(), ExportCallback(tmp_path / "out", monitor="f1"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("freq", [2, [2]], ids=str)
def test_epochs_without_validation_are_skipped(freq, tmp_path):
    options = {"validation_data": (X, Y), "validation_freq": freq, "epochs": 3}
    with pytest.raises(ConfigError, match="monitor='val_loss'.*validation_freq"):
        fit(make(), ExportCallback(tmp_path / "out"), **options)
    ours = ExportCallback(tmp_path / "out", validation_freq=freq)
    fit(make(), ours, **options)
    assert ours.report is not None


def test_training_without_an_export_warns(tmp_path):
    ours = ExportCallback(tmp_path / "out", initial_value_threshold=0.5)
    with pytest.warns(UserWarning, match="val_loss.* 0.5"):
        fit(make(), SetLogs(0.5, float("nan")), ours, epochs=2)
    assert not list(tmp_path.iterdir())


def test_early_stopping_with_restored_weights(tmp_path):
    model, logs = make(), SetLogs(2.0, 1.0, 3.0, 4.0)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    fit(model, logs, stop, ExportCallback(tmp_path / "out"), epochs=4)
    assert len(logs.weights) == 3
    assert_holds(tmp_path / "out", model, model.get_weights())
    assert_holds(tmp_path / "out", model, logs.weights[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lables": ["a"]}, "'lables'.*'labels'"),
        ({"mode": "least"}, "mode='least'.*'auto', 'min' or 'max'"),
        ({"monitor": None}, "monitor=None"),
        ({"initial_value_threshold": "low"}, "initial_value_threshold='low'"),
    ],
    ids=str,
)
def test_invalid_arguments_raise(options: dict, message: str, tmp_path):
    with pytest.raises(ConfigError, match=message):
        ExportCallback(tmp_path / "out", **options)

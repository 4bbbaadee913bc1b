"""Training that resumes at the step of its last saved state, with equal batches and random numbers."""

from __future__ import annotations

import glob
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tx.data.batches import Batches
from keras_tx.errors import ConfigError, whole_number
from keras_tx.weights.weight_values import check_values

VERSION = 1
ABOUT = "about"  # the entry that is JSON
DIVERGED = "Lower the learning rate or clip the gradients, and call fit_resumable again."


def fit_resumable(
    model: Any,
    batches: Batches,
    path: str | os.PathLike[str],
    *,
    epochs: int,
    every: int | None = None,
    callbacks: Sequence[Any] = (),
    **options: Any,
) -> keras.callbacks.History:
    """Trains like `model.fit`, and resumes an interrupted training from its last saved step.

    A resumed training equals an uninterrupted one: the batches and their order, dropout, the optimizer, the
    learning rate, and the loss and metrics of whole epochs. (keras.callbacks.BackupAndRestore resumes at the
    start of the epoch, with weights that were already trained on a part of it.) The state is one file that
    is replaced atomically; the first one is written before the first step.

        model.compile(pretrain_recipe(epochs * len(blocks)))
        fit_resumable(model, blocks, "run.state", epochs=epochs, every=500, validation_data=validation)

    The file stays after the training: a call with more epochs continues it, and a call with as many restores
    the trained model. Remove the file to start again.

    Args:
        model: compiled, and built the same way each time.
        batches: the result of causal_lm_batches or another function of keras_tx.data, called with
            the same arguments each time.
        path: the file of the state.
        epochs: the number of all epochs, including those before an interruption.
        every: steps between two saves. The end of each epoch is saved too, after its validation, and the step
            at which a callback sets `stop_training`.
        callbacks: as for `fit`. Their state is not saved. If an epoch is resumed within it, `fit` runs twice,
            and calls their on_train_begin and on_train_end twice.
        options: of `fit`: validation_data, validation_steps, verbose ...

    Returns:
        The History of all complete epochs, including those before an interruption.

    Raises:
        ConfigError: an argument is invalid, the state does not fit the model or the batches, or a weight is
            NaN or infinite.
    """
    epochs = whole_number("epochs", epochs)
    every = None if every is None else whole_number("every", every)
    if not isinstance(batches, Batches):
        raise ConfigError(
            f"batches is a {type(batches).__name__}, expected keras_tx.data.Batches. For arrays "
            "x and y, pass Batches(lambda rows, random: (x[rows], y[rows]), np.ones(len(x)), batch_size=32)."
        )
    if getattr(model, "optimizer", None) is None:
        raise ConfigError(f"Model {model.name!r} is not compiled. Call model.compile first.")
    if not model.built:
        raise ConfigError(
            f"Model {model.name!r} is not built. Call it on a batch first: model(batches[0][0])."
        )
    for name in ("initial_epoch", "steps_per_epoch", "shuffle", "x", "y"):
        if name in options:
            raise ConfigError(f"{name}= is not supported: the batches define order and position. Remove it.")
    if not Path(path).parent.is_dir():
        raise ConfigError(f"{path} cannot be written: {Path(path).parent} is not a folder.")
    keeper = _Keeper(model, batches, Path(path), every)
    if keeper.epoch >= epochs:  # fit does this at its end, after the state is saved
        model.optimizer.finalize_variable_values(model.trainable_weights)
    while keeper.epoch < epochs and not keeper.stopped:
        batches.seek(keeper.epoch, keeper.step)
        rest = keeper.step > 0
        model.fit(
            batches,
            initial_epoch=keeper.epoch,
            epochs=keeper.epoch + 1 if rest else epochs,
            shuffle=False,
            callbacks=[*callbacks, keeper],
            **options,
        )
        if rest and keeper.epoch < epochs and not keeper.stopped:
            keeper.restore(model)  # fit has replaced the weights by their average, if the optimizer has one
    history = keras.callbacks.History()
    history.set_model(model)
    history.history = keeper.history
    history.epoch = list(range(keeper.epoch))
    model.history = history
    return history


class _Keeper(keras.callbacks.Callback):
    """Restores or writes the state, and sets the position of the batches."""

    def __init__(self, model: Any, batches: Batches, path: Path, every: int | None) -> None:
        super().__init__()
        self.batches, self.path, self.every = batches, path, every
        self._stops = model  # `self.model` copies all variables on JAX, which is too slow for every step
        self.epoch, self.step = 0, 0  # complete epochs, and steps of the next one
        self.history: dict[str, list[float]] = {}
        self.stopped = False
        self._metrics: list[np.ndarray] = []
        self._random: dict[str, np.ndarray] = {}
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        if path.exists():
            self.restore(model)
        else:
            self.save(model)
        for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
            partial.unlink()  # of a killed process

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.batches.seek(epoch, self.step)
        self._first, self._saved = self.step, self.step
        self._steps = self.step + len(self.batches)
        if not self.step:
            self._restore_random()
        if self._metrics:  # of the part of the epoch that is done
            self._restore_metrics(self.model)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._restore_random()  # within an epoch not before this: PyTorch's loader draws at its start

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step = self._first + batch + 1
        if self.step >= self._steps:
            return  # the end of an epoch is saved after its validation
        due = self.every is not None and self.step // self.every > self._saved // self.every
        if due or self._stops.stop_training:
            self._saved = self.step
            self.save(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.stopped = bool(self._stops.stop_training)
        if self.step < self._steps:
            return  # stopped and saved within the epoch: the metrics are not those of a whole epoch
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(float(value))
        self.epoch, self.step = epoch + 1, 0
        self.save(self.model)  # which brings the variables up to date on JAX

    def save(self, model: Any) -> None:
        about: dict[str, Any] = {
            "version": VERSION,
            "epoch": self.epoch,
            "step": self.step,
            "history": self.history,
            "batches": self.batches.fingerprint(),
        }
        arrays: dict[str, np.ndarray] = {}
        for group, variables in _groups(model).items():
            about[group] = [_described(variable) for variable in variables]
            for index, variable in enumerate(variables):
                array = arrays[f"{group}/{index}"] = _exact(variable)
                if group != "metrics":
                    name = f"After step {self.step} of epoch {self.epoch}, {variable.path}"
                    check_values(array, name, f"{self.path} keeps the previous state. {DIVERGED}")
        for name, state in _random_states().items():
            arrays[f"random/{name}"] = state
        arrays[ABOUT] = np.array(json.dumps(about))
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        try:
            with aside.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, self.path)
        finally:
            aside.unlink(missing_ok=True)

    def restore(self, model: Any) -> None:
        try:
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
                arrays = {name: saved[name] for name in saved.files}
            about = json.loads(str(arrays[ABOUT]))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigError(
                f"{self.path} is not a training state, or damaged ({error}). Remove it to start again."
            ) from error
        self._compare("version", about.get("version"), VERSION)
        now = self.batches.fingerprint()
        for name in {**now, **about["batches"]}:
            self._compare(f"batches: {name}", about["batches"].get(name), now.get(name))
        groups = _groups(model)
        for group in ("model", "optimizer"):
            self._compare_variables(group, about[group], [_described(x) for x in groups[group]])
        for group in ("model", "optimizer"):
            for index, variable in enumerate(groups[group]):
                variable.assign(arrays[f"{group}/{index}"])
        self.epoch, self.step, self.history = about["epoch"], about["step"], about["history"]
        self._random = {
            name.removeprefix("random/"): x for name, x in arrays.items() if name.startswith("random/")
        }
        if self.step:
            self._metrics = [arrays[f"metrics/{index}"] for index in range(len(about["metrics"]))]

    def _restore_random(self) -> None:
        _restore_random_states(self._random)
        self._random = {}

    def _restore_metrics(self, model: Any) -> None:
        x, y = self.batches[0]
        predicted = model(x, training=False)
        model.compute_loss(x, y, predicted)  # these two create the variables before the first step
        model.compute_metrics(x, y, predicted)
        self._compare("metrics", len(self._metrics), len(model.metrics_variables))
        for variable, value in zip(model.metrics_variables, self._metrics, strict=True):
            variable.assign(value)
        self._metrics = []

    def _compare(self, name: str, saved: Any, current: Any) -> None:
        if saved != current:
            raise ConfigError(
                f"{self.path} was saved with {name} {saved!r}, now it is {current!r}. Restore the former "
                "value, or remove the file to start again."
            )

    def _compare_variables(self, group: str, saved: list[Any], current: list[Any]) -> None:
        for index, (one, other) in enumerate(zip(saved, current, strict=False)):
            self._compare(f"variable {index} of the {group}", one, other)
        self._compare(f"variables of the {group}:", len(saved), len(current))


def _groups(model: Any) -> dict[str, list[Any]]:
    return {
        "model": model.variables,  # the states of dropout's random generators among them
        "optimizer": model.optimizer.variables,
        "metrics": model.metrics_variables,
    }


def _random_states() -> dict[str, np.ndarray]:
    """PyTorch's random states, which dropout uses instead of the generators of its layers."""
    if keras.backend.backend() != "torch":
        return {}
    import torch

    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {str(index): state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    return {name: state.numpy() for name, state in states.items()}


def _restore_random_states(states: dict[str, np.ndarray]) -> None:
    if not states or keras.backend.backend() != "torch":
        return
    import torch

    for name, state in states.items():
        if name == "cpu":
            torch.set_rng_state(torch.from_numpy(state))
        elif int(name) < torch.cuda.device_count():
            torch.cuda.set_rng_state(torch.from_numpy(state), int(name))


def _described(variable: Any) -> list[Any]:
    # Not the whole path: Keras numbers random generators throughout the process.
    return [variable.path.split("/")[-1], list(variable.shape)]


def _exact(variable: Any) -> np.ndarray:
    array = keras.ops.convert_to_numpy(variable)
    return array.astype("float32") if array.dtype.name == "bfloat16" else array

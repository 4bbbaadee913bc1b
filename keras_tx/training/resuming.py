"""Training that resumes at the step of its last saved state, with equal batches and random numbers."""

from __future__ import annotations

import glob
import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tx.errors import ConfigError, whole_number
from keras_tx.training.divergence import first_divergence
from keras_tx.training.process_group import (
    gather,
    process_count,
    process_index,
    read_arrays,
    whole_array,
)
from keras_tx.training.progress import GRADIENT_NORM
from keras_tx.training.random_states import random_states, restore_random_states
from keras_tx.training.resumable_data import ResumableData, resumable_data
from keras_tx.weights.weight_values import check_values

VERSION = 2
ABOUT = "about"  # the entry that is JSON
DIVERGED = "Lower the learning rate or clip the gradients, and call fit_resumable again."


def fit_resumable(
    model: Any,
    data: Any,
    path: str | os.PathLike[str],
    *,
    epochs: int,
    every: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    steps_per_epoch: int | None = None,
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

    The file stays after the training: a call with more epochs continues it, and a call with the same number
    restores the trained model. Remove the file to start over.

    Data is accepted if its position can be restored exactly:

    - batches from a function of keras_tx.data;
    - a tuple of arrays, (x, y) or (x, y, sample_weight), which is shuffled by `seed`;
    - a keras.utils.PyDataset whose batch i is always the same. If the order changes between epochs, it needs
      a method `set_epoch(epoch)` in place of on_epoch_begin and on_epoch_end;
    - a tf.data.Dataset that tf.train.Checkpoint can save: no random numbers without a seed, no Python code,
      and no `shuffle` that reshuffles;
    - a function of the epoch that returns such a dataset, where `shuffle` is allowed:
      `lambda epoch: images.shuffle(1000, seed=epoch).batch(32)`.

    The state has a hash of the data, and other data is refused. It covers all samples of keras_tx.data and of
    arrays (of arrays and token files above 256 MiB, evenly spaced rows; of images, their names, their labels
    and the pixels of arrays); three batches of a PyDataset; and the tensors of a tf.data pipeline, but not
    the content of files that it reads.

    On JAX, several processes may train a model together (`keras.distribution`). They call this function with
    the same path, in a folder that they share, and each with its part of the data. The first process writes
    the file, with the random numbers and positions of all. A training resumes with as many processes.

    If the loss or a weight becomes NaN or infinite, the steps since the last state are repeated one by one,
    and the error names the step and the layer.

    Args:
        model: a compiled model, built in the same way each time.
        data: see above; created with the same arguments each time.
        path: the file of the state.
        epochs: the number of all epochs, including those before an interruption.
        every: steps between two saves. The end of each epoch is saved too, after its validation, and the step
            at which a callback sets `stop_training`.
        batch_size: batch size for arrays; by default 32.
        seed: seed of the order of arrays; by default 0.
        steps_per_epoch: batches per epoch of a tf.data.Dataset whose length is unknown or infinite. The
            dataset is repeated, and an epoch continues where the epoch before ended.
        callbacks: as for `fit`. Their state is not saved. If a training resumes within an epoch, `fit` runs
            twice, and calls their on_train_begin and on_train_end twice. If a callback has a method
            `resume(epoch, step, epochs)`, it is called with the position and the number of all epochs before
            each `fit`; `batch` in its other methods counts from there. If it has a method
            `saved(epoch, step, history)`, that is called after each saved state.
        options: options of `fit`: validation_data, validation_steps, class_weight, verbose ...

    Returns:
        The History of all complete epochs, including those before an interruption.

    Raises:
        ConfigError: an argument is invalid, the data cannot be resumed, the state does not fit the model or
            the data, the state cannot be written, or the loss or a weight is NaN or infinite.
    """
    epochs = whole_number("epochs", epochs)
    every = None if every is None else whole_number("every", every)
    _check_arguments(model, Path(path), options)
    source = resumable_data(data, batch_size, seed, steps_per_epoch, every)
    listeners = [callback.saved for callback in callbacks if hasattr(callback, "saved")]
    keeper = _Keeper(model, source, Path(path), every, options.get("class_weight"), listeners)
    if keeper.epoch >= epochs:  # fit does this at its end, after the state is saved
        model.optimizer.finalize_variable_values(model.trainable_weights)
    while keeper.epoch < epochs and not keeper.stopped:
        source.seek(keeper.epoch, keeper.step)
        rest = keeper.step > 0
        for callback in callbacks:
            if hasattr(callback, "resume"):
                callback.resume(keeper.epoch, keeper.step, epochs)
        try:
            model.fit(
                source.dataset,
                initial_epoch=keeper.epoch,
                epochs=keeper.epoch + 1 if rest else epochs,
                shuffle=False,
                callbacks=[*callbacks, keeper],
                **options,
            )
        except _Divergence as error:
            raise ConfigError(f"{error} {keeper.cause(model)} {keeper.remedy()}") from None
        if rest and keeper.epoch < epochs and not keeper.stopped:
            keeper.restore(model)  # fit has replaced the weights by their average, if the optimizer has one
    history = keras.callbacks.History()
    history.set_model(model)
    history.history = keeper.history
    history.epoch = list(range(keeper.epoch))
    model.history = history
    return history


def _check_arguments(model: Any, path: Path, options: dict[str, Any]) -> None:
    if getattr(model, "optimizer", None) is None:
        raise ConfigError(f"Model {model.name!r} is not compiled. Call model.compile first.")
    if not model.built:
        raise ConfigError(f"Model {model.name!r} is not built. Call it on the inputs of a batch first.")
    for name in ("initial_epoch", "shuffle", "x", "y", "sample_weight", "validation_split"):
        if name in options:
            raise ConfigError(f"{name}= is not supported: the data defines order and position. Remove it.")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: {path.parent} is not a folder.")


class _Divergence(ConfigError):
    """The loss or a weight is NaN or infinite."""


class _Keeper(keras.callbacks.Callback):
    """Restores or writes the state, and sets the position of the batches."""

    def __init__(
        self,
        model: Any,
        data: ResumableData,
        path: Path,
        every: int | None,
        class_weight: dict[int, float] | None = None,
        listeners: Sequence[Callable[[int, int, dict[str, list[float]]], None]] = (),
    ) -> None:
        super().__init__()
        self.data, self.path, self.every, self.class_weight = data, path, every, class_weight
        self.listeners = listeners
        self._scales_loss = hasattr(model.optimizer, "dynamic_scale")  # LossScaleOptimizer skips steps
        self._stops = model  # `self.model` copies all variables on JAX, which is too slow for every step
        self.epoch, self.step = 0, 0  # complete epochs, and steps of the next one
        self.history: dict[str, list[float]] = {}
        self.stopped = False
        self._metrics: list[np.ndarray] = []
        self._random: dict[str, np.ndarray] = {}  # before the next step
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        if _exists(path):
            self.restore(model)
        else:
            self.save(model)
        if process_index() == 0:
            for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
                partial.unlink()  # of a killed process

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.data.seek(epoch, self.step)
        self._epoch = epoch
        self._first, self._saved = self.step, self.step
        self._steps = self.step + self.data.steps()
        if not self.step:
            self._restore_random()
        if self._metrics:  # of the part of the epoch that is done
            self._restore_metrics(self.model)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._restore_random()  # within an epoch not before this: PyTorch's loader draws at its start

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step = self._first + batch + 1
        if not self._scales_loss and not math.isfinite((logs or {}).get("loss", 0.0)):
            raise _Divergence(
                f"After step {self.step} of epoch {self._epoch + 1}, the loss is {logs['loss']}."
            )
        self.data.advance(self._epoch, self.step)
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
        self.data.advance(self.epoch, 0)
        self.save(self.model)  # which brings the variables up to date on JAX

    def save(self, model: Any) -> None:
        about: dict[str, Any] = {
            "version": VERSION,
            "epoch": self.epoch,
            "step": self.step,
            "history": self.history,
        }
        arrays: dict[str, np.ndarray] = {}
        for group, variables in _groups(model).items():
            about[group] = [_described(variable) for variable in variables]
            for index, variable in enumerate(variables):
                array = arrays[f"{group}/{index}"] = _exact(variable)
                if group != "metrics":
                    name = f"After step {self.step} of epoch {self.epoch + 1}, {variable.path}"
                    check_values(array, name, "", _Divergence)
        # Restored here too, because `fit` draws numbers between the first save and the first step.
        self._random = random_states()
        processes = gather(self._process_state())
        for index, state in enumerate(processes):
            arrays |= {f"process/{index}/{name}": array for name, array in state.items()}
        about["processes"] = len(processes)
        arrays[ABOUT] = np.array(json.dumps(about))
        if process_index() == 0:
            self._write(arrays)
        for listener in self.listeners:
            listener(self.epoch, self.step, self.history)

    def _process_state(self) -> dict[str, np.ndarray]:
        """What differs between the processes of a training: random numbers, and the data and its position."""
        arrays = {f"random/{name}": state for name, state in self._random.items()}
        for name, state in self.data.state(self.epoch, self.step).items():
            arrays[f"data/{name}"] = state
        return {**arrays, "batches": np.array(json.dumps(self.data.fingerprint()))}

    def _write(self, arrays: dict[str, np.ndarray]) -> None:
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        try:
            with aside.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, self.path)
            if os.name == "posix":  # so that the new name survives a power failure
                folder = os.open(self.path.parent, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)
        except OSError as error:
            size = sum(array.nbytes for array in arrays.values()) / 1e6
            before = "It keeps the previous state. " if self.path.exists() else ""
            raise ConfigError(
                f"{self.path} could not be written: {error.strerror or error}. {before}Free {size:,.1f} MB "
                f"in {self.path.parent}, and call fit_resumable again."
            ) from error
        finally:
            aside.unlink(missing_ok=True)

    def cause(self, model: Any) -> str:
        """Repeats the steps since the last state one by one, and describes the first non-finite value."""
        last = self.step if self.epoch == self._epoch else self._steps
        self.restore(model)
        model.reset_metrics()
        for step in range(self.step, last):
            self.data.seek(self.epoch, step)
            cause = first_divergence(model, self.data.batch(), self.class_weight, self._random)
            self._random = {}
            if cause is not None:
                return f"In step {step + 1}, {cause}"
            self.data.advance(self.epoch, step + 1)
        return (
            f"Steps {self.step + 1} to {last} are finite when they are repeated without the callbacks, so a "
            "callback changed a value."
        )

    def remedy(self) -> str:
        """Returns the end of the message of a divergence."""
        saved = f"step {self.step} of epoch {self.epoch + 1}"
        return f"{self.path} keeps the state after {saved}. {DIVERGED}"

    def restore(self, model: Any) -> None:
        try:
            with self.path.open("rb") as file:
                arrays = read_arrays(file)
            about = json.loads(str(arrays[ABOUT]))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigError(
                f"{self.path} is not a training state, or damaged ({error}). Remove it to start again."
            ) from error
        self._compare("version", about.get("version"), VERSION)
        self._compare("number of processes", about["processes"], process_count())
        own = _within(arrays, f"process/{process_index()}/")
        before, now = json.loads(str(own["batches"])), self.data.fingerprint()
        for name in {**now, **before}:
            self._compare(f"batches: {name}", before.get(name), now.get(name))
        groups = _groups(model)
        for group in ("model", "optimizer"):
            saved = [[_unnumbered(name), shape] for name, shape in about[group]]
            self._compare_variables(group, saved, [_described(x) for x in groups[group]])
        self.data.restore(about["epoch"], about["step"], _within(own, "data/"))
        for group in ("model", "optimizer"):
            for index, variable in enumerate(groups[group]):
                variable.assign(arrays[f"{group}/{index}"])
        self.epoch, self.step, self.history = about["epoch"], about["step"], about["history"]
        self._random = _within(own, "random/")
        if self.step:
            self._metrics = [arrays[f"metrics/{index}"] for index in range(len(about["metrics"]))]

    def _restore_random(self) -> None:
        restore_random_states(self._random)
        self._random = {}

    def _restore_metrics(self, model: Any) -> None:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(self.data.batch())
        before = [(variable, _exact(variable)) for variable in model.non_trainable_variables]
        predicted = model(x, training=False)
        model.compute_loss(x, y, predicted, weight)  # these two create the variables before the first step
        model.compute_metrics(x, y, predicted, weight)
        for variable, value in before:  # of layers that draw random numbers in inference too
            variable.assign(value)
        self._compare("metrics", len(self._metrics), len(model.metrics_variables))
        for variable, value in zip(model.metrics_variables, self._metrics, strict=True):
            variable.assign(value)
        self._metrics = []

    def _compare(self, name: str, saved: Any, current: Any) -> None:
        if saved != current and "digest" in name:
            raise ConfigError(
                f"{self.path} was saved with other data: {name} was {saved}, now it is {current}. Train with "
                "the former data, or remove the file to start again."
            )
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
        "optimizer": [v for v in model.optimizer.variables if v.name != GRADIENT_NORM],
        "metrics": model.metrics_variables,
    }


def _exists(path: Path) -> bool:
    """Whether the state exists, for all processes."""
    exists = [bool(process["exists"]) for process in gather({"exists": np.array(path.exists())})]
    if len(set(exists)) > 1:
        raise ConfigError(
            f"{path} exists for {exists.count(True)} of {len(exists)} processes. Use a path in a folder that "
            "all machines share."
        )
    return exists[0]


def _within(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}


def _described(variable: Any) -> list[Any]:
    return [_unnumbered(variable.path), list(variable.shape)]


def _unnumbered(path: str) -> str:
    """The last part of a path, without the numbers that Keras counts throughout the process."""
    return re.sub(r"_\d+(?=_|$)", "", path.split("/")[-1])


def _exact(variable: Any) -> np.ndarray:
    array = whole_array(variable)
    return array.astype("float32") if array.dtype.name == "bfloat16" else array

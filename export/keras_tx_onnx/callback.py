"""Exports the best epoch of `model.fit`, and proves before the first one that this will work."""

from __future__ import annotations

import inspect
import math
import os
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from keras.src.callbacks.monitor_callback import MonitorCallback

from keras_tx import contract
from keras_tx.atomic_write import check_export_target, partial_folder
from keras_tx.errors import ConfigError, ExportError, KerasTxError, nearest
from keras_tx.runtime.session import Session
from keras_tx_onnx.export import export_onnx
from keras_tx_onnx.report import Report

OPTIONS = tuple(inspect.signature(export_onnx).parameters)[2:]  # after the model and the folder


class ExportCallback(MonitorCallback):
    """Exports the model whenever an epoch was the best so far; the folder always holds the best one.

    Before the first epoch it exports the model once, beside the folder, and throws that away: what cannot be
    exported stops `fit` there, with the reason, and not after a night of training. A model that is built only
    by its first batch (a Sequential model without an input, on TensorFlow) is tried after that batch.

    The folder is replaced only by an export that is whole and verified. Whatever happens before, an error or
    the end of the process, leaves the one of the former best epoch. An export that fails stops `fit`; the
    model keeps its weights.

    `report` is the Report of the last export, or None. The best value is not saved: after a restart, also one
    by keras.callbacks.BackupAndRestore, the first epoch counts as the best unless `initial_value_threshold`
    says what to beat, and overwrite=True is needed.

    >>> import keras, keras_tx, numpy, tempfile
    >>> model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    >>> model.compile("adamw")
    >>> x, y = numpy.zeros((4, 8, 8, 3)), numpy.zeros(4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     best = ExportCallback(folder + "/flowers", labels=["daisy", "rose", "tulip"])
    ...     history = model.fit(x, y, validation_data=(x, y), epochs=2, verbose=0, callbacks=[best])
    >>> best.report.manifest.labels
    ('daisy', 'rose', 'tulip')

    Args:
        folder: where to write.
        monitor: the value in the logs of an epoch that decides. One that is not there is an error.
        mode: "min", "max", or "auto": what Keras knows of the metric.
        initial_value_threshold: the value that the first export must beat already.
        validation_freq: the same as fit's. Where `monitor` is a value of the validation, epochs without one
            are passed over.
        verbose: 1 prints a line for each epoch.
        overwrite: whether an export that was in the folder before training may be replaced.
        **options: what keras_tx_onnx.export_onnx takes: labels, opset, verify ...
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        monitor: str = "val_loss",
        mode: str = "auto",
        *,
        initial_value_threshold: float | None = None,
        validation_freq: int | Sequence[int] = 1,
        verbose: int = 0,
        overwrite: bool = False,
        **options: Any,
    ):
        if not isinstance(monitor, str) or not monitor:
            raise ConfigError(f"monitor={monitor!r}: expected the name of a value in the logs, 'val_loss'.")
        if mode not in ("auto", "min", "max"):
            raise ConfigError(f"mode={mode!r}: expected 'auto', 'min' or 'max'.")
        if initial_value_threshold is not None:
            initial_value_threshold = _number("initial_value_threshold", initial_value_threshold)
        for name in options:
            if name not in OPTIONS:
                raise ConfigError(
                    f"{name!r} is no argument of ExportCallback or export_onnx. {nearest(name, OPTIONS)}"
                )
        super().__init__(monitor, mode, initial_value_threshold)
        self.folder = Path(folder).absolute()
        self.validation_freq = validation_freq
        self.verbose = verbose
        self.overwrite = overwrite
        self.options = options
        self.report: Report | None = None
        self._tried = False
        self._validated = False

    def on_train_begin(self, logs: Any = None) -> None:
        check_export_target(self.folder, self.overwrite or self.report is not None)
        self._tried = self.model.built
        if self._tried:
            self._try("Training was not started")
        elif self.verbose:
            self._say("The model is built by its first batch; whether it can be exported is seen after that.")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._tried:
            self._try("Training was stopped after the first batch, before which the model was not built")
            self._tried = True
        if self.monitor_op is None:
            self._find_direction()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._validated = False

    def on_test_begin(self, logs: Any = None) -> None:
        self._validated = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = logs or {}
        if self.monitor.startswith("val_") and self.monitor not in logs and not self._validates(epoch):
            return
        value = self._monitored(logs)
        before = "nothing" if self.best is None else f"{self.best:.5f}"
        if math.isnan(value) or not self._is_improvement(value, self.best):
            if self.verbose:
                self._say(f"Epoch {epoch + 1}: {self.monitor} is {value:.5f}, not better than {before}.")
            return
        try:
            report = self._export(self.folder, overwrite=self.overwrite or self.report is not None)
        except KerasTxError as error:
            kept = "" if self.report is None else f" The folder {self.folder} holds the former best epoch."
            raise type(error)(f"Epoch {epoch + 1} could not be exported: {error}{kept}") from error
        self.best, self.report = value, report
        if self.verbose:
            self._say(
                f"Epoch {epoch + 1}: {self.monitor} went from {before} to {value:.5f}; {_summary(report)}, "
                f"in {self.folder}."
            )

    def on_train_end(self, logs: Any = None) -> None:
        if self.report is None:
            threshold = "" if self.best is None else f" better than {self.best}"
            warnings.warn(
                f"ExportCallback wrote nothing: in no epoch was {self.monitor} a number{threshold}.",
                stacklevel=2,
            )

    def _try(self, consequence: str) -> None:
        """Exports beside the folder, where the space and the permission are the real ones."""
        try:
            with partial_folder(self.folder) as place:
                report = self._export(place / "trial", overwrite=False)
                if report.manifest.parity is None:
                    Session(report.folder / contract.MODEL, provider="cpu").close()
        except OSError as error:
            raise ExportError(
                f"{consequence}: the folder {self.folder} cannot be written: {error.strerror or error}."
            ) from error
        except KerasTxError as error:
            raise type(error)(f"{consequence}, because the model cannot be exported: {error}") from error
        if self.verbose:
            self._say(f"The model can be exported: {_summary(report)}.")

    def _export(self, folder: Path, overwrite: bool) -> Report:
        with _same_chance():
            return export_onnx(self.model, folder, overwrite=overwrite, **self.options)

    def _find_direction(self) -> None:
        try:
            self._set_monitor_op()
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def _validates(self, epoch: int) -> bool:
        """Whether this epoch should have had a validation."""
        freq = self.validation_freq
        return (epoch + 1) % freq == 0 if isinstance(freq, int) else epoch + 1 in freq

    def _monitored(self, logs: dict[str, Any]) -> float:
        if self.monitor in logs:
            return _number(self.monitor, logs[self.monitor])
        why = ""
        if self.monitor.startswith("val_") and not self._validated:
            why = (
                " No validation ran in this epoch: give fit validation_data, or monitor a value of the "
                "training; if fit has a validation_freq, give it to ExportCallback too."
            )
        there = ", ".join(map(repr, logs)) or "nothing"
        raise ConfigError(f"monitor={self.monitor!r} is not in the logs of the epoch: {there}.{why}")

    def _say(self, text: str) -> None:
        print(f"\n{text}")  # the line before is Keras's progress bar, which is not ended yet


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is {value!r}, expected one number.") from None


def _summary(report: Report) -> str:
    parity = report.manifest.parity
    found = "not verified" if parity is None else f"within {parity.max_difference:.1e} of Keras"
    return f"{report.nodes.total()} nodes, {found}, {sum(report.seconds.values()):.1f} s"


@contextmanager
def _same_chance() -> Iterator[None]:
    """Training goes on with the random numbers that it would have drawn without what happens within.

    A float32 copy of a model, made to compare with, draws the seeds of its initializers.
    """
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)

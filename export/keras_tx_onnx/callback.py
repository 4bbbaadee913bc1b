"""ExportCallback: exports the best epoch of `model.fit`."""

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

import keras
import numpy as np
from keras.src.callbacks.monitor_callback import MonitorCallback

from keras_tx.atomic_write import check_export_target, partial_folder
from keras_tx.errors import ConfigError, ExportError, KerasTxError, nearest
from keras_tx.runtime.folder import open_folder
from keras_tx.runtime.session import Session
from keras_tx_onnx.export import export_onnx
from keras_tx_onnx.report import Report

SAMPLE = 1024  # numbers of each variable
SWAPPED = 1e-5  # Keras swaps weights by additions, which round
OPTIONS = tuple(inspect.signature(export_onnx).parameters)[2:]  # after the model and the folder


class ExportCallback(MonitorCallback):
    """Exports the model after each epoch that improves the monitored value.

    Before the first epoch, a trial export is written beside the folder and removed, so that a model that
    cannot be exported stops `fit` before training. A model that is built by its first batch (a Sequential
    model without an input, on TensorFlow) is tried after that batch.

    The folder is replaced only by a complete, verified export. If an export fails, `fit` stops, the folder
    keeps the previous best epoch, and the model keeps its weights.

    The best value is not saved. After a restart, including one by keras.callbacks.BackupAndRestore, the first
    epoch counts as the best unless `initial_value_threshold` is passed, and overwrite=True is required.

    Args:
        folder: the folder to write.
        monitor: the name of a value in the logs of an epoch.
        mode: "min", "max", or "auto", which infers the direction from the metric.
        initial_value_threshold: the value that the first export must improve on.
        validation_freq: as in `fit`. Epochs without validation are skipped if `monitor` is a value of the
            validation.
        verbose: 1 prints a line for each epoch.
        overwrite: whether to replace an export that exists before training.
        **options: options of export_onnx, such as labels, opset and verify.

    Attributes:
        report: the Report of the last export, or None.

    Raises:
        ConfigError: if an argument is invalid, or if `monitor` is missing in the logs of an epoch.
        ExportError: if the model cannot be exported.

    Example:
        >>> import keras, keras_tx, numpy, tempfile
        >>> model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
        >>> model.compile("adamw")
        >>> x, y = numpy.zeros((4, 8, 8, 3)), numpy.zeros(4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     best = ExportCallback(folder + "/flowers", labels=["daisy", "rose", "tulip"])
        ...     history = model.fit(x, y, validation_data=(x, y), epochs=2, verbose=0, callbacks=[best])
        >>> best.report.manifest.labels
        ('daisy', 'rose', 'tulip')
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
            raise ConfigError(
                f"monitor={monitor!r} is invalid. Pass the name of a value in the logs: 'val_loss'."
            )
        if mode not in ("auto", "min", "max"):
            raise ConfigError(f"mode={mode!r} is invalid. Pass 'auto', 'min' or 'max'.")
        if initial_value_threshold is not None:
            initial_value_threshold = _number("initial_value_threshold", initial_value_threshold)
        for name in options:
            if name not in OPTIONS:
                raise ConfigError(
                    f"{name!r} is not an argument of ExportCallback or export_onnx. {nearest(name, OPTIONS)}"
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
        self._validated_weights: list[np.ndarray] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        check_export_target(self.folder, self.overwrite or self.report is not None)
        self._tried = self.model.built
        if self._tried:
            self._try("Training was not started")
        elif self.verbose:
            self._print("The model is built by its first batch. A trial export follows that batch.")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._tried:
            self._try("Training stopped after the first batch, which built the model")
            self._tried = True
        if self.monitor_op is None:
            self._find_direction()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._validated = False
        self._validated_weights = None

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        if batch == 0 and getattr(optimizer, "use_ema", False):
            self._validated_weights = self._sample_of_weights()

    def _sample_of_weights(self) -> list[np.ndarray]:
        return [
            np.array(keras.ops.convert_to_numpy(x)).ravel()[:SAMPLE].astype("float32")
            for x in self.model.trainable_variables
        ]

    def _check_validated(self) -> None:
        """Raises a ConfigError if the average of the weights was validated, and the model has others."""
        pairs = zip(self._validated_weights or (), self._sample_of_weights(), strict=False)
        if any(np.abs(x - y).max() > SWAPPED * np.abs(x).max() for x, y in pairs):
            raise ConfigError(
                "The validation used other weights than the model has after the epoch. Pass "
                "callbacks=[SwapEMAWeights(swap_on_epoch=True), ExportCallback(...)], in this order."
            )

    def on_test_begin(self, logs: Any = None) -> None:
        self._validated = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = logs or {}
        if self.monitor.startswith("val_") and self.monitor not in logs and not self._validates(epoch):
            return
        value = self._monitored(logs)
        before = "None" if self.best is None else f"{self.best:.5f}"
        if math.isnan(value) or not self._is_improvement(value, self.best):
            if self.verbose:
                self._print(f"Epoch {epoch + 1}: {self.monitor} {value:.5f} did not improve from {before}.")
            return
        if self.monitor.startswith("val_"):
            self._check_validated()
        try:
            report = self._export(self.folder, overwrite=self.overwrite or self.report is not None)
        except KerasTxError as error:
            note = "" if self.report is None else f" {self.folder} still contains the previous best epoch."
            raise type(error)(f"Epoch {epoch + 1} could not be exported: {error}{note}") from error
        self.best, self.report = value, report
        if self.verbose:
            self._print(
                f"Epoch {epoch + 1}: {self.monitor} improved from {before} to {value:.5f}. Exported to "
                f"{self.folder}: {_summary(report)}."
            )

    def on_train_end(self, logs: Any = None) -> None:
        if self.report is None:
            reason = "was NaN in every epoch" if self.best is None else f"did not improve from {self.best}"
            warnings.warn(f"ExportCallback exported no epoch: {self.monitor} {reason}.", stacklevel=2)

    def _try(self, consequence: str) -> None:
        """Exports beside the folder, on the same disk and with the same permissions."""
        try:
            with partial_folder(self.folder) as place:
                report = self._export(place / "trial", overwrite=False)
                if report.manifest.parity is None:
                    folder = open_folder(report.folder)
                    for graph in filter(None, (folder.encoder, folder.graph)):
                        Session(graph, provider="cpu").close()
        except OSError as error:
            raise ExportError(
                f"{consequence}: the folder {self.folder} cannot be written: {error.strerror or error}."
            ) from error
        except KerasTxError as error:
            raise type(error)(f"{consequence}, because the model cannot be exported: {error}") from error
        if self.verbose:
            self._print(f"The model can be exported: {_summary(report)}.")

    def _export(self, folder: Path, overwrite: bool) -> Report:
        with _random_states_kept():
            return export_onnx(self.model, folder, overwrite=overwrite, **self.options)

    def _find_direction(self) -> None:
        try:
            self._set_monitor_op()
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def _validates(self, epoch: int) -> bool:
        """Whether `fit` runs a validation in this epoch."""
        freq = self.validation_freq
        return (epoch + 1) % freq == 0 if isinstance(freq, int) else epoch + 1 in freq

    def _monitored(self, logs: dict[str, Any]) -> float:
        if self.monitor in logs:
            return _number(self.monitor, logs[self.monitor])
        remedy = ""
        if self.monitor.startswith("val_") and not self._validated:
            remedy = (
                " The epoch had no validation: pass validation_data to fit, or its validation_freq to "
                "ExportCallback."
            )
        names = ", ".join(map(repr, logs)) or "none"
        raise ConfigError(f"monitor={self.monitor!r} is missing in the logs of the epoch: {names}.{remedy}")

    def _print(self, text: str) -> None:
        print(f"\n{text}")  # Keras's progress bar does not end its line


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}={value!r} is invalid. It must be a number.") from None


def _summary(report: Report) -> str:
    parity = report.manifest.parity
    difference = "not verified" if parity is None else f"within {parity.max_difference:.1e} of Keras"
    return f"{report.nodes.total()} nodes, {difference}, {sum(report.seconds.values()):.1f} s"


@contextmanager
def _random_states_kept() -> Iterator[None]:
    """A context that does not change the random numbers of training.

    Layers that the exporter makes draw seeds for their initializers.
    """
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)

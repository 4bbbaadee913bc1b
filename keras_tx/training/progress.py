"""Callbacks that show the speed of a training, log its metrics, and measure the norm of the gradients."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tx.atomic_write import check_file_target, write_file
from keras_tx.errors import ConfigError, whole_number
from keras_tx.models.costs import cost

GRADIENT_NORM = "gradient_norm_of_callback"
PASSES = 3  # forward, and the gradients of inputs and weights: FLOPs of a training step


class TrainingProgress(keras.callbacks.Callback):
    """Prints the position, the loss, the throughput, the utilization and the remaining time of a training.

    The utilization is the share of `peak` that the training reaches. A training step counts as three times
    the FLOPs of `cost(model)`. It is left out if the model has layers whose FLOPs are unknown.

    Args:
        batch_size: examples per step.
        tokens: tokens per example, for a text model; the throughput is then in tokens.
        peak: FLOP/s of the machine; by default measured at the start, with a matrix multiplication.
        every: seconds between two lines.
        show: function that is called with each line; by default it prints to standard error.

    Example:

    >>> import numpy as np, keras_tx
    >>> model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    >>> model.compile()
    >>> lines = []
    >>> progress = TrainingProgress(4, show=lines.append)
    >>> images = model.processing(np.zeros((8, 8, 8, 3), "uint8"))
    >>> _ = model.fit(images, np.arange(8) % 3, batch_size=4, verbose=0, callbacks=[progress])
    >>> lines[-1].split(",")[0]
    'epoch 1 of 1'
    """

    def __init__(
        self,
        batch_size: int,
        *,
        tokens: int | None = None,
        peak: float | None = None,
        every: float = 10.0,
        show: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__()
        self.batch_size = whole_number("batch_size", batch_size)
        self.tokens = None if tokens is None else whole_number("tokens", tokens)
        if peak is not None and not peak > 0:
            raise ConfigError(f"peak is {peak!r}, expected a number of FLOP/s above 0.")
        self.peak, self.every = peak, every
        self._show = show or (lambda line: print(line, file=sys.stderr))
        self._position: tuple[int, int, int] | None = None  # epoch and step of a resumed training, all epochs

    def resume(self, epoch: int, step: int, epochs: int) -> None:
        """Is called by `fit_resumable` with the position before each `fit`."""
        self._position = epoch, step, epochs

    def on_train_begin(self, logs: Any = None) -> None:
        self._flops: float | None = None
        try:
            costs = cost(self.model, tokens=self.tokens)
        except ConfigError:
            costs = None
        if costs is not None and all(layer.flops is not None for layer in costs.layers):
            self._flops = PASSES * costs.flops
            if self.peak is None:
                policy = getattr(self.model, "layers_policy", self.model.dtype_policy)
                self.peak = measured_peak(policy.compute_dtype or "float32")
        self._done, self._seconds = 0, 0.0  # without the first step, which compiles

    def on_train_end(self, logs: Any = None) -> None:
        self._position = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        resumed = self._position is not None and self._position[0] == epoch
        self._epoch, self._first = epoch, self._position[1] if resumed and self._position else 0
        self._epochs = self._position[2] if self._position else self.params["epochs"]
        steps = self.params.get("steps")
        self._steps = None if steps is None else steps + self._first
        self._last: int | None = None
        self._shown_at = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        if self._last is not None:
            self._done += batch - self._last
            self._seconds += now - self._time
        self._last, self._time = batch, now
        if now - self._shown_at >= self.every:
            self._shown_at = now
            self._print(self._first + batch + 1, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._last is not None:
            self._print(self._first + self._last + 1, logs)

    def _print(self, step: int, logs: Any) -> None:
        of_steps = "" if self._steps is None else f" of {self._steps:,}"
        parts = [f"epoch {self._epoch + 1} of {self._epochs}", f"step {step:,}{of_steps}"]
        parts += [f"{name} {logs[name]:.4f}" for name in ("loss", "val_loss") if name in (logs or {})]
        if self._done and self._seconds:
            rate = self._done / self._seconds
            examples = rate * self.batch_size
            tokens = f"{examples * (self.tokens or 1):,.0f} "
            parts.append(tokens + ("examples" if self.tokens is None else "tokens") + "/s")
            if self._flops is not None and self.peak is not None:
                share = examples * self._flops / self.peak
                parts.append(f"{share:.0%} of {self.peak / 1e12:.3g} TFLOP/s")
            if self._steps is not None:
                left = self._steps * (self._epochs - self._epoch) - step
                parts.append(f"{_duration(left / rate)} left")
        self._show(", ".join(parts))


class TrainingLog(keras.callbacks.Callback):
    """Writes the logs of each epoch, and of every few steps, as rows of a JSON Lines or CSV file.

    A row has the epoch (from 1), the step within it (missing for a whole epoch), the seconds since the start
    of the process, and the logs. When a training is resumed, rows after its position are removed first, so
    that no step occurs twice.

    Args:
        path: the file, with the suffix .jsonl or .csv.
        every: steps between two rows; by default only whole epochs are logged.

    Raises:
        ConfigError: the suffix is not known, or the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, every: int | None = None) -> None:
        super().__init__()
        self.path = Path(path)
        if self.path.suffix not in (".jsonl", ".csv"):
            raise ConfigError(f"path is {str(path)!r}, expected a name that ends with .jsonl or .csv.")
        check_file_target(self.path, "path", ConfigError)
        self.every = None if every is None else whole_number("every", every)
        self._position: tuple[int, int] | None = None
        self._rows: list[dict[str, Any]] = []
        self._start = time.perf_counter()

    def resume(self, epoch: int, step: int, epochs: int) -> None:
        """Removes the rows after a position. `fit_resumable` calls this before each `fit`."""
        self._position = epoch, step
        self._rows = [row for row in self._read() if _is_before(row, epoch, step)]
        self._write()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._position is None:
            self.resume(epoch, 0, epoch + 1)
        assert self._position is not None
        self._epoch, self._first = epoch, self._position[1] if self._position[0] == epoch else 0
        self._last = self._first

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = self._first + batch + 1
        if self.every is not None and step // self.every > self._last // self.every:
            self._append({"epoch": self._epoch + 1, "step": step, **self._values(logs)})
        self._last = step

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._append({"epoch": epoch + 1, **self._values(logs)})

    def on_train_end(self, logs: Any = None) -> None:
        self._position = None

    def _values(self, logs: Any) -> dict[str, Any]:
        values = {name: float(value) for name, value in (logs or {}).items()}
        return {"seconds": round(time.perf_counter() - self._start, 3), **values}

    def _append(self, row: dict[str, Any]) -> None:
        columns = _columns(self._rows)
        self._rows.append(row)
        if self.path.suffix == ".csv" and columns != _columns(self._rows):
            self._write()  # with another header
            return
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(_lines([row]) if self.path.suffix == ".jsonl" else _table([row], columns))

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8")
        complete = text[: text.rfind("\n") + 1]  # a killed process may have written half a line
        if self.path.suffix == ".jsonl":
            return [json.loads(line) for line in complete.splitlines()]
        rows = csv.DictReader(io.StringIO(complete))
        whole = ("epoch", "step")
        return [
            {k: int(v) if k in whole else float(v) for k, v in row.items() if v not in ("", None)}
            for row in rows
        ]

    def _write(self) -> None:
        columns = _columns(self._rows)
        header = "" if not columns else ",".join(columns) + "\n"
        text = _lines(self._rows) if self.path.suffix == ".jsonl" else header + _table(self._rows, columns)
        write_file(self.path, text.encode(), ConfigError)


class GradientNorm(keras.callbacks.Callback):
    """Adds the global norm of the gradients and the learning rate to the logs.

    Pass it before the callbacks that write logs, such as TrainingLog or keras.callbacks.TensorBoard. The norm
    is that of one step, before clipping; with a LossScaleOptimizer it is unscaled. The step is compiled again
    at the start and after the end of a training.

    Args:
        every: steps between two measurements.
    """

    def __init__(self, *, every: int = 1) -> None:
        super().__init__()
        self.every = whole_number("every", every)
        self._variable: Any = None

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        if self._variable is not None:
            return
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._optimizer, apply = optimizer, optimizer.apply
        self._variable = variable = optimizer.add_variable((), dtype="float32", name=GRADIENT_NORM)

        def measured_apply(grads: Any, trainable_variables: Any = None) -> Any:
            squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in grads if g is not None]
            variable.assign(ops.sqrt(sum(squares[1:], squares[0])))
            return apply(grads, trainable_variables)

        optimizer.apply = measured_apply
        model.train_function = None  # which is compiled without the norm

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (batch + 1) % self.every == 0:
            self._add(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._add(logs)

    def on_train_end(self, logs: Any = None) -> None:
        del self._optimizer.apply
        variables = self._optimizer._variables
        del variables[next(i for i, one in enumerate(variables) if one is self._variable)]
        self._variable = None
        self.model.train_function = None

    def _add(self, logs: Any) -> None:
        if logs is not None and self.model is not None:  # the property brings variables up to date on JAX
            logs["gradient_norm"] = float(ops.convert_to_numpy(self._variable))
            logs["learning_rate"] = float(ops.convert_to_numpy(self.model.optimizer.learning_rate))


def measured_peak(dtype: str = "float32") -> float:
    """Returns the FLOP/s of the product of two large matrices on the device of the backend."""
    size = 1024
    matrix = ops.cast(np.random.default_rng(0).normal(size=(size, size)), dtype)
    best, end = 0.0, time.perf_counter() + 0.5
    while time.perf_counter() < end:
        start = time.perf_counter()
        product = matrix
        for _ in range(4):
            product = ops.matmul(product, matrix)
        ops.convert_to_numpy(product[0, :1])  # waits for the device
        best = max(best, 4 * 2 * size**3 / (time.perf_counter() - start))
    return best


def _is_before(row: dict[str, Any], epoch: int, step: int) -> bool:
    row_epoch = row["epoch"] - 1
    return row_epoch < epoch or (row_epoch == epoch and row.get("step", step + 1) <= step)


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(["epoch", "step", *(name for row in rows for name in row)])) if rows else []


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _table(rows: list[dict[str, Any]], columns: list[str]) -> str:
    file = io.StringIO()
    csv.DictWriter(file, columns, restval="", lineterminator="\n").writerows(rows)
    return file.getvalue()


def _duration(seconds: float) -> str:
    minutes, hours = divmod(round(seconds), 60)[0], round(seconds) // 3600
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {round(seconds) % 60} s" if minutes else f"{round(seconds)} s"

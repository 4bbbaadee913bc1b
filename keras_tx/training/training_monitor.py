"""A callback that shows the progress of a training, records it, keeps the best weights, and can stop it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from keras_tx.progress_bar import ProgressBar

POINTS = 400  # of the curve of the loss


class Stopped(Exception):
    """The training was stopped; its state is saved. The argument describes the position."""


class TrainingMonitor(keras.callbacks.Callback):
    """Shows and records a training of `fit_resumable`.

    Args:
        plan: a plan with `epochs`, `steps` and `batch_size`.
        log: a file with a JSON object per line, which is continued.
        best: the file of the weights of the best epoch.
        metric: name of the metric that selects the best epoch; for a loss, the smallest value is the best.
        unit: the plural name of the samples.
        part: the name of what ends with a validation, such as "epoch".
        rate: returns the learning rate of a step.
        say: function that is called with a line after each epoch.
        shown: whether to draw a progress bar.
    """

    def __init__(
        self,
        plan: Any,
        log: Path,
        best: Path,
        *,
        metric: str,
        unit: str,
        part: str,
        rate: Callable[[int], Any],
        say: Callable[[str], Any],
        shown: bool,
    ) -> None:
        super().__init__()
        self.plan, self.log, self.best = plan, log, best
        self.part = part
        self.metric, self.unit, self.rate, self.say, self.shown = metric, unit, rate, say, shown
        self.steps: list[dict[str, float]] = []
        self.epochs: list[dict[str, float]] = []
        self.stopping = False
        self._every = max(1, plan.epochs * plan.steps // POINTS)
        self._bar: ProgressBar | None = None
        self._fitted: Any = None  # `self.model` copies all variables on JAX
        self._read = False

    @property
    def position(self) -> str:
        """The step and the epoch, for messages."""
        return f"step {self._step:,} of {self.plan.epochs * self.plan.steps:,}"

    @property
    def best_epoch(self) -> int:
        """The number of the best epoch, from 1; 0 before the first. The loss decides between equal ones."""
        known = [row for row in self.epochs if math.isfinite(row.get(self.metric, math.nan))]
        if not known:
            return 0
        sign = 1 if self._smaller else -1
        best = min(known, key=lambda row: (sign * row[self.metric], row.get("val_loss", 0.0)))
        return int(best["epoch"])

    @property
    def _smaller(self) -> bool:
        return "loss" in self.metric or "perplexity" in self.metric

    def stop(self) -> None:
        """Ends the training after the current step; its state is saved."""
        self.stopping = True

    def close(self) -> None:
        """Ends the line of the progress bar."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._fitted = model

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._first = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
        self._offset = self._first - epoch * self.plan.steps  # steps of an interrupted epoch that are done
        self._step = self._first
        if not self._read:
            self._read_log(epoch, self._first)
            rest = (self.plan.epochs * self.plan.steps - self._first) * self.plan.batch_size
            self._bar = ProgressBar(rest, self.unit, shown=self.shown)
            self._start = self._first
        self._began = time.monotonic()
        self._sum: tuple[int, float] = (0, 0.0)  # steps and the sum of their losses at the last record

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step = self._first + batch + 1
        if self._bar is not None:
            self._bar.update((self._step - self._start) * self.plan.batch_size)
        if self._step % self._every == 0 or self._step == self.plan.epochs * self.plan.steps:
            self._record_step(batch + 1, float((logs or {}).get("loss", math.nan)))
        if self.stopping:
            self._fitted.stop_training = True

    def _record_step(self, count: int, mean: float) -> None:
        """Records the mean loss since the last record; Keras reports the mean since the start of an epoch."""
        count += self._offset  # the metrics of a resumed epoch are restored
        before, total = self._sum
        if before < self._offset:
            before, total = 0, 0.0
        loss = (mean * count - total) / (count - before)
        self._sum = count, mean * count
        rate = float(self.rate(self._step))
        self._append(self.steps, {"step": self._step, "loss": loss, "rate": rate})

    def on_test_begin(self, logs: Any = None) -> None:
        if self.stopping and self._step < self._end:  # the state is saved; its validation is not needed
            raise Stopped(self.position)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._step < self._end:
            return  # stopped within the epoch
        if self.stopping:
            self._fitted.stop_training = True
        values = {name: float(value) for name, value in (logs or {}).items()}
        self._append(self.epochs, {"epoch": epoch + 1, "at": self._step, **values})
        if self.best_epoch == epoch + 1:
            partial = self.best.with_name("partial." + self.best.name)
            self.model.save_weights(partial, overwrite=True)
            partial.replace(self.best)
        seconds = time.monotonic() - self._began
        samples = (self._step - self._first) * self.plan.batch_size
        shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        speed = f"{samples / seconds:,.0f} {self.unit} per second" if seconds > 0 else ""
        line = f"{self.part} {epoch + 1} of {self.plan.epochs}: {shown}; {speed}, {seconds:.0f} s"
        self.say(f"\n{line}" if self.shown else line)

    @property
    def _end(self) -> int:
        """The number of the last step of the epoch."""
        return (self._first - self._offset) + self.plan.steps

    def _append(self, rows: list[dict[str, float]], row: dict[str, float]) -> None:
        rows.append(row)
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _read_log(self, epoch: int, step: int) -> None:
        """Reads the records of the part that is done; those after the saved state are written again."""
        self._read = True
        if not self.log.exists():
            return
        for line in self.log.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # of a killed process
                continue
            if "at" in row and row["epoch"] <= epoch:
                self.epochs.append(row)
            elif "at" not in row and row["step"] <= step:
                self.steps.append(row)
        self.log.write_text(
            "".join(json.dumps(row) + "\n" for row in [*self.steps, *self.epochs]), encoding="utf-8"
        )

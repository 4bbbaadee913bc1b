"""precision="auto": every recipe measured on the user's data, and the fastest that loses little enough."""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.atomic_write import atomic_directory
from keras_tx.errors import ConfigError, ExportError
from keras_tx.runtime.folder import Folder, check_unchanged
from keras_tx.runtime.session import Session
from keras_tx_onnx.quantizing import activation_ranges, calibration_inputs, validation_score
from keras_tx_onnx.quantizing.precision_files import Ladder, Options

CANDIDATES = ("fp16", "int8", "int8-blocks", "int4")
REPORT = "precision_report.json"
BLAMED = 5  # layers that a refusal names
ROUNDS, RUNS, SECONDS = 2, 10, 1.5  # of timing; runs and seconds in a round, at most
PAST = 64  # tokens in front of the step by which a decoder is timed


@dataclasses.dataclass(frozen=True)
class Measured:
    """One precision: what it costs, how good it is, and whether it may be used."""

    precision: str
    recipe: str
    megabytes: float
    milliseconds: float
    score: float
    lost: float  # of fp32's score
    accepted: bool
    reason: str = ""  # why it was refused
    blamed: tuple[tuple[str, float], ...] = ()  # layers, and what quantizing each loses by itself
    score_without_them: float | None = None


@dataclasses.dataclass(frozen=True)
class Choice:
    """What `quantize(folder, "auto", ...)` gives back. Printed, it is a table."""

    folder: Path
    chosen: str
    metric: str
    tolerance: float
    timed: str
    measured: tuple[Measured, ...]
    manifest: contract.Manifest

    def __str__(self) -> str:
        head = f"{'':<13}{'MB':>9}{'ms':>9}  {self.metric}"
        lines = [f"{self.folder}: {self.chosen} (at most {self.tolerance} lost; ms: {self.timed})", head]
        for row in self.measured:
            mark = "" if row.accepted else "refused: "
            lines.append(
                f"{row.precision:<13}{row.megabytes:>9.1f}{row.milliseconds:>9.2f}  {row.score:.4f}  "
                f"{row.recipe}{'; ' + mark + row.reason if row.reason else ''}".rstrip()
            )
            lines += [f"{'':<13}{name} loses {error:.1%} by itself" for name, error in row.blamed]
            if row.score_without_them is not None:
                names = [name for name, _ in row.blamed]
                lines.append(f"{'':<13}{row.score_without_them:.4f} with keep={names}")
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """The report as it is in the folder."""
        content = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del content["manifest"], content["folder"]
        return {**content, "measured": [dataclasses.asdict(row) for row in self.measured]}


def choose(folder: Folder, validation: Any, tolerance: float, metric: Any, options: Options) -> Choice:
    """Measures all candidates and leaves the best of them in the folder, with the report."""
    if not isinstance(tolerance, (int, float)) or isinstance(tolerance, bool) or not tolerance >= 0:
        raise ConfigError(
            f"tolerance is {tolerance!r}, expected a number, 0 or more: what the metric may lose."
        )
    measure = validation_score.metric_of(folder, metric)
    specs = folder.manifest.inputs
    batches = [
        (calibration_inputs.checked([inputs], specs, "validation")[0], targets)
        for inputs, targets in validation_score.batches_of(validation)
    ]
    if not batches:
        raise ConfigError("validation is empty, expected at least one batch.")
    options = dataclasses.replace(
        options, examples=[batches[0][0]] if options.examples is None else options.examples
    )
    with atomic_directory(folder.path, ExportError) as aside:
        shutil.copytree(folder.path, aside, symlinks=True, dirs_exist_ok=True)
        ladder = Ladder(aside, folder.manifest, options)
        trial = _Trial(ladder, measure, batches, tolerance)
        rows = trial.run()
        chosen = min((row for row in rows if row.accepted), key=lambda row: row.milliseconds).precision
        ladder.leave_only({*folder.manifest.precisions, chosen})
        choice = Choice(
            folder.path, chosen, measure.name, tolerance, trial.timed, tuple(rows), ladder.manifest
        )
        text = json.dumps(choice.to_json(), indent=2, ensure_ascii=False) + "\n"
        (aside / REPORT).write_text(text, encoding="utf-8", newline="\n")
        manifest = ladder.finish([REPORT])
        check_unchanged(folder)  # files of an older export must not replace a newer one
    return dataclasses.replace(choice, manifest=manifest)


class _Trial:
    def __init__(self, ladder: Ladder, metric: validation_score.Metric, batches: list[Any], tolerance: float):
        self._ladder, self._metric, self._batches, self._tolerance = ladder, metric, batches, tolerance
        decodes = any(spec.name.startswith("past_key_values.") for spec in ladder.manifest.inputs)
        self._timed = _step(ladder.manifest) if decodes else batches[0][0]
        rows = len(next(iter(self._timed.values())))
        self.timed = f"a step behind {PAST} tokens" if decodes else f"a batch of {rows}"

    def run(self) -> list[Measured]:
        best = self._score("fp32")
        rows = [Measured("fp32", "", self._size("fp32"), 0.0, best, 0.0, True)]
        for precision in CANDIDATES:
            try:
                variant = self._ladder.add(precision)
            except ExportError as error:
                rows.append(Measured(precision, "", 0.0, 0.0, float("nan"), float("nan"), False, str(error)))
                continue
            score = self._score(precision)
            lost = best - score
            row = Measured(precision, variant.recipe, self._size(precision), 0.0, score, lost, True)
            rows.append(row if lost <= self._tolerance else self._refused(row))
        written = [row.precision for row in rows if row.precision in self._ladder.manifest.precisions]
        times = self._times(written)
        return [dataclasses.replace(row, milliseconds=times.get(row.precision, float("nan"))) for row in rows]

    def _refused(self, row: Measured) -> Measured:
        """Names the layers that lose most, and measures what leaving them out brings."""
        reason = f"loses {row.lost:.4f}, more than {self._tolerance}"
        if row.precision == "fp16":
            return dataclasses.replace(row, accepted=False, reason=reason)
        errors = self._ladder.errors(row.precision)
        worst = activation_ranges.worst(errors, BLAMED)
        score = None
        if len({error.layer for error in errors}) > len(worst):
            self._ladder.add(row.precision, also_keep=[error.layer for error in worst])
            score = self._score(row.precision)
            self._ladder.add(row.precision)
        blamed = tuple((error.layer, error.measured) for error in worst)
        return dataclasses.replace(
            row, accepted=False, reason=reason, blamed=blamed, score_without_them=score
        )

    def _open(self, precision: str) -> Session:
        manifest = self._ladder.manifest
        return Session(self._ladder.folder / manifest.precisions[precision], provider="cpu")

    def _score(self, precision: str) -> float:
        with self._open(precision) as session:
            run = _runner(session)
            return self._metric.score(run, self._batches)

    def _size(self, precision: str) -> float:
        path = self._ladder.folder / contract.PRECISIONS[precision]
        return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")) / 1e6

    def _times(self, precisions: list[str]) -> dict[str, float]:
        """Medians, in rounds, so that what else the machine does falls on all of them.

        One session at a time: the threads of a second one that waits would take the cores.
        """
        taken: dict[str, list[float]] = {precision: [] for precision in precisions}
        for _ in range(ROUNDS):
            for precision in precisions:
                with self._open(precision) as session:
                    run = _runner(session)
                    run(self._timed)
                    until = time.perf_counter() + SECONDS
                    for _ in range(RUNS):
                        start = time.perf_counter()
                        run(self._timed)
                        taken[precision].append(time.perf_counter() - start)
                        if time.perf_counter() > until:
                            break
        return {precision: 1e3 * statistics.median(found) for precision, found in taken.items()}


def _runner(session: Session) -> Callable[[Any], Mapping[str, np.ndarray]]:
    """Runs inputs of fp32 on a graph whose cache may be of half precision."""
    kinds = {spec.name: spec.dtype for spec in session.inputs}
    return lambda given: session.run({name: x.astype(kinds[name], copy=False) for name, x in given.items()})


def _step(manifest: contract.Manifest) -> dict[str, np.ndarray]:
    """One token behind others."""
    sizes = {contract.BATCH_AXIS: 1, contract.SEQUENCE_AXIS: 1}
    sizes |= {contract.PAST_AXIS: PAST, contract.TOTAL_AXIS: PAST + 1}
    shapes = {
        spec.name: [sizes[n] if isinstance(n, str) else n for n in spec.shape] for spec in manifest.inputs
    }
    given = {spec.name: np.zeros(shapes[spec.name], spec.dtype) for spec in manifest.inputs}
    given[contract.ATTENTION_MASK][:] = 1
    given[contract.POSITION_IDS][:] = min(PAST, 1)
    return given

"""precision="auto": every precision measured on the user's data, and the fastest within a tolerance."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.atomic_write import atomic_directory
from keras_tx.errors import ConfigError, ExportError
from keras_tx.runtime.folder import Folder, check_unchanged
from keras_tx.runtime.session import Session
from keras_tx_onnx.quantizing import (
    activation_ranges,
    agreement,
    calibration_inputs,
    validation_score,
    validation_texts,
)
from keras_tx_onnx.quantizing.calibration_inputs import Feed
from keras_tx_onnx.quantizing.graph_quantizer import run_with_dtypes
from keras_tx_onnx.quantizing.precision_files import (
    Options,
    PrecisionWriter,
    all_graphs,
    first_call_of,
    input_specs,
)
from keras_tx_onnx.quantizing.validation_score import Outputs

REPORT = "precision_report.json"
NAMED_LAYERS = 5  # in a refusal
ROUNDS, RUNS, SECONDS = 2, 10, 1.5  # of timing; runs and seconds in a round, at most
PAST = 64  # tokens before the step by which a decoder is timed


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The size, time and score of one precision, and whether it is within the tolerance.

    Attributes:
        precision: its name.
        recipe: how it was made.
        megabytes: its files.
        milliseconds: the median time of a run.
        score: by the metric.
        lost: fp32's score minus this one.
        agreement: the share of fp32's answers that stay the same, or the mean cosine with its vectors; None
            for other outputs.
        accepted: whether it may be chosen.
        reason: why not.
        blamed: the layers with the largest errors, and the error of each alone.
        score_without_them: the score with these layers in fp32.
    """

    precision: str
    recipe: str
    megabytes: float
    milliseconds: float
    score: float
    lost: float
    agreement: float | None
    accepted: bool
    reason: str = ""
    blamed: tuple[tuple[str, float], ...] = ()
    score_without_them: float | None = None


@dataclasses.dataclass(frozen=True)
class PrecisionReport:
    """The result of `quantize(folder, "auto", ...)`. It prints as a table."""

    folder: Path
    chosen: str
    metric: str
    tolerance: float
    timed: str
    data: str
    measured: tuple[Measurement, ...]
    manifest: contract.Manifest

    def __str__(self) -> str:
        head = f"{'':<13}{'MB':>9}{'ms':>9}{'agree':>9}  {self.metric}"
        limits = f"at most {self.tolerance} lost; data: {self.data}; ms: {self.timed}"
        lines = [f"{self.folder}: {self.chosen} ({limits})", head]
        for row in self.measured:
            mark = "" if row.accepted else "refused: "
            lines.append(
                f"{row.precision:<13}{row.megabytes:>9.1f}{row.milliseconds:>9.2f}"
                f"{'' if row.agreement is None else f'{row.agreement:.2%}':>9}  {row.score:.4f}  "
                f"{row.recipe}{'; ' + mark + row.reason if row.reason else ''}".rstrip()
            )
            lines += [f"{'':<13}{name} alone loses {error:.1%}" for name, error in row.blamed]
            if row.score_without_them is not None:
                names = [name for name, _ in row.blamed]
                lines.append(f"{'':<13}{row.score_without_them:.4f} with keep={names}")
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """The report as it is stored in the folder."""
        content = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del content["manifest"], content["folder"]
        return {**content, "measured": [dataclasses.asdict(row) for row in self.measured]}


def choose(
    folder: Folder, validation: Any, tolerance: float, metric: Any, options: Options
) -> PrecisionReport:
    """Measures all candidates and adds the fastest accepted one to the folder, with the report."""
    if not isinstance(tolerance, (int, float)) or isinstance(tolerance, bool) or not tolerance >= 0:
        raise ConfigError(
            f"tolerance={tolerance!r}, expected a number of at least 0: how much the metric may lose."
        )
    data = ""
    if validation_texts.are_texts(validation):
        texts, data = validation_texts.batches_of_texts(folder, validation)
        validation = [(inputs, None) for inputs in texts]
        if metric is None and folder.manifest.task != contract.TEXT_GENERATION:
            metric = validation_score.AGREEMENT
    measure = validation_score.metric_of(folder, metric)
    specs = input_specs(folder.manifest)
    batches = [
        (calibration_inputs.checked([inputs], specs, "validation")[0], targets)
        for inputs, targets in validation_score.batches_of(validation)
    ]
    if not batches:
        raise ConfigError("validation is empty, expected at least one batch.")
    rows = sum(len(next(iter(inputs.values()))) for inputs, _ in batches)
    data = data or f"{rows:,} rows"
    options = dataclasses.replace(
        options, examples=[batches[0][0]] if options.examples is None else options.examples
    )
    with atomic_directory(folder.path, ExportError) as aside:
        shutil.copytree(folder.path, aside, symlinks=True, dirs_exist_ok=True)
        writer = PrecisionWriter(aside, folder.manifest, options)
        comparison = _Comparison(writer, measure, batches, tolerance, folder.problem_type)
        rows = comparison.run()
        chosen = min((row for row in rows if row.accepted), key=lambda row: row.milliseconds).precision
        writer.leave_only({*folder.manifest.precisions, chosen})
        report = PrecisionReport(
            folder.path, chosen, measure.name, tolerance, comparison.timed, data, tuple(rows), writer.manifest
        )
        text = json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n"
        (aside / REPORT).write_text(text, encoding="utf-8", newline="\n")
        manifest = writer.finish([REPORT])
        check_unchanged(folder)  # files of an older export must not replace a newer one
    return dataclasses.replace(report, manifest=manifest)


def candidates(task: str | None) -> list[str]:
    """The precisions to compare with fp32."""
    return [name for name in contract.precisions_of(task) if name != "fp32"]


class _Comparison:
    """Measures precisions on validation batches; `timed` describes the input by which they are timed."""

    def __init__(
        self,
        writer: PrecisionWriter,
        metric: validation_score.Metric,
        batches: list[Any],
        tolerance: float,
        problem_type: str | None,
    ):
        self._writer, self._metric, self._batches, self._tolerance = writer, metric, batches, tolerance
        self._problem_type = problem_type
        self._expected: list[np.ndarray] = []  # the answers of fp32, by batch
        decodes = any(spec.name.startswith("past_key_values.") for spec in writer.manifest.inputs)
        self._timed_batch = _decode_step(writer.manifest) if decodes else batches[0][0]
        rows = len(next(iter(self._timed_batch.values())))
        self.timed = f"a step behind {PAST} tokens" if decodes else f"a batch of {rows}"

    def run(self) -> list[Measurement]:
        best, same = self._score("fp32")
        rows = [Measurement("fp32", "", self._size("fp32"), 0.0, best, 0.0, same, True)]
        for precision in candidates(self._writer.manifest.task):
            try:
                variant = self._writer.add(precision)
            except ExportError as error:
                nan = float("nan")
                rows.append(Measurement(precision, "", 0.0, 0.0, nan, nan, None, False, str(error)))
                continue
            score, same = self._score(precision)
            lost = best - score
            row = Measurement(precision, variant.recipe, self._size(precision), 0.0, score, lost, same, True)
            rows.append(row if lost <= self._tolerance else self._refused(row))
        written = [row.precision for row in rows if row.precision in self._writer.manifest.precisions]
        times = self._times(written)
        return [dataclasses.replace(row, milliseconds=times.get(row.precision, float("nan"))) for row in rows]

    def _refused(self, row: Measurement) -> Measurement:
        """Names the layers with the largest errors, and measures the score with these in fp32."""
        reason = f"loses {row.lost:.4f}, more than {self._tolerance}"
        if row.precision == "fp16":
            return dataclasses.replace(row, accepted=False, reason=reason)
        errors = self._writer.errors(row.precision)
        worst = activation_ranges.worst(errors, NAMED_LAYERS)
        score = None
        if len({error.layer for error in errors}) > len(worst):
            self._writer.add(row.precision, also_keep=[error.layer for error in worst])
            score, _ = self._score(row.precision)
            self._writer.add(row.precision)
        blamed = tuple((error.layer, error.measured) for error in worst)
        return dataclasses.replace(
            row, accepted=False, reason=reason, blamed=blamed, score_without_them=score
        )

    def _paths(self, precision: str) -> list[Path]:
        """The graph of the encoder, if the folder has one, and the main graph."""
        return [
            self._writer.folder / graphs.precisions[precision] for graphs in all_graphs(self._writer.manifest)
        ]

    def _score(self, precision: str) -> tuple[float, float | None]:
        """The score by the metric, and the agreement with fp32, which is scored first."""
        answers: list[np.ndarray] = []
        *encoders, main = self._paths(precision)
        with contextlib.ExitStack() as sessions:
            run = partial(run_with_dtypes, sessions.enter_context(Session(main, provider="cpu")))
            for path in encoders:
                encoder = sessions.enter_context(Session(path, provider="cpu"))
                run = partial(_run_both, self._writer.manifest, encoder, run)

            def recorded(batch: Feed) -> Outputs:
                outputs = run(batch)
                mask = self._mask(batch, self._batches[len(answers)][1])
                own = agreement.answers(outputs, mask, self._problem_type)
                answers.append(np.zeros(0, "int64") if own is None else own)
                return outputs

            score = self._metric.score(recorded, self._batches)
        self._expected = self._expected or answers
        same = agreement.agreement(self._expected, answers) if any(x.size for x in answers) else None
        if self._metric is not validation_score.BY_AGREEMENT:
            return score, same
        if same is None:
            raise ConfigError(
                f"metric={validation_score.AGREEMENT!r} does not fit the outputs, which are no classes and "
                "no vectors. Pass a function of (outputs by name, targets)."
            )
        return same, same

    def _mask(self, batch: Feed, targets: Any) -> np.ndarray | None:
        """1 at the tokens that the outputs belong to, 0 at padding."""
        if contract.DECODER_INPUT_IDS not in batch:
            return batch.get(contract.ATTENTION_MASK)
        return None if targets is None else np.asarray(targets) != contract.NO_LABEL

    def _size(self, precision: str) -> float:
        files = (file for path in self._paths(precision) for file in path.parent.glob(f"{path.name}*"))
        return sum(file.stat().st_size for file in files) / 1e6

    def _times(self, precisions: list[str]) -> dict[str, float]:
        """Median milliseconds, in rounds, so that other processes slow all precisions down by as much.

        One session at a time: the threads of a second one would occupy the cores.
        """
        seconds: dict[str, list[float]] = {precision: [] for precision in precisions}
        for _ in range(ROUNDS):
            for precision in precisions:
                with Session(self._paths(precision)[-1], provider="cpu") as session:
                    run = partial(run_with_dtypes, session, self._timed_batch)
                    run()
                    until = time.perf_counter() + SECONDS
                    for _ in range(RUNS):
                        start = time.perf_counter()
                        run()
                        seconds[precision].append(time.perf_counter() - start)
                        if time.perf_counter() > until:
                            break
        return {precision: 1e3 * statistics.median(times) for precision, times in seconds.items()}


def _run_both(
    manifest: contract.Manifest, encoder: Session, run_decoder: Callable[[Feed], Outputs], batch: Feed
) -> Outputs:
    """The outputs of the decoder for a batch with sources and targets."""
    assert manifest.encoder is not None
    source = {spec.name: batch[spec.name] for spec in manifest.encoder.inputs}
    hidden = run_with_dtypes(encoder, source)[contract.LAST_HIDDEN_STATE]
    return run_decoder(first_call_of(manifest, batch, hidden))


def _decode_step(manifest: contract.Manifest) -> dict[str, np.ndarray]:
    """One token behind others, for a source of as many tokens if there is an encoder."""
    sizes = {contract.BATCH_AXIS: 1, contract.SEQUENCE_AXIS: 1, contract.TARGET_AXIS: 1}
    sizes |= {contract.PAST_AXIS: PAST, contract.TOTAL_AXIS: PAST + 1}
    sizes |= dict.fromkeys((contract.SOURCE_AXIS, contract.SOURCE_PAST_AXIS), PAST)
    sizes[contract.HEAD_AXIS] = int(manifest.outputs[-1].shape[-1])
    batch = {
        spec.name: np.zeros([sizes[n] if isinstance(n, str) else n for n in spec.shape], spec.dtype)
        for spec in manifest.inputs
    }
    if manifest.encoder is not None:
        batch[contract.ENCODER_ATTENTION_MASK][:] = 1
        batch[contract.USE_CACHE_BRANCH][:] = True
    else:
        batch[contract.ATTENTION_MASK][:] = 1
        batch[contract.POSITION_IDS][:] = min(PAST, 1)
    return batch

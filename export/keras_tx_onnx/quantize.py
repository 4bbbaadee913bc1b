"""quantize: adds files of lower precision to an exported folder."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.atomic_write import atomic_directory
from keras_tx.errors import ConfigError, ExportError
from keras_tx.runtime.folder import (
    QUANTIZED_BY_KERAS,
    Folder,
    check_precision,
    check_unchanged,
    open_folder,
    verify_hashes,
)
from keras_tx_onnx.export import checked_precisions
from keras_tx_onnx.quantizing import validation_texts
from keras_tx_onnx.quantizing.auto_precision import PrecisionReport, candidates, choose
from keras_tx_onnx.quantizing.precision_files import Options, PrecisionWriter, misplaced
from keras_tx_onnx.report import precision_rows


@dataclasses.dataclass(frozen=True)
class Quantized:
    """The result of `quantize`. It prints as a table of the files.

    Attributes:
        folder: its path.
        manifest: with the files that were added.
    """

    folder: Path
    manifest: contract.Manifest

    def __str__(self) -> str:
        return "\n".join([str(self.folder), *precision_rows(self.manifest)])

    __repr__ = __str__


def quantize(
    folder: str | os.PathLike[str],
    precision: str | Sequence[str],
    *,
    keep: Sequence[str] = (),
    calibration: Any = None,
    examples: Any = None,
    validation: Any = None,
    tolerance: float = 0.005,
    metric: Any = None,
) -> Quantized | PrecisionReport:
    """Adds files of lower precision to an exported folder, made from its fp32 file and compared with it.

    The folder is written anew, and replaces the old one when it is complete.

    Args:
        folder: a folder that `export_onnx` wrote, with its fp32 file.
        precision: one or several of "fp16", "int8", "int8-blocks" (of a decoder "int8-dynamic") and "int4"; a
            file that exists is replaced.
            Or "auto": measures all of them on the validation data, and keeps the fastest whose metric is
            within the tolerance of fp32's. The report is returned, and stored in the folder as JSON.
        keep: paths of layers that stay in fp32, such as "block_0/feed_forward/up", or "block_0" for all
            of its layers.
        calibration: an array, a dict of arrays by input name, an iterable of either, such as a
            tf.data.Dataset of batches, or a list of texts for the tokenizer of the folder. "int4" of a
            decoder is rounded on them (GPTQ), which keeps more of fp32's answers. "int8" of other models gets
            fixed ranges from them, so that no sample depends on the others of its batch; without them, each
            range is computed when the graph runs, over the whole batch.
        examples: a batch on which the files are compared; by default the first of the calibration, of a
            decoder its first 512 tokens, or random inputs.
        validation: for "auto": (inputs, targets) as arrays, an iterable of such batches, or a list of texts
            for the tokenizer of the folder.
        tolerance: how much the metric may lose; 0.005 is half a point of accuracy.
        metric: a function of (outputs by name, targets) of which more is better, a keras.metrics.Metric, or
            "agreement": the share of fp32's answers that stay the same, or the mean cosine of vectors. By
            default "agreement" for texts of an encoder, otherwise that of the task: accuracy, exact match,
            or for a decoder minus the logarithm of its perplexity. The inputs of an encoder-decoder are
            "input_ids" and "decoder_input_ids", and its targets the token after each one of the latter, -100
            for none.

    Returns:
        The files of the folder, or for "auto" the report.

    Raises:
        ConfigError: if an argument is out of range, or does not fit the others or the model.
        ExportError: if the folder has no fp32 file, nothing to quantize, or a file that differs too much.
        FolderError: if the folder is damaged, or replaced by another process.

    Example:
        >>> import keras_tx, tempfile
        >>> from keras_tx_onnx import export_onnx
        >>> model = keras_tx.vit("Ti/16", image_size=32, num_classes=3, depth=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = export_onnx(model, folder + "/flowers", verify=False)
        ...     list(quantize(folder + "/flowers", "int8").manifest.precisions)
        ['fp32', 'int8']
    """
    auto = isinstance(precision, str) and precision == "auto"
    if auto != (validation is not None):
        raise ConfigError(
            f'precision={precision!r} does not fit validation. Pass validation=(inputs, targets) with "auto" '
            "only."
        )
    requested = None if auto else _below_fp32(precision)
    options = Options(_layer_paths(keep), calibration, examples=examples)
    opened = open_folder(Path(folder).absolute())
    task = opened.manifest.task
    names = candidates(task) if requested is None else requested
    _check_options(names, options.keep, calibration, task)
    if validation_texts.are_texts(calibration):
        batches, data = validation_texts.batches_of_texts(opened, calibration, "calibration")
        options = dataclasses.replace(options, calibration=batches, calibration_name=data)
    _check_misplaced(opened, names)
    if opened.precision != "fp32":
        by_keras = opened.precision not in opened.manifest.variants
        again = f"Export it again with precision={['fp32', *names]}."
        raise ExportError(
            f"{opened.path} has {', '.join(opened.manifest.precisions)}, but no fp32 file, from which others "
            f"are made. {QUANTIZED_BY_KERAS if by_keras else again}"
        )
    verify_hashes(opened)
    if auto:
        return choose(opened, validation, tolerance, metric, options)
    with atomic_directory(opened.path, ExportError) as partial:
        shutil.copytree(opened.path, partial, symlinks=True, dirs_exist_ok=True)
        writer = PrecisionWriter(partial, opened.manifest, options)
        for name in names:
            writer.add(name)
        manifest = writer.finish()
        check_unchanged(opened)  # files of an older export must not replace a newer one
    return Quantized(opened.path, manifest)


def _below_fp32(precision: str | Sequence[str]) -> list[str]:
    """The names of precisions, checked."""
    names = checked_precisions(precision)
    if "fp32" in names:
        raise ConfigError("precision has 'fp32', from which the others are made. Remove it.")
    return names


def _check_misplaced(opened: Folder, names: Sequence[str]) -> None:
    """Raises a ConfigError for 8-bit files of an older version that would not be replaced."""
    other = misplaced(opened.manifest)
    if set(other) - set(names):
        expected = [name for name in contract.PRECISIONS if name in {*names, *other}]
        raise ConfigError(
            f"{opened.path} was written by an older version, whose files of {', '.join(other)} have other "
            f"names. Pass precision={expected}, which replaces them."
        )


def _layer_paths(keep: object) -> tuple[str, ...]:
    """The paths of `keep`, checked."""
    if isinstance(keep, str) or not isinstance(keep, Iterable):
        raise ConfigError(f'keep={keep!r}, expected a list of layer paths, such as ["block_0"].')
    paths = tuple(keep)
    for path in paths:
        if not isinstance(path, str) or not path.strip("/"):
            raise ConfigError(f'keep has {path!r}, expected the path of a layer, such as "block_0".')
    return paths


def _check_options(names: Sequence[str], keep: Sequence[str], calibration: object, task: str | None) -> None:
    """Raises a ConfigError for a precision that the task does not have, or an option that none uses."""
    for name in names:
        check_precision(name, task)
    listed = ", ".join(names)
    if keep and set(names) == {"fp16"}:
        raise ConfigError(f"keep has no effect for precision {listed}, which quantizes no layer. Remove it.")
    if calibration is not None and ("int4" if task == contract.TEXT_GENERATION else "int8") not in names:
        users = "int4 of decoders, and int8 of other models"
        raise ConfigError(f"calibration has no effect for precision {listed}: {users}, use it. Remove it.")

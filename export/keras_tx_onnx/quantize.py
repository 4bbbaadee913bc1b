"""The public call that adds files of lower precision to a folder."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.atomic_write import atomic_directory
from keras_tx.errors import ConfigError, ExportError
from keras_tx.runtime.folder import check_unchanged, open_folder, verify_hashes
from keras_tx_onnx.quantizing import recipes
from keras_tx_onnx.quantizing.auto_precision import CANDIDATES, Choice, choose
from keras_tx_onnx.quantizing.precision_files import Ladder, Options
from keras_tx_onnx.report import precision_rows


@dataclasses.dataclass(frozen=True)
class Quantized:
    """What `quantize` gives back. Printed, it is a table of the files."""

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
) -> Quantized | Choice:
    """Adds files of lower precision to an exported folder, made of its fp32 file and compared with it.

    The folder is written anew beside the old one, and takes its place when it is whole.

    >>> import keras_tx, tempfile
    >>> from keras_tx_onnx import export_onnx
    >>> model = keras_tx.vit("Ti/16", image_size=32, num_classes=3, depth=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_onnx(model, folder + "/flowers", verify=False)
    ...     list(quantize(folder + "/flowers", "int8").manifest.precisions)
    ['fp32', 'int8']

    Args:
        folder: what `export_onnx` wrote, with its fp32 file.
        precision: some of "fp16", "int8", "int8-blocks" and "int4". One that is there is made anew. Or
            "auto": all of them are measured on the validation data, and the fastest stays whose metric is
            within the tolerance of fp32's. What comes back prints the report; the folder has it as JSON.
        keep: paths of layers that stay in fp32, such as "block_0/feed_forward/up", or "block_0" for all
            of it.
        calibration: batches from which "int8" takes fixed ranges, so that no sample depends on the others of
            its batch: an array, a dict of arrays by input name, or an iterable of either, such as a
            tf.data.Dataset. Without it, each range is found when the graph runs, over the whole batch.
        examples: a batch on which the files are compared; by default the first of the calibration, or random
            inputs.
        validation: for "auto": (inputs, targets) as arrays, or an iterable of such batches.
        tolerance: what the metric may lose; 0.005 is half a point of accuracy.
        metric: a function of (outputs by name, targets), more is better, or a keras.metrics.Metric. By
            default that of the task: accuracy, exact match, or of a decoder the logarithm of its perplexity.
    """
    auto = isinstance(precision, str) and precision == "auto"
    if auto != (validation is not None):
        raise ConfigError('precision="auto" measures on validation=(inputs, targets): give both, or neither.')
    wanted = list(CANDIDATES) if auto else recipes.precisions(precision)
    if "fp32" in wanted:
        raise ConfigError("precision has 'fp32', of which the others are made: leave it out.")
    options = Options(recipes.layer_paths(keep), calibration, examples)
    recipes.check_options(wanted, options.keep, calibration)
    opened = open_folder(Path(folder).absolute())
    if opened.precision != "fp32":
        there = ", ".join(opened.manifest.precisions)
        raise ExportError(
            f"{opened.path} has {there}, but no fp32 file, of which the others are made. Export it "
            f"again with precision={['fp32', *wanted]}."
        )
    verify_hashes(opened)
    if auto:
        return choose(opened, validation, tolerance, metric, options)
    with atomic_directory(opened.path, ExportError) as aside:
        shutil.copytree(opened.path, aside, symlinks=True, dirs_exist_ok=True)
        ladder = Ladder(aside, opened.manifest, options)
        for name in wanted:
            ladder.add(name)
        manifest = ladder.finish()
        check_unchanged(opened)  # files of an older export must not replace a newer one
    return Quantized(opened.path, manifest)

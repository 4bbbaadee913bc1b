"""keras-tx quantize: files of lower precision for an exported folder."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_tx import contract
from keras_tx.commands.framework_logs import quiet_start
from keras_tx.errors import InputError

if TYPE_CHECKING:
    import numpy as np

SUMMARY = "add fp16, int8 or int4 files to an exported folder"
DESCRIPTION = """\
Makes files of lower precision from the fp32 file of an exported folder, compares each with it, and lists
them in the folder's manifest and in config.json. The folder is written anew, and replaces the old one when it
is complete. `keras-tx run FOLDER ... --precision int8`, or
keras_tx.runtime.load(FOLDER, precision="int8"), runs one of them.

  fp16         half the size; for GPUs
  int8         a quarter of the size. A decoder has 8-bit weights in blocks of 32. Other models have one
               input range for each layer, which is fastest for many tokens; it is computed over the whole
               batch, so that a sample depends slightly on the others. --calibration fixes the ranges
  int8-blocks  of models other than decoders: 8-bit weights in blocks of 32; samples are independent
  int8-dynamic of decoders: one input range for each layer; fast prefill, and other tokens than fp32
  int4         4-bit weights in blocks of 32; smallest, and fastest where a decoder writes token by token;
               of a decoder, rounding on --data keeps more of its answers
  auto         measures size, time and agreement with fp32 of all of them on --data, and keeps the fastest
               that loses at most --tolerance
"""
EPILOG = """\
examples:
  keras-tx quantize flowers --precision int8
  keras-tx quantize poet --precision int8 int4
  keras-tx quantize poet --precision int4 --data texts.txt              rounded on texts, one in each line
  keras-tx quantize flowers --precision int8 --keep logits block_11     these layers stay in fp32
  keras-tx quantize flowers --precision int8 --calibration some.npz     arrays by input name, a row per sample
  keras-tx quantize poet --precision auto --data texts.txt              a text in each line
  keras-tx quantize flowers --precision auto --data some.npz            with "targets", if there are any
"""
BATCH_SIZE = 32  # of a calibration file
AUTO = "auto"
TARGETS = "targets"  # the name of an array of --data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="an exported folder")
    parser.add_argument(
        "--precision",
        nargs="+",
        required=True,
        choices=[*(name for name in contract.PRECISIONS if name != "fp32"), AUTO],
        metavar="PRECISION",
        help="one or several of fp16, int8, int8-blocks, int8-dynamic and int4, or auto",
    )
    parser.add_argument("--keep", nargs="+", default=(), metavar="LAYER", help="layers that stay in fp32")
    parser.add_argument(
        "--calibration",
        metavar="FILE.npz",
        help="inputs for the fixed ranges of int8, or of a decoder for the rounding of int4",
    )
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="texts in a .txt or .csv file, or arrays in a .npz file: of auto, to measure on; of other "
        "precisions, the calibration",
    )
    parser.add_argument("--column", metavar="NAME", help="the column of texts in a .csv file")
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="X",
        help="of auto: how much the metric may lose (default: 0.005, half a point of accuracy)",
    )


def execute(arguments: argparse.Namespace) -> int:
    automatic = AUTO in arguments.precision
    _check(arguments, automatic)
    options: dict[str, Any] = {"keep": arguments.keep}
    if arguments.calibration is not None:
        options["calibration"] = batches("--calibration", arguments.calibration)
    if automatic:
        options |= _validation(arguments)
    elif arguments.data is not None:
        options["calibration"] = _calibration(arguments)
    with quiet_start():
        from keras_tx_onnx import quantize
    print(quantize(arguments.folder, AUTO if automatic else arguments.precision, **options))
    return 0


def _check(arguments: argparse.Namespace, automatic: bool) -> None:
    """Raises an InputError for options that do not fit the precisions."""
    if automatic and len(arguments.precision) > 1:
        raise InputError(f"--precision is {' '.join(arguments.precision)}. Pass auto alone.")
    if automatic and arguments.data is None:
        raise InputError("--precision auto requires --data: a file of texts, or arrays in a .npz file.")
    if not automatic and arguments.tolerance is not None:
        raise InputError("--tolerance requires --precision auto. Omit it.")
    if arguments.data is None and arguments.column is not None:
        raise InputError("--column requires --data. Omit it.")
    if not automatic and arguments.data is not None and arguments.calibration is not None:
        raise InputError("--data and --calibration are both the calibration here. Pass one of them.")


def _validation(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `quantize` from --data, --column and --tolerance."""
    from keras_tx.runtime.folder import read_manifest

    options = {} if arguments.tolerance is None else {"tolerance": arguments.tolerance}
    if not _is_npz(arguments):
        return {**options, "validation": _texts(arguments.data, arguments.column)}
    parts = batches("--data", arguments.data)
    pairs = [({k: x for k, x in part.items() if k != TARGETS}, part.get(TARGETS)) for part in parts]
    without = (
        TARGETS not in parts[0] and read_manifest(Path(arguments.folder)).task != contract.TEXT_GENERATION
    )
    return {**options, "validation": pairs, "metric": "agreement" if without else None}


def _calibration(arguments: argparse.Namespace) -> list[Any]:
    """The texts or batches of --data."""
    if not _is_npz(arguments):
        return _texts(arguments.data, arguments.column)
    return batches("--data", arguments.data)


def _is_npz(arguments: argparse.Namespace) -> bool:
    if Path(arguments.data).suffix.lower() != ".npz":
        return False
    if arguments.column is not None:
        raise InputError(f"--column is {arguments.column!r}, but --data is a .npz file. Omit it.")
    return True


def _texts(file: str, column: str | None) -> list[str]:
    """The lines of a file or the cells of a column that are not empty."""
    from keras_tx.commands import run_inputs

    if not Path(file).is_file():
        raise InputError(f"--data {file} does not exist. Pass a .txt, .csv or .npz file.")
    run_inputs.check_column([file], column)
    texts = []
    for one in run_inputs.texts([file], column, whole=False):
        if one.problem is not None:
            raise one.problem
        texts.append(one.value)
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise InputError(f"--data {file} has no texts, expected one in each line.")
    return texts


def batches(option: str, file: str) -> list[dict[str, np.ndarray]]:
    """The arrays of a .npz file, BATCH_SIZE rows at a time."""
    import numpy as np

    path = Path(file)
    if not path.exists():
        raise InputError(f"{option} {file} does not exist. Pass the path of a .npz file.")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{option} {file} is not a .npz file. Write one with numpy.savez(FILE, NAME=ARRAY).")
    with np.load(path, allow_pickle=False) as loaded:
        arrays: dict[str, Any] = {name: loaded[name] for name in loaded.files}
    rows = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    count = next(iter(rows.values()), 0)
    if not count or set(rows.values()) != {count}:
        listed = ", ".join(f"{name} {count}" for name, count in rows.items()) or "no arrays"
        raise InputError(
            f"{option} {file} has {listed} rows, expected the same number for each array, at least 1."
        )
    starts = range(0, count, BATCH_SIZE)
    return [{name: x[start : start + BATCH_SIZE] for name, x in arrays.items()} for start in starts]

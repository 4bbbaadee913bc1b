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
  int8         a quarter of the size, and fastest for encoders and prompts. The input range of each layer is
               computed when it runs, over the whole batch: a sample's numbers depend slightly on the others
               in its batch. With --calibration the ranges are fixed, and samples are independent
  int8-blocks  8-bit weights in blocks of 32; samples are independent
  int4         4-bit weights in blocks of 32; smallest, and fastest where a decoder writes token by token
"""
EPILOG = """\
examples:
  keras-tx quantize flowers --precision int8
  keras-tx quantize poet --precision int8 int4
  keras-tx quantize flowers --precision int8 --keep logits block_11     these layers stay in fp32
  keras-tx quantize flowers --precision int8 --calibration some.npz     arrays by input name, a row per sample
"""
BATCH_SIZE = 32  # of a calibration file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="an exported folder")
    parser.add_argument(
        "--precision",
        nargs="+",
        required=True,
        choices=[name for name in contract.PRECISIONS if name != "fp32"],
        metavar="PRECISION",
        help="one or several of fp16, int8, int8-blocks and int4",
    )
    parser.add_argument("--keep", nargs="+", default=(), metavar="LAYER", help="layers that stay in fp32")
    parser.add_argument("--calibration", metavar="FILE.npz", help="inputs for the fixed ranges of int8")


def execute(arguments: argparse.Namespace) -> int:
    calibration = None if arguments.calibration is None else batches(arguments.calibration)
    with quiet_start():
        from keras_tx_onnx import quantize
    print(quantize(arguments.folder, arguments.precision, keep=arguments.keep, calibration=calibration))
    return 0


def batches(file: str) -> list[dict[str, np.ndarray]]:
    """The arrays of a .npz file, BATCH_SIZE rows at a time."""
    import numpy as np

    path = Path(file)
    if not path.exists():
        raise InputError(f"--calibration {file} does not exist. Pass the path of a .npz file.")
    if not zipfile.is_zipfile(path):
        raise InputError(
            f"--calibration {file} is not a .npz file. Write one with numpy.savez(FILE, NAME=ARRAY)."
        )
    with np.load(path, allow_pickle=False) as loaded:
        arrays: dict[str, Any] = {name: loaded[name] for name in loaded.files}
    rows = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    count = next(iter(rows.values()), 0)
    if not count or set(rows.values()) != {count}:
        listed = ", ".join(f"{name} {count}" for name, count in rows.items()) or "no arrays"
        raise InputError(
            f"--calibration {file} has {listed} rows, expected the same number for each array, at least 1."
        )
    starts = range(0, count, BATCH_SIZE)
    return [{name: x[start : start + BATCH_SIZE] for name, x in arrays.items()} for start in starts]

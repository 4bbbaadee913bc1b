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
Makes files of lower precision of the fp32 file of an exported folder, compares each with it, and enters them
in the folder's manifest and in config.json. The folder is written anew beside the old one and takes its place
when it is whole. `keras-tx run FOLDER ... --precision int8`, or keras_tx.runtime.load(FOLDER,
precision="int8"), then runs one of them.

  fp16         half the size; for GPUs
  int8         a quarter, and fastest for encoders and prompts. The range of what each layer takes is found
               when it runs, over the whole batch: a sample's numbers depend a little on its companions.
               With --calibration the ranges are fixed, and they do not
  int8-blocks  8-bit weights in blocks of 32; no sample depends on another
  int4         4-bit weights in blocks of 32; smallest, and fastest where a decoder writes token by token
"""
EPILOG = """\
examples:
  keras-tx quantize flowers --precision int8
  keras-tx quantize poet --precision int8 int4
  keras-tx quantize flowers --precision int8 --keep logits block_11     these layers stay in fp32
  keras-tx quantize flowers --precision int8 --calibration some.npz     arrays by input name, a row a sample
"""
ROWS = 32  # of a calibration file, at a time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="what export wrote")
    parser.add_argument(
        "--precision",
        nargs="+",
        required=True,
        choices=[name for name in contract.PRECISIONS if name != "fp32"],
        metavar="PRECISION",
        help="some of fp16, int8, int8-blocks and int4",
    )
    parser.add_argument("--keep", nargs="+", default=(), metavar="LAYER", help="layers that stay in fp32")
    parser.add_argument("--calibration", metavar="FILE.npz", help="inputs from which int8 takes fixed ranges")


def execute(arguments: argparse.Namespace) -> int:
    calibration = None if arguments.calibration is None else batches(arguments.calibration)
    with quiet_start():
        from keras_tx_onnx import quantize
    print(quantize(arguments.folder, arguments.precision, keep=arguments.keep, calibration=calibration))
    return 0


def batches(file: str) -> list[dict[str, np.ndarray]]:
    """The arrays of a .npz file, a few rows at a time."""
    import numpy as np

    path = Path(file)
    if not path.exists():
        raise InputError(f"--calibration {file}: there is no such file.")
    if not zipfile.is_zipfile(path):
        raise InputError(
            f"--calibration {file} is not a .npz file. Write one with numpy.savez(FILE, NAME=ARRAY)."
        )
    with np.load(path, allow_pickle=False) as loaded:
        arrays: dict[str, Any] = {name: loaded[name] for name in loaded.files}
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not counts or min(counts.values()) == 0 or len(set(counts.values())) > 1:
        said = ", ".join(f"{name} {count}" for name, count in counts.items()) or "no arrays"
        raise InputError(f"--calibration {file} has {said} rows, expected as many of each, 1 or more.")
    count = next(iter(counts.values()))
    return [{name: x[start : start + ROWS] for name, x in arrays.items()} for start in range(0, count, ROWS)]

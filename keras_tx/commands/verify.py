"""keras-tx verify: checks that a folder is as it was exported, and that it runs."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from keras_tx import contract
from keras_tx.commands.framework_logs import import_keras, quiet_start
from keras_tx.commands.model_file import check_model_file, load_model_file
from keras_tx.errors import KerasTxError

if TYPE_CHECKING:
    from keras_tx.runtime import Folder
    from keras_tx.runtime.verification import Check

SUMMARY = "check an exported folder: hashes, links, graph, inputs and outputs"
DESCRIPTION = """\
Checks an exported folder: its manifest, sizes, links and external data; the consistency of config.json,
labels and preprocessing; the sha256 of every file (load checks only that of the graph); the ONNX checker, if
the onnx package is installed; whether onnxruntime loads the graph, whether it has the inputs and outputs of
the manifest, and whether it computes finite numbers. A text model also runs on a text, on every kind of
padding mask, on a text of one token and on the longest. The last line repeats the difference from Keras that
was measured at export. Needs neither Keras nor TensorFlow, except for --against, which compares every graph
of the folder with the model again. The hashes detect damage, but not files that were changed together with
the manifest.
"""
EPILOG = """\
examples:
  keras-tx verify flowers
  keras-tx verify flowers && scp -r flowers server:
  keras-tx verify flowers --against flowers.keras    measure the difference from Keras again

exit codes: 0 every check passed; 1 a check failed; 2 not an exported folder.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="an exported folder")
    parser.add_argument(
        "--against", metavar="MODEL.keras", type=Path, help="the saved model that it was exported from"
    )


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.runtime import open_folder
    from keras_tx.runtime.verification import verify_folder

    root = Path(arguments.folder)
    if not os.path.lexists(root / contract.MANIFEST):
        open_folder(root)  # raises an error that says what it is instead
    if arguments.against is not None:
        check_model_file(arguments.against)
    failed = False
    for check in itertools.chain(verify_folder(root, _check_graph), _against(root, arguments.against)):
        mark = {True: "ok", False: "FAILED", None: "-"}[check.passed]
        print(f"{mark:<8}{check.name:<16}{check.detail}", flush=True)
        failed |= check.passed is False
    print(f"\n{root} {'FAILED: do not use it; copy or export it again.' if failed else 'is valid.'}")
    return 1 if failed else 0


def _check_graph(folder: Folder) -> Iterator[Check]:
    """The opset and the ONNX checker, if onnx is installed."""
    from keras_tx.runtime.verification import Check

    opset = folder.manifest.opset
    if opset not in contract.IR_VERSIONS:
        expected = f"{min(contract.IR_VERSIONS)} to {max(contract.IR_VERSIONS)}"
        yield Check("opset", False, f"the manifest has {opset}, expected {expected}")
    try:
        import onnx
    except ImportError:
        yield Check("opset", None, f"{opset} in the manifest; not compared: onnx is not installed")
        yield Check("ONNX checker", None, "skipped: onnx is not installed")
        return
    model = onnx.load(os.fspath(folder.graph), load_external_data=False)
    opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    if opset in contract.IR_VERSIONS:
        same = opsets.get("ai.onnx") == opset
        detail = f"{opset}, IR version {model.ir_version}"
        yield Check("opset", same, detail if same else f"the manifest has {opset}, the graph has {opsets}")
    try:
        onnx.checker.check_model(os.fspath(folder.graph), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        yield Check.failed("ONNX checker", error)
    else:
        yield Check("ONNX checker", True, f"onnx {onnx.__version__}")


def _against(root: Path, model: Path | None) -> Iterator[Check]:
    """The difference of each graph from a Keras model."""
    from keras_tx.runtime.verification import Check

    if model is None:
        return
    import_keras()
    with quiet_start():
        from keras_tx_onnx import compare
    try:
        results = compare(load_model_file(model), root)
    except KerasTxError as error:
        yield Check.failed("against Keras", error)
        return
    for result in results:
        yield Check(
            "against Keras",
            result.passed,
            f"{result.precision} within {result.difference:.1e} of {model.name} "
            f"(allowed {result.tolerance:.1e})",
        )

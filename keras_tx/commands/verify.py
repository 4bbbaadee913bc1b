"""keras-tx verify: whether a folder is still what was exported, and runs."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from keras_tx import contract
from keras_tx.commands import run_text
from keras_tx.commands.framework_logs import import_keras, quiet_start
from keras_tx.commands.model_file import check_model_file, load_model_file
from keras_tx.errors import FolderError, KerasTxError

if TYPE_CHECKING:
    from keras_tx.processing import TextTransform
    from keras_tx.runtime import Folder, LoadedModel, Session

SUMMARY = "check an exported folder: hashes, links, graph, inputs and outputs"
DESCRIPTION = """\
Checks a whole exported folder: its manifest, sizes, links and external data, whether config.json, labels
and preprocessing agree with it, the sha256 of every file (load checks only the graph's), the ONNX checker
where the onnx package is installed, whether onnxruntime opens the graph, whether that has the inputs and
outputs of the manifest, and whether it computes finite numbers. A text model also answers a text; its graph
runs on every kind of padding mask, on a text of one token and on the longest. At the end it repeats what the
export measured against Keras. Needs neither Keras nor TensorFlow, except for --against, which compares every
graph of the folder with the model again. The hashes detect damage, but not files that were changed together
with the manifest.
"""
EPILOG = """\
examples:
  keras-tx verify flowers
  keras-tx verify flowers && scp -r flowers server:
  keras-tx verify flowers --against flowers.keras    measures the difference from Keras again

exit codes: 0 every check passed; 1 a check failed; 2 it is not an exported folder at all.
"""

WORDS = 8  # tokens of the text that a text model is run on


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the list. `passed` is None where nothing was to be decided."""

    name: str
    passed: bool | None
    detail: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="what export wrote")
    parser.add_argument(
        "--against", metavar="MODEL.keras", type=Path, help="the saved model that it was exported from"
    )


def execute(arguments: argparse.Namespace) -> int:
    root = Path(arguments.folder)
    if not os.path.lexists(root / contract.MANIFEST):
        from keras_tx.runtime import open_folder

        open_folder(root)  # says what it is instead
    if arguments.against is not None:
        check_model_file(arguments.against)
    failed = False
    found = itertools.chain(checks(root), _against(root, arguments.against))
    for check in found:
        mark = {True: "ok", False: "FAILED", None: "-"}[check.passed]
        print(f"{mark:<8}{check.name:<16}{check.detail}", flush=True)
        failed |= check.passed is False
    print(f"\n{root} {'FAILED: do not use it; copy or export it again.' if failed else 'is sound.'}")
    return 1 if failed else 0


def checks(root: Path) -> Iterator[Check]:
    """Each check in turn; where a failure leaves nothing to look at, the last."""
    from keras_tx.runtime import Session, open_folder, verify_hashes

    try:
        folder = open_folder(root)
    except FolderError as error:
        yield Check("folder", False, _said(error))
        return
    files = folder.manifest.files
    yield Check(
        "folder",
        True,
        f"manifest; {len(files)} files, their sizes, no links, no data outside{_agreeing(folder)}",
    )
    try:
        verify_hashes(folder)
    except FolderError as error:
        yield Check("hashes", False, _said(error))
        return
    yield Check("hashes", True, f"sha256 of {len(files)} files")
    yield _unlisted(folder)
    yield _opset(folder)
    yield _checker(folder)
    try:
        session = Session(folder.graph, provider="cpu")
    except KerasTxError as error:
        yield Check("onnxruntime", False, _said(error))
        return
    with session:
        yield Check("onnxruntime", True, f"opens {folder.graph.name}, on the CPU")
        yield _tensors(folder, session)
        yield _task(root)
        yield _runs(folder, session)
    if folder.shared is not None:
        yield _shared_cache(folder)
    yield _parity(folder)
    for precision in folder.manifest.precisions:
        if precision != folder.precision:
            yield _precision(root, precision)


def _agreeing(folder: Folder) -> str:
    """The values on which config.json and the files of the folder agree."""
    parts = [
        name
        for name, there in (
            ("labels", folder.manifest.labels is not None),
            ("image size", folder.transform is not None),
        )
        if there and folder.config is not None
    ]
    return f"; {', '.join(parts)}" if parts else ""


def _precision(root: Path, precision: str) -> Check:
    """The same checks of another file of the folder, in one line."""
    from keras_tx.runtime import Session, open_folder

    try:
        folder = open_folder(root, precision)
        with Session(folder.graph, provider="cpu") as session:
            done = [_checker(folder), _tensors(folder, session), _runs(folder, session)]
    except KerasTxError as error:
        return Check(precision, False, _said(error))
    wrong = next((check for check in done if check.passed is False), None)
    if wrong is not None:
        return Check(precision, False, f"{folder.graph.name}, {wrong.name}: {wrong.detail}")
    variant = folder.manifest.variants.get(precision)
    made = (
        "" if variant is None else f", {variant.recipe}, within {variant.noise:.1e} of fp32 when it was made"
    )
    return Check(precision, True, f"{folder.graph.name}{made}")


def _said(error: Exception) -> str:
    return " ".join(str(error).split())


def _unlisted(folder: Folder) -> Check:
    known = {*folder.manifest.files, contract.MANIFEST}
    paths = (path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*") if not path.is_dir())
    more = sorted(set(paths) - known)
    if not more:
        return Check("other files", True, "none")
    return Check("other files", None, f"not part of the export, and never read: {', '.join(more)}")


def _opset(folder: Folder) -> Check:
    stated = folder.manifest.opset
    if stated not in contract.IR_VERSIONS:
        known = f"{min(contract.IR_VERSIONS)} to {max(contract.IR_VERSIONS)}"
        return Check("opset", False, f"the manifest says {stated}, expected {known}")
    try:
        import onnx
    except ImportError:
        return Check("opset", None, f"{stated} by the manifest; not compared: onnx is not installed")
    model = onnx.load(os.fspath(folder.graph), load_external_data=False)
    real = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    if real.get("ai.onnx") != stated:
        return Check("opset", False, f"the manifest says {stated}, the graph has {real}")
    return Check("opset", True, f"{stated}, IR version {model.ir_version}")


def _checker(folder: Folder) -> Check:
    try:
        import onnx
    except ImportError:
        return Check("ONNX checker", None, "skipped: onnx is not installed")
    try:
        onnx.checker.check_model(os.fspath(folder.graph), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return Check("ONNX checker", False, _said(error))
    return Check("ONNX checker", True, f"onnx {onnx.__version__}")


def _tensors(folder: Folder, session: Session) -> Check:
    from keras_tx.runtime.session import describe

    for kind, stated, real in (
        ("inputs", folder.inputs, session.inputs),
        ("outputs", folder.outputs, session.outputs),
    ):
        said, found = ", ".join(map(describe, stated)), ", ".join(map(describe, real))
        if said != found:
            return Check("tensors", False, f"the manifest has the {kind} {said}; the graph has {found}")
    return Check("tensors", True, ", ".join(map(describe, (*session.inputs, *session.outputs))))


def _task(root: Path) -> Check:
    """Whether transform, labels and graph of a task fit together; a text model is run on a text."""
    from keras_tx.processing import TextTransform
    from keras_tx.runtime import TextGenerator, load
    from keras_tx.runtime.tasks.text import TextModel

    try:
        with load(root, provider="cpu") as model:
            detail = f"{model.folder.manifest.task or 'none'}, as {type(model).__name__}"
            if isinstance(model, TextModel | TextGenerator) and model.folder.tokenizer is not None:
                detail += f", answers a text of {_answered(model, TextTransform.load(root))} tokens"
            return Check("task", True, detail)
    except KerasTxError as error:
        return Check("task", False, _said(error))


def _answered(model: LoadedModel, transform: TextTransform) -> int:
    """Runs a text model on a text of its own vocabulary; returns how many tokens that has."""
    from keras_tx.runtime import TextGenerator

    ids = sorted(transform.vocabulary.values())
    words = transform.decode(ids[len(ids) // 2 :][:WORDS])
    text = f"{words} {transform.mask_token or ''}".strip()
    if isinstance(model, TextGenerator):
        model(text, max_new_tokens=1)
    else:
        run_text.answers(model, [text], 1, None, words)
    (row,) = transform.encode([text])
    return len(row)


def _runs(folder: Folder, session: Session) -> Check:
    import numpy as np

    from keras_tx.processing import TextTransform
    from keras_tx.runtime.example_inputs import examples_of

    known = folder.manifest.task is not None  # other graphs may compute infinities correctly
    done: list[str] = []
    try:
        longest = None if folder.tokenizer is None else TextTransform.load(folder.path).max_length
        for choices in examples_of(session.inputs, folder.config or {}, longest):
            refused = ""
            for name, inputs in choices:
                try:
                    outputs = session.run(inputs)
                except KerasTxError as error:
                    if len(choices) == 1:
                        raise
                    refused = refused or _said(error)
                    continue
                for output, value in outputs.items():
                    if known and np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
                        return Check("runs", False, f"{output} is not finite for {name}")
                done.append(name)
                break
            else:
                return Check("runs", None, f"not run: none of {len(choices)} sizes is accepted ({refused})")
    except KerasTxError as error:
        return Check("runs", False, _said(error))
    return Check("runs", True, f"on random inputs: {'; '.join(done)}")


def _shared_cache(folder: Folder) -> Check:
    """Whether the graph that writes its cache in place gives the logits of the other one."""
    from keras_tx.runtime.tasks.text_generation import context_of, same_logits

    assert folder.shared is not None
    exact = folder.manifest.precisions.get("fp32") == folder.graph.relative_to(folder.path).as_posix()
    try:
        found, tolerance = same_logits(folder.graph, folder.shared, context_of(folder), exact)
    except KerasTxError as error:
        return Check("shared cache", False, _said(error))
    return Check(
        "shared cache",
        found <= tolerance,
        f"{folder.shared.name} gives the logits of {folder.graph.name} within {found:.1e} of their scale "
        f"(tolerance {tolerance:.0e})",
    )


def _parity(folder: Folder) -> Check:
    parity = folder.manifest.parity
    if parity is None:
        return Check("parity", None, "NOT compared with Keras when it was exported (--no-verify)")
    within = parity.max_difference <= parity.tolerance
    return Check(
        "parity",
        within,
        f"at export within {parity.max_difference:.1e} of Keras, in units of the output's scale "
        f"(tolerance {parity.tolerance:.0e}; {', '.join(parity.cases)})",
    )


def _against(root: Path, model: Path | None) -> Iterator[Check]:
    if model is None:
        return
    import_keras()
    with quiet_start():
        from keras_tx_onnx import compare
    try:
        found = compare(load_model_file(model), root)
    except KerasTxError as error:
        yield Check("against Keras", False, _said(error))
        return
    for again in found:
        yield Check(
            "against Keras",
            again.passed,
            f"{again.precision} within {again.found:.1e} of {model.name} (allowed {again.allowed:.1e})",
        )

"""Checks of a whole exported folder, as `keras-tx verify` prints them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from keras_tx import contract
from keras_tx.errors import FolderError, KerasTxError
from keras_tx.processing import TextTransform
from keras_tx.runtime.cached_decoder import context_of
from keras_tx.runtime.example_inputs import Example, examples_of
from keras_tx.runtime.folder import Folder, open_folder, verify_hashes
from keras_tx.runtime.loading import load_folder
from keras_tx.runtime.session import Session, describe
from keras_tx.runtime.shared_cache import compare_shared_cache, window_error


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of a check; `passed` is None if there was nothing to decide."""

    name: str
    passed: bool | None
    detail: str

    @classmethod
    def failed(cls, name: str, error: Exception) -> Check:
        return cls(name, False, " ".join(str(error).split()))


def verify_folder(
    root: Path, check_graph: Callable[[Folder], Iterator[Check]] = lambda folder: iter(())
) -> Iterator[Check]:
    """Yields the result of each check; stops after a failure that makes the others impossible.

    Args:
        root: the folder.
        check_graph: more checks of each graph, which need packages that the runtime does not have.
    """
    try:
        folder = open_folder(root)
    except FolderError as error:
        yield Check.failed("folder", error)
        return
    count = len(folder.manifest.files)
    yield Check(
        "folder",
        True,
        f"manifest; {count} files, their sizes, no links, no data outside{_consistent(folder)}",
    )
    try:
        verify_hashes(folder)
    except FolderError as error:
        yield Check.failed("hashes", error)
        return
    yield Check("hashes", True, f"sha256 of {count} files")
    yield _unlisted_files(folder)
    yield from check_graph(folder)
    try:
        session = Session(folder.graph, provider="cpu")
    except KerasTxError as error:
        yield Check.failed("onnxruntime", error)
        return
    with session:
        yield Check("onnxruntime", True, f"opens {folder.graph.name} on the CPU")
        yield _tensors(folder, session)
        yield _task(root)
        yield _runs(folder, session)
    if folder.encoder is not None:
        yield _other_graph("encoder", folder, folder.encoder, check_graph, folder.manifest.encoder)
    if folder.shared is not None:
        yield _shared_cache(folder, folder.shared)
    for target in folder.target_graphs:
        of_target = folder.with_graph_of(target)
        yield _other_graph("target", of_target, of_target.graph, check_graph)
    yield _parity(folder)
    for name in folder.manifest.adapters:
        yield _adapter(root, name)
    for precision in folder.manifest.precisions:
        if precision != folder.precision:
            yield _precision(root, precision, check_graph)


def _consistent(folder: Folder) -> str:
    """The values on which config.json and the other files agree."""
    present = {"labels": folder.manifest.labels, "image size": folder.transform}
    names = [name for name, value in present.items() if value is not None and folder.config is not None]
    return f"; {', '.join(names)}" if names else ""


def _unlisted_files(folder: Folder) -> Check:
    listed = {*folder.manifest.files, contract.MANIFEST}
    paths = (path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*") if not path.is_dir())
    unlisted = sorted(set(paths) - listed)
    if not unlisted:
        return Check("other files", True, "none")
    return Check("other files", None, f"not part of the export, and never read: {', '.join(unlisted)}")


def _other_graph(
    name: str,
    folder: Folder,
    graph: Path,
    check_graph: Callable[[Folder], Iterator[Check]],
    specs: contract.EncoderGraphs | None = None,
) -> Check:
    """The checks of a graph beside the main one, as one."""
    try:
        with Session(graph, provider="cpu") as session:
            checks = [
                *check_graph(dataclasses.replace(folder, graph=graph)),
                _tensors(folder, session, specs),
                _runs(folder, session),
            ]
    except KerasTxError as error:
        return Check.failed(name, error)
    failed = next((check for check in checks if check.passed is False), None)
    if failed is not None:
        return Check(name, False, f"{graph.name}, {failed.name}: {failed.detail}")
    return Check(name, checks[-1].passed, f"{graph.name}, {checks[-1].detail}")


def _tensors(folder: Folder, session: Session, specs: Folder | contract.EncoderGraphs | None = None) -> Check:
    specs = specs or folder
    for kind, expected, actual in (
        ("inputs", specs.inputs, session.inputs),
        ("outputs", specs.outputs, session.outputs),
    ):
        if expected != actual:
            return Check(
                "tensors",
                False,
                f"the manifest has the {kind} {', '.join(map(describe, expected))}; "
                f"the graph has {', '.join(map(describe, actual))}",
            )
    return Check("tensors", True, ", ".join(map(describe, (*session.inputs, *session.outputs))))


def _task(root: Path) -> Check:
    """Whether the files and the graph fit the task, and whether the model runs on an example."""
    try:
        with load_folder(root, "cpu", None) as model:
            example = "" if model.task.run_example is None else model.task.run_example(model)
            detail = f"{model.folder.manifest.task or 'none'}, as {type(model).__name__}"
            return Check("task", True, f"{detail}, {example}" if example else detail)
    except KerasTxError as error:
        return Check.failed("task", error)


def _runs(folder: Folder, session: Session) -> Check:
    """Whether the graph runs on random inputs and computes finite numbers."""
    names: list[str] = []
    try:
        longest = None if folder.tokenizer is None else TextTransform.load(folder.path).max_length
        for examples in examples_of(session.inputs, folder.config or {}, longest):
            ran = _first_that_runs(session, examples)
            if isinstance(ran, str):
                return Check("runs", None, f"not run: none of {len(examples)} sizes is accepted ({ran})")
            name, outputs = ran
            for output, value in outputs.items():
                # A graph without a known task may compute infinities correctly.
                if folder.manifest.task and value.dtype.kind == "f" and not np.isfinite(value).all():
                    return Check("runs", False, f"{output} is not finite for {name}")
            names.append(name)
    except KerasTxError as error:
        return Check.failed("runs", error)
    return Check("runs", True, f"on random inputs: {'; '.join(names)}")


def _first_that_runs(session: Session, examples: list[Example]) -> tuple[str, dict[str, np.ndarray]] | str:
    """The name and outputs of the first example that the graph accepts; the first error if there is none."""
    first_error = None
    for name, inputs in examples:
        try:
            return name, session.run(inputs)
        except KerasTxError as error:
            if len(examples) == 1:
                raise
            first_error = first_error or Check.failed("", error).detail
    return first_error or ""


def _shared_cache(folder: Folder, shared: Path) -> Check:
    """Whether the graph with a shared cache computes the logits of the other one."""
    manifest, parity = folder.manifest, folder.manifest.parity
    exact = folder.precision == "fp32"
    if folder.precision not in manifest.variants and parity is not None:  # Keras quantized the model
        exact = parity.tolerance <= contract.FLOAT32  # else its layers round their inputs
    fp32 = contract.shared_name(manifest.precisions.get("fp32", ""))
    try:
        if fp32 in manifest.files and (error := window_error(shared, folder.path / fp32)):
            return Check("shared cache", False, error)
        comparison = compare_shared_cache(folder.graph, shared, context_of(folder), exact)
    except KerasTxError as error:
        return Check.failed("shared cache", error)
    return Check(
        "shared cache",
        comparison.difference <= comparison.tolerance,
        f"{shared.name} computes the logits of {folder.graph.name} within {comparison.difference:.1e} of "
        f"their scale (tolerance {comparison.tolerance:.0e}){comparison.limits}",
    )


def _parity(folder: Folder) -> Check:
    parity = folder.manifest.parity
    if parity is None:
        return Check("parity", None, "NOT compared with Keras when it was exported (--no-verify)")
    return Check(
        "parity",
        parity.max_difference <= parity.tolerance,
        f"at export within {parity.max_difference:.1e} of Keras, in units of the output's scale "
        f"(tolerance {parity.tolerance:.0e}; {', '.join(parity.cases)})",
    )


def _adapter(root: Path, name: str) -> Check:
    """Whether the file of an adapter fits the graph."""
    check = f"adapter {name}"
    try:
        with load_folder(root, "cpu", None) as model:
            adapted = model.with_adapter(name)
            run_example = model.task.run_example
            example = "" if run_example is None else run_example(adapted)
    except KerasTxError as error:
        return Check.failed(check, error)
    parity = model.folder.manifest.adapters[name].parity
    compared = "NOT compared with Keras" if parity is None else f"within {parity.max_difference:.1e} of Keras"
    return Check(check, True, f"{compared} when it was exported{f', {example}' if example else ''}")


def _precision(root: Path, precision: str, check_graph: Callable[[Folder], Iterator[Check]]) -> Check:
    """The checks of another graph of the folder, as one."""
    try:
        folder = open_folder(root, precision)
        with Session(folder.graph, provider="cpu") as session:
            checks = [*check_graph(folder), _tensors(folder, session), _runs(folder, session)]
        if folder.encoder is not None:
            specs = folder.manifest.encoder
            checks.append(_other_graph("encoder", folder, folder.encoder, check_graph, specs))
        if folder.shared is not None:
            checks.append(_shared_cache(folder, folder.shared))
    except KerasTxError as error:
        return Check.failed(precision, error)
    failed = next((check for check in checks if check.passed is False), None)
    if failed is not None:
        return Check(precision, False, f"{folder.graph.name}, {failed.name}: {failed.detail}")
    variant = folder.manifest.variants.get(precision)
    detail = folder.graph.name
    if variant is not None:
        detail += f", {variant.recipe}, within {variant.noise:.1e} of fp32 when it was written"
    return Check(precision, True, detail)

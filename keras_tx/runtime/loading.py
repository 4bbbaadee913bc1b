"""Loads a folder: checks it, opens its graph and creates the model of its task."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from keras_tx import contract
from keras_tx.consistent_read import read_consistently
from keras_tx.errors import FolderError, ProviderError, nearest, user_stacklevel
from keras_tx.runtime.folder import Folder, check_unchanged, checked_folder, folder_path
from keras_tx.runtime.providers import check_name, on_gpu
from keras_tx.runtime.session import Session, stays_on_cpu
from keras_tx.runtime.shared_weights import SharedWeights
from keras_tx.runtime.tasks import all_tasks, arrays, tasks_named
from keras_tx.runtime.tasks.base import LoadedModel, Task, check_tensors


def load_folder(
    path: str | os.PathLike[str],
    provider: str,
    threads: int | None,
    precision: str | None = None,
    strict: bool = False,
) -> LoadedModel:
    """The model of a folder. On a GPU the fp16 graph is preferred, unless `precision` names another."""
    root = folder_path(path)
    check_name(provider)
    return read_consistently(
        root,
        lambda: _load_unchanged(root, provider, threads, precision, strict),
        FolderError,
        LoadedModel.close,
    )


def _load_unchanged(
    root: Path, provider: str, threads: int | None, precision: str | None, strict: bool
) -> LoadedModel:
    """Loads a model and checks its files again afterwards, because onnxruntime opens them by path."""
    model = _load_best(root, provider, threads, precision)
    try:
        if strict:
            _check_started(model, provider)
            for session in model.sessions:
                session.check_placement()
        check_unchanged(model.folder)
    except (FolderError, ProviderError):
        model.close()
        raise
    return model


def _check_started(model: LoadedModel, provider: str) -> None:
    """Raises a ProviderError if "auto" chose the CPU although onnxruntime was built for CUDA."""
    if provider == "auto" and model.provider == "cpu" and not stays_on_cpu(provider):
        raise ProviderError(
            f"strict=True, but provider='auto' runs all nodes of {model.folder.path} on the CPU, because "
            "onnxruntime could not start CUDA; its warning says why. Run keras-tx doctor; or pass "
            'provider="cpu", or omit strict.'
        )


def _load_best(root: Path, provider: str, threads: int | None, precision: str | None) -> LoadedModel:
    maybe_gpu = on_gpu(provider) or (provider == "auto" and not stays_on_cpu(provider))
    target = provider if provider != "auto" else "cuda" if maybe_gpu else "cpu"
    folder = checked_folder(root, precision, "fp16" if maybe_gpu else "fp32", target)
    has_fallback = provider == "auto" and maybe_gpu
    fallback = checked_folder(root, precision, "fp32", "cpu") if has_fallback else folder
    if fallback.graph == folder.graph:
        return _load(folder, provider, threads)
    try:
        model = _load(folder, provider, threads)
    except FolderError as error:  # onnxruntime lacks some nodes in half precision on the CPU
        warnings.warn(
            f"{error} The {fallback.precision} graph runs on the CPU instead.",
            RuntimeWarning,
            user_stacklevel(),
        )
        return _load(fallback, "cpu", threads)
    if on_gpu(model.provider):
        return model
    model.close()
    return _load(fallback, "cpu", threads)  # "auto" chose the CPU, with a warning


def task_of(folder: Folder) -> Task:
    """The task with which a folder is loaded; raises a FolderError if this version does not have it."""
    name = folder.manifest.task
    tasks = tasks_named(name)
    if not tasks:
        raise FolderError(
            f"{folder.path / contract.MANIFEST}: task {name!r} is not supported by this version of keras-tx. "
            f"Upgrade it. {nearest(str(name), [task.name for task in all_tasks() if task.name])}"
        )
    if tasks[0].inputs == "text" and not tasks[0].accepts_ids and folder.tokenizer is None:
        return arrays.TASK
    outputs = {spec.name for spec in folder.outputs}
    return next((task for task in tasks if outputs.issuperset(task.outputs)), tasks[0])


def _load(folder: Folder, provider: str, threads: int | None) -> LoadedModel:
    task = task_of(folder)
    shared = folder.shared if task.inputs == "prompt" and stays_on_cpu(provider) else None
    weights = None if folder.encoder is None else SharedWeights.of(folder.encoder, folder.graph)
    session = Session(shared or folder.graph, provider, threads, weights)
    try:
        check_tensors(folder, session, folder.inputs, folder.outputs)
        return task.open(folder, session)
    except FolderError:
        session.close()
        raise

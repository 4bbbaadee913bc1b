"""Tasks of exported folders: a module for each, with the class that runs it and its record, `TASK`."""

from __future__ import annotations

import importlib
import pkgutil

from keras_tx.runtime.tasks.base import Task


def all_tasks() -> list[Task]:
    """The `TASK` of every module of this package."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return [module.TASK for module in modules if hasattr(module, "TASK")]


def tasks_named(name: str | None) -> list[Task]:
    """The tasks with this name in the manifest: usually one; none if the name is unknown."""
    return [task for task in all_tasks() if task.name == name]

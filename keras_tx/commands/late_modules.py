"""Modules whose import is deferred until their first use."""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Late(ModuleType):
    """Stands for a module, or for something in one, until an attribute of it is read or it is called.

    Args:
        name: the module that is imported then.
        path: what stands for something in it, such as "lax" or "monitoring.record_scalar".
        names: paths that importing packages read, but do not use.
    """

    def __init__(self, name: str, path: str = "", names: Sequence[str] = ()) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self._path, self._names = path, names

    def _resolved(self) -> Any:
        name = self.__name__
        if isinstance(sys.modules.get(name), _Late):  # inside of `imported_late`
            del sys.modules[name]
        module = importlib.import_module(name)
        return operator.attrgetter(self._path)(module) if self._path else module

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":  # which `from package import name` reads
            raise AttributeError(name)
        path = f"{self._path}.{name}".removeprefix(".")
        if any(other == path or other.startswith(f"{path}.") for other in self._names):
            return _Late(self.__name__, path, self._names)
        return getattr(self._resolved(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._resolved()(*args, **kwargs)


@contextmanager
def imported_late(modules: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """A context in which packages can import these modules without loading them, except loaded ones.

    Args:
        modules: for each module, the paths in it that packages read when they are imported.
    """
    late = {name: _Late(name, names=names) for name, names in modules.items() if name not in sys.modules}
    sys.modules.update(late)
    try:
        yield
    finally:
        for name, module in late.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]

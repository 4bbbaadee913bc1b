"""Registers the classes of keras_tx with Keras, without importing Keras or the classes.

`keras.models.load_model` looks up the classes of a file in Keras's registry and does not import their
packages. Therefore `import keras_tx` registers a placeholder for each class, before or after `import keras`.
The module of a class is imported when a file contains the class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE = "keras_tx"


class Placeholder:
    """Stands for a class until Keras creates an object of the class from a config."""

    def __init__(self, key: str):
        self._key = key

    def from_config(self, config: dict[str, Any]) -> Any:
        import keras

        # These imports register the classes in place of the placeholders.
        import keras_tx.training.schedules  # noqa: F401
        from keras_tx.models.families import families

        families()

        # get_registered_object may still return the placeholder inside a scope of Keras.
        return keras.saving.get_custom_objects()[self._key].from_config(config)


def register_with_keras(names: Iterable[str]) -> None:
    """Registers placeholders now if Keras is imported, or else at the end of its import."""
    keys = [f"{PACKAGE}>{name}" for name in names]
    if "keras" in sys.modules:
        _register(sys.modules["keras"], keys)
    else:
        sys.meta_path.insert(0, _ImportOfKeras(keys))


def _register(keras: ModuleType, keys: Sequence[str]) -> None:
    registered = keras.saving.get_custom_objects()
    for key in keys:
        registered.setdefault(key, Placeholder(key))


class _ImportOfKeras:
    """A finder on sys.meta_path that registers the classes once, when `keras` is imported."""

    def __init__(self, keys: Sequence[str]):
        self._keys = keys

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "keras" or self not in sys.meta_path:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        run, keys = spec.loader.exec_module, self._keys

        def run_and_register(module: ModuleType) -> None:
            # Removed only here: TensorFlow calls find_spec for keras without importing it.
            if self in sys.meta_path:
                sys.meta_path.remove(self)  # type: ignore[arg-type]
            run(module)
            _register(module, keys)

        spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec

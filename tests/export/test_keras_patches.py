"""Functions of Keras are replaced in every module that imported them, also after an earlier export."""

from __future__ import annotations

import sys
import types

import keras
import pytest

from keras_tx_onnx.reading.keras_patches import patched


@pytest.mark.parametrize(
    ("file", "is_partial"),
    [("/home/user/layers.py", False), ("/lib/site-packages/layers.py", True), (None, False)],
)
def test_a_module_may_import_a_function_later(file: str | None, is_partial: bool, monkeypatch):
    module = types.ModuleType("users_layers")
    module.__file__ = file
    module.__spec__ = types.SimpleNamespace(_initializing=is_partial)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with patched():
        pass
    usual = module.softmax = keras.ops.softmax
    with patched():
        assert module.softmax is not usual
    assert module.softmax is usual


def test_functions_of_installed_modules_are_replaced_in_each_export(monkeypatch):
    module = types.ModuleType("installed_layers")
    module.__file__ = "/lib/site-packages/installed_layers.py"
    usual = module.softmax = keras.ops.softmax
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for _ in range(2):
        with patched():
            assert module.softmax is not usual
        assert module.softmax is usual

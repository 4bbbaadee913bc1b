"""The examples in the docstrings run, and every public layer has one."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import keras_tx.layers

MODULES = [m.name for m in pkgutil.iter_modules(keras_tx.layers.__path__, "keras_tx.layers.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", keras_tx.layers.__all__)
def test_every_public_layer_shows_an_example(name):
    layer = getattr(keras_tx.layers, name)
    assert doctest.DocTestFinder(recurse=False).find(layer, name)[0].examples

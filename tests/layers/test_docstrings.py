"""Every public layer has an example in its docstring; tests/test_public_names.py runs them."""

from __future__ import annotations

import doctest

import pytest

import keras_tx.layers


@pytest.mark.parametrize("name", keras_tx.layers.__all__)
def test_every_public_layer_has_an_example(name):
    layer = getattr(keras_tx.layers, name)
    assert doctest.DocTestFinder(recurse=False).find(layer, name)[0].examples

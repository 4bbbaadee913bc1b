"""Keras's own layer checks as a fixture, and a JAX that compiles fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import pytest
from keras.src.testing import TestCase


@pytest.fixture(autouse=True, scope="module")
def unoptimized_jax() -> Iterator[None]:
    """Eager JAX compiles each operation anew for each shape, which is most of what these tests take."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def run_layer_test() -> Iterator[Callable[..., Any]]:
    """`TestCase.run_layer_test`: config, shapes, symbolic call, build, training step, mixed precision."""
    filtering = keras.config.is_traceback_filtering_enabled()
    case = TestCase()
    case.setUp()
    yield case.run_layer_test
    case.doCleanups()
    if filtering:  # setUp switches it off for the whole process
        keras.config.enable_traceback_filtering()

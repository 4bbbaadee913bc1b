"""Keras's own layer checks as a fixture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import pytest
from keras.src.testing import TestCase


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

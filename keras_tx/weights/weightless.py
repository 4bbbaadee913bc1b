"""Models whose variables have shapes but no values: to count, to compare with a checkpoint, and to load into.

Keras builds layers like this in a StatelessScope, and initializes the variables when the scope is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import keras
import numpy as np
from keras import ops
from keras.src.backend.common import global_state

Model = TypeVar("Model", bound=keras.Model)


def build_weightless(build: Callable[..., Model], *arguments: Any, **options: Any) -> Model:
    """Calls `build(*arguments, **options)` so that the model it returns has no memory for its weights."""
    uninitialized = list(global_state.get_global_attribute("uninitialized_variables") or [])
    with keras.StatelessScope(initialize_variables=False):
        model = build(*arguments, **options)
    # Keras would initialize the new ones at its next opportunity.
    global_state.set_global_attribute("uninitialized_variables", uninitialized)
    return model


def assign(variable: Any, value: np.ndarray) -> None:
    """Assigns a value; a variable without one gets it as its first, so its initializer never runs."""
    if variable._value is None:
        # NumPy arrays are the tensors of the NumPy backend, which would copy them.
        is_tensor = ops.is_tensor(value) and value.dtype == variable._dtype
        variable._initialize(value if is_tensor else ops.convert_to_tensor(value, dtype=variable._dtype))
        variable._initializer = None
    else:
        variable.assign(value)


def initialize(model: keras.Model) -> None:
    """Initializes all variables without a value, including those of metrics."""
    for variable in (*model.variables, *model.metrics_variables):
        if variable._value is None:
            variable._deferred_initialize()

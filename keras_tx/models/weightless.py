"""A model whose variables have shapes and no values: to count, to compare with a checkpoint, and to fill.

Keras builds layers like this inside a StatelessScope, and gives the variables their values when it is left.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src.backend.common import global_state

from keras_tx.models.transformer_model import TransformerModel


def sketch(family: type[TransformerModel], config: Any, **options: Any) -> TransformerModel:
    """The family's model of a config, of any size, without memory for its weights."""
    waiting = list(global_state.get_global_attribute("uninitialized_variables") or [])
    with keras.StatelessScope(initialize_variables=False):
        model = family.assemble(config, **options)
    # Keras would fill them at its next opportunity.
    global_state.set_global_attribute("uninitialized_variables", waiting)
    return model


def give(variable: Any, value: np.ndarray) -> None:
    """Assigns a value; a variable of a sketch gets it as its first, so that none is drawn for it before."""
    if variable._value is None:
        variable._initialize(ops.convert_to_tensor(value, dtype=variable._dtype))
        variable._initializer = None
    else:
        variable.assign(value)


def complete(model: TransformerModel) -> None:
    """Draws the values of all variables that have none, those of the head's metrics included."""
    for variable in (*model.variables, *model.metrics_variables):
        if variable._value is None:
            variable._deferred_initialize()

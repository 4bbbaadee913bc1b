"""Warns about distribution interfaces of Keras that have no effect on the backend."""

from __future__ import annotations

import warnings

import keras

from keras_tx.errors import user_stacklevel


def warn_of_distribution() -> None:
    """Warns if keras.distribution is set on TensorFlow, which then trains on one device."""
    distribution = keras.distribution.distribution()
    if distribution is None or keras.backend.backend() != "tensorflow":
        return
    warnings.warn(
        f"{type(distribution).__name__} is set, but has no effect on TensorFlow: keras.distribution is for "
        "JAX. Create and compile the model in `with tf.distribute.MirroredStrategy().scope():`.",
        stacklevel=user_stacklevel(),
    )

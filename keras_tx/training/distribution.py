"""Several devices: which of Keras's interfaces does something on the backend."""

from __future__ import annotations

import warnings

import keras

from keras_tx.errors import user_stacklevel


def warn_of_distribution() -> None:
    """Warns where keras.distribution is set on TensorFlow, which trains on one device then."""
    distribution = keras.distribution.distribution()
    if distribution is None or keras.backend.backend() != "tensorflow":
        return
    warnings.warn(
        f"{type(distribution).__name__} is set, but TensorFlow trains on one device with it: it is for JAX. "
        "Make and compile the model in `with tf.distribute.MirroredStrategy().scope():`.",
        stacklevel=user_stacklevel(),
    )

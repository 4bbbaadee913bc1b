"""From files and arrays to what the model takes: the same code feeds `model.fit` and the runtime."""

from keras_tx.processing.image import ImageTransform

__all__ = ["ImageTransform"]

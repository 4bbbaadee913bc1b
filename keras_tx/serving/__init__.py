"""Serving of exported folders to many clients, with NumPy and onnxruntime."""

from keras_tx.serving.micro_batcher import MicroBatcher

__all__ = ["MicroBatcher"]

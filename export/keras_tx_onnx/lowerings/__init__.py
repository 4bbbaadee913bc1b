"""Lowerings of layers and operations to ONNX nodes. Importing this package registers them."""

from keras_tx_onnx.lowerings import keras_tx, layers, operations

__all__ = ["keras_tx", "layers", "operations"]

"""Lowerings of layers and operations to ONNX nodes. Importing this package registers them."""

from keras_tx_onnx.lowerings import activations, keras_tx, layers, operations

__all__ = ["activations", "keras_tx", "layers", "operations"]

"""The lowerings, a file for each kind of layer. Importing this package fills the registry."""

from keras_tx_onnx.lowerings import attention, core, keras_tx_layers, norm, ops

__all__ = ["attention", "core", "keras_tx_layers", "norm", "ops"]

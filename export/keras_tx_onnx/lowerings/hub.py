"""The lowerings of keras-hub's layers, which load keras-hub."""

from keras_tx_onnx.lowerings import keras_hub, keras_hub_blocks, keras_hub_rotary

__all__ = ["keras_hub", "keras_hub_blocks", "keras_hub_rotary"]

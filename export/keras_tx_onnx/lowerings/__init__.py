"""Lowerings of layers and operations to ONNX nodes. Importing this package registers them."""

from keras_tx_onnx.lowerings import (
    activations,
    disentangled_attention,
    keras_tx,
    layers,
    operations,
    relative_positions,
)

__all__ = [
    "activations",
    "disentangled_attention",
    "keras_tx",
    "layers",
    "operations",
    "relative_positions",
]

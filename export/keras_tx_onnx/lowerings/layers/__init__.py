"""Lowerings of Keras layers."""

from keras_tx_onnx.lowerings.layers import (
    attention,
    convolution,
    dense,
    merging,
    normalization,
    pooling,
    preprocessing,
    recurrent,
    recurrent_cells,
    reshaping,
    sequences,
    wrappers,
)

__all__ = [
    "attention",
    "convolution",
    "dense",
    "merging",
    "normalization",
    "pooling",
    "preprocessing",
    "recurrent",
    "recurrent_cells",
    "reshaping",
    "sequences",
    "wrappers",
]

"""Lowerings of Keras layers."""

from keras_tx_onnx.lowerings.layers import (
    adaptive_pooling,
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
    "adaptive_pooling",
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

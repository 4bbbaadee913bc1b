"""Lowerings of keras.ops."""

from keras_tx_onnx.lowerings.operations import (
    arithmetic,
    attention,
    comparison,
    control_flow,
    convolution,
    creation,
    elementwise,
    fourier,
    image,
    indexing,
    normalization,
    numpy_functions,
    products,
    reductions,
    shapes,
)

__all__ = [
    "arithmetic",
    "attention",
    "comparison",
    "control_flow",
    "convolution",
    "creation",
    "elementwise",
    "fourier",
    "image",
    "indexing",
    "normalization",
    "numpy_functions",
    "products",
    "reductions",
    "shapes",
]

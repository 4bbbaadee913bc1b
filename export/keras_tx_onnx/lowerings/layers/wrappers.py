"""Layers around a function, a layer or several, which are opened."""

from __future__ import annotations

from keras import layers

from keras_tx_onnx.reading.registry import opens

opens(layers.Lambda, example=lambda x: layers.Lambda(lambda y: 2 * y)(x), shape=(None, 4), nodes="Mul")
opens(
    layers.SpectralNormalization,
    example=lambda x: layers.SpectralNormalization(layers.Dense(3))(x),
    shape=(None, 4),
    nodes="MatMul Add",
)
opens(
    layers.Pipeline,
    example=lambda x: layers.Pipeline([layers.Rescaling(0.5), layers.ReLU()])(x),
    shape=(5, 6, 3),
    nodes="Mul Add Relu",
)

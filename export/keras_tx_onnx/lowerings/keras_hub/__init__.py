"""Lowerings of keras-hub's layers. Importing this package imports keras-hub."""

from keras_tx_onnx.lowerings.keras_hub import (
    cached_attention,
    images,
    layers,
    rotary_attention,
    transformer_blocks,
)

__all__ = ["cached_attention", "images", "layers", "rotary_attention", "transformer_blocks"]

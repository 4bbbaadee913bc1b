"""The public layers. Each is a Keras layer, serializable, and lowers to ONNX."""

from keras_tx.layers.attention import MultiHeadAttention
from keras_tx.layers.bias import Bias
from keras_tx.layers.class_token import ClassToken
from keras_tx.layers.feed_forward import FeedForward
from keras_tx.layers.patch_embedding import PatchEmbedding
from keras_tx.layers.positional_embedding import PositionalEmbedding
from keras_tx.layers.relative_position_bias import RelativePositionBias
from keras_tx.layers.token_embedding import TokenEmbedding
from keras_tx.layers.transformer_block import TransformerBlock

__all__ = [
    "Bias",
    "ClassToken",
    "FeedForward",
    "MultiHeadAttention",
    "PatchEmbedding",
    "PositionalEmbedding",
    "RelativePositionBias",
    "TokenEmbedding",
    "TransformerBlock",
]

"""The way between our models and other people's checkpoints and configs."""

from keras_tx.weights.saving import save_checkpoint
from keras_tx.weights.starting import from_checkpoint
from keras_tx.weights.to_hub import to_keras_hub

__all__ = ["from_checkpoint", "save_checkpoint", "to_keras_hub"]

"""The families: a config dataclass, a table of variants and a functional factory each."""

from keras_tx.models.transformer_model import TransformerModel
from keras_tx.models.vit import ViT, ViTConfig, vit

__all__ = ["TransformerModel", "ViT", "ViTConfig", "vit"]

"""The families: a config dataclass, a table of variants and a functional factory each."""

from keras_tx.models.bert.model import Bert, BertConfig, bert
from keras_tx.models.gpt.model import GPT, GPTConfig, gpt
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.models.vit.model import ViT, ViTConfig, vit

__all__ = [
    "GPT",
    "Bert",
    "BertConfig",
    "GPTConfig",
    "TransformerModel",
    "ViT",
    "ViTConfig",
    "bert",
    "gpt",
    "vit",
]

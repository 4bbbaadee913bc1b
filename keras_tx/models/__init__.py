"""The families: a config dataclass, a table of variants and a functional factory each."""

from keras_tx.models.bert import Bert, BertConfig, bert
from keras_tx.models.gpt import GPT, GPTConfig, gpt
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.models.vit import ViT, ViTConfig, vit

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

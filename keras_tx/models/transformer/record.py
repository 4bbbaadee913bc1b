"""The record of the Transformer family."""

from keras_tx.models.families import Family, HuggingFace
from keras_tx.models.transformer.model import VARIANTS, Transformer, transformer


def _huggingface() -> HuggingFace:
    from keras_tx.models.transformer.huggingface import CONVERTER

    return CONVERTER


RECORD = Family(
    name="transformer",
    title="Transformer",
    model_class=Transformer,
    factory=transformer,
    variants=tuple(VARIANTS),
    interface="encoder-decoder",
    huggingface=_huggingface,
)

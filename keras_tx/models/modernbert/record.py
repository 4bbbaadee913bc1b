"""The record of the ModernBERT family."""

from keras_tx.models.families import Family, HuggingFace
from keras_tx.models.modernbert.model import VARIANTS, ModernBert, modernbert


def _huggingface() -> HuggingFace:
    from keras_tx.models.modernbert.huggingface import CONVERTER

    return CONVERTER


RECORD = Family(
    name="modernbert",
    title="ModernBERT",
    model_class=ModernBert,
    factory=modernbert,
    variants=tuple(VARIANTS),
    interface="encoder",
    huggingface=_huggingface,
)

"""The record of the DeBERTa family."""

from keras_tx.models.deberta.model import VARIANTS, Deberta, deberta
from keras_tx.models.families import Family, HuggingFace


def _huggingface() -> HuggingFace:
    from keras_tx.models.deberta.huggingface import CONVERTER

    return CONVERTER


RECORD = Family(
    name="deberta",
    title="DeBERTa",
    model_class=Deberta,
    factory=deberta,
    variants=tuple(VARIANTS),
    interface="encoder",
    huggingface=_huggingface,
)

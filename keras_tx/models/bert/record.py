"""The record of the BERT family."""

from keras_tx.models.bert.model import ALIASES, VARIANTS, Bert, bert
from keras_tx.models.families import Family, HuggingFace, KerasHub


def _huggingface() -> HuggingFace:
    from keras_tx.models.bert.huggingface import CONVERTER

    return CONVERTER


def _keras_hub() -> KerasHub:
    from keras_tx.models.bert.keras_hub import CONVERTER

    return CONVERTER


RECORD = Family(
    name="bert",
    title="BERT",
    model_class=Bert,
    factory=bert,
    variants=(*VARIANTS, *ALIASES),
    interface="encoder",
    huggingface=_huggingface,
    keras_hub=_keras_hub,
)

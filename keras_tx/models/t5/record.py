"""The record of the T5 family."""

from keras_tx.models.families import Family, HuggingFace, KerasHub
from keras_tx.models.t5.model import T5, VARIANTS, t5


def _huggingface() -> HuggingFace:
    from keras_tx.models.t5.huggingface import CONVERTER

    return CONVERTER


def _keras_hub() -> KerasHub:
    from keras_tx.models.t5.keras_hub import CONVERTER

    return CONVERTER


RECORD = Family(
    name="t5",
    title="T5",
    model_class=T5,
    factory=t5,
    variants=tuple(VARIANTS),
    interface="encoder-decoder",
    huggingface=_huggingface,
    keras_hub=_keras_hub,
)

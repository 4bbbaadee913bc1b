"""The record of the GPT family."""

from keras_tx.models.families import Family, HuggingFace, KerasHub
from keras_tx.models.gpt.model import GPT, VARIANTS, gpt


def _huggingface() -> HuggingFace:
    from keras_tx.models.gpt.huggingface import CONVERTER

    return CONVERTER


def _keras_hub() -> KerasHub:
    from keras_tx.models.gpt.keras_hub import CONVERTER

    return CONVERTER


RECORD = Family(
    name="gpt",
    title="GPT",
    model_class=GPT,
    factory=gpt,
    variants=tuple(VARIANTS),
    interface="decoder",
    huggingface=_huggingface,
    keras_hub=_keras_hub,
)

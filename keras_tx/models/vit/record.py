"""The record of the ViT family."""

from keras_tx.models.families import Family, HuggingFace, KerasHub
from keras_tx.models.vit.model import ALIASES, VARIANTS, ViT, vit


def _huggingface() -> HuggingFace:
    from keras_tx.models.vit.huggingface import CONVERTER

    return CONVERTER


def _keras_hub() -> KerasHub:
    from keras_tx.models.vit.keras_hub import CONVERTER

    return CONVERTER


RECORD = Family(
    name="vit",
    title="ViT",
    model_class=ViT,
    factory=vit,
    variants=(*VARIANTS, *ALIASES),
    interface="vision",
    huggingface=_huggingface,
    keras_hub=_keras_hub,
)

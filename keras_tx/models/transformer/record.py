"""The record of the Transformer family."""

from keras_tx.models.families import Family
from keras_tx.models.transformer.model import VARIANTS, Transformer, transformer

RECORD = Family(
    name="transformer",
    title="Transformer",
    model_class=Transformer,
    factory=transformer,
    variants=tuple(VARIANTS),
    interface="encoder-decoder",
)

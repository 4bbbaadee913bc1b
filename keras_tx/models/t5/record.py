"""The record of the T5 family."""

from keras_tx.models.families import Family
from keras_tx.models.t5.model import T5, VARIANTS, t5

RECORD = Family(
    name="t5",
    title="T5",
    model_class=T5,
    factory=t5,
    variants=tuple(VARIANTS),
    interface="encoder-decoder",
)

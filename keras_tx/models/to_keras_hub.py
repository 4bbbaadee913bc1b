"""The way back to keras-hub."""

from __future__ import annotations

from typing import Any

from keras_tx.errors import ConfigError
from keras_tx.models.bert import keras_hub as keras_hub_bert
from keras_tx.models.bert.model import Bert
from keras_tx.models.gpt import keras_hub as keras_hub_gpt
from keras_tx.models.gpt.model import GPT
from keras_tx.models.vit import keras_hub as keras_hub_vit
from keras_tx.models.vit.model import ViT
from keras_tx.weights.weight_values import check_finite

WRITERS: dict[type, Any] = {ViT: keras_hub_vit, Bert: keras_hub_bert, GPT: keras_hub_gpt}


def to_keras_hub(model: Any) -> Any:
    """A keras-hub backbone or task with the weights of a model, and equal outputs.

    What keras-hub's classes cannot have is refused with the reasons; `save_to_preset` of the result makes a
    preset.

    >>> import keras_tx
    >>> type(keras_tx.to_keras_hub(keras_tx.gpt("pico"))).__name__
    'GPT2CausalLM'
    """
    for family, writer in WRITERS.items():
        if isinstance(model, family):
            check_finite(model, "Use the model as it was before its training diverged.")
            return writer.to_keras_hub(model)
    raise ConfigError(
        f"model is a {type(model).__name__}, expected what keras_tx.vit, bert or gpt gives: other models "
        "have no counterpart in keras-hub."
    )

"""Where weights come from: what model they make, and how it takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_tx.errors import ConfigError
from keras_tx.heads import Head
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.weights.assignment import Filled, fill
from keras_tx.weights.config_json import Fields
from keras_tx.weights.tensor_map import Plan
from keras_tx.weights.tensor_source import Tensors


@dataclasses.dataclass(frozen=True)
class WeightSource:
    """A checkpoint, understood.

    Args:
        where: what messages call it.
        family: ViT, Bert or GPT.
        fields: of its config, all that the checkpoint says; None where it says nothing but its tensors.
        head: the checkpoint's own; None for a body alone; an error where we have none like it, which is
            raised unless another head is asked for.
        processing: the checkpoint's tokenizer or image transform, None where it has none.
        tensors: the checkpoint's.
        plan: which of them hold what, for a model of this config, with this head or another. The model may
            have variables without values: only their paths and shapes are asked for.
        config: the config.json that the fields were read from, if any.
        adapted: the config, for a head and what was overridden, where the head decides on a part of the body.
    """

    where: str
    family: type[TransformerModel]
    fields: dict[str, Any] | None
    head: Head | ConfigError | None
    processing: Any
    tensors: Tensors
    plan: Callable[[TransformerModel], Plan]
    config: Fields | None = None
    adapted: Callable[[Any, Head | None, dict[str, Any]], Any] | None = None

    def fill(self, model: TransformerModel) -> Filled:
        """Gives the model the weights."""
        return fill(model, self.plan(model), self.tensors)

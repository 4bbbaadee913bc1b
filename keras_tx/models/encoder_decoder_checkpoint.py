"""Describes checkpoints of encoder-decoders: their weights, tokenizer and options of generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keras_tx.errors import ConfigError
from keras_tx.heads import Head
from keras_tx.models.checkpoint_tokenizer import read_tokenizer
from keras_tx.models.families import WeightSource
from keras_tx.models.generation_defaults import (
    read_generation_defaults,
    read_stop_ids,
    read_task_options,
)
from keras_tx.weights.config_json import Fields
from keras_tx.weights.tensor_map import Plan
from keras_tx.weights.tensor_source import Tensors

if TYPE_CHECKING:
    from keras_tx.models.encoder_decoder_model import EncoderDecoderModel


def source_of(
    tensors: Tensors,
    config: Fields,
    model_class: type[EncoderDecoderModel],
    fields: dict[str, Any],
    head: Head | ConfigError | None,
    plan: Callable[[Any], Plan],
) -> WeightSource:
    """Describes a checkpoint of an encoder-decoder of these tensors and fields, with those of generation."""
    processing = read_tokenizer(config.folder)
    fields["stop_ids"] = read_stop_ids(config, processing, fields["vocabulary_size"])
    if head is not None:
        fields["generation"] = read_generation_defaults(config)
        fields["task_options"] = read_task_options(config)
    config.refuse("quantization_config", None)
    return WeightSource(tensors.where, model_class, fields, head, processing, tensors, plan, config)

"""Which inputs, outputs and files a model has: a decoder's, an encoder's, an image model's, or its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.models.vit.model import ViT
from keras_tx_onnx.interfaces.base import Interface, interface_of
from keras_tx_onnx.interfaces.decoder import decoder_of
from keras_tx_onnx.interfaces.encoder import encoder_of
from keras_tx_onnx.interfaces.image_classifier import classifier_of
from keras_tx_onnx.interfaces.text_classifier import is_text_classifier, text_classifier_of
from keras_tx_onnx.reading.signature import Functional


def choose_interface(
    functional: Functional,
    labels: Sequence[str] | None,
    tokenizer: Any,
    image: Any,
    raw_pixels: bool,
    cache: bool | str | None,
    unpad: bool,
    task: str | None = None,
) -> Interface:
    """The contract's interface for our families and for classifiers, the model's own for any other."""
    of_text = is_text_classifier(functional.model)
    default = contract.TEXT_CLASSIFICATION if of_text else contract.IMAGE_CLASSIFICATION
    known = getattr(functional.model, "task", default)
    if task not in (None, known):
        raise ConfigError(
            f"task={task!r}: expected {known!r} for model {functional.model.name!r}. Leave it out, or "
            "correct it."
        )
    others = {"image": image, "raw_pixels": raw_pixels or None}
    found = decoder_of(functional, cache, tokenizer, {"labels": labels, **others})
    found = found or encoder_of(functional, labels, tokenizer, unpad, others)
    if found is None and tokenizer is not None:
        raise ConfigError(
            f"tokenizer was given, but {functional.model.name!r} is a {type(functional.model).__name__}, no "
            "text model of keras_tx. Leave it out."
        )
    classifies = task is not None or labels is not None or image is not None or raw_pixels
    if found is None and classifies and not isinstance(functional.model, ViT):
        if of_text:
            return text_classifier_of(functional, labels, others)
        return classifier_of(functional, labels, image, raw_pixels)
    return found or interface_of(functional, labels, image, raw_pixels)

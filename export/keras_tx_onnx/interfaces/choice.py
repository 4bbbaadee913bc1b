"""The interface of a model: that of its family, of a classifier, or a generic one."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Collection, Mapping
from typing import Any

from keras_tx.errors import ConfigError
from keras_tx.heads import CausalLMHead
from keras_tx.models.families import Family, family_of
from keras_tx_onnx.interfaces.base import Interface
from keras_tx_onnx.interfaces.decoder import DecoderInterface
from keras_tx_onnx.interfaces.encoder import EncoderInterface
from keras_tx_onnx.interfaces.encoder_decoder import EncoderDecoderInterface
from keras_tx_onnx.interfaces.generic import GenericInterface
from keras_tx_onnx.interfaces.image_classifier import ImageClassifierInterface
from keras_tx_onnx.interfaces.keras_hub_tasks import KERAS_HUB_TASKS, task_interface
from keras_tx_onnx.interfaces.keras_hub_texts import has_tokenizer
from keras_tx_onnx.interfaces.language_model import (
    LanguageModelInterface,
    is_causal_lm,
    unsupported,
)
from keras_tx_onnx.interfaces.text_classifier import TextClassifierInterface
from keras_tx_onnx.interfaces.vision import VisionInterface
from keras_tx_onnx.reading.signature import Functional

FAMILIES: dict[str, type[Interface]] = {  # by the field `interface` of a family's record
    "vision": VisionInterface,
    "encoder": EncoderInterface,
    "decoder": DecoderInterface,
    "encoder-decoder": EncoderDecoderInterface,
}
INTERFACES = (
    *FAMILIES.values(),
    LanguageModelInterface,
    *KERAS_HUB_TASKS.values(),
    GenericInterface,
)
CLASSIFYING = ("labels", "image", "raw_pixels")  # options that export any model as a classifier


def defaults() -> dict[str, Any]:
    """The options of all interfaces, with their default values."""
    fields = [field for kind in INTERFACES for field in dataclasses.fields(kind.Options)]
    return {"task": None, **{field.name: field.default for field in fields}}


def choose_interface(
    functional: Functional, options: Mapping[str, Any], opset: int, unpad: bool = True
) -> Interface:
    """The interface of a model, with these options of export_onnx.

    `unpad` is the default of this option for an interface that has it. Without options, a task of keras-hub
    whose preprocessing cannot be reproduced is a generic model.

    Raises a ConfigError for an option that differs from its default and that the interface does not have.
    """
    model = functional.model
    default = defaults()
    passed = {name: value for name, value in options.items() if value is not default[name]}
    task = passed.pop("task", None)
    kind = _kind(model, task, passed)
    if kind is GenericInterface and passed.get("cache") is False:
        del passed["cache"]  # it has none
    names = [field.name for field in dataclasses.fields(kind.Options)]
    if task is not None and "task" in names:
        passed["task"] = task
    _check_options(model, kind, passed, names)
    requested = task is not None or bool(passed)
    if "unpad" in names:
        passed.setdefault("unpad", unpad)
    if requested or kind not in KERAS_HUB_TASKS.values():
        interface = kind(functional, kind.Options(**passed), opset)
    else:
        interface = _with_preprocessing(kind, functional, opset)
    if kind is GenericInterface and is_causal_lm(model):
        reason = "cache=False" if options.get("cache") is False else unsupported(model)
        interface.notes.append(f"The graph has no cache and does not support text generation: {reason}.")
    return interface


def _with_preprocessing(kind: type[Interface], functional: Functional, opset: int) -> Interface:
    """The interface of a task of keras-hub; a generic one if its preprocessing cannot be reproduced."""
    try:
        return kind(functional, kind.Options(), opset)
    except ConfigError as error:
        generic = GenericInterface(functional, GenericInterface.Options(), opset)
        generic.notes.append(f"The folder has no preprocessing. {error}")
        return generic


def _check_options(
    model: Any, kind: type[Interface], passed: Mapping[str, Any], names: Collection[str]
) -> None:
    for name, value in passed.items():
        if name not in names:
            known = f"The options of {kind.kind} are {', '.join(sorted(names))}." if names else "Omit it."
            raise ConfigError(
                f"{name}={reprlib.repr(value)} is not supported: model {model.name!r} "
                f"({type(model).__name__}) is exported as {kind.kind}. {known}"
            )


def _family_interface(family: Family, model: Any) -> str:
    """The interface of a family's model: a decoder with a head that generates no text is an encoder."""
    if family.interface == "decoder" and model.head is not None and not isinstance(model.head, CausalLMHead):
        return "encoder"
    return family.interface


def _task_interface(model: Any) -> type[Interface]:
    """The interface of a model of no family of keras_tx, with a task."""
    if is_causal_lm(model):
        return LanguageModelInterface
    classifier = TextClassifierInterface if has_tokenizer(model) else ImageClassifierInterface
    return task_interface(model) or classifier


def _kind(model: Any, task: str | None, passed: Mapping[str, Any]) -> type[Interface]:
    family = family_of(model)
    kind = _task_interface(model) if family is None else FAMILIES[_family_interface(family, model)]
    expected = kind.tasks or (kind.task if family is None else model.task,)
    if task not in (None, *expected):
        raise ConfigError(
            f"task={task!r} is not supported for model {model.name!r}. Pass "
            f"{' or '.join(map(repr, expected))}, or omit it."
        )
    if family is not None:
        return kind
    generic = task is None and not any(name in passed for name in CLASSIFYING)
    generic = generic and task_interface(model) is None
    if kind is LanguageModelInterface:
        generic = generic and not _has_cache(model, passed)
    return GenericInterface if generic else kind


def _has_cache(model: Any, passed: Mapping[str, Any]) -> bool:
    cache = passed.get("cache")
    return unsupported(model) is None if cache is None else bool(cache)

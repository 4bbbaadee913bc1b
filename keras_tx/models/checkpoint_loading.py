"""Loads models with the weights of a checkpoint: `from_checkpoint`, and `weights=` of the factories."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping
from typing import Any

from keras_tx.errors import ConfigError, user_stacklevel
from keras_tx.models.class_names import (
    has_other_classes,
    listed,
    named_head,
    order_of_rows,
    reorder_classes,
)
from keras_tx.models.config import make_config
from keras_tx.models.families import WeightSource, factories
from keras_tx.models.source_lookup import open_source
from keras_tx.models.tokenizer_checks import check_tokenizer
from keras_tx.models.transformer_model import AUTO, TransformerModel
from keras_tx.processing import ImageTransform
from keras_tx.weights.assignment import SHOWN, Match, fill, match_tensors
from keras_tx.weights.tensor_map import HEAD, Plan
from keras_tx.weights.weightless import build_weightless, initialize

RESIZED = {"image_size", "max_length"}  # fields that change the shape of the positions


def from_checkpoint(
    source: Any,
    *,
    head: Any = AUTO,
    processing: Any = None,
    name: str | None = None,
    dtype: Any = None,
    **overrides: Any,
) -> Any:
    """Loads a model with the family, size, head and weights of a checkpoint.

    Args:
        source: a Hugging Face folder (config.json and safetensors, or tf_model.h5), "hf://owner/name", a
            keras-hub preset or a live keras-hub model, a .keras file or a live keras_tx model.
        head: "auto" for the checkpoint's head, None for a model without a head, or another head. Weights of a
            head that the checkpoint does not have are new, and a warning names them. If both heads have class
            names, the weights are loaded by name: in another order, or not at all for other names. A head
            without names gets those of the checkpoint.
        processing: replaces the checkpoint's tokenizer or image transform.
        name: the name of the model.
        dtype: a dtype policy ("mixed_bfloat16"); by default Keras's global one.
        overrides: fields of the config that do not change the weights: `dropout=0.0`, `image_size=384`.

    Returns:
        A model of the family, such as a ViT.

    Raises:
        ConfigError: for an unknown source or model_type, an unsupported field of its config, or weights that
            do not fit the config.

    Example:

    >>> import keras_tx, tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = keras_tx.save_checkpoint(keras_tx.gpt("pico"), place + "/small")
    ...     keras_tx.from_checkpoint(folder, dropout=0.0).config.depth
    2
    >>> model = keras_tx.from_checkpoint("hf://owner/name", head=None)  # doctest: +SKIP
    """
    weights = open_source(source)
    if weights.fields is None:
        raise ConfigError(
            f"{weights.where} contains tensors but no config, so its model is unknown. Pass it as weights= "
            f"to {factories()}, with the variant of the model."
        )
    options = {"head": head, "processing": processing, "name": name, "dtype": dtype}
    return _model(weights, _config(weights, overrides), overrides, **options)


def load_variant(
    model_class: type[TransformerModel],
    variant: str,
    source: Any,
    *,
    overrides: dict[str, Any],
    **options: Any,
) -> Any:
    """Loads the model of a source whose sizes are those of the variant, for `weights=` of a factory."""
    config_class: Any = model_class.config_class
    expected = config_class.variant(variant)
    weights = open_source(source, model_class)
    if weights.model_class is not model_class:
        raise ConfigError(
            f"weights={weights.where} contains a {weights.model_class.__name__}, expected a "
            f"{model_class.__name__}. Call its factory, or keras_tx.from_checkpoint."
        )
    if weights.fields is None:
        return _model(weights, config_class.variant(variant, **overrides), overrides, **options)
    sizes = {
        field.name: getattr(expected, field.name)
        for field in dataclasses.fields(expected)
        if getattr(expected, field.name) != field.default
        and field.name not in (*config_class.FREE, *overrides)
    }
    other = {key: weights.fields[key] for key in sizes if weights.fields.get(key, sizes[key]) != sizes[key]}
    if other:
        of_variant = ", ".join(f"{key}={sizes[key]!r}" for key in other)
        actual = ", ".join(f"{key}={value!r}" for key, value in other.items())
        raise ConfigError(
            f"variant={variant!r} has {of_variant}, but {weights.where} has {actual}. Pass the variant of "
            "the checkpoint, or call keras_tx.from_checkpoint."
        )
    return _model(weights, _config(weights, overrides), overrides, **options)


def _config(weights: WeightSource, overrides: dict[str, Any]) -> Any:
    """Returns the checkpoint's config with the overrides, which must not change the weights."""
    assert weights.fields is not None
    config_class: Any = weights.model_class.config_class
    own = make_config(config_class, weights.fields, weights.config)
    config = make_config(config_class, {**weights.fields, **overrides})
    for key in overrides:
        if key not in config_class.FREE and getattr(config, key) != getattr(own, key):
            raise ConfigError(
                f"{key}={overrides[key]!r} differs from {key}={getattr(own, key)!r}, with which "
                f"{weights.where} was trained. Omit it; only {', '.join(sorted(config_class.FREE))} may "
                "differ."
            )
    return config


def _model(
    weights: WeightSource,
    config: Any,
    overrides: dict[str, Any],
    *,
    head: Any,
    processing: Any,
    name: str | None,
    dtype: Any,
) -> TransformerModel:
    own_head = isinstance(head, str) and head == AUTO
    head = weights.head if own_head else head
    if isinstance(head, ConfigError):
        raise head
    if weights.adapted is not None:
        config = weights.adapted(config, head, overrides)
    processing = weights.processing if processing is None else processing
    check_tokenizer(processing, config, weights.processing)
    if isinstance(processing, ImageTransform):
        processing = dataclasses.replace(processing, size=getattr(config, "size", processing.size))
    options = {"head": head, "processing": processing, "name": name, "dtype": dtype}
    if weights.fields is not None:
        _check_claims(weights, config, head if own_head else None, overrides)
    # Shapes are compared before the weights are allocated.
    model = build_weightless(weights.model_class.assemble, config, **options)
    plan = weights.plan(model)
    match = match_tensors(model, plan, weights.tensors)
    plan, match, order = _rows_by_name(model, plan, match, weights)
    if own_head and match.head_lacks:
        lacks = "\n  ".join(match.head_lacks[:SHOWN])
        raise ConfigError(
            f"The tensors of {weights.where} are not those of its {type(head).__name__}:\n  {lacks}\nPass "
            "head=None for the model without a head, or the head to train."
        )
    if match.filled.resized and weights.fields is not None and not RESIZED & set(overrides):
        raise ConfigError(
            f"{weights.where}: the tensors of {', '.join(match.filled.resized)} have another size than its "
            "config says. Correct the config, or pass the size (image_size=, max_length=)."
        )
    fill(model, plan, weights.tensors)
    initialize(model)
    reorder_classes(model, order)
    return model


def _rows_by_name(
    model: TransformerModel, plan: Plan, match: Match, weights: WeightSource
) -> tuple[Plan, Match, list[int] | None]:
    """Compares the class names of a head with those of the checkpoint.

    Returns:
        The plan and the match, in which the head is new if its names are other ones, and the order of the
        rows.
    """
    stored: Any = weights.head
    if HEAD in match.filled.new_parts:
        return plan, match, None
    if not has_other_classes(stored, model.head):
        order = order_of_rows(stored, model.head, weights.where)
        model.head = named_head(model.head, getattr(stored, "labels", None))
        return plan, match, order
    warnings.warn(
        f"The head of {weights.where} has the classes {listed(stored.labels)}, but head= has "
        f"{listed(model.head.labels)}, so its weights are not loaded. To rename the classes, omit head= and "  # type: ignore
        "pass labels= to export_onnx or save_checkpoint.",
        stacklevel=user_stacklevel(),
    )
    plan = dataclasses.replace(plan, new=(HEAD,))
    return plan, match_tensors(model, plan, weights.tensors), None


def _check_claims(weights: WeightSource, config: Any, head: Any, overrides: dict[str, Any]) -> None:
    """Raises a ConfigError for sizes that the checkpoint's tensors cannot have, before they are allocated."""
    numbers, tensors = weights.tensors.numbers, len(weights.tensors.shapes)
    where, keys = (weights.config.where, weights.config.names) if weights.config else (weights.where, {})
    if config.depth > tensors:
        raise ConfigError(
            f"{where} has {keys.get('depth', 'depth')}={config.depth}, but the checkpoint has only {tensors} "
            "tensors. Correct the config, or download the checkpoint again."
        )
    for key, value in _sizes(config, head, keys, RESIZED & set(overrides)).items():
        if value > numbers:
            raise ConfigError(
                f"{where} has {key}={value}, but the checkpoint's tensors have only {numbers} numbers. "
                "Correct the config, or download the checkpoint again."
            )


def _sizes(config: Any, head: Any, keys: Mapping[str, str], resized: set[str]) -> dict[str, int]:
    """Returns the sizes of a config's model by their keys in the checkpoint's config."""

    def called(name: str) -> str:
        return keys.get(name, name)

    free = resized | ({"max_length"} if getattr(config, "positions", None) == "rotary" else set())
    sizes = {
        called(field.name): value
        for field in dataclasses.fields(config)
        if type(value := getattr(config, field.name)) is int and field.name not in free
    }
    for key in ("mlp_dim", "vocabulary_size", "num_heads"):  # each is an axis of a tensor
        if hasattr(config, key):
            sizes[f"{called('width')} x {called(key)}"] = config.width * getattr(config, key)
    if "image_size" not in free and hasattr(config, "grid"):
        sizes["(image_size / patch_size)^2"] = math.prod(config.grid)
    if dataclasses.is_dataclass(head) and not isinstance(head, type):
        sizes |= {called(f"head.{key}"): x for key, x in dataclasses.asdict(head).items() if type(x) is int}
    return sizes

"""Models that start from a checkpoint: `from_checkpoint`, and `weights=` of the families."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from keras_tx.errors import ConfigError
from keras_tx.models.config import make_config
from keras_tx.models.families import WeightSource
from keras_tx.models.source_lookup import open_source
from keras_tx.models.text_model import check_tokenizer
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.processing import ImageTransform
from keras_tx.weights.assignment import SHOWN, fill, match_tensors
from keras_tx.weights.weightless import build_weightless, initialize

ITS_OWN: Any = "its own"
RESIZED = {"image_size", "max_length"}  # fields by which positions may differ from the checkpoint's


def from_checkpoint(
    source: Any,
    *,
    head: Any = ITS_OWN,
    processing: Any = None,
    name: str | None = None,
    dtype: Any = None,
    **overrides: Any,
) -> Any:
    """A model of the family, size and head that a checkpoint says, with its weights.

    >>> import keras_tx, tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = keras_tx.save_checkpoint(keras_tx.gpt("pico"), place + "/small")
    ...     keras_tx.from_checkpoint(folder, dropout=0.0).config.depth
    2
    >>> model = keras_tx.from_checkpoint("hf://owner/name", head=None)  # doctest: +SKIP

    Args:
        source: a Hugging Face folder (config.json and safetensors), "hf://owner/name", a keras-hub preset or
            a live keras-hub model, a .keras file or a live model of our own.
        head: another head than the checkpoint's, or None for the body alone. A head that the checkpoint does
            not have is new, and a warning says so.
        processing: in place of the checkpoint's tokenizer or image transform.
        dtype: a dtype policy; by default Keras's global one.
        overrides: fields of the config that change nothing that was learned: `dropout=0.0`, `image_size=384`.
    """
    origin = open_source(source)
    if origin.fields is None:
        raise ConfigError(
            f"{origin.where} has tensors but no config, so it does not say which model it is. Give it as "
            "weights= to keras_tx.vit, bert or gpt, with the variant that it was made with."
        )
    config = _config(origin, overrides)
    return _model(origin, config, overrides, head, processing, name, dtype, callers=2)


def start(
    family: type[TransformerModel],
    variant: str,
    source: Any,
    *,
    head: Any,
    processing: Any,
    name: str | None,
    dtype: Any,
    overrides: dict[str, Any],
) -> Any:
    """What a family's factory does with `weights=`: a variant, by its sizes, filled from the source."""
    said = family.config_class.variant(variant)  # type: ignore[attr-defined]
    origin = open_source(source, family)
    if origin.model_class is not family:
        raise ConfigError(
            f"weights={origin.where} contains a {origin.model_class.__name__}, expected a {family.__name__}. "
            "Call its factory, or keras_tx.from_checkpoint."
        )
    if origin.fields is None:
        config = family.config_class.variant(variant, **overrides)  # type: ignore[attr-defined]
        return _model(origin, config, overrides, head, processing, name, dtype, callers=3)
    sizes = {
        field.name: getattr(said, field.name)
        for field in dataclasses.fields(said)
        if getattr(said, field.name) != field.default and field.name not in (*said.FREE, *overrides)
    }
    other = {key: origin.fields[key] for key in sizes if origin.fields.get(key, sizes[key]) != sizes[key]}
    if other:
        wanted = ", ".join(f"{key}={sizes[key]!r}" for key in other)
        has = ", ".join(f"{key}={value!r}" for key, value in other.items())
        raise ConfigError(
            f"The variant {variant!r} has {wanted}, but {origin.where} has {has}. Call the variant that "
            "fits, or keras_tx.from_checkpoint, which reads it from the config."
        )
    config = _config(origin, overrides)
    return _model(origin, config, overrides, head, processing, name, dtype, callers=3)


def _config(origin: WeightSource, overrides: dict[str, Any]) -> Any:
    """The checkpoint's config with the overrides, which may change nothing that was learned."""
    assert origin.fields is not None
    config_class: Any = origin.model_class.config_class
    own = make_config(config_class, origin.fields, origin.config)
    config = make_config(config_class, {**origin.fields, **overrides})
    for key in overrides:
        if key not in config_class.FREE and getattr(config, key) != getattr(own, key):
            raise ConfigError(
                f"{key}={overrides[key]!r} was given, but {origin.where} was trained with "
                f"{key}={getattr(own, key)!r}. Leave it out; what may differ is "
                f"{', '.join(sorted(config_class.FREE))}."
            )
    return config


def _model(
    origin: WeightSource,
    config: Any,
    overrides: dict[str, Any],
    head: Any,
    processing: Any,
    name: str | None,
    dtype: Any,
    callers: int,
) -> TransformerModel:
    """`callers` is how many functions of ours the user's call is away, for the line that a warning names."""
    own_head = head is ITS_OWN
    head = origin.head if own_head else head
    if isinstance(head, ConfigError):
        raise head
    if origin.adapted is not None:
        config = origin.adapted(config, head, overrides)
    processing = origin.processing if processing is None else processing
    check_tokenizer(processing, config, origin.processing, stacklevel=callers + 1)
    if isinstance(processing, ImageTransform) and processing.size != config.size:
        processing = dataclasses.replace(processing, size=config.size)
    options = {"head": head, "processing": processing, "name": name, "dtype": dtype}
    if origin.fields is not None:
        _check_claims(origin, config, head if own_head else None, overrides)
    # All that may be wrong is found on shapes alone, before there is memory for the weights.
    model = build_weightless(origin.model_class.assemble, config, **options)
    plan = origin.plan(model)
    account = match_tensors(model, plan, origin.tensors)
    filled = account.filled
    if own_head and account.head_lacks:
        lacks = "\n  ".join(account.head_lacks[:SHOWN])
        raise ConfigError(
            f"{origin.where} says that it has a {type(head).__name__}, but its tensors are not those of one:"
            f"\n  {lacks}\nPass head=None for the body alone, or the head that is to be trained."
        )
    if filled.resized and origin.fields is not None and not RESIZED & set(overrides):
        raise ConfigError(
            f"{origin.where}: the tensors of {', '.join(filled.resized)} have another size than its config "
            "says. Correct the config, or say which size is meant (image_size=, max_length=)."
        )
    fill(model, plan, origin.tensors, stacklevel=callers + 1)
    initialize(model)
    return model


def _check_claims(origin: WeightSource, config: Any, head: Any, overrides: dict[str, Any]) -> None:
    """Sizes that the checkpoint's tensors cannot have are refused before anything is made of them."""
    there, names = origin.tensors.numbers, len(origin.tensors.shapes)
    where, keys = (origin.config.where, origin.config.names) if origin.config else (origin.where, {})

    def called(name: str) -> str:
        return keys.get(name, name)

    free = RESIZED & set(overrides)
    if getattr(config, "positions", None) == "rotary":
        free |= {"max_length"}  # has no table
    claims = {
        called(field.name): value
        for field in dataclasses.fields(config)
        if type(value := getattr(config, field.name)) is int and field.name not in free
    }
    # A model has a table of each of these sizes.
    claims |= {
        f"{called('width')} x {called(key)}": config.width * getattr(config, key)
        for key in ("mlp_dim", "vocabulary_size")
        if hasattr(config, key)
    }
    claims[f"{called('width')} x {called('num_heads')}"] = config.width * config.num_heads
    if "image_size" not in free and hasattr(config, "grid"):
        claims["(image_size / patch_size)^2"] = math.prod(config.grid)
    if dataclasses.is_dataclass(head) and not isinstance(head, type):
        claims |= {called(f"head.{key}"): x for key, x in dataclasses.asdict(head).items() if type(x) is int}
    if config.depth > names:
        raise ConfigError(
            f"{where} has {called('depth')}={config.depth}, but the checkpoint has only {names} tensors. "
            "Correct the config, or download the checkpoint again."
        )
    for key, value in claims.items():
        if value > there:
            raise ConfigError(
                f"{where} has {key}={value}, but the checkpoint's tensors have only {there} numbers. "
                "Correct the config, or download the checkpoint again."
            )

"""`lora`: adds adapters to a model and freezes the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from keras_tx.errors import ConfigError
from keras_tx.layers.low_rank import LowRank, add_adapter, check_adaptable
from keras_tx.models.adapters.layer_selection import (
    adaptable_layers,
    adapted_layers,
    layers_of,
    select_targets,
    select_whole,
)

TRAINED_WHOLE = "trained_with_adapter"  # attribute of the layers that are saved with the adapters


def lora(
    model: Any,
    rank: int = 8,
    *,
    alpha: float | None = None,
    targets: str | Sequence[str] = "attention",
    dropout: float = 0.0,
    rank_stabilized: bool = False,
    dora: bool = False,
    train_also: str | Sequence[str] = "head",
) -> Any:
    """Adds low-rank adapters (LoRA) to layers of a model, in place, and freezes all other weights.

    The outputs are unchanged until the adapters are trained. The model must be compiled afterwards. A base
    that Keras quantized to int8 or int4 (`model.quantize`) stays quantized.

    Args:
        model: a model of keras_tx, or any built Keras model.
        rank: rank of the matrices.
        alpha: an adapter is multiplied by alpha / rank; by default 2 * rank.
        targets: "attention", the dense layers inside attention; "dense", all Dense and EinsumDense layers
            below the head; a list of names, which select the layers whose paths contain one of them, such as
            ["query", "value"] or ["block_11"]; or a regular expression that matches whole paths, such as
            r"block_\\d+/feed_forward/.*".
        dropout: rate of dropout on the input of the adapters.
        rank_stabilized: whether the factor is alpha / sqrt(rank) (rsLoRA).
        dora: whether a magnitude is learned for each output (DoRA); for Dense layers.
        train_also: names of layers that are fully trained and saved with the adapters. "head" is the head of
            a model of keras_tx with its pooler, unless it is a language model; in other models, the layers
            that compute the outputs. () for none.

    Returns:
        The model.

    Raises:
        ConfigError: an argument is out of range, a name selects no layer, or a selected layer cannot have an
            adapter. The model is unchanged.

    Example:

    >>> import keras_tx
    >>> model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    >>> model = keras_tx.lora(model, rank=2)
    >>> len(model.trainable_variables)  # two matrices for 4 layers, and kernel and bias of the head
    10
    """
    check_model(model)
    if adapted_layers(model):
        raise ConfigError(
            f"Model {model.name!r} has adapters already. Add them to a model without adapters, such as "
            "keras_tx.from_checkpoint(model), which has them merged."
        )
    options = LowRank(rank, 2.0 * rank if alpha is None else alpha, dropout, rank_stabilized, dora)
    whole = select_whole(model, train_also)
    adapt(model, dict.fromkeys(select_targets(model, targets, whole), options), whole)
    return model


def check_model(model: Any) -> None:
    """Raises a ConfigError unless the model is a built Keras model."""
    if not isinstance(model, keras.Model):
        raise ConfigError(f"model is a {type(model).__name__}, expected a Keras model.")
    if not model.built:
        raise ConfigError(f"Model {model.name!r} is not built. Call it on a batch first.")


def adapt(model: keras.Model, adapters: Mapping[str, LowRank], whole: Iterable[Any]) -> None:
    """Adds adapters to the layers with these paths, and freezes the others except those in `whole`."""
    layers = adaptable_layers(model)
    for path, options in adapters.items():
        check_adaptable(layers[path], options)
    model.trainable = True
    for path, options in adapters.items():
        add_adapter(layers[path], options)
    whole = list(whole)
    for layer in whole:
        setattr(layer, TRAINED_WHOLE, True)
    _freeze(model, [*(layers[path] for path in adapters), *whole])
    forget_compilation(model)


def _freeze(model: keras.Model, trained: Sequence[Any]) -> None:
    """Freezes every weight outside the trained layers."""
    inside = {id(part) for layer in trained for part in layer._flatten_layers()}
    for layer in layers_of(model):
        if id(layer) in inside:
            continue
        if inside.isdisjoint(id(part) for part in layer._flatten_layers()):
            layer.trainable = False
        else:
            for variable in layer._trainable_variables:
                variable.trainable = False
    for variable in model._trainable_variables:
        variable.trainable = False


def forget_compilation(model: Any) -> None:
    """Requires `compile` again, because the optimizer has the previous variables."""
    model.compiled = False
    model.optimizer = None
    model.train_function = model.test_function = model.predict_function = None


def trained_whole(model: keras.Model) -> list[Any]:
    """Returns the layers without an adapter that are trained and saved with the adapters."""
    marked = [layer for layer in layers_of(model) if getattr(layer, TRAINED_WHOLE, False)]
    inside = {id(part) for layer in marked for part in layer._flatten_layers()}
    adapted = {id(layer) for layer in adapted_layers(model).values()}
    own = [
        layer
        for layer in layers_of(model)
        if id(layer) not in inside | adapted and any(x.trainable for x in layer._trainable_variables)
    ]
    return [*marked, *own]


def adapters_config(model: keras.Model) -> dict[str, Any]:
    """Returns the adapters of a model as a part of its config; empty without adapters."""
    layers = adapted_layers(model)
    if not layers:
        return {}
    return {
        "layers": {path: dataclasses.asdict(layer.adapter) for path, layer in layers.items()},
        "whole": [layer.path for layer in trained_whole(model)],
    }


def adapt_from_config(model: Any, config: Mapping[str, Any]) -> None:
    """Adds the adapters of `adapters_config`."""
    adapters = {path: LowRank(**options) for path, options in config["layers"].items()}
    adapt(model, adapters, select_whole(model, config["whole"]))

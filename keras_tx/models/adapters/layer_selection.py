"""The layers of a Keras model that an adapter can be added to, and their selection by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from keras_tx.errors import ConfigError, nearest
from keras_tx.heads import CausalLMHead, MaskedLMHead, PretrainingHead, Seq2SeqLMHead
from keras_tx.layers.low_rank import LOW_RANK, PLAIN

GROUPS = ("attention", "dense")
HEAD = "head"
LANGUAGE_HEADS = (CausalLMHead, MaskedLMHead, PretrainingHead, Seq2SeqLMHead)
POOLER = "pooler"  # a layer of the families that is often new, as the head is


def layers_of(model: keras.Model) -> list[Any]:
    """Returns all layers inside a model, nested ones included, each once."""
    unique = {id(layer): layer for layer in model._flatten_layers(include_self=False)}
    return list(unique.values())


def adapted_layers(model: keras.Model) -> dict[str, Any]:
    """Returns the layers that have an adapter, by path."""
    return {path_of(layer): layer for layer in layers_of(model) if type(layer) in PLAIN}


def path_of(layer: Any) -> str:
    """Returns the path of a layer with a kernel or embeddings: that of the variable."""
    variable = layer._embeddings if isinstance(layer, keras.layers.Embedding) else layer._kernel
    return variable.path.rpartition("/")[0]


def adaptable_layers(model: keras.Model) -> dict[str, Any]:
    """Returns the Dense, EinsumDense and Embedding layers by path, also those that have an adapter.

    Raises:
        ConfigError: two layers have the same path.
    """
    layers: dict[str, Any] = {}
    for layer in layers_of(model):
        if (type(layer) in LOW_RANK or type(layer) in PLAIN) and layer.built:
            path = path_of(layer)
            if path in layers:
                raise ConfigError(
                    f"Model {model.name!r} has two layers with the path {path!r}, so an adapter cannot name "
                    "them. Create the layers with different names."
                )
            layers[path] = layer
    return layers


def select_targets(model: keras.Model, targets: str | Sequence[str], others: Iterable[Any]) -> dict[str, Any]:
    """Returns the layers that `targets` of `keras_tx.lora` selects, by path.

    Args:
        model: the model.
        targets: targets as in `keras_tx.lora`.
        others: fully trained layers, which the groups do not contain.

    Raises:
        ConfigError: a name or an expression selects no layer.
    """
    _check_names("targets", targets)
    layers = adaptable_layers(model)
    whole = {id(part) for layer in others for part in layer._flatten_layers()}
    is_group = isinstance(targets, str) and targets in GROUPS
    selected = _in_group(model, targets, layers, whole) if is_group else _named(model, targets, layers)
    twice = [path for path, layer in selected.items() if id(layer) in whole]
    if twice:
        raise ConfigError(
            f"Layer {twice[0]!r} is selected by targets and by train_also. Pass train_also=() or other "
            "targets."
        )
    return dict(sorted(selected.items()))


def _in_group(model: keras.Model, group: Any, layers: dict[str, Any], whole: set[int]) -> dict[str, Any]:
    of_head = {id(part) for layer in _last_layers(model) for part in layer._flatten_layers()}
    free = {path: layer for path, layer in layers.items() if id(layer) not in whole | of_head}
    selected = _in_attention(model, free) if group == "attention" else _dense(free)
    if not selected:
        raise ConfigError(
            f"targets={group!r} selects no layer of model {model.name!r}. Pass names of its layers, such as "
            f"{list(layers)[:3]}."
        )
    return selected


def _named(model: keras.Model, targets: str | Sequence[str], layers: dict[str, Any]) -> dict[str, Any]:
    """The layers of a regular expression or of a list of names."""
    if isinstance(targets, str):
        matches = {targets: _matching(targets, layers)}
    else:
        matches = {
            name: {path: layer for path, layer in layers.items() if contains_name(path, name)}
            for name in targets
        }
    for target, matching in matches.items():
        if not matching:
            names = {name for path in layers for name in (path, *path.split("/"))} | set(GROUPS)
            raise ConfigError(
                f"targets has {target!r}, which is not the name of a Dense, EinsumDense or Embedding layer "
                f"of model {model.name!r}. {_shortened(nearest(target, sorted(names)))}"
            )
    if not matches:
        raise ConfigError(f"targets is {targets!r}, expected at least one name.")
    return {path: layer for matching in matches.values() for path, layer in matching.items()}


def _check_names(argument: str, names: Any) -> None:
    if isinstance(names, str):
        return
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{argument} is {names!r}, expected a string or a list of strings.")


def contains_name(path: str, name: str) -> bool:
    """Whether a name, or several joined by slashes, is a part of a path.

    >>> path = "block_0/attention/query"
    >>> contains_name(path, "attention"), contains_name(path, "atten")
    (True, False)
    """
    return f"/{name}/" in f"/{path}/"


def _matching(expression: str, layers: dict[str, Any]) -> dict[str, Any]:
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise ConfigError(
            f"targets={expression!r} is not a regular expression: {error}. Pass one that matches whole "
            f"paths, a list of names, or one of {', '.join(map(repr, GROUPS))}."
        ) from error
    return {path: layer for path, layer in layers.items() if pattern.fullmatch(path)}


def _in_attention(model: keras.Model, layers: dict[str, Any]) -> dict[str, Any]:
    inside = {
        id(part)
        for layer in layers_of(model)
        if type(layer).__name__.endswith("Attention")
        for part in layer._flatten_layers(include_self=False)
    }
    return {path: layer for path, layer in layers.items() if id(layer) in inside}


def _dense(layers: dict[str, Any]) -> dict[str, Any]:
    return {path: x for path, x in layers.items() if not isinstance(x, keras.layers.Embedding)}


def select_whole(model: keras.Model, train_also: str | Sequence[str]) -> list[Any]:
    """Returns the layers that `train_also` of `keras_tx.lora` selects.

    Raises:
        ConfigError: a name is not that of a layer with weights.
    """
    _check_names("train_also", train_also)
    if train_also == HEAD:
        return _head_layers(model)
    layers = [layer for layer in layers_of(model) if layer.weights]
    selected: list[Any] = []
    for name in [train_also] if isinstance(train_also, str) else train_also:
        matches = [layer for layer in layers if name in (layer.name, layer.path)]
        if not matches:
            known = sorted({layer.name for layer in layers})
            raise ConfigError(
                f"train_also has {name!r}, which is not a layer of model {model.name!r}. "
                f"{_shortened(nearest(str(name), known))}"
            )
        selected += matches
    return selected


def _head_layers(model: Any) -> list[Any]:
    """The layers of the head, except of language models."""
    is_language_model = isinstance(getattr(model, "head", None), LANGUAGE_HEADS)
    return [] if is_language_model else _last_layers(model)


def _last_layers(model: Any) -> list[Any]:
    """The layers of a family's head and its pooler; of other models, those that compute the outputs."""
    if hasattr(model, "head_layers"):
        poolers = [layer for layer in model.layers if layer.name == POOLER]
        return [] if model.head is None else [*poolers, *model.head_layers()]
    names = getattr(model, "output_names", None) or ()
    last = [layer for layer in model.layers if layer.name in names and layer.weights]
    # An embedding that is also the output projection belongs to the base.
    return [layer for layer in last if not isinstance(layer, keras.layers.Embedding)]


def _shortened(text: str) -> str:
    return text if len(text) <= 400 else f"{text[:396]} ..."

"""Finds the first value of a training step that is NaN or infinite: an output, a gradient or a weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.training.random_states import random_states, restore_random_states


def first_divergence(
    model: Any, batch: Any, class_weight: dict[int, float] | None, random: dict[str, np.ndarray]
) -> str | None:
    """Trains on a batch. If a value becomes NaN or infinite, the step is repeated eagerly to describe it.

    Args:
        model: a compiled model.
        batch: an element of the data of `fit`.
        class_weight: as for `fit`.
        random: the random states before the step; empty for the current ones.

    Returns:
        A sentence with the first such value, or None if the loss and all weights are finite.
    """
    restore_random_states(random)
    random = random_states()
    variables = [*model.variables, *model.optimizer.variables]
    before = [keras.ops.convert_to_numpy(variable) for variable in variables]
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    logs = model.train_on_batch(x, y, weight, class_weight=class_weight, return_dict=True)
    changed = next((v for v in variables if not _is_finite(v)), None)
    if np.isfinite(logs.get("loss", 0.0)) and changed is None:
        return None
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    restore_random_states(random)
    cause = _bad_input(x, y, weight) or _bad_label(model, x, y) or _bad_value(model, x, y, weight)
    if cause is not None:
        return cause
    if changed is None:
        return f"the loss is {logs['loss']}, but finite when the step is repeated without compilation."
    kind = type(model.optimizer).__name__
    return (
        f"the update of {changed.path!r} by {kind} is the first value that is NaN or infinite; the gradients "
        "are finite."
    )


def _bad_input(x: Any, y: Any, weight: Any) -> str | None:
    for name, part in (("input", x), ("target", y), ("sample weight", weight)):
        for path, array in keras.tree.flatten_with_path(part):
            if not _is_finite(array):
                label = "/".join(map(str, path)) or "0"
                return f"{name} {label!r} of the batch is the first value that is NaN or infinite."
    return None


def _bad_label(model: Any, x: Any, y: Any) -> str | None:
    if not hasattr(model, "check_labels"):
        return None
    try:
        model.check_labels(y, x)
    except ConfigError as error:
        return f"the labels of the batch are invalid. {error}"
    return None


def _bad_value(model: Any, x: Any, y: Any, weight: Any) -> str | None:
    operations: list[str] = []
    with _watched(model, operations) as bad:
        loss = _loss(model, x, y, weight)
    if bad:
        return bad[0]
    if not _is_finite(loss):
        return "the loss is the first value that is NaN or infinite; the outputs of all layers are finite."
    for variable, gradient in _in_backward_order(model, operations, _gradients(model, x, y, weight)):
        if gradient is not None and not _is_finite(gradient):
            return (
                f"the gradient of weight {variable.path!r} is the first value that is NaN or infinite; the "
                "outputs of all layers and the loss are finite."
            )
    return None


@contextmanager
def _watched(model: Any, operations: list[str]) -> Iterator[list[str]]:
    """Yields a list of sentences, one for each layer with finite inputs and an output that is not finite.

    `operations` is filled with the names of all layers and operations in the order of their calls.
    """
    bad: list[str] = []
    watched = []
    for layer in model._flatten_layers(include_self=True):
        parts = [layer, *getattr(layer, "operations", [])]
        watched += [part for part in parts if part is not model and part not in watched]

    def watch(part: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        name = getattr(part, "path", None) or part.name  # only layers have a path

        def watched_call(*args: Any, **kwargs: Any) -> Any:
            output = call(*args, **kwargs)
            operations.append(name)
            if not bad and not all(map(_is_finite, keras.tree.flatten(output))):
                bad.append(
                    f"the output of layer {name!r} ({type(part).__name__}) is the first value that is NaN or "
                    f"infinite; {_note(part)}"
                )
            return output

        return watched_call

    for part in watched:
        part.__dict__["call"] = watch(part, part.call)
    try:
        yield bad
    finally:
        for part in watched:
            del part.__dict__["call"]


def _note(part: Any) -> str:
    for variable in getattr(part, "weights", ()):
        if not _is_finite(variable):
            return f"its weight {variable.path!r} was NaN or infinite before."
    return "its inputs and weights are finite."


def _loss(model: Any, x: Any, y: Any, weight: Any) -> Any:
    x, y, weight = (_tensors(part) for part in (x, y, weight))
    return model.compute_loss(x, y, model(x, training=True), weight, training=True)


def _gradients(model: Any, x: Any, y: Any, weight: Any) -> list[Any]:
    variables = model.trainable_variables
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = _loss(model, x, y, weight)
        gradients: Any = tape.gradient(loss, [variable.value for variable in variables])
        return [None if one is None else tf.convert_to_tensor(one) for one in gradients]
    if keras.backend.backend() == "torch":
        model.zero_grad()
        _loss(model, x, y, weight).backward()
        gradients = [variable.value.grad for variable in variables]
        model.zero_grad()
        return gradients
    import jax

    def loss_of(values: Any) -> Any:
        rest = [(v, v.value) for v in model.non_trainable_variables]
        mapping = [*zip(variables, values, strict=True), *rest]
        with keras.StatelessScope(state_mapping=mapping):
            return _loss(model, x, y, weight)

    return jax.grad(loss_of)([variable.value for variable in variables])


def _in_backward_order(model: Any, operations: list[str], gradients: list[Any]) -> list[tuple[Any, Any]]:
    """The variables with their gradients, in reverse order of the calls of their layers."""
    called = {path: index for index, path in enumerate(operations)}

    def order(pair: tuple[Any, Any]) -> int:
        path = pair[0].path.rpartition("/")[0]
        return max((index for name, index in called.items() if path.endswith(name)), default=-1)

    pairs = list(zip(model.trainable_variables, gradients, strict=True))
    return sorted(reversed(pairs), key=order, reverse=True)


def _tensors(part: Any) -> Any:
    return keras.tree.map_structure(keras.ops.convert_to_tensor, part) if part is not None else None


def _is_finite(value: Any) -> bool:
    if value is None or not hasattr(value, "dtype"):
        return True
    if not keras.backend.is_float_dtype(keras.backend.standardize_dtype(value.dtype)):
        return True
    return bool(keras.ops.all(keras.ops.isfinite(value)))

"""The score that an attribution explains: one element of a model's output for each example."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, nearest

PADDING_MASK = "padding_mask"  # of keras-hub


def named_output(outputs: Any, name: str | None = None) -> Any:
    """Returns the output with this name, or the only output.

    Args:
        outputs: a tensor, a dict of tensors by name, or a list of one tensor.
        name: of an output; by default the only one, or "logits" if there are several.

    Returns:
        The tensor.

    Raises:
        ConfigError: if the name is unknown or required, or there are several outputs without names.

    Example:

    >>> named_output({"logits": 1, "last_hidden_state": 2})
    1
    """
    if isinstance(outputs, list | tuple):
        if len(outputs) != 1:
            raise ConfigError(
                f"The model has {len(outputs)} outputs without names. Pass a model with one of them, such as "
                "keras.Model(model.input, model.outputs[0])."
            )
        outputs = outputs[0]
    if not isinstance(outputs, dict):
        if name is not None:
            raise ConfigError(
                f"output={name!r} is the name of an output, but the model's output has no name."
            )
        return outputs
    if name is None:
        name = next(iter(outputs)) if len(outputs) == 1 else "logits"
        if name not in outputs:
            raise ConfigError(f"The model has several outputs. Pass output=, one of {sorted(outputs)}.")
    if name not in outputs:
        raise ConfigError(f"The model has no output {name!r}. {nearest(name, outputs)}")
    return outputs[name]


def complete_inputs(model: Any, inputs: Any) -> Any:
    """Returns arrays of all inputs of a text model of keras_tx, and the inputs of other models unchanged.

    Without it, an attention mask that is derived from the token ids would change with replaced tokens.
    """
    if not hasattr(model, "complete"):
        return inputs
    from keras import ops

    return {name: ops.convert_to_numpy(value) for name, value in model.complete(inputs).items()}


def decision_mask(output: Any, target: Any = None, position: Any = None, inputs: Any = None) -> np.ndarray:
    """Marks the element of the output that is explained for each example.

    Args:
        output: array (batch, classes), (batch, tokens, classes) or (batch,).
        target: index of the last axis, or one for each example; by default that of the highest value.
        position: for an output for each token, index of the second axis, or one for each example; by default
            the last one, or the last token that is not padding.
        inputs: of the model; their attention mask distinguishes tokens from padding.

    Returns:
        Booleans in the shape of `output`, with one true element for each example.

    Raises:
        ConfigError: if an index is out of range, or the output has other axes.

    Example:

    >>> decision_mask(np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]]))
    array([[False,  True, False],
           [ True, False, False]])
    """
    output = np.asarray(output)
    if output.ndim not in (1, 2, 3):
        raise ConfigError(
            f"The output has the shape {output.shape}, expected (batch, classes), (batch, tokens, classes) "
            "or (batch,). Pass a model whose output is a score."
        )
    rows = np.arange(len(output))
    index: tuple[np.ndarray, ...] = (rows,)
    if output.ndim == 3:
        position = _last_token(inputs) if position is None else position
        index = (rows, _indices("position", position, output.shape[:2]))
    elif position is not None:
        raise ConfigError(
            f"position={position!r} requires an output for each token, but the output has the shape "
            f"{output.shape}."
        )
    if output.ndim > 1:
        scores = output[index]
        best = scores.argmax(axis=-1) if target is None else target
        index = (*index, _indices("target", best, scores.shape))
    elif target is not None:
        raise ConfigError(
            f"target={target!r} has no effect, because the output is one number for each example."
        )
    mask = np.zeros(output.shape, bool)
    mask[index] = True
    return mask


def masked_sum(output: Any, mask: np.ndarray) -> Any:
    """Returns the marked elements of a tensor (batch, ...) as scores (batch,)."""
    from keras import ops

    marked = ops.where(mask, output, ops.zeros_like(output))
    return ops.sum(marked, axis=tuple(range(1, len(mask.shape)))) if mask.ndim > 1 else marked


def _last_token(inputs: Any) -> Any:
    """The last position that is not padding, for each example."""
    names = (contract.DECODER_ATTENTION_MASK, "decoder_padding_mask", contract.ATTENTION_MASK, PADDING_MASK)
    name = next((name for name in names if isinstance(inputs, dict) and name in inputs), None)
    if name is None:
        return -1
    mask = np.asarray(inputs[name]) != 0
    return mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)


def _indices(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Returns an index for each example; raises a ConfigError unless they are in range."""
    rows, size = shape
    indices = np.asarray(value)
    if indices.dtype.kind not in "iu" or indices.shape not in ((), (rows,)):
        raise ConfigError(
            f"{name} is {value!r}, expected an integer, or one for each of the {rows} examples."
        )
    wrong = indices[(indices < -size) | (indices >= size)]
    if wrong.size:
        raise ConfigError(
            f"{name}={wrong.flat[0]} is out of range, expected 0 to {size - 1} for this output."
        )
    return np.broadcast_to(indices % size, rows)

"""Graphs without a known task: named arrays to named arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import InputError
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import describe
from keras_tx.runtime.tasks.base import LoadedModel, Task, per_adapter


class GenericModel(LoadedModel):
    """Runs a graph on named arrays: any model without a known task, or a text model without tokenizer.

    >>> load("anything")({"a": a, "b": b})["sum"]  # doctest: +SKIP
    """

    @per_adapter
    def run(self, inputs: Mapping[str, np.ndarray] | np.ndarray) -> dict[str, np.ndarray]:
        """Returns all outputs by name.

        Args:
            inputs: an array for each input of the graph; a single array if the graph has one input.

        Raises:
            InputError: if a name, dtype, shape or token id does not fit the graph.
        """
        if isinstance(inputs, Mapping):
            return self.session.run(_checked_tokens(self.folder, inputs))
        expected = ", ".join(describe(spec) for spec in self.session.inputs)
        if not isinstance(inputs, np.ndarray):
            raise InputError(
                f"inputs is a {type(inputs).__name__}, expected a NumPy array or a dict: {expected}."
            )
        if len(self.session.inputs) != 1:
            raise InputError(f"inputs is a single array, expected a dict: {expected}.")
        return self.run({self.session.inputs[0].name: inputs})

    __call__ = run


def _checked_tokens(folder: Folder, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """The inputs of a text model; raises an InputError for an id outside the ranges of config.json."""
    config = folder.config
    if config is None:
        return inputs
    segments = inputs.get(contract.TOKEN_TYPE_IDS)
    names = {spec.name for spec in folder.inputs}
    if config.get("type_vocab_size") == 1 and contract.TOKEN_TYPE_IDS not in names and segments is not None:
        _check_range(contract.TOKEN_TYPE_IDS, segments, 1)  # RoBERTa's tokenizers return zeros
        inputs = {name: array for name, array in inputs.items() if name != contract.TOKEN_TYPE_IDS}
    positions = _num_positions(config)
    sizes = {
        contract.INPUT_IDS: config.get("vocab_size"),
        contract.ATTENTION_MASK: 2,
        contract.TOKEN_TYPE_IDS: config.get("type_vocab_size"),
        contract.POSITION_IDS: positions,
    }
    for name, array in inputs.items():
        if name in sizes:
            _check_range(name, array, sizes[name])
    ids = inputs.get(contract.INPUT_IDS)
    if positions is not None and isinstance(ids, np.ndarray) and ids.ndim == 2 and ids.shape[1] > positions:
        raise InputError(
            f"input_ids has shape {ids.shape}, but the model has {positions} positions. Truncate the texts, "
            "or split them into windows."
        )
    return inputs


def _num_positions(config: Mapping[str, Any]) -> int | None:
    """The maximum number of tokens in a row; RoBERTa's table has unused rows before the first token's."""
    count = config.get("max_position_embeddings") or config.get("n_positions")
    if count is None:
        return None
    return count - config["pad_token_id"] - 1 if config.get("model_type") == "roberta" else count


def _check_range(name: str, array: Any, size: Any) -> None:
    """Raises for a number that is not in 0 ... size - 1. The session checks types and shapes."""
    if not isinstance(size, int) or not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
        return
    wrong = (array < 0) | (array >= size)
    if wrong.any():
        index = np.unravel_index(int(np.argmax(wrong)), array.shape)
        row = f" in row {index[0]}" if index else ""
        raise InputError(f"{name} has {array[index]}{row}, expected numbers from 0 to {size - 1}.")


TASK = Task(None, GenericModel, "arrays")

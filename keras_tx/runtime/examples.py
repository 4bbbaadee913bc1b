"""Example inputs of a graph: random numbers, ids within their tables, and every kind of padding mask.

The exporter compares a graph with Keras on them, and precisions with fp32; `keras-tx verify` runs a folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from keras_tx import contract
from keras_tx.contract import TensorSpec

# Which tokens of a row a client may declare real.
MASKS = ("all", "right", "left", "holes", "one token", "none")


@dataclasses.dataclass(frozen=True)
class Use:
    """How a graph uses the integers of an input: the size of the smallest table that they index.

    `padding` is the id of masked tokens, which no other token has; None where they have any id.
    """

    vocabulary: int = 2
    padding: int | None = None


def draw(
    specs: Sequence[TensorSpec],
    uses: Mapping[str, Use],
    sizes: Mapping[str, int],
    masks: Sequence[str],
    random: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Random inputs by name.

    Args:
        specs: the inputs.
        uses: how the integers of an input are used, where it is known.
        sizes: the size of each dynamic axis by its name.
        masks: the kinds of mask of the rows in turn, equal in all inputs.
    """
    return {spec.name: _array(spec, uses.get(spec.name, Use()), sizes, masks, random) for spec in specs}


def _array(
    spec: TensorSpec, use: Use, sizes: Mapping[str, int], masks: Sequence[str], random: np.random.Generator
) -> np.ndarray:
    shape = [n if isinstance(n, int) else sizes[n] for n in spec.shape]
    kind = np.dtype(spec.dtype)
    real = token_mask(shape, masks)
    if is_mask(spec):
        return real.astype(kind)
    if spec.name == contract.POSITION_IDS:
        return np.clip(real.cumsum(axis=-1) - 1, 0, use.vocabulary - 1).astype(kind)
    if spec.dtype == "bool":
        return random.random(shape) < 0.7
    if kind.kind == "f":
        # In steps that half precision has as well: Keras may round its inputs to it where a graph does not.
        return (np.round(random.standard_normal(shape, "float32") * 32) / 32).astype(kind)
    numbers = random.integers(0, 256 if kind == np.uint8 else use.vocabulary, shape)
    if use.padding is not None:
        other = min(1, use.vocabulary - 1) if use.padding == 0 else 0
        numbers = np.where(real, np.where(numbers == use.padding, other, numbers), use.padding)
    return numbers.astype(kind)


def is_mask(spec: TensorSpec) -> bool:
    if "mask" in spec.name.lower():
        return True
    return spec.dtype == "bool" and len(spec.shape) > 1 and spec.shape[-1] != 1


def token_mask(shape: Sequence[int], masks: Sequence[str]) -> np.ndarray:
    """True where a token is real: rows along the first axis have these kinds in turn, tokens along the last.

    >>> token_mask((4, 6), ("right", "left", "holes", "one token")).astype(int)
    array([[1, 1, 1, 1, 0, 0],
           [0, 0, 1, 1, 1, 1],
           [0, 1, 1, 0, 1, 1],
           [0, 0, 0, 1, 0, 0]])
    """
    if len(shape) < 2:
        return np.ones(shape, bool)
    places = np.arange(shape[-1])
    count = -(-shape[-1] * 3 // 5)
    rows = {
        "all": places >= 0,
        "right": places < count,
        "left": places >= shape[-1] - count,
        "holes": places % 3 != 0,
        "one token": places == shape[-1] // 2,
        "none": places < 0,
    }
    mask = np.stack([rows[masks[row % len(masks)]] for row in range(shape[0])])
    return np.broadcast_to(mask.reshape(shape[0], *(1,) * (len(shape) - 2), shape[-1]), shape)

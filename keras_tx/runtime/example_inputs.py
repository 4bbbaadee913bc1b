"""Example inputs of graphs: random numbers, ids in their range, and every kind of padding mask.

The exporter compares graphs on them, and `keras-tx verify` runs a folder on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_tx import contract
from keras_tx.contract import TensorSpec

# Kinds of padding masks, by the tokens that are not padding.
MASKS = ("all", "right", "left", "holes", "one token", "none")
LENGTH = 16  # of texts with every kind of mask
LONGEST = 1024  # of any text
# Sizes to try, in this order, for dynamic axes without known bounds.
SIZES = (64, 32, 16, 8, 4, 2, 1, 128, 256)
SEED = 0


@dataclasses.dataclass(frozen=True)
class Use:
    """How a graph uses the integers of an input.

    Attributes:
        vocabulary_size: size of the smallest table that they index.
        padding: the id that all masked tokens and no others have; None if there is none.
    """

    vocabulary_size: int = 2
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
        uses: the uses of integer inputs, by name.
        sizes: the size of each dynamic axis, by name.
        masks: kinds of masks, of which each row has the next one.
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
        return np.clip(real.cumsum(axis=-1) - 1, 0, use.vocabulary_size - 1).astype(kind)
    if spec.dtype == "bool":
        return random.random(shape) < 0.7
    if kind.kind == "f":
        # Multiples of 1/32, which half precision represents: Keras may round its inputs to it.
        return (np.round(random.standard_normal(shape, "float32") * 32) / 32).astype(kind)
    numbers = random.integers(0, 256 if kind == np.uint8 else use.vocabulary_size, shape)
    if use.padding is not None:
        other = min(1, use.vocabulary_size - 1) if use.padding == 0 else 0
        numbers = np.where(real, np.where(numbers == use.padding, other, numbers), use.padding)
    return numbers.astype(kind)


def first_call(
    specs: Sequence[TensorSpec], ids: np.ndarray, mask: np.ndarray, hidden: np.ndarray
) -> dict[str, np.ndarray]:
    """The inputs of an encoder-decoder's decoder graph in the first call for some sources.

    Args:
        specs: the inputs of the graph.
        ids: of the targets.
        mask: of the sources.
        hidden: the encoder's output for them.
    """
    sizes = {contract.BATCH_AXIS: len(ids)}
    pasts = {
        spec.name: np.zeros([n if isinstance(n, int) else sizes.get(n, 0) for n in spec.shape], spec.dtype)
        for spec in specs
        if spec.name.startswith("past_key_values.")
    }
    return {
        contract.ENCODER_ATTENTION_MASK: mask,
        contract.INPUT_IDS: ids,
        contract.ENCODER_HIDDEN_STATES: hidden,
        **pasts,
        contract.USE_CACHE_BRANCH: np.array([False]),
    }


def next_call(
    feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], ids: np.ndarray
) -> dict[str, np.ndarray]:
    """The inputs of the call after one with these inputs and outputs, for these ids of the targets."""
    is_first = not feed[contract.USE_CACHE_BRANCH].item()
    presents = (name for name in outputs if name.startswith("present.") and (is_first or ".decoder." in name))
    pasts = {name.replace("present", "past_key_values", 1): outputs[name] for name in presents}
    return {**feed, **pasts, contract.INPUT_IDS: ids, contract.USE_CACHE_BRANCH: np.array([True])}


def is_mask(spec: TensorSpec) -> bool:
    if "mask" in spec.name.lower():
        return True
    return spec.dtype == "bool" and len(spec.shape) > 1 and spec.shape[-1] != 1


def token_mask(shape: Sequence[int], masks: Sequence[str]) -> np.ndarray:
    """A mask that is True for tokens and False for padding; each row has the next kind of `masks`.

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


class Example(NamedTuple):
    """Inputs of a graph and their description."""

    name: str
    inputs: dict[str, np.ndarray]


def examples_of(
    specs: Sequence[TensorSpec], config: Mapping[str, object], longest: int | None
) -> list[list[Example]]:
    """Lists of alternative examples of a folder's graph; one of each list is enough to run.

    Text models have every kind of mask, the shortest and the longest text. Alternatives are different sizes,
    for dynamic axes whose valid sizes are not known.

    Args:
        specs: the inputs of the graph.
        config: the content of config.json.
        longest: the tokenizer's maximum length; None if it has none.
    """
    axes = {axis for spec in specs for axis in spec.shape if isinstance(axis, str)}
    uses = {
        contract.INPUT_IDS: Use(_positive(config, "vocab_size", 1)),
        contract.TOKEN_TYPE_IDS: Use(_positive(config, "type_vocab_size", 1)),
    }
    random = np.random.default_rng(SEED)

    def example(name: str, length: int, masks: Sequence[str]) -> Example:
        sizes = {**dict.fromkeys(axes, length), contract.BATCH_AXIS: len(masks), contract.PAST_AXIS: 0}
        return Example(name, draw(specs, {**uses, contract.POSITION_IDS: Use(length)}, sizes, masks, random))

    if not axes:
        return [[example("the fixed sizes", 1, MASKS)]]
    if not axes - {contract.BATCH_AXIS} and any(map(is_mask, specs)):
        return [[example(f"a batch of {len(MASKS)} with every kind of padding mask", 1, MASKS)]]
    if {contract.INPUT_IDS, contract.ATTENTION_MASK} <= {spec.name for spec in specs}:
        positions = _positive(config, "n_positions", _positive(config, "max_position_embeddings", LENGTH))
        longest = min(longest or positions, LONGEST)
        length = min(LENGTH, longest)
        name = f"{len(MASKS)} texts of {length} tokens with every kind of padding mask"
        lengths = {1: "a text of 1 token", longest: f"a text of {longest} token{'s' if longest > 1 else ''}"}
        return [[example(name, length, MASKS)], *([example(x, n, ("all",))] for n, x in lengths.items())]
    if axes - {contract.BATCH_AXIS}:
        return [[example(f"a batch of 2, other dynamic axes {n}", n, ("all", "all")) for n in SIZES]]
    return [[example(f"a batch of {batch}", 1, ("all",) * batch)] for batch in (1, 2)]


def _positive(config: Mapping[str, object], name: str, default: int) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and value > 0 else default

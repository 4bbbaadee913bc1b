"""Inputs to try a graph on, made from what its manifest and its own nodes say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError
from keras_tx.runtime.example_inputs import Use, draw
from keras_tx_onnx.verifying.cases import LENGTHS

Feed = Mapping[str, np.ndarray]

MASKS = ("all", "right", "left", "holes")  # of the rows
LENGTH = 32
SEED = 0
UNLIMITED = 2**31  # position ids without a table
ENDLESS = -1  # what tf.data says of a dataset that repeats
# What an index may pass through on its way to the table that it is looked up in.
PASSES = frozenset(
    "Cast Clip Concat Expand Flatten GatherND Identity Reshape Slice Squeeze Transpose Unsqueeze".split()
)


def drawn(specs: Sequence[contract.TensorSpec], graph: ir.Graph) -> Iterator[Feed]:
    """Random inputs, of one length after another: a graph may refuse the first.

    Rows of a decoder are not padded: logits at padding are not used, and have larger rounding errors.
    """
    inputs = {value.name: value for value in graph.inputs}
    uses = {spec.name: _use(inputs[spec.name]) for spec in specs}
    axes = {axis for spec in specs for axis in spec.shape if isinstance(axis, str)}
    masks = ["all"] * len(MASKS) if contract.TOTAL_AXIS in axes else MASKS
    fixed = {contract.BATCH_AXIS: len(MASKS), contract.PAST_AXIS: 0}
    for length in sorted(LENGTHS, key=lambda n: (n > LENGTH, abs(n - LENGTH))):
        sizes = {**dict.fromkeys(axes, length), **fixed}
        yield draw(specs, uses, sizes, masks, np.random.default_rng(SEED))


def checked(examples: object, specs: Sequence[contract.TensorSpec], name: str) -> list[Feed]:
    """Batches of a user, each as a dict by the graph's input names.

    They come as one array where the graph has one input, a dict of arrays, or an iterable of either, such
    as a tf.data.Dataset; of a pair, the first is taken, for a dataset that gives labels too.
    """
    if isinstance(examples, (np.ndarray, Mapping)):
        examples = [examples]
    if isinstance(examples, (str, bytes)) or not hasattr(examples, "__iter__"):
        raise ConfigError(
            f"{name} is a {type(examples).__name__}, expected an array, a dict of arrays by input name, or "
            "an iterable of these, such as a tf.data.Dataset of batches."
        )
    check_end(examples, name)
    found = [_feed(batch, specs, name) for batch in examples]  # type: ignore[attr-defined]
    if not found:
        raise ConfigError(f"{name} is empty, expected at least one batch.")
    return found


def check_end(dataset: object, name: str) -> None:
    """Refuses a tf.data.Dataset that repeats for ever."""
    cardinality = getattr(dataset, "cardinality", None)
    if callable(cardinality) and int(cardinality()) == ENDLESS:  # type: ignore[call-overload]
        raise ConfigError(f"{name} is a dataset without an end. Give a part of it: dataset.take(20).")


def _feed(batch: object, specs: Sequence[contract.TensorSpec], name: str) -> Feed:
    if isinstance(batch, (tuple, list)):
        batch = batch[0]
    names, shapes = [spec.name for spec in specs], {spec.name: spec.shape for spec in specs}
    if not isinstance(batch, Mapping):
        if len(specs) != 1:
            raise ConfigError(f"{name} has a batch of one array, expected a dict of {', '.join(names)}.")
        batch = {names[0]: batch}
    given = _completed({str(key): np.asarray(value) for key, value in batch.items() if key in names}, specs)
    missing = [n for n in names if n not in given]
    if missing:
        raise ConfigError(
            f"{name} has a batch with {', '.join(map(repr, batch)) or 'nothing'}, but the graph takes "
            f"{', '.join(names)}: {missing[0]!r} is missing."
        )
    empty = next((n for n in names if contract.PAST_AXIS not in shapes[n] and not given[n].size), None)
    if empty is not None:
        raise ConfigError(
            f"{name} has a batch in which {empty!r} has the shape {given[empty].shape}, expected at least "
            "one row. Leave out batches without rows."
        )
    return {spec.name: np.ascontiguousarray(given[spec.name], dtype=spec.dtype) for spec in specs}


def _completed(given: dict[str, np.ndarray], specs: Sequence[contract.TensorSpec]) -> dict[str, np.ndarray]:
    """With what a text without padding, or without a past, leaves open; images come with channels first."""
    shapes = {spec.name: spec.shape for spec in specs}
    pixels = given.get(contract.PIXEL_VALUES)
    if pixels is not None and pixels.ndim == 4 and pixels.shape[1:] != shapes[contract.PIXEL_VALUES][1:]:
        given[contract.PIXEL_VALUES] = pixels.transpose(0, 3, 1, 2)  # as model.processing gives them
    ids = given.get(contract.INPUT_IDS)
    if ids is None or ids.ndim != 2:
        return given
    mask = given.setdefault(contract.ATTENTION_MASK, np.ones(ids.shape, "int64"))
    given.setdefault(contract.TOKEN_TYPE_IDS, np.zeros(ids.shape, "int64"))
    given.setdefault(contract.POSITION_IDS, np.maximum(mask.cumsum(axis=1) - 1, 0))
    for name, shape in shapes.items():
        if name.startswith("past_key_values."):
            given.setdefault(name, np.zeros((len(ids), int(shape[1]), 0, int(shape[3])), "float32"))
    return given


def _use(value: ir.Value) -> Use:
    """The size of the smallest table that the integers of an input index."""
    sizes: list[int] = []
    pending, seen = [value], set()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for node, index in current.uses():
            table = node.inputs[0]
            if (
                node.op_type == "Gather"
                and index == 1
                and table is not None
                and table.const_value is not None
            ):
                sizes.append(int(table.const_value.shape.numpy()[node.attributes.get_int("axis", 0)]))
            elif node.op_type in PASSES or (node.op_type == "Gather" and index == 0):
                pending.extend(node.outputs)
    if not sizes:
        return Use(UNLIMITED) if value.name == contract.POSITION_IDS else Use()
    return Use(min(sizes))


def failed(said: str) -> ExportError:
    """Nothing that was drawn could be run."""
    return ExportError(
        f"The fp32 graph runs on no random inputs that were tried ({said}), so the files could not be "
        "compared. Give examples=, a batch of inputs by name."
    )

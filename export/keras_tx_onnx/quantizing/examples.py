"""Inputs to try a graph on, made from what its manifest and its own nodes say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError
from keras_tx_onnx.cases import KEPT, LENGTHS

Feed = Mapping[str, np.ndarray]

BATCH = 4
LENGTH = 32
SEED = 0
ENDLESS = -1  # what tf.data says of a dataset that repeats
UNBOUND = 2  # integers that look nothing up are 0 and 1
# What an index may pass through on its way to the table that it is looked up in.
PASSES = frozenset(
    "Cast Clip Concat Expand Flatten GatherND Identity Reshape Slice Squeeze Transpose Unsqueeze".split()
)


def drawn(specs: Sequence[contract.TensorSpec], graph: ir.Graph) -> Iterator[Feed]:
    """Random inputs, of one length after another: a graph may not take the first."""
    inputs = {value.name: value for value in graph.inputs}
    bounds = {spec.name: _bound(inputs[spec.name]) for spec in specs}
    for length in sorted((*LENGTHS, LENGTH), key=lambda n: (n > LENGTH, abs(n - LENGTH))):
        random = np.random.default_rng(SEED)
        yield {spec.name: _array(spec, bounds[spec.name], length, random) for spec in specs}


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
    names = [spec.name for spec in specs]
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


def _array(spec: contract.TensorSpec, bound: int, length: int, random: np.random.Generator) -> np.ndarray:
    sizes = {contract.BATCH_AXIS: BATCH, contract.PAST_AXIS: 0}
    shape = [n if isinstance(n, int) else sizes.get(n, length) for n in spec.shape]
    if spec.name == contract.POSITION_IDS:
        return np.broadcast_to(np.arange(shape[-1]) % bound, shape).astype(spec.dtype)
    if "mask" in spec.name.lower():
        cached = contract.TOTAL_AXIS in spec.shape
        ends = [shape[-1] if cached else round(shape[-1] * KEPT[i % len(KEPT)]) for i in range(shape[0])]
        row_of = np.reshape(ends, (len(ends),) + (1,) * (len(shape) - 1))
        return np.broadcast_to(np.arange(shape[-1]) < row_of, shape).astype(spec.dtype)
    if spec.dtype == "bool":
        return random.random(shape) < 0.7
    kind = np.dtype(spec.dtype)
    if kind.kind == "f":
        return random.standard_normal(shape).astype(kind)
    return random.integers(0, 256 if kind == np.uint8 else bound, shape).astype(kind)


def _bound(value: ir.Value) -> int:
    """The smallest table that the integers of an input are looked up in."""
    found: list[int] = []
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
                found.append(int(table.const_value.shape.numpy()[node.attributes.get_int("axis", 0)]))
            elif node.op_type in PASSES or (node.op_type == "Gather" and index == 0):
                pending.extend(node.outputs)
    return min(found, default=UNBOUND)


def failed(said: str) -> ExportError:
    """Nothing that was drawn could be run."""
    return ExportError(
        f"The fp32 graph runs on no random inputs that were tried ({said}), so the files could not be "
        "compared. Give examples=, a batch of inputs by name."
    )

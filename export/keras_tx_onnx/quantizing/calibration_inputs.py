"""Inputs for a graph: random ones that fit its manifest and its tables, and batches of the user."""

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
INFINITE = -1  # the cardinality of a tf.data.Dataset that repeats
ACCEPT_TEXTS = ("calibration", "validation")  # arguments, all of whose texts are in one list
# Operators between an input of indices and the Gather of their table.
ON_THE_WAY = frozenset(
    "Cast Clip Concat Expand Flatten GatherND Identity Reshape Slice Squeeze Transpose Unsqueeze".split()
)


def drawn(specs: Sequence[contract.TensorSpec], graphs: Sequence[ir.Graph]) -> Iterator[Feed]:
    """Random batches of several lengths, because a graph may refuse the first.

    Rows of a decoder are not padded: logits at padding are not used, and have larger rounding errors.
    """
    inputs = {value.name: value for graph in graphs for value in graph.inputs}
    uses = {spec.name: _use(inputs[spec.name]) for spec in specs}
    axes = {axis for spec in specs for axis in spec.shape if isinstance(axis, str)}
    masks = ["all"] * len(MASKS) if contract.TOTAL_AXIS in axes else MASKS
    fixed = {contract.BATCH_AXIS: len(MASKS), contract.PAST_AXIS: 0}
    for length in sorted(LENGTHS, key=lambda n: (n > LENGTH, abs(n - LENGTH))):
        sizes = {**dict.fromkeys(axes, length), **fixed}
        yield draw(specs, uses, sizes, masks, np.random.default_rng(SEED))


def checked(examples: object, specs: Sequence[contract.TensorSpec], name: str) -> list[Feed]:
    """Batches of the user, each as a dict by the graph's input names.

    Args:
        examples: one array if the graph has one input, a dict of arrays, or an iterable of either, such as a
            tf.data.Dataset; of pairs, the first is used, because a dataset may have labels, too.
        specs: the graph's inputs.
        name: of the argument, for errors.

    Raises:
        ConfigError: if they do not fit the inputs, or do not end.
    """
    if isinstance(examples, (np.ndarray, Mapping)):
        examples = [examples]
    if isinstance(examples, (str, bytes)) or not hasattr(examples, "__iter__"):
        texts = "a list of texts, " if name in ACCEPT_TEXTS else ""
        raise ConfigError(
            f"{name} is a {type(examples).__name__}, expected {texts}an array, a dict of arrays by input "
            "name, or an iterable of these, such as a tf.data.Dataset of batches."
        )
    check_is_finite(examples, name)
    feeds = [_feed(batch, specs, name) for batch in examples]  # type: ignore[attr-defined]
    if not feeds:
        raise ConfigError(f"{name} is empty, expected at least one batch.")
    return feeds


def check_is_finite(dataset: object, name: str) -> None:
    """Raises a ConfigError for a tf.data.Dataset that repeats forever."""
    cardinality = getattr(dataset, "cardinality", None)
    if callable(cardinality) and int(cardinality()) == INFINITE:  # type: ignore[call-overload]
        raise ConfigError(f"{name} is an infinite dataset. Pass a part of it: dataset.take(20).")


def _feed(batch: object, specs: Sequence[contract.TensorSpec], name: str) -> Feed:
    if isinstance(batch, (tuple, list)):
        batch = batch[0]
    _check_has_no_texts(batch, name)
    names = [spec.name for spec in specs]
    if not isinstance(batch, Mapping):
        if len(specs) != 1:
            raise ConfigError(f"{name} has a batch of one array, expected a dict of {', '.join(names)}.")
        batch = {names[0]: batch}
    arrays = {str(key): np.asarray(value) for key, value in batch.items() if key in names}
    for array in arrays.values():
        _check_has_no_texts(array, name)
    arrays = _completed(arrays, specs)
    for spec in specs:
        array = arrays.get(spec.name)
        if array is None:
            raise ConfigError(
                f"{name} has a batch without {spec.name!r}, which is an input of the graph. It has "
                f"{', '.join(map(repr, batch)) or 'no arrays'}."
            )
        if not array.size and contract.PAST_AXIS not in spec.shape:
            raise ConfigError(
                f"{name} has a batch in which {spec.name!r} has the shape {array.shape}, expected at least "
                "one row. Remove batches without rows."
            )
    return {spec.name: np.ascontiguousarray(arrays[spec.name], dtype=spec.dtype) for spec in specs}


def _check_has_no_texts(values: object, name: str) -> None:
    """Raises a ConfigError for a text, or an array of texts."""
    if isinstance(values, (str, bytes)) or (hasattr(values, "__array__") and _are_texts(np.asarray(values))):
        expected, remedy = ("a list of texts, or ", "list(texts), or ") if name in ACCEPT_TEXTS else ("", "")
        raise ConfigError(
            f"{name} has a batch of texts, expected {expected}arrays by input name. Pass {remedy}the ids of "
            "a tokenizer."
        )


def _are_texts(array: np.ndarray) -> bool:
    first = next(array.flat, None) if array.dtype.kind == "O" else None
    return array.dtype.kind in "US" or isinstance(first, (str, bytes))


def _completed(arrays: dict[str, np.ndarray], specs: Sequence[contract.TensorSpec]) -> dict[str, np.ndarray]:
    """Adds the defaults for a text without padding or past; transposes images to channels first."""
    shapes = {spec.name: spec.shape for spec in specs}
    pixels = arrays.get(contract.PIXEL_VALUES)
    if pixels is not None and pixels.ndim == 4 and pixels.shape[1:] != shapes[contract.PIXEL_VALUES][1:]:
        arrays[contract.PIXEL_VALUES] = pixels.transpose(0, 3, 1, 2)  # from model.processing
    ids = arrays.get(contract.INPUT_IDS)
    if ids is None or ids.ndim != 2:
        return arrays
    mask = arrays.setdefault(contract.ATTENTION_MASK, np.ones(ids.shape, "int64"))
    arrays.setdefault(contract.TOKEN_TYPE_IDS, np.zeros(ids.shape, "int64"))
    arrays.setdefault(contract.POSITION_IDS, np.maximum(mask.cumsum(axis=1) - 1, 0))
    for name, shape in shapes.items():
        if name.startswith("past_key_values."):
            arrays.setdefault(name, np.zeros((len(ids), int(shape[1]), 0, int(shape[3])), "float32"))
    return arrays


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
            is_lookup = node.op_type == "Gather" and index == 1
            table = node.inputs[0] if is_lookup else None
            if table is not None and table.const_value is not None:
                sizes.append(int(table.const_value.shape.numpy()[node.attributes.get_int("axis", 0)]))
            elif node.op_type in ON_THE_WAY or (node.op_type == "Gather" and not is_lookup):
                pending.extend(node.outputs)
    if not sizes:
        return Use(UNLIMITED) if value.name == contract.POSITION_IDS else Use()
    return Use(min(sizes))


def failed(reason: str) -> ExportError:
    """The error if the graph runs on no random batch."""
    return ExportError(
        f"The fp32 graph does not run on random inputs ({reason}), so the files cannot be compared. Pass "
        "examples=, a batch of inputs by name."
    )

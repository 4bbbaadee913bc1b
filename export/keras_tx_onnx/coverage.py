"""coverage: the layers and operations of Keras that can be exported."""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter

from keras import layers

import keras_tx_onnx.lowerings  # noqa: F401  fills the registry
from keras_tx_onnx.reading import functional_graph, registry
from keras_tx_onnx.reading.traced_functions import TRACED

STATES = ("registered", "opened", "nothing at inference", "not covered")

STRINGS = "ONNX graphs have no strings: preprocess them before the graph"
FOREIGN = "not Keras code: write it with keras.ops, or export it with its own framework"
BASE = "a base class: its subclasses are opened"

# Why a public layer of Keras has no lowering; a test requires a reason for each.
REASONS: dict[str, str] = {
    "AutoContrast": "image preprocessing: belongs before the graph",
    "CategoryEncoding": "feature preprocessing: belongs before the graph",
    "ContrastLimitedAdaptiveHistogramEqualization": "image preprocessing: belongs before the graph",
    "Equalization": "image preprocessing: belongs before the graph",
    "FlaxLayer": FOREIGN,
    "HashedCrossing": STRINGS,
    "Hashing": STRINGS,
    "InputLayer": "the input of the graph",
    "IntegerLookup": "feature preprocessing: belongs before the graph",
    "JaxLayer": FOREIGN,
    "Layer": BASE,
    "MelSpectrogram": "audio preprocessing: belongs before the graph",
    "STFTSpectrogram": "audio preprocessing: belongs before the graph",
    "StringLookup": STRINGS,
    "TFSMLayer": FOREIGN,
    "TextVectorization": STRINGS,
    "TorchModuleWrapper": FOREIGN,
    "Wrapper": BASE,
}
NO_OPERATION = "no lowering: use other operations, or register one with @keras_tx_onnx.lowers"


@dataclasses.dataclass(frozen=True)
class Row:
    """A layer or an operation.

    Attributes:
        group: the module, such as "keras.layers (core)".
        name: the class name.
        state: "registered", "opened", "nothing at inference" or "not covered".
        note: the nodes of its example, or why it is not covered.
    """

    group: str
    name: str
    state: str
    note: str


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The result of `coverage`. Printed, it is a table."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        lines = []
        width = max(len(row.name) for row in self.rows)
        for group in dict.fromkeys(row.group for row in self.rows):
            rows = [row for row in self.rows if row.group == group]
            counts = Counter(row.state for row in rows)
            summary = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
            lines += ["", f"{group}: {summary}"]
            lines += [f"  {row.name:<{width}}  {row.state:<20}  {row.note}".rstrip() for row in rows]
        return "\n".join(lines[1:])

    __repr__ = __str__


def coverage() -> Coverage:
    """Lists how each public layer of Keras and keras_tx and each operation of keras.ops is exported.

    Returns:
        A Coverage, whose `rows` have a state and a note.

    Example:
        >>> rows = {row.name: row.state for row in coverage().rows}
        >>> rows["Dense"], rows["StringLookup"]
        ('registered', 'not covered')
    """
    known = {lowering.target: lowering for lowering in registry.registered()}
    names = {
        kind: kind.__name__ for kind in known if isinstance(kind, type) and issubclass(kind, layers.Layer)
    }
    for name, kind in vars(layers).items():
        if inspect.isclass(kind) and issubclass(kind, layers.Layer):
            # Some have two public names, some another name inside Keras.
            names[kind] = kind.__name__ if hasattr(layers, kind.__name__) else name
    rows = [
        _row(group, name, known.get(kind), REASONS.get(name, ""))
        for group, name, kind in sorted(
            ((_group(kind), name, kind) for kind, name in names.items()), key=lambda row: row[:2]
        )
    ]
    for module, operations in functional_graph.operation_classes().items():
        for kind in operations:
            name = kind.__name__
            lowering = known.get(TRACED[name][1] if name in TRACED else name)
            rows.append(_row(f"keras.ops ({module})", name, lowering, NO_OPERATION))
    return Coverage(tuple(rows))


def _group(kind: type) -> str:
    parts = kind.__module__.split(".")
    if parts[:2] != ["keras", "src"]:
        return f"{parts[0]}.layers"
    return f"keras.layers ({parts[3] if parts[2] == 'layers' else parts[2]})"


def _row(group: str, name: str, lowering: registry.Lowering | None, reason: str) -> Row:
    if lowering is None:
        return Row(group, name, "not covered", reason)
    nodes = " ".join(f"{count} {op}" if count > 1 else op for op, count in lowering.nodes.items())
    if lowering.function is None:
        return Row(group, name, "opened", nodes)
    return Row(group, name, "registered" if nodes else "nothing at inference", nodes)

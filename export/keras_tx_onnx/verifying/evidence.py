"""Whether equal outputs prove that a graph is right: if they hardly vary, a wrong graph may return the same.

A softmax over small logits is 1/n everywhere, and weights of zero return a constant. Such an output is
compared before its activation or, if it hardly varies there either, with other numbers for constant weights.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx

from keras_tx import contract
from keras_tx.errors import ExportError
from keras_tx.runtime.session import Session
from keras_tx_onnx import tolerances
from keras_tx_onnx.errors import one_line
from keras_tx_onnx.graph.model_file import write_graph
from keras_tx_onnx.interfaces.base import IN_CHUNKS, Interface
from keras_tx_onnx.interfaces.model_graph import graph_of
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.last_activation import CLASSES, outputs_before_activation
from keras_tx_onnx.verifying import comparison
from keras_tx_onnx.verifying.cases import Case, cases_for
from keras_tx_onnx.verifying.comparison import LEAST, Variation


def compare_weak_outputs(
    interface: Interface, path: Path, cases: Sequence[Case], weak: Sequence[str]
) -> list[str]:
    """Compares outputs that hardly vary before their activation, or with redrawn weights.

    Args:
        interface: the interface of the model.
        path: the graph.
        cases: the cases on which the graph equals Keras.
        weak: names of the outputs that hardly vary.

    Returns:
        Notes for the report.
    """
    if interface.precision != "fp32":
        return [_unproven(weak)]
    differences = compare_before_activation(interface, path, weak, cases)
    notes = [
        f"Output {name!r} hardly varies over the examples; before the model's last activation, onnxruntime "
        f"is within {difference:.1e} of Keras."
        for name, difference in differences.items()
    ]
    left = [name for name in weak if name not in differences]
    return [*notes, *_compare_redrawn(interface, left)] if left else notes


def unpassed_distance(interface: Interface, cases: Sequence[Case]) -> list[str]:
    """A note about a distance in the masks of a decoder, such as a window, that no case in chunks passes."""
    continued = [case for case in cases if case.name.endswith(IN_CHUNKS)]
    longest = max((case.feed[contract.INPUT_IDS].shape[1] for case in continued), default=0)
    if not longest <= interface.farthest < interface.context_length:
        return []
    return [
        f"Attention masks depend on distances of up to {interface.farthest:,} tokens (a window), but with a "
        f"past, at most {longest:,} tokens were compared with Keras. Compare the logits of longer texts "
        "yourself."
    ]


def _unproven(names: Sequence[str]) -> str:
    return (
        f"{', '.join(map(repr, names))}: the output hardly varies over the random examples, so the "
        "comparison with Keras proves little. Compare it on your own inputs."
    )


def _compare_redrawn(interface: Interface, weak: Sequence[str]) -> list[str]:
    """Compares outputs in a graph whose constant weights are random numbers; returns notes."""
    with redrawn(interface.model) as count, tempfile.TemporaryDirectory() as folder:
        if not count:
            return [_unproven(weak)]
        path = Path(folder, "redrawn.onnx")
        try:
            context, graph = graph_of(interface, interface.model)
            write_graph(graph, path)
            cases = cases_for(interface, tuple(context.bounds))
        except Exception as error:  # of layers that need their own variables
            return [f"{_unproven(weak)} With redrawn weights: {one_line(error)}"]
        names = [str(value.name) for value in context.graph.outputs][: len(interface.outputs)]
        parity, still_weak = comparison.compare_cases(path, cases, names, interface)
        still_weak = [name for name in still_weak if name in weak]
        differences = compare_before_activation(interface, path, still_weak, cases)
    unproven = [name for name in still_weak if name not in differences]
    proven = [name for name in weak if name not in unproven]
    notes = [_unproven(unproven)] if unproven else []
    if not proven:
        return notes
    largest = max([parity.max_difference, *differences.values()])
    subject, verb = ("Output", "varies") if len(proven) == 1 else ("Outputs", "vary")
    return [
        f"{subject} {', '.join(map(repr, proven))} hardly {verb} over the examples; with {count} constant "
        f"weights redrawn for the comparison, onnxruntime is within {largest:.1e} of Keras.",
        *notes,
    ]


def compare_before_activation(
    interface: Interface, path: Path, weak: Sequence[str], cases: Sequence[Case]
) -> dict[str, float]:
    """Compares outputs before the activation that ends the model.

    Returns the difference of each weak output that varies there, in units of its own scale. Raises an
    ExportError if one exceeds the tolerance.
    """
    cases = [case for case in cases if case.run is Session.run]
    count = len(functional_graph.function_of(interface.model).outputs)
    probe = path.with_name("before_activation.onnx")  # beside the data file of the weights
    inner = _write_probe(path, probe, weak)
    if not inner or not cases or count != len(interface.outputs):
        return {}
    try:
        variations = _variations(interface, probe, inner, cases)
    finally:
        probe.unlink(missing_ok=True)
    differences = {}
    for name, variation in variations.items():
        if variation.spread < LEAST * variation.scale or variation.scale == 0:
            continue
        differences[name] = variation.difference / variation.scale
        if differences[name] > tolerances.FLOAT32:
            raise ExportError(
                f"Output {name!r} differs from Keras by {differences[name]:.1e} of its scale before the "
                f"model's last activation (fp32 tolerance {tolerances.FLOAT32:.0e})."
            )
    return differences


def _variations(
    interface: Interface, probe: Path, inner: dict[str, str], cases: Sequence[Case]
) -> dict[str, Variation]:
    """The values before the activation, of outputs for which both sides compute them."""
    variations = {name: Variation() for name in inner}
    with Session(probe, provider="cpu") as session:
        for case in cases:
            computed = session.run(case.feed)
            values = outputs_before_activation(interface.model, case.inputs)
            expected = dict(zip(interface.outputs, values, strict=True))
            for name in list(variations):
                right, other = expected[name], computed[inner[name]]
                if right is None or right.shape != other.shape:
                    del variations[name]
                else:
                    variations[name].add(right, other)
    return variations


def _write_probe(path: Path, probe: Path, names: Sequence[str]) -> dict[str, str]:
    """Writes the graph with the input of each activation as an output; returns these by the output's name."""
    proto = onnx.load(path, load_external_data=False)
    producers = {name: node for node in proto.graph.node for name in node.output}
    inner = {
        name: producers[name].input[0]
        for name in names
        if name in producers and producers[name].op_type in CLASSES
    }
    outputs = {value.name for value in proto.graph.output}
    for name in set(inner.values()) - outputs:
        proto.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    if inner:
        onnx.save(proto, probe)
    return inner


@contextmanager
def redrawn(model: Any) -> Iterator[int]:
    """A context in which constant weights are random numbers; yields their count.

    It applies to this thread only, and the variables do not change.
    """
    random = np.random.default_rng(0)
    changed = []
    for variable in functional_graph.trainable_variables(model):
        values = keras.ops.convert_to_numpy(variable.value)
        if keras.backend.is_float_dtype(variable.dtype) and values.size and np.ptp(values) == 0:
            numbers = _random_like(values, random)
            changed.append((variable, keras.ops.convert_to_tensor(numbers, variable.dtype)))
    with keras.StatelessScope(state_mapping=changed):
        yield len(changed)


def _random_like(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    if values.ndim >= 2:
        return random.standard_normal(values.shape) / math.sqrt(math.prod(values.shape[:-1]))
    if np.all(values == 0):
        return 0.1 * random.standard_normal(values.shape)
    return values * random.uniform(0.5, 1.5, values.shape)

"""Compares a graph in onnxruntime with its Keras model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tx import contract
from keras_tx.errors import ExportError, RunError
from keras_tx.runtime.session import Session
from keras_tx_onnx import tolerances
from keras_tx_onnx.errors import Stateful
from keras_tx_onnx.interfaces.base import Feed, Interface
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.keras_patches import in_float32
from keras_tx_onnx.verifying.cases import Case, RunKeras, cases_of

# A difference above this share of the variation between samples is more than rounding.
LEAST = 1e-2


class Variation:
    """The values of an output over all cases, from Keras and from the graph."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, ...], list[np.ndarray]] = {}
        self.difference = 0.0

    def add(self, expected: np.ndarray, computed: np.ndarray) -> None:
        expected, computed = np.atleast_1d(expected).astype("float64"), np.atleast_1d(computed)
        self._rows.setdefault(expected.shape[1:], []).append(expected)
        self.difference = max(self.difference, float(np.abs(expected - computed).max(initial=0)))

    @property
    def scale(self) -> float:
        return max(float(np.abs(x).max(initial=0)) for rows in self._rows.values() for x in rows)

    @property
    def spread(self) -> float:
        """The largest variation of a number from sample to sample."""
        stacked = [np.concatenate(rows) for rows in self._rows.values()]
        return max((float(np.ptp(rows, axis=0).max()) for rows in stacked if rows.size), default=0.0)

    def proves(self, tolerance: float) -> bool:
        """Whether the outputs vary by much more than their difference."""
        empty = all(x.size == 0 for rows in self._rows.values() for x in rows)
        limit = max(LEAST, 10 * tolerance)
        return empty or (self.spread > 0 and self.difference <= limit * self.spread)


def cases_for(interface: Interface, bounds: Sequence[str] = ()) -> list[Case]:
    """The cases of the verification, with Keras's outputs."""
    return cases_of(interface, expected_of(interface), interface.model.count_params(), bounds)


def expected_of(interface: Interface) -> RunKeras:
    """Returns a function from the model's inputs to the outputs that the graph must return."""

    def expected(inputs: list[np.ndarray]) -> list[np.ndarray]:
        if interface.axes:
            functional_graph.check_sizes(interface.model, [x.shape for x in inputs])
        return interface.expected(run_keras(interface.model, inputs), inputs)

    return expected


def compare_cases(
    path: Path, cases: Sequence[Case], outputs: Sequence[str], precision: str = "fp32"
) -> tuple[contract.Parity, list[str]]:
    """Runs a graph on every case; raises an ExportError if a difference from Keras exceeds the tolerance.

    Returns:
        The result, and the outputs that hardly vary, for which it proves nothing.
    """
    tolerance = tolerances.TOLERANCES[precision]
    largest = 0.0
    variations = {name: Variation() for name in outputs}
    with Session(path, provider="cpu") as session:
        for case in cases:
            computed = run_case(case, session)
            for output, expected in zip(outputs, case.expected, strict=True):
                difference = tolerances.difference(expected, computed[output])
                if difference > tolerance:
                    raise ExportError(
                        f"Output {output!r} differs from Keras by {difference:.1e} of its scale in the case "
                        f"{case.name!r} ({precision} tolerance {tolerance:.0e})."
                    )
                largest = max(largest, difference)
                variations[output].add(expected, computed[output])
    parity = contract.Parity(largest, tolerance, tuple(case.name for case in cases))
    return parity, [name for name, variation in variations.items() if not variation.proves(tolerance)]


def run_case(case: Case, session: Session) -> Feed:
    try:
        return case.run(session, case.feed)
    except RunError as error:
        raise ExportError(
            f"onnxruntime cannot run the graph in the case {case.name!r}, which Keras runs: {error}"
        ) from error


def run_keras(model: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The model's outputs at inference, flat, in float32 on the CPU.

    Half precision would hide errors of the graph, and a GPU rounds the factors of a product to TF32. The
    model's variables do not change. Raises Stateful if the outputs depend on a variable that the call
    changes.
    """
    outputs, changed = _call(model, inputs, [])
    for factor in (2.0, -3.0) if changed else ():
        perturbed = [(variable, _perturbed(variable, factor)) for variable in changed]
        others, _ = _call(model, inputs, perturbed)
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(outputs, others, strict=True)):
            names = ", ".join(repr(variable.path) for variable in changed)
            raise Stateful(
                f"Model {model.name!r} changes {names} when it is called, and its outputs depend on it. Make "
                "it an input and an output of the model, because a graph keeps no state between calls."
            )
    return outputs


def _call(
    model: Any, inputs: list[np.ndarray], values: list[tuple[Any, Any]]
) -> tuple[list[np.ndarray], list[Any]]:
    """The outputs of a model with these values of its variables, and the variables that it assigns to."""
    packed = keras.tree.pack_sequence_as(functional_graph.function_of(model).input, inputs)
    with keras.device("cpu"), in_float32(), functional_graph.unchanged(values) as is_changed:
        outputs = [keras.ops.convert_to_numpy(y) for y in keras.tree.flatten(model(packed, training=False))]
        return outputs, [variable for variable in model.variables if is_changed(variable)]


def _perturbed(variable: Any, factor: float) -> Any:
    value = keras.ops.convert_to_numpy(variable)
    return np.logical_not(value) if value.dtype == bool else (value * factor + 1).astype(value.dtype)

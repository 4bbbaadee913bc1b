"""Compares a graph in onnxruntime with its Keras model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_tx import contract
from keras_tx.errors import ExportError, RunError
from keras_tx.runtime.session import Session
from keras_tx.runtime.shared_weights import SharedWeights
from keras_tx_onnx import tolerances
from keras_tx_onnx.interfaces.base import Feed, Interface
from keras_tx_onnx.verifying.cases import Case

# A difference above this share of the variation between samples is more than rounding.
LEAST = 1e-2


class Variation:
    """How much the values of an output vary over all cases, and how much Keras and the graph differ.

    Attributes:
        difference: the largest one.
        scale: the largest absolute value.
    """

    def __init__(self) -> None:
        self.difference = 0.0
        self.scale = 0.0
        # The smallest and the largest value of each number of a sample, by the shape of a sample.
        self._ranges: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}

    def add(self, expected: np.ndarray, computed: np.ndarray) -> None:
        expected, computed = np.atleast_1d(expected), np.atleast_1d(computed)
        if not expected.size:
            return
        self.difference = max(self.difference, tolerances.largest_gap(expected, computed))
        self.scale = max(self.scale, tolerances.largest(expected))
        low, high = self._ranges.get(expected.shape[1:], (expected[0], expected[0]))
        self._ranges[expected.shape[1:]] = (
            np.minimum(low, expected.min(axis=0)),
            np.maximum(high, expected.max(axis=0)),
        )

    @property
    def spread(self) -> float:
        """The largest variation of a number from sample to sample."""
        return max((tolerances.largest_gap(*x) for x in self._ranges.values()), default=0.0)

    def proves(self, tolerance: float) -> bool:
        """Whether the outputs vary by much more than their difference."""
        limit = max(LEAST, 10 * tolerance)
        return not self._ranges or (self.spread > 0 and self.difference <= limit * self.spread)


def compare_cases(
    path: Path,
    cases: Sequence[Case],
    outputs: Sequence[str],
    interface: Interface,
    adapter: Feed | None = None,
    weights: SharedWeights | None = None,
) -> tuple[contract.Parity, list[str]]:
    """Runs a graph on every case; raises an ExportError if a difference from Keras exceeds the tolerance.

    Args:
        path: the graph.
        cases: the cases.
        outputs: the names of the compared outputs.
        interface: of the graph.
        adapter: values of optional inputs for every run.
        weights: weights of the graph that are in memory.

    Returns:
        The result, and the outputs that hardly vary, for which it proves nothing.
    """
    precision, tolerance = interface.precision, interface.tolerance
    largest = 0.0
    variations = {name: Variation() for name in outputs}
    with Session(path, provider="cpu", weights=weights, lean=True) as base:
        session = base if adapter is None else base.with_adapter(adapter)
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

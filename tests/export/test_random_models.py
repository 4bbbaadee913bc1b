"""Models composed at random: the graph equals Keras at other sizes, or the export names what it refuses.

python -m tests.export.test_random_models 0 300     # prints the seeds that are not equal
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_tx.errors import ConfigError, ExportError, InputError
from keras_tx.runtime import session as session_module
from keras_tx.runtime.session import Session
from keras_tx_onnx import export_onnx, tolerances
from keras_tx_onnx.reading import functional_graph
from tests.drawing import as_numpy
from tests.export.random_models import VOCABULARY, random_model

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Keras's, about masks, softmax over one value ...
]

SIZES = ((3, 9), (2, 14), (1, 7))  # of the batch and of every dynamic axis
PERTURBATION = 1e-6  # of the inputs, of their size
WORST = 0.02  # tolerance above which a model amplifies rounding errors too much to be compared
QUICK, ALL, GROUP = 50, 1000, 10


def draw_inputs(model: Any, batch: int, length: int) -> list[np.ndarray]:
    random = np.random.default_rng(batch)
    arrays = []
    for tensor in model.inputs:
        shape = [batch, *(length if size is None else size for size in tensor.shape[1:])]
        if tensor.dtype == "int32":
            arrays.append(random.integers(0, VOCABULARY, shape).astype("int32"))
        else:
            arrays.append(random.standard_normal(shape).astype("float32"))
    return arrays


def run_keras(model: Any, arrays: list[np.ndarray]) -> list[np.ndarray] | None:
    """The outputs, flat; None if Keras refuses the sizes, or the outputs are not finite."""
    try:
        functional_graph.check_sizes(model, [x.shape for x in arrays])
        packed = arrays[0] if len(arrays) == 1 else arrays
        outputs = keras.tree.flatten(as_numpy(model(packed, training=False)))
    except Exception:  # of any class
        return None
    return outputs if all(np.isfinite(y).all() and y.size for y in outputs) else None


def perturbed(arrays: list[np.ndarray]) -> list[np.ndarray]:
    noise = np.random.default_rng(9)
    return [
        x + PERTURBATION * noise.standard_normal(x.shape).astype("float32") if x.dtype.kind == "f" else x
        for x in arrays
    ]


def outcome(seed: int, folder: Path) -> str:
    """Compares one model; raises an AssertionError if its graph is wrong, or a refusal names no layer."""
    model = random_model(seed)
    try:
        export_onnx(model, folder, verify=False)
    except (ExportError, ConfigError) as error:
        names = {part.name for part in functional_graph.parts(model)}
        names |= {functional_graph.name_of(operation) for operation, _ in functional_graph.operations(model)}
        assert any(name in str(error) for name in names), f"names no layer: {error}"
        assert "report this defect" not in str(error), error
        return f"refused: {error}"
    compared = 0
    with Session(folder / "onnx" / "model.onnx", "cpu") as session:
        for batch, length in SIZES:
            arrays = draw_inputs(model, batch, length)
            expected = run_keras(model, arrays)
            others = None if expected is None else run_keras(model, perturbed(arrays))
            if expected is None or others is None:
                continue
            sensitivity = max(map(tolerances.difference, expected, others), default=0.0)
            tolerance = tolerances.FLOAT32 + 10 * sensitivity
            if tolerance > WORST:
                continue
            feed = {spec.name: x.astype(spec.dtype) for spec, x in zip(session.inputs, arrays, strict=True)}
            computed = list(session.run(feed).values())  # refuses no sizes that Keras accepts
            for index, (got, reference) in enumerate(zip(computed, expected, strict=True)):
                where = f"output {index}, batch {batch}, length {length}"
                assert got.shape == reference.shape, f"{where}: {got.shape}, expected {reference.shape}"
                gap = tolerances.difference(reference, got)
                assert gap <= tolerance, f"{where}: differs by {gap:.1e}"
            compared += 1
    return "equal" if compared else "not compared"


def groups() -> list[Any]:
    return [
        pytest.param(n, marks=() if n < QUICK else pytest.mark.slow, id=f"{n}-{n + GROUP - 1}")
        for n in range(0, ALL, GROUP)
    ]


@pytest.mark.parametrize("first", groups())
def test_random_models_are_right_or_refused_by_name(first: int, tmp_path: Path):
    wrong, outcomes = {}, Counter()
    for seed in range(first, first + GROUP):
        try:
            outcomes[outcome(seed, tmp_path / str(seed)).partition(":")[0]] += 1
        except Exception as error:
            wrong[seed] = f"{type(error).__name__}: {error}"
        shutil.rmtree(tmp_path / str(seed), ignore_errors=True)
    assert not wrong, wrong
    assert outcomes["equal"] >= GROUP // 2, outcomes


def test_sizes_that_only_the_graph_refuses_are_wrong(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(session_module, "violated_bound", lambda bounds, sizes: f"{next(iter(sizes))} <= 0")
    with pytest.raises(InputError, match="expected .* <= 0"):
        outcome(0, tmp_path / "0")


def main(first: int, last: int) -> None:
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        for seed in range(first, last):
            folder = Path(place, str(seed))
            try:
                result = outcome(seed, folder)
            except Exception as error:
                result = f"WRONG: {type(error).__name__}: {error}"
            if result != "equal":
                print(seed, " ".join(result.split())[:400], flush=True)
            outcomes[result.partition(":")[0]] += 1
            shutil.rmtree(folder, ignore_errors=True)
    print(dict(outcomes))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))

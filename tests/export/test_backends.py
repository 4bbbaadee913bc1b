"""The same weights are exported to the same nodes on every backend of Keras."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import keras
import pytest

from tests.export.graph_of_backend import graphs

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("backend", ["jax", "torch", "numpy"])
def test_graph_is_the_same_on_each_backend(backend: str, tmp_path):
    package = "jax" if backend == "numpy" else backend  # Keras imports JAX for some operations on NumPy
    if importlib.util.find_spec(package) is None:
        pytest.skip(f'pip install "keras-tx[{package}]"')
    if backend == keras.backend.backend():
        pytest.skip("this is the backend of the test run itself")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.export.graph_of_backend", str(tmp_path)],
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    (tmp_path / "here").mkdir()
    mine = json.loads(json.dumps(graphs(tmp_path / "here")))
    for name, graph in mine.items():
        for part, expected in graph.items():
            assert theirs[name][part] == expected, f"{name}: {part}"

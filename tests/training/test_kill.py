"""A training that is killed with SIGKILL again and again ends with the weights of one that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
MOMENTS = ("batch", "validation", "write", "rename")


def run(backend: str, *arguments: str) -> int:
    command = [sys.executable, "-m", "tests.training.killed_training", *arguments]
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    # PyTorch's kernels split sums by the number of threads.
    environment |= {"OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert process.returncode in (0, -signal.SIGKILL), process.stderr
    return process.returncode


def assert_same_result(resumed: Path, whole: Path) -> None:
    with np.load(resumed) as mine, np.load(whole) as expected:
        assert set(mine) == set(expected)
        assert len(expected["val_loss"]) == 6
        for name in expected:
            np.testing.assert_array_equal(mine[name], expected[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "source", "kills"),
    [("tensorflow", "tf.data", 20), ("jax", "arrays", 6), ("torch", "PyDataset", 6)],
)
def test_a_killed_training_equals_one_that_was_not(tmp_path: Path, backend: str, source: str, kills: int):
    pytest.importorskip(backend)
    if source == "tf.data":
        pytest.importorskip("tensorflow")
    state, chance, killed = tmp_path / "run.state", random.Random(7), []
    moments = list(MOMENTS) * (kills // len(MOMENTS) + 1)
    chance.shuffle(moments)
    for seed, moment in enumerate(moments[:kills]):
        if run(backend, source, str(state), str(tmp_path / "early.npz"), moment, str(seed)):
            killed.append(moment)
    assert len(killed) >= min(kills, 12), killed
    assert run(backend, source, str(state), str(tmp_path / "resumed.npz")) == 0
    assert [path.name for path in tmp_path.glob(".*")] == []
    assert run(backend, source, str(tmp_path / "other.state"), str(tmp_path / "whole.npz")) == 0
    assert_same_result(tmp_path / "resumed.npz", tmp_path / "whole.npz")


@pytest.mark.thorough
def test_a_training_on_pytorch_that_is_killed_before_its_second_save(tmp_path: Path):
    """The data loader of `fit` draws from the random numbers of dropout before the first step."""
    pytest.importorskip("torch")
    state, whole = tmp_path / "run.state", tmp_path / "whole.npz"
    assert run("torch", "PyDataset", str(state), str(whole), "batch", "4") == -signal.SIGKILL
    with np.load(state) as saved:
        about = json.loads(str(saved["about"]))
    assert (about["epoch"], about["step"]) == (0, 0)
    assert run("torch", "PyDataset", str(state), str(tmp_path / "resumed.npz")) == 0
    assert run("torch", "PyDataset", str(tmp_path / "other.state"), str(whole)) == 0
    assert_same_result(tmp_path / "resumed.npz", whole)

"""A local Ray cluster of two workers; one is killed, and the training continues."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import pytest

from keras_tx.errors import ConfigError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray: pip install keras-tx[cpu,jax,ray]"
)

ROOT = Path(__file__).parents[2]


def run(storage: Path, *step: str) -> dict[str, Any]:
    storage.mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'export'}", "RAY_DEDUP_LOGS": "0"}
    command = [sys.executable, "-m", "tests.training.ray_program", str(storage), *step]
    done = subprocess.run(command, text=True, cwd=ROOT, env=environment, capture_output=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_killed_worker_comes_back_and_the_curve_continues(tmp_path):
    never_killed = run(tmp_path / "never_killed")
    killed = run(tmp_path / "killed", "8")  # the last checkpoint is that of step 6
    assert (tmp_path / "killed" / "killed").exists()
    assert killed["workers"] == never_killed["workers"]
    assert killed["workers"][0] == killed["workers"][1]
    assert killed["metrics"] == never_killed["metrics"]
    losses = killed["workers"][0]["losses"]
    assert killed["metrics"]["epoch"] == len(losses) == 3
    assert losses[-1] < losses[0]


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="the backend that is supported")
def test_another_backend_is_refused():
    from keras_tx.training.ray import join_workers

    with pytest.raises(ConfigError, match=f"{keras.backend.backend()!r}, but only 'jax'"):
        join_workers()


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="join_workers wants JAX first")
def test_outside_of_a_worker():
    from keras_tx.training.ray import join_workers

    with pytest.raises(RuntimeError, match="get_context"):
        join_workers()

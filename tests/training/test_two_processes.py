"""Two processes of JAX train like one; TensorFlow's strategy for several processes is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError

ROOT = Path(__file__).parents[2]


def start(*arguments: str, within: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Starts a process, `within` another command such as `ip netns exec NAME`."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'export'}"}
    command = [*within, sys.executable, "-m", "tests.training.two_processes_program", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, cwd=ROOT, env=environment, **pipes)  # type: ignore[call-overload]


def result(process: subprocess.Popen[str]) -> dict[str, list[float]]:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    return json.loads(output.splitlines()[-1])


def address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="needs JAX: pip install keras-tx[jax]"
)


@needs_jax
@pytest.mark.thorough
def test_two_processes_train_as_one():
    together = address()
    both = [start(together, "2", str(index)) for index in range(2)]
    first, second = map(result, both)
    one = result(start(together, "1", "0"))
    assert first == second
    assert first["losses"] == pytest.approx(one["losses"], abs=1e-5)
    assert one["losses"][0] - one["losses"][-1] > 1e-2


@needs_jax
@pytest.mark.thorough
def test_two_processes_resume_after_a_kill(tmp_path):
    def train(state: str, *last_step: str) -> list[subprocess.Popen[str]]:
        together = address()
        paths = [str(tmp_path / state), *last_step]
        return [start(together, "2", "0", *paths[:1]), start(together, "2", "1", *paths)]

    never_killed = [result(process) for process in train("never_killed.state")]
    other, killed = train("killed.state", "5")  # the last state is that of step 4, the end of the first epoch
    killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL
    other.kill()  # as SLURM and Ray do
    other.communicate()
    resumed = [result(process) for process in train("killed.state")]
    assert resumed == never_killed
    assert resumed[0] == resumed[1]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["killed.state", "never_killed.state"]

    alone = start(address(), "1", "0", str(tmp_path / "killed.state"))
    _, errors = alone.communicate(timeout=300)
    assert "ConfigError" in errors
    assert "number of processes 2, now it is 1" in errors


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.distribute")
def test_a_strategy_of_several_processes_is_refused(monkeypatch):
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    model.compile(run_eagerly=True)
    monkeypatch.setattr(type(model.distribute_strategy.extended), "_in_multi_worker_mode", lambda self: True)
    with pytest.raises(ConfigError, match="several processes"):
        model.fit(np.zeros((2, 8, 8, 3), "float32"), np.zeros(2, int), verbose=0)

"""Two processes of JAX train like one; TensorFlow's strategy for several processes is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError

ROOT = Path(__file__).parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'export'}"}
    command = [sys.executable, "-m", "tests.training.two_processes_program", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, cwd=ROOT, env=environment, **pipes)  # type: ignore[call-overload]


def losses(process: subprocess.Popen[str]) -> list[float]:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    return json.loads(output.splitlines()[-1])


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs JAX: pip install keras-tx[jax]")
def test_two_processes_train_as_one():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    both = [start(address, "2", str(index)) for index in range(2)]
    first, second = map(losses, both)
    one = losses(start(address, "1", "0"))
    assert first == second == pytest.approx(one, abs=1e-5)
    assert one[0] - one[-1] > 1e-2


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.distribute")
def test_a_strategy_of_several_processes_is_refused(monkeypatch):
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    model.compile(run_eagerly=True)
    monkeypatch.setattr(type(model.distribute_strategy.extended), "_in_multi_worker_mode", lambda self: True)
    with pytest.raises(ConfigError, match="several processes"):
        model.fit(np.zeros((2, 8, 8, 3), "float32"), np.zeros(2, int), verbose=0)

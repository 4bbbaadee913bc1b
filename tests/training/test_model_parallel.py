"""Training on four virtual devices of JAX: losses, the layout of each large weight, bytes per device."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.training.distribution import weight_layouts

ROOT = Path(__file__).parents[2]
LARGE = 0.01  # of the parameters

# The divided axis of each large weight, as in Megatron-LM; the other axis if its size is not divisible.
AXES = {
    "query/kernel": 1,
    "key/kernel": 1,
    "value/kernel": 1,
    "output/kernel": 0,
    "up/kernel": 1,
    "gate/kernel": 1,
    "down/kernel": 0,
    "token_embedding/table": 0,
    "logits/kernel": 1,
}
ON_EVERY_DEVICE = {"positions/table", "segments/table", "patch_embedding/kernel", "pooler/kernel"}


def run(name: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'export'}"}
    command = [sys.executable, "-m", "tests.training.model_parallel_program", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs JAX: pip install keras-tx[jax]")
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gpt", "llama", "vit", "bert", "t5", "transformer"])
def test_four_devices_train_as_one(name):
    report = run(name)
    assert report["losses"][0] - report["losses"][-1] > 1e-2  # the weights have moved
    for mesh in report["meshes"]:
        assert mesh["losses"] == pytest.approx(report["losses"], abs=1e-5)
        parameters = sum(math.prod(shape) for shape, _ in mesh["layouts"].values())
        held = 0
        for path, (shape, axes) in mesh["layouts"].items():
            divided = [index for index, axis in enumerate(axes) if axis == "model"]
            held += 4 * math.prod(shape) / mesh["tensor"] ** len(divided)
            if mesh["tensor"] == 1 or "/" not in path or math.prod(shape) < LARGE * parameters:
                assert mesh["tensor"] > 1 or not divided
                continue
            end = "/".join(path.split("/")[-2:])
            if end not in ON_EVERY_DEVICE:
                first = AXES[end]
                assert divided == [first if shape[first] % mesh["tensor"] == 0 else 1 - first], path
        assert mesh["bytes"] == pytest.approx(held, rel=1e-6)
        assert mesh["planned"] == pytest.approx(mesh["bytes"], rel=0.05)
    assert report["loaded_devices"] == 1
    assert report["loaded_equal"] and report["loaded_optimizer_equal"]


@pytest.mark.parametrize(
    ("config", "tensor"),
    [
        (keras_tx.GPTConfig.variant("1558M", num_heads=20), 8),
        (keras_tx.GPTConfig.variant("llama-tiny", vocabulary_size=64, num_heads=8, kv_heads=2), 4),
        (keras_tx.ViTConfig.variant("S/16"), 4),  # 6 heads
        (keras_tx.BertConfig.variant("base", mlp_dim=3070), 4),
    ],
    ids=["heads", "key-value heads", "vit", "units"],
)
def test_parts_that_do_not_divide_the_model_raise(config, tensor):
    with pytest.raises(ConfigError, match=f"tensor={tensor} does not divide"):
        weight_layouts(config, tensor)


def test_every_large_weight_of_the_published_sizes_is_divided():
    for config in (
        keras_tx.GPTConfig.variant("1558M", num_heads=20),
        keras_tx.BertConfig.variant("large"),
        keras_tx.ViTConfig.variant("H/14"),
        keras_tx.T5Config.variant("11B"),
        keras_tx.TransformerConfig.variant("big", vocabulary_size=32000),
    ):
        total = keras_tx.cost(config).params
        layouts = weight_layouts(config, 4)
        model = keras_tx.training.distribution.weightless_model(config)
        for variable in model.variables:
            if math.prod(variable.shape) >= LARGE * total:
                assert variable.path in layouts, variable.path
        undivided = sum(math.prod(v.shape) for v in model.variables if v.path not in layouts)
        assert undivided < 0.02 * total


def test_invalid_arguments_raise():
    with pytest.raises(ConfigError, match="model is a str"):
        weight_layouts("gpt", 2)
    config = keras_tx.GPTConfig.variant("pico", vocabulary_size=64)
    if keras.backend.backend() == "jax":
        with pytest.raises(ConfigError, match="tensor=0"):
            keras_tx.model_parallel(config, tensor=0)
        with pytest.raises(ConfigError, match=r"data=2 times tensor=2 is 4, but there are 3"):
            keras_tx.model_parallel(config, data=2, tensor=2, devices=["cpu:0", "cpu:1", "cpu:2"])


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_backends_without_keras_distribution_raise(backend, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    with pytest.raises(ConfigError, match="MirroredStrategy" if backend == "tensorflow" else "after 3.15"):
        keras_tx.model_parallel(keras_tx.GPTConfig.variant("pico", vocabulary_size=64))

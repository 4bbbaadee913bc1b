"""compile(remat=True): the same weights after training steps, with dropout, masks and biases."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from tests.drawing import as_numpy, draw
from tests.tolerances import FP32, HALF

RATES = {"dropout": 0.2, "attention_dropout": 0.2}
IDS = np.random.default_rng(0).integers(1, 20, (2, 6)).astype("int32")
MASK = np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]], "int32")
SIZES = {"vocabulary_size": 20, "width": 8, "depth": 2, "num_heads": 2}


def vit(**options):
    model = keras_tx.vit(
        "Mu/2", image_size=4, num_classes=3, depth=2, drop_path=0.3, layer_scale=0.5, **RATES, **options
    )
    return model, draw(2, 4, 4, 3), np.array([0, 2])


def bert(**options):
    model = keras_tx.bert(**SIZES, max_length=8, head=keras_tx.ClassifierHead(2), **RATES, **options)
    inputs = {"input_ids": IDS * MASK, "attention_mask": MASK, "token_type_ids": np.zeros_like(IDS)}
    return model, inputs, np.array([0, 1])


def t5(**options):
    model = keras_tx.t5("small", **SIZES, stop_ids=(1,), dropout=0.2, **options)
    names = [tensor.name for tensor in model.inputs]
    inputs = {name: MASK if "mask" in name else IDS for name in names}
    return model, inputs, IDS


def weights_after_steps(factory, remat: bool, **options) -> list[np.ndarray]:
    keras.utils.set_random_seed(1)
    model, x, y = factory(**options)
    model.compile(
        keras.optimizers.SGD(0.5), metrics=[], jit_compile=keras.backend.backend() == "jax", remat=remat
    )
    keras.utils.set_random_seed(2)
    for _ in range(2):
        model.train_on_batch(x, y)
    return [as_numpy(w) for w in model.trainable_weights]


@pytest.mark.parametrize("policy", ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("factory", [vit, bert, t5])
def test_weights_equal_those_of_training_without(factory, policy, monkeypatch):
    calls = []
    remat = keras.remat
    monkeypatch.setattr(keras, "remat", lambda f: (calls.append(f), remat(f))[1])
    expected = weights_after_steps(factory, False, dtype=policy)
    assert not calls
    actual = weights_after_steps(factory, True, dtype=policy)
    assert calls
    scale = max(np.abs(x).max() for x in expected)  # gradients of a key's bias are rounding errors
    for ours, theirs in zip(actual, expected, strict=True):
        assert np.abs(ours - theirs).max() <= {"float32": FP32, **HALF}[policy] * scale


def test_a_saved_model_and_another_compile(tmp_path):
    model, x, y = bert()
    model.compile(remat=True, run_eagerly=keras.backend.backend() != "jax")
    model.train_on_batch(x, y)
    model.save(tmp_path / "model.keras")
    loaded = keras_tx.load_model(tmp_path / "model.keras")
    assert loaded.remat and loaded.get_layer("block_0").remat
    loaded.train_on_batch(x, y)
    loaded.compile()
    assert not loaded.get_layer("block_0").remat


def test_a_model_without_blocks_is_refused():
    x = keras.Input((3,))
    model = keras_tx.models.transformer_model.TransformerModel(x, x, config=None, head=None)
    with pytest.raises(ConfigError, match="has no TransformerBlock. Remove remat=True"):
        model.compile(loss="mse", remat=True)

"""The options of docs/training.md give the weights of a training without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.runtime import load
from tests.drawing import as_numpy, draw
from tests.tolerances import FP32, HALF, assert_close

BACKEND = keras.backend.backend()
IMAGES, LABELS = draw(12, 8, 8, 3).clip(-1, 1), np.arange(12) % 3
RATE = 0.05
# Eager steps are faster than tracing a few; on JAX, compiled ones are.
STEPS = {} if BACKEND == "jax" else {"run_eagerly": True}


def trained(
    dtype: str | None = None, batch_size: int = 4, epochs: int = 2, optimizer: Any = None, **options: Any
) -> Any:
    """A small ViT after some steps; SGD, whose steps are proportional to the gradients."""
    keras.utils.set_random_seed(3)
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3, depth=2, dtype=dtype)
    random = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(random.normal(0, 0.2, weight.shape) + (weight.name == "gamma"))
    model.compile(optimizer or keras.optimizers.SGD(RATE, momentum=0.9), **{**STEPS, **options})
    model.fit(IMAGES, LABELS, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    return model


def assert_same_weights(actual: Any, expected: Any, tolerance: float = FP32) -> None:
    for mine, theirs in zip(actual.trainable_weights, expected.trainable_weights, strict=True):
        assert_close(as_numpy(mine), as_numpy(theirs), tolerance)


@pytest.fixture(scope="module")
def plain() -> Any:
    return trained()


def test_training_moves_the_weights_further_than_the_tolerances(plain: Any):
    gap = [
        np.abs(as_numpy(x) - as_numpy(y)).max()
        for x, y in zip(plain.trainable_weights, trained(epochs=1).trainable_weights, strict=True)
    ]
    assert np.median(gap) > 100 * FP32


@pytest.mark.skipif(BACKEND == "torch", reason="Keras supports one step per execution on PyTorch")
def test_steps_per_execution(plain: Any):
    assert_same_weights(trained(steps_per_execution=3, run_eagerly=False), plain)


@pytest.mark.skipif(BACKEND == "torch", reason="torch.compile needs a compiler of C++")
def test_compiled_steps(plain: Any):
    assert_same_weights(trained(run_eagerly=False, jit_compile=True), plain, 10 * FP32)
    assert_same_weights(trained(run_eagerly=False, jit_compile=False), plain)


def test_gradient_accumulation_equals_larger_batches():
    optimizer = keras.optimizers.SGD(RATE, gradient_accumulation_steps=2)
    accumulated = trained(batch_size=3, optimizer=optimizer)
    assert_same_weights(accumulated, trained(batch_size=6, optimizer=keras.optimizers.SGD(RATE)))


def test_mixed_precision(plain: Any):
    assert_same_weights(trained(dtype="mixed_bfloat16"), plain, HALF["mixed_bfloat16"])


def test_average_of_the_weights():
    """The weights after `fit` are the moving average of those after each step."""
    steps = [trained(batch_size=12, epochs=n, optimizer=keras.optimizers.SGD(RATE)) for n in (1, 2, 3)]
    averaged = trained(
        batch_size=12, epochs=3, optimizer=keras.optimizers.SGD(RATE, use_ema=True, ema_momentum=0.5)
    )
    for average, *values in zip(averaged.weights, *(model.weights for model in steps), strict=True):
        first, second, third = (as_numpy(value) for value in values)
        expected = 0.5 * (0.5 * first + 0.5 * second) + 0.5 * third  # it starts with the first step
        assert_close(as_numpy(average), expected, 10 * FP32)


def test_schedule_free_weights_are_the_average_after_fit():
    """Defazio et al., 2024: y = (1 - b) z + b x during training, and x afterwards."""
    parameters = [keras.Variable(draw(4, 3), name="kernel")]
    value = as_numpy(parameters[0]).astype("float64")
    optimizer = keras_tx.ScheduleFreeAdamW(0.05, weight_decay=0.1)
    optimizer.build(parameters)
    last, average, square = value.copy(), value.copy(), np.zeros_like(value)
    for step in range(1, 5):
        gradient = draw(4, 3) + step
        optimizer.apply([keras.ops.convert_to_tensor(gradient.astype("float32"))])
        square = 0.999 * square + 0.001 * gradient**2
        decay = 0.1 * (0.1 * last + 0.9 * average)
        last = last - 0.05 * (gradient / (np.sqrt(square / (1 - 0.999**step)) + 1e-8) + decay)
        average = average + (last - average) / step
    assert_close(as_numpy(parameters[0]), 0.1 * last + 0.9 * average, 10 * FP32)
    optimizer.finalize_variable_values(parameters)
    assert_close(as_numpy(parameters[0]), average, 10 * FP32)
    assert np.abs(last - average).max() > 1e-2
    optimizer.finalize_variable_values(parameters)  # unchanged: another fit continues from the average
    assert_close(as_numpy(parameters[0]), average, 10 * FP32)


def test_schedule_free_model_is_saved_and_continues(tmp_path: Path):
    model = trained(optimizer=keras_tx.ScheduleFreeAdamW(1e-2))
    for weight, last in zip(model.trainable_weights, model.optimizer._momentums, strict=True):
        np.testing.assert_array_equal(as_numpy(weight), as_numpy(last))
    model.save(tmp_path / "model.keras")
    loaded = keras_tx.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras_tx.ScheduleFreeAdamW
    # Weights are not compared after another step: it amplifies the rounding of gradients near 0.
    for mine, theirs in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(theirs))
    history = loaded.fit(IMAGES, LABELS, batch_size=12, verbose=0).history
    assert np.isfinite(history["loss"]).all()


def test_schedule_free_optimizer_of_keras_is_refused():
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    with pytest.raises(ConfigError, match="keras_tx.ScheduleFreeAdamW"):
        model.compile(keras.optimizers.ScheduleFreeAdamW())


@pytest.mark.parametrize("swaps_first", [True, False])
def test_the_validated_average_is_exported(swaps_first: bool, tmp_path: Path):
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    model.compile(keras_tx.AdamW(0.05, use_ema=True, ema_momentum=0.9))
    best = keras_tx.ExportCallback(tmp_path / "best")
    callbacks = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True), best]
    arguments = {"validation_data": (IMAGES, LABELS), "batch_size": 4, "verbose": 0}
    if not swaps_first:
        with pytest.raises(ConfigError, match="in this order"):
            model.fit(IMAGES, LABELS, callbacks=callbacks[::-1], **arguments)
        return
    history = model.fit(IMAGES, LABELS, callbacks=callbacks, **arguments).history
    logits = load(tmp_path / "best").session.run({"pixel_values": IMAGES.transpose(0, 3, 1, 2)})["logits"]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(LABELS, logits)
    assert float(loss) == pytest.approx(history["val_loss"][0], rel=1e-4)

"""A NaN is reported at the step that made it, with the layer, the gradient or the weight."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx.errors import ConfigError
from keras_tx.training import fit_resumable
from tests.drawing import draw

X, Y = draw(24, 4), draw(24, 1)
STATE = r"run.state keeps the state after step \d of epoch 1. Lower"


@keras.saving.register_keras_serializable("tests")
class SquareRoot(keras.layers.Layer):
    """Not defined below 0; its gradient is infinite at 0."""

    def call(self, x: Any) -> Any:
        return ops.sqrt(x)


def network(middle: Any = None, rate: Any = 0.01, bias: float = 5.0) -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    x = keras.layers.Dense(6, name="first", bias_initializer=keras.initializers.Constant(bias))(inputs)
    x = keras.layers.Dropout(0.2, name="drop")(x)
    x = x if middle is None else middle(x)
    model = keras.Model(inputs, keras.layers.Dense(1, name="last")(x))
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def message(tmp_path: Any, model: keras.Model, x: Any = X, **options: Any) -> str:
    with pytest.raises(ConfigError, match=STATE) as error:
        fit_resumable(model, (x, Y), tmp_path / "run.state", batch_size=4, epochs=2, verbose=0, **options)
    return str(error.value)


class Collapse(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that is too large at the fourth step."""

    def __call__(self, step: Any) -> Any:
        return ops.where(step == 3, 1e38, 1e-3)

    def get_config(self) -> dict[str, Any]:
        return {}


def test_of_an_output(tmp_path):
    x = X.copy()
    x[5] = -1e4  # one row, which only some step sees
    text = message(tmp_path, network(lambda x: SquareRoot(name="root")(x + 1)), x, every=2)
    assert "In step" in text
    assert "the output of layer 'root' (SquareRoot) is the first value" in text
    assert "its inputs and weights are finite" in text


def test_of_an_operation(tmp_path):
    text = message(tmp_path, network(lambda x: ops.log(x - 1e4)), every=2)
    assert "After step 1 of epoch 1, the loss is nan. In step 1, the output of layer 'log" in text


def test_of_a_gradient(tmp_path):
    """The square root of 0 is 0, with an infinite gradient."""
    model = network(lambda x: SquareRoot(name="root")(x * 0))
    text = message(tmp_path, model, every=1)
    assert "the gradient of weight 'first/" in text
    assert "the outputs of all layers and the loss are finite" in text


def test_of_an_update(tmp_path):
    """The loss is NaN one step after the step that made it."""
    text = message(tmp_path, network(rate=Collapse()))
    assert "After step 5 of epoch 1, the loss is" in text
    assert "In step 4, the update of" in text or "In step 5, the output of" in text
    assert "is the first value that is NaN or infinite" in text


def test_of_a_batch(tmp_path):
    x = X.copy()
    x[7, 2] = np.nan
    assert "input '0' of the batch is the first value" in message(tmp_path, network(), x, every=2)


def test_of_the_loss(tmp_path):
    model = network()
    model.compile("sgd", lambda y, p: ops.sqrt(-1 - ops.square(p)))
    text = message(tmp_path, model)
    assert "the loss is the first value" in text
    assert "the outputs of all layers are finite" in text


def test_of_a_callback(tmp_path):
    class Spoil(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                kernel = self.model.get_layer("last").kernel
                kernel.assign(kernel * float("nan"))

    text = message(tmp_path, network(), callbacks=[Spoil()])
    assert "After step 4 of epoch 1, the loss is nan. Steps 1 to 4 of" not in text
    assert "Steps 1 to 4 are finite when they are repeated without the callbacks" in text


def test_loss_scaling_skips_steps_and_trains_on(tmp_path):
    """An overflow of float16 is no divergence: LossScaleOptimizer halves the scale."""
    model = network()
    model.compile(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=2.0**127), "mse"
    )
    history = fit_resumable(model, (X * 1e3, Y), tmp_path / "run.state", epochs=2, batch_size=4, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert float(ops.convert_to_numpy(model.optimizer.dynamic_scale)) < 2.0**127

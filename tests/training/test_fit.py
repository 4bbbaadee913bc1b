"""`model.fit` with every data source and precision, with and without XLA."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.optimizers import AdamW

BACKEND = keras.backend.backend()


def stripes(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images with horizontal, vertical or no stripes, in noise: a problem that a tiny ViT solves quickly."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, count)
    images = random.normal(0, 0.3, (count, 8, 8, 3)).astype("float32")
    images[labels == 0, ::2] += 1
    images[labels == 1, :, ::2] += 1
    return images, labels


class Batches(keras.utils.PyDataset):
    def __init__(self, images: np.ndarray, labels: np.ndarray):
        super().__init__()
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return math.ceil(len(self.labels) / 32)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        part = slice(32 * index, 32 * (index + 1))
        return self.images[part], self.labels[part]


def fitted(data, epochs: int = 6, jit_compile: bool | str = "auto", **options) -> dict[str, list[float]]:
    keras.utils.set_random_seed(0)
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3, **options)
    model.compile(AdamW(3e-3), jit_compile=jit_compile)
    arrays = dict(zip(("x", "y"), data, strict=True)) if isinstance(data, tuple) else {"x": data}
    history = model.fit(**arrays, epochs=epochs, verbose=0, shuffle=isinstance(data, tuple)).history
    model.evaluate(*stripes(8, seed=1), verbose=0)
    return history


@pytest.mark.thorough
@pytest.mark.parametrize("source", ["numpy", "tf.data", "PyDataset"])
def test_learns_from(source: str):
    data = stripes(256)
    if source == "tf.data":
        tf = pytest.importorskip("tensorflow", reason='pip install "keras-tx[cpu]"')
        data = tf.data.Dataset.from_tensor_slices(data).batch(32)
    elif source == "PyDataset":
        data = Batches(*data)
    history = fitted(data)
    assert history["accuracy"][-1] > 0.9
    assert history["loss"][-1] < history["loss"][0] / 2


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_learns_in(policy: str):
    assert fitted(stripes(256), dtype=policy)["accuracy"][-1] > 0.9


def test_loss_scaling_of_float16_layers():
    """Gradients of this size are zero in float16 without it."""

    def step(policy: str, **options) -> tuple[bool, np.ndarray]:
        keras.utils.set_random_seed(1)
        model = keras_tx.vit("Mu/2", image_size=8, num_classes=3, dtype=policy)
        before = keras.ops.convert_to_numpy(model.get_layer("block_0").feed_forward.up.kernel) + 0
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(1e7), loss, loss_weights=1e-8, run_eagerly=True, **options)
        model.train_on_batch(*stripes(8))
        after = keras.ops.convert_to_numpy(model.get_layer("block_0").feed_forward.up.kernel)
        return isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer), after - before

    is_scaled, expected = step("float32")
    assert not is_scaled
    is_scaled, actual = step("mixed_float16")
    assert is_scaled
    assert np.abs(actual - expected).max() < 0.1 * np.abs(expected).max()
    is_scaled, lost = step("mixed_float16", auto_scale_loss=False)
    assert not is_scaled
    assert np.abs(lost - expected).max() > 0.5 * np.abs(expected).max()


@pytest.mark.parametrize("policy", ["mixed_float16", keras.DTypePolicy("mixed_float16")])
def test_loss_scaling_is_added_once(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
        model.compile()
        assert isinstance(model.optimizer.inner_optimizer, keras_tx.AdamW)
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
        assert isinstance(model.optimizer.inner_optimizer, keras.optimizers.SGD)
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.thorough
@pytest.mark.skipif(
    BACKEND == "torch", reason="jit_compile on torch is torch.compile, which needs a compiler"
)
@pytest.mark.parametrize("jit_compile", [True, False])
def test_learns_with_and_without_xla(jit_compile: bool):
    assert fitted(stripes(256), jit_compile=jit_compile)["accuracy"][-1] > 0.9


def test_regularized_training_is_finite():
    history = fitted(
        stripes(64), epochs=2, dropout=0.1, attention_dropout=0.1, drop_path=0.2, layer_scale=0.1, depth=2
    )
    assert np.isfinite(history["loss"]).all()


def test_the_callbacks_of_keras_work(tmp_path):
    images, labels = stripes(64)
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    model.compile()
    best = tmp_path / "best.keras"
    callbacks = [keras.callbacks.ModelCheckpoint(best, save_best_only=True), keras.callbacks.EarlyStopping()]
    model.fit(images, labels, validation_split=0.25, epochs=2, verbose=0, callbacks=callbacks)
    assert isinstance(keras.models.load_model(best), keras_tx.ViT)

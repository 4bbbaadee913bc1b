"""compile() selects losses and metrics for logits."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.losses import on_logits
from keras_tx.models.bert.model import bert
from keras_tx.models.vit.model import vit
from tests.drawing import as_numpy, draw, redraw
from tests.naming import shown


def test_labels_of_which_any_number_is_right():
    model = redraw(vit("Mu/2", image_size=8, head=keras_tx.MultiLabelHead(3)))
    images, labels = np.tanh(draw(8, 8, 8, 3)), (draw(8, 3) > 0).astype("float32")
    right = float(((as_numpy(model(images)) > 0) == labels).mean())
    for metrics in (["accuracy"], {"logits": ["binary_accuracy"]}):
        model.compile(loss="binary_crossentropy", metrics=metrics, run_eagerly=True)
        results = model.evaluate(images, labels, verbose=0, return_dict=True)
        assert results["accuracy"] == pytest.approx(right)
    for loss in ("categorical_crossentropy", keras.losses.SparseCategoricalCrossentropy(from_logits=True)):
        with pytest.raises(ConfigError, match="MultiLabelHead.*'binary_crossentropy'"):
            model.compile(loss=loss)


@pytest.fixture
def model():
    return redraw(vit("Mu/2", image_size=8, num_classes=3))


def expected_loss(model, images, labels) -> float:
    logits = as_numpy(model(images)).astype("float64")
    log_sum = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    return float((log_sum - logits[np.arange(len(labels)), labels]).mean())


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"optimizer": "adamw", "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]},
        {"loss": "SparseCategoricalCrossentropy"},
        {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        {"loss": ["sparse_categorical_crossentropy"]},
        {"loss": {"logits": "sparse_categorical_crossentropy"}},
        {"metrics": ["sparse_categorical_crossentropy"]},
    ],
    ids=shown,
)
def test_the_loss_is_on_logits(model, arguments: dict):
    images, labels = np.tanh(draw(8, 8, 8, 3)), np.arange(8) % 3
    model.compile(**arguments, run_eagerly=True)
    result = model.evaluate(images, labels, verbose=0, return_dict=True)
    assert result["loss"] == pytest.approx(expected_loss(model, images, labels), rel=1e-5)
    if "sparse_categorical_crossentropy" in result:
        assert result["sparse_categorical_crossentropy"] == pytest.approx(result["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (keras.losses.SparseCategoricalCrossentropy(), "SparseCategoricalCrossentropy.*from_logits=True"),
        (keras.losses.CategoricalFocalCrossentropy(), "CategoricalFocalCrossentropy.*from_logits=True"),
        (keras.losses.sparse_categorical_crossentropy, "'sparse_categorical_crossentropy'"),
        ({"logits": keras.losses.CategoricalCrossentropy()}, "CategoricalCrossentropy.*probabilities"),
        ("kl_divergence", "'kl_divergence' .*probabilities"),
        ("KLDivergence", "probabilities"),
        (keras.losses.KLDivergence(), "probabilities"),
        (keras.losses.kl_divergence, "probabilities"),
        (keras.losses.Poisson(), "probabilities"),
        ("KLD", "probabilities"),
        ("dice", "'dice' .*probabilities"),
        (keras.losses.Tversky(), "'tversky' .*probabilities"),
        (keras.losses.dice, "'dice' .*probabilities"),
    ],
    ids=shown,
)
def test_loss_on_probabilities_raises(model, loss, message: str):
    with pytest.raises(ConfigError, match=message):
        model.compile(loss=loss)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (keras.metrics.BinaryCrossentropy(), "BinaryCrossentropy.*from_logits=True"),
        (keras.metrics.AUC(), "AUC.*from_logits=True"),
        (keras.metrics.Precision(), "'Precision' .*probabilities"),
        ("binary_accuracy", "'binary_accuracy' .*probabilities"),
        ("crossentropy", "'crossentropy'.*'sparse_categorical_crossentropy'"),
    ],
    ids=shown,
)
def test_metric_on_probabilities_raises(model, metric, message: str):
    with pytest.raises(ConfigError, match=message):
        model.compile(metrics=[metric])


@pytest.mark.parametrize("name", ["bce", "BCE", "binary_crossentropy", "BinaryCrossentropy"])
def test_every_alias_of_a_loss_is_on_logits(name: str):
    for kind in ("losses", "metrics"):
        assert type(on_logits(name, kind)).__name__ == "BinaryCrossentropy"
        assert on_logits(on_logits(name, kind), kind) is not None


def test_other_losses_and_metrics_are_unchanged():
    for name in ("mse", "MSE", "mae", "accuracy", "acc", "sparse_categorical_accuracy", "no_such_loss"):
        assert on_logits(name, "metrics") == name
    own = keras.metrics.MeanMetricWrapper(lambda y, logits: logits)
    assert on_logits(own, "metrics") is own


@pytest.mark.parametrize(
    "loss", ["mse", keras.losses.MeanSquaredError(), lambda y, logits: logits[:, 0]], ids=shown
)
def test_other_losses_stay(model, loss):
    model.compile(loss=loss, run_eagerly=True)
    model.fit(np.tanh(draw(4, 8, 8, 3)), draw(4, 3), verbose=0)


def test_without_arguments_weights_decay_but_biases_do_not(model):
    model.compile()
    assert isinstance(model.optimizer, keras.optimizers.AdamW)
    model.optimizer.build(model.trainable_variables)
    decayed = {v.path for v in model.trainable_variables if model.optimizer._use_weight_decay(v)}
    kernels = {v.path for v in model.trainable_variables if v.path.endswith("kernel")}
    assert decayed == kernels


def test_a_loaded_model_trains_on(model, tmp_path):
    images, labels = np.tanh(draw(8, 8, 8, 3)), np.arange(8) % 3
    model.compile(metrics=["accuracy"], run_eagerly=True)
    model.fit(images, labels, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 1
    for m in (model, loaded):
        m.fit(images, labels, verbose=0, shuffle=False)
    np.testing.assert_allclose(as_numpy(loaded(images)), as_numpy(model(images)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [
        {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]},
        {"loss": {"logits": "SparseCategoricalCrossentropy"}, "metrics": {"logits": ["acc"]}},
    ],
    ids=shown,
)
@pytest.mark.parametrize("head", [keras_tx.MaskedLMHead(), keras_tx.TokenClassifierHead(4)], ids=shown)
def test_losses_and_accuracies_of_tokens_leave_out_what_has_no_label(head, arguments: dict):
    model = redraw(bert("tiny", head=head, width=16, num_heads=2, depth=1, vocabulary_size=4, max_length=8))
    ids = np.random.default_rng(0).integers(0, 4, (4, 6))
    labels = np.where(np.arange(6) < 4, ids, -100)
    model.compile(**arguments, run_eagerly=True)
    named = model.evaluate(ids, labels, verbose=0, return_dict=True)
    model.compile(run_eagerly=True)
    own = model.evaluate(ids, labels, verbose=0, return_dict=True)
    assert named == pytest.approx(own)
    assert own["accuracy"] == pytest.approx((as_numpy(model(ids)).argmax(-1) == labels).sum() / 16)


def test_names_mean_what_each_output_needs():
    options = {"width": 16, "num_heads": 2, "depth": 1, "vocabulary_size": 4, "max_length": 8}
    model = redraw(bert("tiny", head=keras_tx.PretrainingHead(), **options))
    ids = np.random.default_rng(0).integers(0, 4, (4, 6))
    labels = {
        "prediction_logits": np.where(np.arange(6) < 4, ids, -100),
        "seq_relationship_logits": np.arange(4) % 2,
    }
    results = []
    names = dict.fromkeys(labels, "sparse_categorical_crossentropy")
    for arguments in ({}, {"loss": names, "metrics": {name: ["accuracy"] for name in labels}}):
        model.compile(**arguments, run_eagerly=True)
        results.append(model.evaluate(ids, labels, verbose=0, return_dict=True))
    assert results[1] == pytest.approx(results[0])


def test_headless_models_need_a_loss_of_the_user():
    model = vit("Mu/2", image_size=8)
    model.compile(loss="mse", run_eagerly=True)
    model.fit(np.tanh(draw(4, 8, 8, 3)), draw(4, 32), verbose=0)


@pytest.mark.parametrize("name", ["adamw", "AdamW"])
def test_adamw_by_name_is_ours(model, name: str):
    model.compile(name)
    ours = keras_tx.AdamW()
    assert type(model.optimizer) is keras_tx.AdamW
    assert model.optimizer.get_config() == {**ours.get_config(), "name": model.optimizer.name}
    model.compile(keras.optimizers.AdamW())
    assert isinstance(model.optimizer, keras.optimizers.AdamW)
    assert not isinstance(model.optimizer, keras_tx.AdamW)
    model.compile("sgd")
    assert isinstance(model.optimizer, keras.optimizers.SGD)


@pytest.mark.parametrize("scaled", [False, True])
def test_training_continues_from_averages(scaled):
    """On JAX, Keras's second `fit` would stop, because weights and averages share their memory."""
    model = vit("Mu/2", image_size=8, num_classes=3)
    optimizer = keras_tx.AdamW(1e-3, use_ema=True)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer)
    images, labels = np.zeros((4, 8, 8, 3), "float32"), np.arange(4) % 3
    model.fit(images, labels, verbose=0)
    first = as_numpy(model.weights[0])
    model.fit(images, labels, verbose=0)
    assert not np.array_equal(first, as_numpy(model.weights[0]))

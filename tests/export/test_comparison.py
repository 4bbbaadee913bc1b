"""The verification against Keras fails for wrong graphs, and its error names the layer."""

from __future__ import annotations

import dataclasses
import warnings

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ExportError
from keras_tx.layers import FeedForward
from keras_tx.weights.weight_values import array_of
from keras_tx_onnx import export_onnx, tolerances
from keras_tx_onnx.reading import registry
from keras_tx_onnx.verifying import first_difference
from tests.drawing import redraw
from tests.export.raw import needs_tensorflow


@pytest.fixture
def break_lowering(monkeypatch):
    """Makes the lowering of a layer slightly wrong."""

    def replace(target, change):
        right = registry._LOWERINGS[target]
        wrong = dataclasses.replace(
            right, function=lambda cx, *args, **kw: change(cx, right.function(cx, *args, **kw))
        )
        monkeypatch.setitem(registry._LOWERINGS, target, wrong)

    return replace


@pytest.mark.parametrize(
    ("target", "layer"),
    [
        (keras_tx.PatchEmbedding, "patch_embedding"),
        (keras_tx.PositionalEmbedding, "positions"),
        (keras_tx.MultiHeadAttention, "block_0"),
        ("GetItem", "get_item"),
        (keras.layers.Dense, "block_0"),
    ],
    ids=str,
)
def test_wrong_layer_is_named_and_no_folder_is_written(break_lowering, target, layer: str, tmp_path):
    model = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3, depth=2))
    break_lowering(target, lambda cx, x: cx.op.Mul(x, 1.01))
    with pytest.raises(ExportError, match=rf"'logits'.*1e-04.*'{layer}"):
        export_onnx(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_graph_rejected_by_the_checker_raises(break_lowering, tmp_path, caplog):
    break_lowering(keras.layers.LayerNormalization, lambda cx, x: cx.op.NoSuchNode(x))
    with pytest.raises(ExportError, match="NoSuchNode"):
        export_onnx(keras_tx.vit("Mu/2", image_size=8, num_classes=3), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_nan_is_a_difference():
    ones = np.ones(3)
    assert tolerances.difference(ones, np.array([1, np.nan, 1])) == float("inf")
    assert tolerances.difference(ones, np.ones((3, 1))) == float("inf")
    assert tolerances.difference(2 * ones, np.array([2, 2, 1.0])) == 0.5


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16", "float16"])
def test_half_precision_is_compared_in_float32(policy: str, tmp_path):
    model = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3, dtype=policy))
    policies = [layer.dtype_policy for layer in model._flatten_layers()]
    assert export_onnx(model, tmp_path / "out").manifest.parity.max_difference < 1e-5
    assert policies == [layer.dtype_policy for layer in model._flatten_layers()]
    wrapped = keras.Model(model.input, keras.layers.Dense(2, dtype=policy)(model.output))
    redraw(wrapped)
    assert export_onnx(wrapped, tmp_path / "wrapped").manifest.parity.max_difference < 1e-5


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_under_a_global_policy(policy: str, tmp_path):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        x = keras.Input((4,), name="x")
        inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation="relu")])
        for index, model in enumerate((keras.Model(x, keras.layers.Dense(3)(inner(x))), inner)):
            report = export_onnx(redraw(model), tmp_path / str(index))
            assert report.manifest.parity.max_difference < 1e-5
    finally:
        keras.config.set_dtype_policy(before)


def test_wrong_layer_after_a_norm_without_center(break_lowering, tmp_path):
    x = keras.Input((4, 8), name="x")
    y = keras.layers.LayerNormalization(center=False, name="norm")(x)
    model = redraw(keras.Model(x, keras.layers.Dense(2, name="wrong")(y)))
    break_lowering(keras.layers.Dense, lambda cx, x: cx.op.Mul(x, 1.01))
    with pytest.raises(ExportError, match="'wrong'"):
        export_onnx(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_layer_without_a_complete_config_is_compared_in_float32(tmp_path):
    class Stubborn(FeedForward):
        def __init__(self, **kwargs):
            super().__init__(**{**kwargs, "dtype": "mixed_bfloat16"})

    x = keras.Input((4, 8), name="x")
    model = redraw(keras.Model(x, Stubborn(hidden=8, name="stubborn")(x)))
    assert export_onnx(model, tmp_path / "out").manifest.parity.max_difference < 1e-5


def test_one_case_for_each_batch(tmp_path):
    report = export_onnx(keras_tx.vit("Mu/2", image_size=8, num_classes=3), tmp_path / "out")
    assert report.manifest.parity.cases == ("batch 1", "batch 3")


def nested_model():
    """Nested models, of which the inner one is called twice."""
    x = keras.Input((6, 4), name="x")
    inner = keras.Model(
        x, keras.layers.Dense(4, name="deep")(keras.layers.LeakyReLU(name="relu")(x)), name="inner"
    )
    middle = keras.Model(x, inner(inner(keras.layers.LayerNormalization(name="norm")(x))), name="middle")
    y = keras.layers.Dense(4, name="first")(x)
    return redraw(keras.Model(x, keras.layers.Dense(2, name="last")(middle(y)), name="outer"))


@pytest.mark.parametrize(
    ("target", "described"),
    [
        (keras.layers.Dense, r"'first' \(Dense, registered\)"),
        (keras.layers.LayerNormalization, r"'middle/norm' \(LayerNormalization, registered\)"),
        (keras.layers.LeakyReLU, r"'middle/inner/relu' \(LeakyReLU, registered\)"),
    ],
    ids=str,
)
def test_wrong_layer_in_nested_models_is_named(break_lowering, target, described: str, tmp_path):
    model = nested_model()
    nodes = [len(layer._inbound_nodes) for layer in model._flatten_layers()]
    break_lowering(target, lambda cx, x: cx.op.Mul(x, 1.01))
    with pytest.raises(ExportError, match=rf"fp32.*1e-04.*{described}.*1.0e-02"):
        export_onnx(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    assert nodes == [len(layer._inbound_nodes) for layer in model._flatten_layers()]


def test_difference_is_reported_if_layers_cannot_be_compared(break_lowering, tmp_path, monkeypatch):
    break_lowering(keras.layers.Dense, lambda cx, x: cx.op.Mul(x, 1.01))

    def fails(*args):
        raise ExportError("no probe")

    monkeypatch.setattr(first_difference, "first_difference", fails)
    with pytest.raises(ExportError, match="Keras.*no probe"):
        export_onnx(nested_model(), tmp_path / "out")


def test_graph_that_onnxruntime_cannot_run_raises(break_lowering, tmp_path):
    x = keras.Input((None, 4), name="x")
    model = keras.Model(x, keras.layers.Dense(4)(x))
    # The checker does not infer that a length of 32 is not divisible by 7.
    break_lowering(keras.layers.Dense, lambda cx, y: cx.op.Reshape(cx.op.Reshape(y, [7, -1]), cx.op.Shape(y)))
    with pytest.raises(ExportError, match="onnxruntime.*'batch 1"):
        export_onnx(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="there Keras's own conversions warn")
def test_bfloat16_weights_are_read_without_a_warning():
    layer = keras.layers.Dense(3, dtype="bfloat16")
    layer.build((None, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert array_of(layer.kernel).dtype == "float32"


class BranchesOnLength(keras.layers.Layer):
    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        length = x.shape[1]
        return x if length is not None and length <= 8 else x * 2


def test_size_dependent_control_flow_has_a_bound(tmp_path):
    x = keras.Input((None, 4), name="x")
    model = keras.Model(x, BranchesOnLength(name="odd")(x))
    report = export_onnx(model, tmp_path / "out")
    assert report.manifest.bounds == ("sequence_length >= 9",)
    assert any("length 9" in case for case in report.manifest.parity.cases)
    assert not any("length 4" in case for case in report.manifest.parity.cases)


class Largest(keras.layers.Layer):
    """Divides by the largest number of all calls, or of this call."""

    def __init__(self, remembers: bool, **kwargs):
        super().__init__(**kwargs)
        self.remembers = remembers

    def build(self, shape):
        self.largest = self.add_weight(shape=(), initializer="ones", trainable=False, name="largest")

    def call(self, x):
        before = self.largest if self.remembers else 0.0
        largest = keras.ops.maximum(before, keras.ops.max(keras.ops.abs(x)))
        self.largest.assign(largest)
        return x / largest


@needs_tensorflow
def test_outputs_that_depend_on_earlier_calls_raise(tmp_path):
    """Both sides are equal for any single example."""
    model = keras.Sequential([keras.Input((4,)), Largest(True, name="largest"), keras.layers.Dense(2)])
    with pytest.raises(ExportError, match="largest/largest"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the layer that tf2onnx converts
        export_onnx(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Counting(keras.layers.Layer):
    def build(self, shape):
        self.calls = [self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")]

    def call(self, x):
        self.calls[0].assign_add(1.0)
        return x


def test_export_does_not_change_variables(tmp_path):
    """Tracing a layer runs its code."""
    model = keras.Sequential([keras.Input((None, 4)), Counting(), keras.layers.Dense(2)])
    export_onnx(model, tmp_path / "out")
    assert float(keras.ops.convert_to_numpy(model.layers[0].calls[0])) == 0.0


@needs_tensorflow
def test_variable_without_effect_on_outputs_may_change(tmp_path):
    model = keras.Sequential([keras.Input((4,)), Largest(False, name="largest"), keras.layers.Dense(2)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = export_onnx(model, tmp_path / "out")
    assert report.manifest.parity is not None
    assert float(model.layers[0].largest.numpy()) == 1.0, "the comparison does not change the model"

"""tf2onnx converts layers that cannot be lowered or opened, with a warning, correctly at every size."""

from __future__ import annotations

import logging

import keras
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from keras import layers, ops

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.reading import registry
from tests.drawing import as_numpy, draw, redraw
from tests.export.exporting import nodes_of, outputs_of, run
from tests.export.raw import ON_TENSORFLOW, SIZES, Raw, check, converted, model_of, needs_tensorflow
from tests.tolerances import HALF, assert_close

if ON_TENSORFLOW:
    import tensorflow as tf


@needs_tensorflow
@pytest.mark.parametrize("opset", [17, 18, 20, 23, 26])
def test_tensorflow_in_a_lambda(opset: int, tmp_path):
    x = keras.Input((None, 16), name="x")
    odd = layers.Lambda(lambda x: tf.nn.gelu(x) + tf.cast(tf.shape(x)[1], x.dtype), name="odd")
    model = redraw(keras.Model(x, layers.Dense(4)(odd(x))))
    report = converted(
        model, tmp_path / "out", r"'odd' \(.*Lambda\) was converted.*TensorFlow function", opset=opset
    )
    assert report.manifest.tiers == {"odd": "tf2onnx", model.layers[-1].name: "registered"}
    assert nodes_of(tmp_path / "out")["Erf"] == 1
    assert {o.version for o in load(tmp_path).opset_import if not o.domain} == {opset}
    check(model, tmp_path / "out", *((b, n, 16) for b, n in SIZES))


def load(tmp_path):
    return onnx.load(tmp_path / "out" / "onnx" / "model.onnx")


@needs_tensorflow
def test_weights_keep_names_and_are_stored_once(tmp_path):
    x = keras.Input((None, 16), name="x")
    odd = Raw(lambda x: tf.nn.relu(x), layers.Dense(16, name="inner"), name="odd")
    model = redraw(keras.Model(x, odd(odd(x))))
    converted(model, tmp_path / "out")
    check(model, tmp_path / "out", *((b, n, 16) for b, n in SIZES))
    graph = load(tmp_path).graph
    assert {w.path for w in odd.weights} <= {tensor.name for tensor in graph.initializer}
    assert sum(np.prod(t.dims) == 256 for t in graph.initializer) == 1
    assert all(node.name.startswith("odd") for node in graph.node)


@needs_tensorflow
def test_required_constants_are_passed_with_a_warning(tmp_path):
    model = model_of(lambda x: x, inner=layers.LSTM(3, return_sequences=True))
    converted(model, tmp_path / "out", "its weights are constants without their names")
    assert nodes_of(tmp_path / "out")["LSTM"] == 1
    check(model, tmp_path / "out", *((b, n, 16) for b, n in SIZES))


def _steps(x):
    """A loop whose body captures values, followed by a branch."""
    scale = tf.reduce_mean(x, axis=1)
    total = tf.while_loop(
        lambda i, y: i < tf.shape(x)[1], lambda i, y: (i + 1, y + scale * x[:, i]), [0, tf.zeros_like(scale)]
    )[1]
    return x + tf.cond(tf.reduce_sum(total) > 0, lambda: total * 2 + scale, lambda: total - 1)[:, None]


@needs_tensorflow
@pytest.mark.parametrize("opset", [17, 23])
def test_loops_and_branches_twice_and_in_a_nested_model(opset: int, tmp_path):
    inside = keras.Input((None, 16), name="inside")
    nested = keras.Model(inside, Raw(_steps, name="odd")(inside), name="nested")
    x = keras.Input((None, 16), name="x")
    model = redraw(keras.Model(x, Raw(_steps, name="odd")(layers.Dense(16)(nested(nested(x)) / 9.0))))
    report = converted(model, tmp_path / "out", opset=opset)
    assert [path for path, tier in report.manifest.tiers.items() if tier == "tf2onnx"] == [
        "nested/odd",
        "nested_1/odd",
        "odd",
    ]
    nodes = nodes_of(tmp_path / "out")
    assert (nodes["Loop"], nodes["If"]) == (3, 3)
    check(model, tmp_path / "out", *((b, n, 16) for b, n in SIZES))


@needs_tensorflow
def test_integer_inputs_and_outputs_are_int64(tmp_path):
    x = keras.Input((None,), name="x", dtype="int32")
    odd = Raw(lambda x: [tf.bitwise.bitwise_and(x, 5), tf.math.greater(x, 2), tf.cast(x, "float64"), x])
    model = keras.Model(x, odd(x))
    converted(model, tmp_path / "out")
    numbers = np.random.default_rng(0).integers(0, 9, (3, 5), "int64")
    for got, expected in zip(run(tmp_path / "out", numbers), outputs_of(model, numbers), strict=True):
        np.testing.assert_array_equal(got, expected)
        assert got.dtype in ("int64", "bool", "float32")


@needs_tensorflow
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_computed_in_float32(policy: str, tmp_path):
    x = keras.Input((None, 16), name="x")
    odd = Raw(lambda x: tf.nn.relu(x), layers.Dense(8, dtype=policy), name="odd", dtype=policy)
    model = redraw(keras.Model(x, odd(x)))
    converted(model, tmp_path / "out")
    check(model, tmp_path / "out", *((b, n, 16) for b, n in SIZES), tolerance=HALF[policy])
    model = load(tmp_path)
    held = {tensor.data_type for tensor in model.graph.initializer}
    held |= {a.i for node in model.graph.node for a in node.attribute if a.name == "to"}
    assert not held & {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}


@needs_tensorflow
def test_dilated_convolution_has_explicit_padding(tmp_path):
    kernel = draw(3, 2, 3, 5)
    model = model_of(lambda x: tf.nn.conv2d(x, kernel, 1, "SAME", dilations=2), (None, None, 3))
    converted(model, tmp_path / "out")
    check(model, tmp_path / "out", (1, 8, 8, 3), (2, 9, 7, 3))


@needs_tensorflow
def test_function_compiled_by_xla_is_converted(tmp_path):
    model = model_of(lambda x: tf.nn.relu(x), (None, None, 4), layers.Conv2D(6, 3, groups=2))
    converted(model, tmp_path / "out")
    assert nodes_of(tmp_path / "out")["Conv"] == 1
    check(model, tmp_path / "out", (1, 8, 8, 4), (2, 9, 7, 4))


@needs_tensorflow
def test_images_between_lowered_layers(tmp_path):
    x = keras.Input((None, None, 3), name="x")
    y = layers.Conv2D(4, 3, padding="same")(x)
    y = Raw(
        lambda x: tf.reduce_max(tf.nn.relu(x) - 0.1, 3, keepdims=True) + tf.nn.max_pool2d(x, 3, 1, "SAME")
    )(y)
    model = redraw(keras.Model(x, layers.Conv2D(2, 3)(y)))
    converted(model, tmp_path / "out")
    check(model, tmp_path / "out", (1, 8, 8, 3), (2, 9, 7, 3))


@needs_tensorflow
def test_mask_and_other_arguments_are_passed(tmp_path):
    class Odd(layers.Layer):
        def __init__(self):
            super().__init__()
            self.supports_masking = True

        def call(self, x, scale, flag=False, x_mask=None, training=True):
            assert flag and not training
            return tf.nn.relu(x) * tf.cast(x_mask[..., None], x.dtype) * scale["by"]

        def compute_output_shape(self, x_shape, scale_shape):
            return x_shape

    x, scale = keras.Input((None, 16), name="x"), keras.Input((1, 16), name="scale")
    model = keras.Model([x, scale], Odd()(layers.Masking()(x), {"by": scale}, flag=True))
    converted(model, tmp_path / "out")
    tokens = draw(2, 5, 16)
    tokens[0, 2:] = 0
    assert_close(*run(tmp_path / "out", tokens, draw(2, 1, 16)), *outputs_of(model, tokens, draw(2, 1, 16)))


@needs_tensorflow
def test_mask_of_a_tensor_is_passed_to_an_inner_layer(tmp_path):
    class Inner(layers.Layer):
        def call(self, x, mask=None):
            return x if mask is None else x + ops.cast(mask[..., None], x.dtype)

    class Outer(layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = Inner()
            self.supports_masking = self.inner.supports_masking = True

        def call(self, x):
            return tf.nn.sigmoid(self.inner(x))

    x = keras.Input((None, 16), name="x")
    model = keras.Model(x, Outer()(layers.Masking()(x)))
    converted(model, tmp_path / "out")
    tokens = draw(2, 5, 16)
    tokens[0, 2:] = 0
    assert_close(*run(tmp_path / "out", tokens), *outputs_of(model, tokens))


class Sized(layers.Layer):
    def call(self, x):
        return ops.sigmoid(x) + ops.broadcast_to(x[:, :1], ops.shape(x))


def without(monkeypatch, name: str) -> None:
    monkeypatch.setattr(registry, "_LOWERINGS", {k: v for k, v in registry._LOWERINGS.items() if k != name})


@needs_tensorflow
@pytest.mark.parametrize(
    ("name", "tiers"),
    [
        ("Sigmoid", {"own": "opened", "own/sigmoid": "tf2onnx"}),
        ("BroadcastTo", {"own": "tf2onnx"}),  # it uses a size of the input: the whole layer is converted
    ],
)
def test_smallest_possible_part_is_converted(name: str, tiers: dict, tmp_path, monkeypatch):
    without(monkeypatch, name)
    x = keras.Input((None, 16), name="x")
    model = keras.Model(x, Sized(name="own")(x))
    report = converted(model, tmp_path / "out")
    assert report.manifest.tiers == tiers
    check(model, tmp_path / "out", *((b, n, 16) for b, n in SIZES))
    assert all(
        not v.name.startswith("constant") or v.name in used(tmp_path)
        for v in load(tmp_path).graph.initializer
    )


def used(tmp_path) -> set[str]:
    return {name for node in load(tmp_path).graph.node for name in node.input}


@needs_tensorflow
@needs_tensorflow
def test_lost_assertions_are_reported(tmp_path):
    class Checked(layers.Layer):
        def call(self, x):
            tf.debugging.assert_less(x, 1e6)
            return 2 * x

    x = keras.Input((4,), name="x")
    with pytest.warns(UserWarning, match="its assertions"):
        export_onnx(keras.Model(x, Checked()(x)), tmp_path / "out")


def test_operation_of_the_functional_model(tmp_path, monkeypatch):
    without(monkeypatch, "Sigmoid")
    x = keras.Input((None, 16), name="x")
    model = keras.Model(x, ops.sigmoid(x) * 2)
    converted(
        model, tmp_path / "out", r"operation 'sigmoid.*' \(Sigmoid\) was converted by tf2onnx.*no lowering"
    )
    check(model, tmp_path / "out", *((b, n, 16) for b, n in SIZES))


@needs_tensorflow
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: tf.math.lgamma(tf.nn.relu(x)), "tier 3, tf2onnx: .*Lgamma"),
        (lambda x: x + tf.random.normal(tf.shape(x)), "tier 3, tf2onnx: .*draws random numbers"),
    ],
    ids=["lgamma", "random"],
)
def test_error_names_each_tier(function, message: str, tmp_path):
    with pytest.raises(ExportError, match=message) as caught:
        export_onnx(model_of(function), tmp_path / "out", verify=False)
    first, one, two, _ = str(caught.value).splitlines()
    assert "layer 'odd'" in first and "@keras_tx_onnx.lowers(Raw, ...)" in first and "keras.ops" in first
    assert one.strip() == "tier 1, a lowering: none is registered"
    assert two.strip().startswith(
        "tier 2, its call on Keras tensors: Its call does not run on Keras tensors: "
    )
    assert not list(tmp_path.iterdir())


@needs_tensorflow
def test_unsupported_call_is_not_converted_by_tf2onnx(tmp_path):
    x = keras.Input((None, 16), name="x")
    model = keras.Model(x, layers.Dropout(0.5, name="odd")(x, training=True))
    with pytest.raises(ExportError, match="'odd' is called with training=True"):
        export_onnx(model, tmp_path / "out")


@needs_tensorflow
def test_tf2onnx_is_not_changed(tmp_path):
    from tf2onnx.handler import tf_op

    level = logging.getLogger("tf2onnx").level, tf.get_logger().level
    model = model_of(lambda x: tf.math.erfc(x))
    converted(model, tmp_path / "out")
    assert (logging.getLogger("tf2onnx").level, tf.get_logger().level) == level
    assert not any("Erfc" in handlers for handlers in tf_op.get_opsets()[""])
    np.testing.assert_array_equal(as_numpy(model.get_layer("odd").weights), [])


class Unsure(layers.Layer):
    """Computes another result if a size is unknown."""

    def call(self, x):
        return tf.nn.relu(x) * (x.shape[1] or 1)


class OtherWayWhenLong(layers.Layer):
    def call(self, x):
        y = tf.nn.relu(x)
        return y * 2 if x.shape[1] is not None and x.shape[1] > 200 else y


@needs_tensorflow
@pytest.mark.parametrize("layer", [Unsure, OtherWayWhenLong])
def test_trace_that_computes_something_else_raises(layer, tmp_path):
    x = keras.Input((None, 16), name="x")
    with pytest.raises(ExportError, match="tier 3, tf2onnx: .*TensorFlow's trace"):
        export_onnx(keras.Model(x, layer()(x)), tmp_path / "out", verify=False)


@pytest.mark.skipif(ON_TENSORFLOW, reason="there tf2onnx does it")
def test_other_backends_raise(tmp_path, monkeypatch):
    without(monkeypatch, "Sigmoid")
    x = keras.Input((None, 16), name="x")
    model = keras.Model(x, Sized(name="own")(x))
    with pytest.raises(ExportError, match="KERAS_BACKEND=tensorflow") as caught:
        export_onnx(model, tmp_path / "out")
    assert "operation 'own/sigmoid" in str(caught.value) and "register a lowering" in str(caught.value)


def test_failed_attempt_is_undone():
    context = GraphContext("graph", 23)
    x = context.input("x", ir.DataType.FLOAT, [None])
    increased = context.op.Add(x, 1.0)
    variable = keras.Variable(np.ones(3, "float32"), name="weight")

    def state():
        graph = context.graph
        return (
            [node.name for node in graph],
            list(graph.initializers),
            dict(x.meta),
            dict(context.tiers),
            len(x.uses()),
        )

    before = state()
    with pytest.raises(ValueError), context.attempt([x]):
        with context.inside("layer"):
            context.op.Mul(context.op.Sub(increased, 2.0), variable)
            context.op.Neg(x)
        context.tiers["layer"], x.meta["note"] = "opened", 1
        raise ValueError
    assert state() == before
    with context.inside("layer"):
        assert context.scope == "layer" and context.op.Sub(increased, 2.0).name == "layer/Sub"
    assert context.weight(variable).name == variable.path

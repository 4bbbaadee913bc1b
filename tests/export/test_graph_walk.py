"""The walk: nested models, shared layers, several inputs, edits; and the model stays as it was."""

from __future__ import annotations

import keras
import numpy as np
import onnx
import pytest
from keras import layers

import keras_tx
from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, draw, redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run
from tests.naming import shown
from tests.tolerances import assert_close


def same(model: keras.Model, folder, *inputs: np.ndarray) -> None:
    redraw(model)
    export_onnx(model, folder)  # verified by itself as well
    got = run(folder, *inputs)
    for mine, expected in zip(got, outputs_of(model, *inputs), strict=True):
        assert_close(mine, expected)


def initializers(folder) -> list[str]:
    return [tensor.name for tensor in onnx.load(folder / "onnx" / "model.onnx").graph.initializer]


def test_wrapped_vit(tmp_path):
    vit = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    model = keras.Model(vit.input, layers.Activation("softmax", name="scores")(vit.output))
    same(model, tmp_path / "out", draw(2, 8, 8, 3))


def test_nested_vit_with_a_custom_head(tmp_path):
    images = keras.Input((8, 8, 3), name="photos")
    features = keras_tx.vit("Mu/2", image_size=8, name="body")(images)
    model = keras.Model(images, layers.Dense(2, name="answer")(layers.Dropout(0.1)(features)))
    same(model, tmp_path / "out", draw(2, 8, 8, 3))
    graph = onnx.load(tmp_path / "out" / "onnx" / "model.onnx").graph
    assert "body/block_0/attention/Attention" in {node.name for node in graph.node}


def test_sequential(tmp_path):
    body = keras_tx.vit("Mu/2", image_size=8)
    same(keras.Sequential([body, layers.Dense(2)]), tmp_path / "out", draw(2, 8, 8, 3))


def test_shared_layer_is_stored_once_and_called_twice(tmp_path):
    a, b = keras.Input((4, 8), name="a"), keras.Input((4, 8), name="b")
    shared = layers.Dense(8, name="shared")
    model = keras.Model([a, b], layers.Add()([shared(a), shared(b)]))
    same(model, tmp_path / "out", draw(2, 4, 8), draw(2, 4, 8, seed=1))
    assert nodes_of(tmp_path / "out")["MatMul"] == 2
    assert initializers(tmp_path / "out").count("shared/kernel") == 1
    assert not any("shared_1/kernel" in name for name in initializers(tmp_path / "out"))


def test_several_outputs_keep_name_and_order(tmp_path):
    x = keras.Input((4,), name="x")
    second, first = layers.Dense(2, name="second")(x), layers.Dense(3, name="first")(x)
    model = keras.Model(x, [second, first])
    same(model, tmp_path / "out", draw(2, 4))
    graph = onnx.load(tmp_path / "out" / "onnx" / "model.onnx").graph
    assert [(o.name, o.type.tensor_type.shape.dim[1].dim_value) for o in graph.output] == [
        ("second", 2),
        ("first", 3),
    ]


def test_one_tensor_as_two_outputs_and_an_input_as_output(tmp_path):
    x = keras.Input((4,), name="x")
    y = layers.Dense(2)(x)
    same(keras.Model(x, [y, y, x]), tmp_path / "out", draw(2, 4))


def test_layers_of_the_same_name_in_two_models(tmp_path):
    x = keras.Input((4,), name="x")
    one = keras.Sequential([keras.Input((4,)), layers.Dense(4, name="dense")], name="one")
    two = keras.Sequential([keras.Input((4,)), layers.Dense(4, name="dense")], name="two")
    same(keras.Model(x, two(one(x))), tmp_path / "out", draw(2, 4))


def test_nodes_and_weights_are_named_after_layers(tmp_path):
    folder = exported(keras_tx.vit("Mu/2", image_size=8, depth=2, num_classes=3), tmp_path / "out")
    graph = onnx.load(folder / "onnx" / "model.onnx").graph
    names = {node.name for node in graph.node}
    assert {"patch_embedding/Conv", "block_0/attention/Attention", "block_0/feed_forward/up/MatMul"} <= names
    weights = set(initializers(folder))
    assert {"patch_embedding/kernel", "block_0/attention/qkv/kernel", "norm/gamma", "logits/bias"} <= weights


def test_model_is_not_changed(tmp_path):
    model = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
    images = np.tanh(draw(8, 8, 8, 3))  # in the range of what model.processing returns
    before = as_numpy(model(images))
    parts = list(model._flatten_layers())
    nodes = [(len(part._inbound_nodes), len(part._outbound_nodes)) for part in parts]
    export_onnx(model, tmp_path / "first")
    assert nodes == [(len(part._inbound_nodes), len(part._outbound_nodes)) for part in parts]
    np.testing.assert_array_equal(as_numpy(model(images)), before)
    model.compile()
    model.fit(images, np.arange(8) % 3, verbose=0)
    model.save(tmp_path / "after.keras")
    export_onnx(model, tmp_path / "second")


def test_layer_without_a_lowering_raises(tmp_path):
    class Strange(layers.Layer):
        def compute_output_shape(self, shape):
            return shape

        def call(self, x):
            return np.asarray(x)

    x = keras.Input((4,), name="x")
    model = keras.Model(x, Strange(name="odd")(x))
    with pytest.raises(
        ExportError, match=r"layer 'odd' \(.*Strange\) has no ONNX lowering.*@keras_tx_onnx.lowers\(Strange"
    ):
        export_onnx(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_operation_without_a_lowering_raises(tmp_path):
    x = keras.Input((4,), name="x")
    with pytest.raises(ExportError, match="operation 'erfinv.*'Erfinv'"):
        export_onnx(keras.Model(x, keras.ops.erfinv(x)), tmp_path / "out")


def test_lowering_does_not_apply_to_subclasses(tmp_path):
    class Doubled(layers.Dense):
        def call(self, x):
            return 2 * super().call(x)

    x = keras.Input((None, 4), name="x")
    model = keras.Model(x, Doubled(2, activation="relu", name="own")(x))
    same(model, tmp_path / "out", draw(2, 3, 4))
    assert nodes_of(tmp_path / "out") == {"MatMul": 1, "Add": 1, "Relu": 1, "Mul": 1}


def test_lora_weights_are_exported(tmp_path):
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    model.get_layer("block_0").attention.query.enable_lora(2)
    model.get_layer("block_0").feed_forward.up.enable_lora(2)
    export_onnx(redraw(model), tmp_path / "out")
    images = draw(2, 8, 8, 3)
    (got,) = run(tmp_path / "out", images.transpose(0, 3, 1, 2))
    assert_close(got, *outputs_of(model, images))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: layers.Dropout(0.5, name="drop")(x, training=True), "'drop' is called with training=True"),
        (
            lambda x: layers.MaxPooling1D(2, strides=3, padding="same", name="pool")(
                layers.ZeroPadding1D(3)(x)
            ),
            "'pool' has padding='same'",
        ),
        (lambda x: layers.Dot((0, 0), name="dot")([x, x]), r"'dot' has axes=\(0, 0\)"),
        (lambda x: layers.Resizing(2, 2, name="small")(x), r"'small' .*shape \(None, 4, 3\)"),
        (lambda x: layers.Dense(2, activation="glu", name="odd")(x), "'odd' has activation='glu'"),
        (lambda x: keras.ops.cast(x, "complex64"), "dtype='complex64'"),
    ],
    ids=shown,
)
def test_unsupported_layers_raise(call, message: str, tmp_path):
    x = keras.Input((4, 3), name="x")
    with pytest.raises(ExportError, match=message):
        export_onnx(keras.Model(x, call(x)), tmp_path / "out", verify=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x * 2,
        lambda x: 1 - x,
        lambda x: x / 2,
        lambda x: x + np.arange(3),
        lambda x: 2 / (x * x + 1),
    ],
    ids=shown,
)
def test_arithmetic_with_numbers(call, tmp_path):
    x = keras.Input((4, 3), name="x")
    same(keras.Model(x, call(x)), tmp_path / "out", draw(2, 4, 3))


def test_integer_inputs_of_floating_point_layers(tmp_path):
    x = keras.Input((4,), dtype="int32", name="x")
    model = redraw(keras.Model(x, layers.Dense(2)(layers.Rescaling(0.5)(x))))
    export_onnx(model, tmp_path / "out")


class Doubled(keras.Model):
    def call(self, inputs, training=None, mask=None):
        return 2 * super().call(inputs)


def test_functional_model_with_its_own_call(tmp_path):
    x = keras.Input((None, 4), name="x")
    model = Doubled(x, layers.Dense(2)(x), name="mine")
    same(model, tmp_path / "alone", draw(2, 3, 4))
    y = keras.Input((None, 4), name="y")
    same(keras.Model(y, model(y)), tmp_path / "inside", draw(2, 3, 4))


def test_nested_model_called_by_keyword(tmp_path):
    """As keras-hub's Gemma3CausalLM calls its backbone."""
    ends = [keras.Input((4,), name=name) for name in "ab"]
    inner = keras.Model(dict(zip("ab", ends, strict=True)), layers.Subtract()(ends))
    x = [keras.Input((4,), name=name) for name in "cd"]
    model = keras.Model(x, inner(inputs=dict(zip("ab", x, strict=True))))
    same(model, tmp_path / "out", draw(3, 4), draw(3, 4, seed=1))


def test_inputs_in_another_structure_raise(tmp_path):
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    inner = keras.Model([b, a], layers.Subtract()([b, a]), name="inner")
    with pytest.raises(ExportError, match="'inner' .*structure"):
        export_onnx(keras.Model([a, b], inner({"a": a, "b": b})), tmp_path / "out", verify=False)


def test_two_outputs_of_a_shared_layer_have_distinct_names(tmp_path):
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    shared = layers.Dense(2, name="shared")
    report = export_onnx(redraw(keras.Model([a, b], [shared(a), shared(b)])), tmp_path / "out")
    assert [spec.name for spec in report.manifest.outputs] == ["shared", "shared_1"]

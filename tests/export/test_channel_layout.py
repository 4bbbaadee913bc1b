"""Regions change their layout: outputs stay the same, and the number of Transpose nodes never grows."""

from __future__ import annotations

import keras
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from keras import layers

from keras_tx_onnx.graph import channel_layout, passes
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.arguments import reduced
from keras_tx_onnx.lowerings.nodes.channels import to_first, to_last
from tests.drawing import draw, redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run
from tests.tolerances import assert_close

CHANNELS = 4


class RandomGraph:
    """A random graph of convolutions and the nodes between them, in channels last, with a dynamic batch."""

    def __init__(self, seed: int, opset: int = 23):
        self.random = np.random.default_rng(seed)
        self.rank = int(self.random.integers(1, 4))
        self.cx = GraphContext("random", opset)
        self.shape = (2, *(int(n) for n in self.random.integers(4, 6, self.rank)), CHANNELS)
        x = self.cx.input("x", ir.DataType.FLOAT, ("batch", *self.shape[1:]))
        self.shapes = {x: self.shape}
        steps = [
            *[self.convolved] * 6,
            self.activated,
            self.scaled,
            self.added,
            self.joined,
            self.padded,
            self.cut,
            self.mean_kept,
            self.normalized,
        ]
        for _ in range(self.random.integers(4, 14)):
            step = steps[self.random.integers(len(steps))]
            y, shape = step(*self.pick())
            self.shapes[y] = shape
        self.finish()

    def pick(self) -> tuple[ir.Value, tuple[int, ...]]:
        """A random value, later ones more often."""
        values = list(self.shapes)
        value = values[-1 - min(int(self.random.exponential(1.0)), len(values) - 1)]
        return value, self.shapes[value]

    def convolved(self, x, shape):
        kernel = self.random.standard_normal((CHANNELS, shape[-1], *[1] * self.rank)).astype("float32")
        y = to_last(self.cx, self.cx.op.Conv(to_first(self.cx, x, self.rank), kernel), self.rank)
        return y, (*shape[:-1], CHANNELS)

    def activated(self, x, shape):
        return (self.cx.op.Clip(x, -1.0, 2.0) if self.random.random() < 0.3 else self.cx.op.Relu(x)), shape

    def scaled(self, x, shape):
        rank = int(self.random.integers(1, len(shape)))
        factor = self.random.standard_normal(shape[-rank:]).astype("float32")
        return (self.cx.op.Mul(factor, x) if self.random.random() < 0.5 else self.cx.op.Mul(x, factor)), shape

    def added(self, x, shape):
        others = [value for value, other in self.shapes.items() if other == shape]
        return self.cx.op.Add(x, others[self.random.integers(len(others))]), shape

    def joined(self, x, shape):
        axis = int(self.random.integers(1, len(shape)))
        new = [*shape]
        new[axis] *= 2
        return self.cx.op.Concat(x, x, axis=axis - len(shape) if axis % 2 else axis), tuple(new)

    def padded(self, x, shape):
        amounts = self.random.integers(0, 2, (2, len(shape)))
        amounts[:, 0] = 0
        return self.cx.op.Pad(x, amounts.ravel()), tuple(int(n) for n in shape + amounts.sum(0))

    def cut(self, x, shape):
        axes = [axis for axis in range(1, len(shape) - 1) if shape[axis] > 2]
        if not axes:
            return self.activated(x, shape)
        new = [n - 1 if axis in axes else n for axis, n in enumerate(shape)]
        ends = [shape[axis] for axis in axes]
        return self.cx.op.Slice(x, [1] * len(axes), ends, [axis - len(shape) for axis in axes]), tuple(new)

    def mean_kept(self, x, shape):
        y = reduced(self.cx, "ReduceMean", x, list(range(1, len(shape) - 1)), keepdims=True)
        return self.cx.op.Sub(x, y), shape  # broadcasts it

    def normalized(self, x, shape):
        return self.cx.op.Softmax(x, axis=-1), shape  # not part of a region

    def finish(self) -> None:
        last, shape = list(self.shapes.items())[-1]
        kind = self.random.integers(3)
        if kind == 0:  # global pooling
            last = reduced(self.cx, "ReduceMax", last, list(range(1, len(shape) - 1)), keepdims=False)
        elif kind == 1:  # an output in channels first
            last = to_first(self.cx, last, self.rank)
        self.cx.output(last, "y")
        self.cx.output(self.pick()[0], "z")
        self.model = self.cx.model()

    def run(self) -> list[np.ndarray]:
        session = onnxruntime.InferenceSession(
            ir.to_proto(self.model).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return session.run(["y", "z"], {"x": draw(*self.shape)})

    def transposes(self) -> int:
        passes.remove_unused(self.model)
        return sum(node.op_type == "Transpose" for node in self.model.graph)


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("first", range(0, 100, 20))
def test_random_graphs_have_same_outputs_and_fewer_transposes(first: int, opset: int):
    saved = 0
    for seed in range(first, first + 20):
        graph = RandomGraph(seed, opset)
        passes.infer_shapes(graph.model)
        before, count = graph.run(), graph.transposes()
        cancelled = channel_layout.to_channels_first(graph.model)
        passes.infer_shapes(graph.model)
        onnx.checker.check_model(ir.to_proto(graph.model), full_check=True)
        left = graph.transposes()
        assert left <= count - cancelled, f"seed {seed}: {count} before, {left} after"
        for got, expected in zip(graph.run(), before, strict=True):
            assert_close(got, expected)
        saved += count - left
    assert saved > 10


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_all_passes_keep_outputs(first: int):
    for seed in range(first, first + 20):
        graph = RandomGraph(seed)
        before = graph.run()
        passes.simplify(graph.model)
        onnx.checker.check_model(ir.to_proto(graph.model), full_check=True)
        for got, expected in zip(graph.run(), before, strict=True):
            assert_close(got, expected)


def through(call, folder, shape=(6, 6, 3)):
    """The nodes of an exported model, whose outputs are compared with Keras."""
    x = keras.Input(shape, name="x")
    model = redraw(keras.Model(x, call(x)))
    image = draw(2, *shape)
    folder = exported(model, folder / "out")
    for got, expected in zip(run(folder, image), outputs_of(model, image), strict=True):
        assert_close(got, expected)
    return nodes_of(folder)


def residual(x):
    y = layers.Conv2D(3, 3, padding="same")(x)
    y = layers.ReLU(6.0)(layers.BatchNormalization()(y))
    y = layers.Conv2D(3, 3)(layers.ZeroPadding2D(1)(y))
    return layers.ReLU()(layers.Add()([x, y]))


def test_residual_network_has_one_transpose(tmp_path):
    nodes = through(
        lambda x: layers.Dense(2)(layers.GlobalAveragePooling2D()(residual(residual(x)))), tmp_path
    )
    assert nodes["Transpose"] == 1


def test_global_pooling_as_output_has_no_transpose(tmp_path):
    nodes = through(lambda x: layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(x)), tmp_path)
    assert nodes["Transpose"] == 1


def test_output_in_channels_first_has_no_transpose(tmp_path):
    def call(x):
        return layers.Permute((3, 1, 2))(layers.ReLU()(layers.Conv2D(4, 3)(x)))

    assert through(call, tmp_path) == {"Transpose": 1, "Conv": 1, "Relu": 1}
    assert not tmp_path.joinpath("alone").mkdir()
    assert through(lambda x: layers.Permute((3, 1, 2))(x), tmp_path / "alone") == {"Transpose": 1}


def test_squeeze_and_excitation_is_one_region(tmp_path):
    def call(x):
        x = layers.Conv2D(4, 3, activation="silu")(x)
        y = layers.GlobalAveragePooling2D(keepdims=True)(x)
        y = layers.Conv2D(4, 1, activation="sigmoid")(layers.Conv2D(2, 1, activation="relu")(y))
        return layers.Conv2D(2, 1)(layers.Multiply()([x, y]))

    assert through(call, tmp_path)["Transpose"] == 2


def test_transpose_of_size_1_axes_becomes_reshape(tmp_path):
    def call(x):
        x = layers.Conv2D(4, 3)(x)
        y = layers.Reshape((1, 1, 4))(layers.GlobalAveragePooling2D()(x))
        return layers.Conv2D(2, 1)(layers.Multiply()([x, layers.Conv2D(4, 1, activation="sigmoid")(y)]))

    assert through(call, tmp_path)["Transpose"] == 2


def test_reshape_as_output_keeps_its_shape(tmp_path):
    x = keras.Input((4,), name="x")
    y = layers.Reshape((1, 1, 4), name="wide")(x)
    model = redraw(keras.Model(x, [y, layers.Conv2D(2, 1)(y)]))
    for got, expected in zip(
        run(exported(model, tmp_path / "out"), draw(3, 4)), outputs_of(model, draw(3, 4)), strict=True
    ):
        assert_close(got, expected)

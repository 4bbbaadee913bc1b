"""cond, switch and the loops of keras.ops: the graph takes the same branches as Keras."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest
from keras import layers, ops

from keras_tx.errors import ExportError
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx, lowers
from keras_tx_onnx.reading import registry
from tests.drawing import draw, redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run
from tests.tolerances import ANOTHER_BRANCH, assert_close


class Flowing(layers.Layer):
    """Calls a function with itself, which has two dense layers and a weight, and with its input."""

    def __init__(self, function: Any, **kwargs: Any):
        super().__init__(**kwargs)
        self.function = function
        self.one, self.two = layers.Dense(4, name="one"), layers.Dense(4, name="two")

    def build(self, shape):
        self.one.build(shape)
        self.two.build(shape)
        self.scale = self.add_weight(shape=(4,), name="scale")

    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        return self.function(self, x)


def large(x):
    return ops.max(x) > 100.0


def early_name(layer, x):
    """A name that was imported before the export, as most code has it."""
    return cond(large(x), lambda: ops.zeros_like(x), lambda: x)


def layers_inside(layer, x):
    hidden = layer.two(x)  # which a branch alone reads
    return ops.cond(ops.sum(x) > 0.0, lambda: layer.one(hidden) * layer.scale, lambda: hidden)


def nested(layer, x):
    return ops.cond(
        large(x),
        lambda: ops.cond(ops.min(x) < -500.0, lambda: layer.one(x), lambda: layer.two(x)),
        lambda: x + layer.scale,
    )


def structures(layer, x):
    first, rest = ops.cond(
        large(x),
        lambda: (x, {"b": 1 * layer.scale, "a": x}),
        lambda: (2 * x, {"a": x, "b": 2 * layer.scale}),
    )
    return first * rest["a"] + rest["b"]


def numbers(layer, x):
    return x * ops.cond(large(x), lambda: 2.0, lambda: 3.0)


def size_in_a_branch(layer, x):
    rows = ops.shape(x)[0]
    count = ops.cond(large(x), lambda: rows, lambda: 3)
    ranks = ops.cond(
        large(x), lambda: ops.zeros((rows, 1)), lambda: ops.cast(ops.arange(rows), "float32")[:, None]
    )
    return x * ops.cast(count, "float32") + ranks


def switch(layer, x):
    index = ops.cast(ops.floor(ops.max(x) / 300.0), "int32")  # below 0 and above 2, too
    return ops.switch(index, [lambda x: x, lambda x: layer.one(x), lambda x: layer.two(x)], x)


def counted(layer, x):
    return ops.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, 0.5 * y + layer.scale), (0, x))[1]


def until_large(layer, x):
    return ops.while_loop(lambda y: ops.max(y) < 100.0, lambda y: 2 * y + 1, x)


def at_most(layer, x):
    return ops.while_loop(lambda y: ops.max(y) < 1e9, lambda y: 2 * y + 1, x, maximum_iterations=4)


def each_row(layer, x):
    return ops.fori_loop(0, ops.shape(x)[0], lambda i, y: y + x[0] * ops.cast(i, "float32"), x)


def scan(layer, x):
    last, states = ops.scan(lambda state, row: (0.5 * state + row, state - row), x[0], x)
    return states + last


def scan_backwards(layer, x):
    return ops.scan(lambda state, row: (0.5 * state + row, state - row), 0 * x[0], x, reverse=True)[1]


def scan_without_sequence(layer, x):
    last, states = ops.scan(lambda state, _: (0.5 * state + layer.scale, state), x[0], None, length=3)
    return x + last + ops.sum(states, 0)


def mapped(layer, x):
    return ops.map(lambda row: layer.one(row[None])[0] * ops.max(x), x)


def mapped_pair(layer, x):
    product, first = ops.map(lambda pair: (pair[0] * pair[1], pair[0]), (x, 2 * x))
    return product + first


def vectorized(layer, x):
    return ops.vectorized_map(lambda row: ops.sum(row) * row, x)


def associative(layer, x):
    return ops.associative_scan(lambda a, b: a + b, x, axis=1)


def associative_backwards(layer, x):
    return ops.associative_scan(ops.maximum, x, axis=0, reverse=True)


def branch_in_a_loop(layer, x):
    def step(i, y):
        return i + 1, ops.cond(ops.max(y) > 10.0, lambda: 0.25 * y, lambda: layer.one(y))

    return ops.while_loop(lambda i, y: i < 4, step, (0, x))[1]


def loop_in_a_branch(layer, x):
    return ops.cond(
        large(x),
        lambda: ops.fori_loop(0, 3, lambda i, y: 0.5 * y + x, x),
        lambda: ops.map(lambda r: 2 * r, x),
    )


def switch_without_operands(layer, x):
    return ops.switch(ops.cast(large(x), "int32"), [lambda: x, lambda: layer.one(x)])


def loop_from_numbers(layer, x):
    """Only the body reads tensors."""
    total = ops.fori_loop(0, 3, lambda i, total: total + ops.max(x), 0.0)
    _, count = ops.while_loop(lambda i, n: i < 4, lambda i, n: (i + 1, n + ops.min(x)), (0, 1.0))
    return x + total + count


def own_gradient(layer, x):
    @ops.custom_gradient
    def clipped(x):
        def gradient(*args, upstream=None):
            return upstream if upstream is not None else args[0]

        return ops.where(x > 100.0, 0 * x, x), gradient

    return clipped(x)


def known_predicate(layer, x):
    return ops.cond(True, lambda: 2 * x, lambda: x)


cond = ops.cond
BRANCHES = [early_name, layers_inside, nested, structures, numbers, size_in_a_branch, switch]
LOOPS = [counted, until_large, at_most, each_row, scan, scan_backwards, scan_without_sequence]
LOOPS += [mapped, mapped_pair, vectorized, associative, associative_backwards]
BOTH = [branch_in_a_loop, loop_in_a_branch, known_predicate]
BOTH += [switch_without_operands, loop_from_numbers, own_gradient]


def flowing(function: Any) -> Any:
    x = keras.Input((4,), name="x")
    try:
        return redraw(keras.Model(x, Flowing(function, name="flowing")(x)))
    except Exception as error:
        if keras.backend.backend() == "tensorflow":
            raise
        pytest.skip(f"Keras itself cannot on this backend: {type(error).__name__}")


def everywhere(model: Any, folder: Path) -> None:
    """Compares with Keras at inputs of several magnitudes, which reach all branches."""
    for scale in (1, 1000, -1000, 0):
        for batch in (3, 1, 5):
            x = np.float32(scale) * draw(batch, 4, seed=3)
            for got, expected in zip(run(folder, x), outputs_of(model, x), strict=True):
                assert_close(got, expected)


@pytest.mark.parametrize("opset", [17, 26])
@pytest.mark.parametrize("function", BRANCHES + LOOPS + BOTH, ids=lambda function: function.__name__)
def test_equals_keras_in_every_branch(function: Any, opset: int, tmp_path: Path):
    model = flowing(function)
    folder = exported(model, tmp_path / "out", opset=opset)
    everywhere(model, folder)


@pytest.mark.parametrize(
    ("function", "node"),
    [(function, "If") for function in BRANCHES]
    + [
        (switch_without_operands, "If"),
        (until_large, "Loop"),
        (loop_from_numbers, "Loop"),
        (each_row, "Loop"),
        (scan, "Scan"),
        (mapped, "Scan"),
        (associative, "Scan"),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_control_flow_becomes_a_node(function: Any, node: str, tmp_path: Path):
    report = export_onnx(flowing(function), tmp_path / "out", verify=False)
    assert nodes_of(tmp_path / "out")[node] >= 1
    assert report.manifest.tiers["flowing"] == "opened"


def test_weight_in_a_branch_is_stored_once_under_its_path(tmp_path: Path):
    def both(layer, x):
        return ops.cond(large(x), lambda: layer.one(x), lambda: layer.one(2 * x))

    graph = onnx.load(exported(flowing(both), tmp_path / "out") / "onnx" / "model.onnx").graph
    assert [tensor.name for tensor in graph.initializer if tensor.name.endswith("kernel")] == [
        "flowing/one/kernel"
    ]


def test_loop_as_operation_of_a_functional_model(tmp_path: Path):
    x = keras.Input((4,), name="x")
    model = keras.Model(x, ops.while_loop(lambda y: ops.max(y) < 100.0, lambda y: 2 * y + 1, x))
    folder = exported(model, tmp_path / "out")
    assert nodes_of(folder)["Loop"] == 1
    everywhere(model, folder)


def test_other_threads_see_the_operations_of_keras(tmp_path: Path):
    """While one exports, others call cond on numbers and build models with it."""
    model = flowing(nested)
    done, failures = threading.Event(), []
    one, two = ops.convert_to_tensor(1.0), ops.convert_to_tensor(2.0)

    def use() -> None:
        while not done.is_set():
            if float(ops.cond(one < two, lambda: ops.add(one, two), lambda: one)) != 3.0:
                failures.append("cond returned the other branch")

    thread = threading.Thread(target=use)
    thread.start()
    try:
        everywhere(model, exported(model, tmp_path / "out"))
    finally:
        done.set()
        thread.join()
    assert not failures


def deep_branch(layer, x):
    return ops.cond(ops.max(x) > 1e6, lambda: layer.one(x), lambda: x)


def test_larger_magnitudes_reach_other_branches(tmp_path: Path):
    report = export_onnx(flowing(early_name), tmp_path / "out")
    assert report.manifest.parity is not None
    assert any("times 1000" in case for case in report.manifest.parity.cases)
    assert not any("compared with Keras" in note for note in report.manifest.notes)


def test_unreached_branch_is_forced_and_compared(tmp_path: Path):
    report = export_onnx(flowing(deep_branch), tmp_path / "out")
    (note,) = [note for note in report.manifest.notes if "compared with Keras" in note]
    assert "'flowing/cond' where its predicate is true" in note
    assert "NOT" not in note


def test_wrong_branch_outside_the_examples_raises(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(registry, "_LOWERINGS", dict(registry._LOWERINGS))

    class Wrong(layers.Layer):
        def call(self, x):
            return x

    @lowers(Wrong, example=lambda x: Wrong()(x), shape=(4,), nodes="")
    def wrong(cx, layer, /, x):
        return cx.op.Mul(x, 1.01)

    def branching(layer, x):
        return ops.cond(ops.max(x) > 1e6, lambda: wrong_layer(x), lambda: x)

    wrong_layer = Wrong()
    with pytest.raises(ExportError, match="every predicate true"):
        export_onnx(flowing(branching), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_branch_that_cannot_be_forced_is_reported(tmp_path: Path):
    def far_switch(layer, x):
        index = ops.cast(ops.max(x) > 1e6, "int32")
        return ops.switch(index, [lambda x: x, lambda x: layer.one(x)], x)

    report = export_onnx(flowing(far_switch), tmp_path / "out")
    (note,) = [note for note in report.manifest.notes if "compared with Keras" in note]
    assert "'flowing/switch' of index 1" in note
    assert "NOT compared" in note


PRECISIONS = ("fp32", "fp16", "int8", "int8-blocks", "int4")


def test_every_precision_takes_the_branch_of_fp32(tmp_path: Path):
    """Products inside a branch and around it; a branch in a branch reads values from outside of both."""

    def wide(layer, x):
        hidden = layer.wide(x)
        return ops.cond(
            ops.max(x) > 2.0,
            lambda: ops.cond(ops.max(x) > 20.0, lambda: -hidden, lambda: hidden + layer.inner(hidden)),
            lambda: layer.inner(hidden),
        )

    class Wide(Flowing):
        def build(self, shape):
            self.wide, self.inner = layers.Dense(64, name="wide"), layers.Dense(64, name="inner")
            self.wide.build(shape)
            self.inner.build((None, 64))

        def compute_output_shape(self, shape):
            return (shape[0], 64)

    x = keras.Input((64,), name="x")
    model = redraw(keras.Model(x, layers.Dense(8)(Wide(wide, name="wide")(x))))
    report = export_onnx(model, tmp_path / "out", precision=PRECISIONS)
    assert set(report.manifest.precisions) == set(PRECISIONS)
    assert any("wide/inner" in note for note in report.manifest.variants["int8"].notes)
    for precision in PRECISIONS:
        for size in (0.1, 3.0, 100.0):
            inputs = np.float32(size) * draw(3, 64)
            with load(tmp_path / "out", precision=precision) as folder:
                (got,) = folder.session.run({"x": inputs}).values()
            assert_close(got, *outputs_of(model, inputs), ANOTHER_BRANCH)


def test_images_that_a_branch_reads_keep_their_layout(tmp_path: Path):
    """All nodes between two convolutions change to channels first, except the branch."""

    class Convolving(layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.convolution = layers.Conv2D(4, 3, padding="same")

        def build(self, shape):
            self.convolution.build(shape)

        def call(self, x):
            y = ops.relu(x)
            return y + ops.cond(large(x), lambda: self.convolution(y), lambda: self.convolution(x) + x)

    x = keras.Input((8, 8, 3), name="x")
    y = layers.Conv2D(4, 3, padding="same")(x)
    y = Convolving()(layers.ReLU()(y))
    y = layers.Conv2D(4, 3, padding="same")(y)
    model = redraw(keras.Model(x, y))
    folder = exported(model, tmp_path / "out")
    for scale in (1, 1000):
        picture = np.float32(scale) * draw(2, 8, 8, 3)
        assert_close(*run(folder, picture), *outputs_of(model, picture))

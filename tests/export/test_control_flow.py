"""cond, switch and the loops of keras.ops: the file takes every branch that Keras takes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest
from keras import layers, ops

from keras_tx_onnx import export_onnx
from tests.drawing import draw, redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run
from tests.tolerances import assert_close


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


def known_predicate(layer, x):
    return ops.cond(True, lambda: 2 * x, lambda: x)


cond = ops.cond
BRANCHES = [early_name, layers_inside, nested, structures, numbers, size_in_a_branch, switch]
LOOPS = [counted, until_large, at_most, each_row, scan, scan_backwards, scan_without_sequence]
LOOPS += [mapped, mapped_pair, vectorized, associative, associative_backwards]
BOTH = [branch_in_a_loop, loop_in_a_branch, known_predicate]


def flowing(function: Any) -> Any:
    x = keras.Input((4,), name="x")
    try:
        return redraw(keras.Model(x, Flowing(function, name="flowing")(x)))
    except Exception as error:
        if keras.backend.backend() == "tensorflow":
            raise
        pytest.skip(f"Keras itself cannot on this backend: {type(error).__name__}")


def everywhere(model: Any, folder: Path) -> None:
    """Equal to Keras at inputs of every size, which take all branches."""
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
    + [(until_large, "Loop"), (each_row, "Loop"), (scan, "Scan"), (mapped, "Scan"), (associative, "Scan")],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_it_is_a_node_of_the_graph(function: Any, node: str, tmp_path: Path):
    report = export_onnx(flowing(function), tmp_path / "out", verify=False)
    assert nodes_of(tmp_path / "out")[node] >= 1
    assert report.manifest.tiers["flowing"] == "opened"


def test_a_weight_in_a_branch_is_stored_once_under_its_path(tmp_path: Path):
    def both(layer, x):
        return ops.cond(large(x), lambda: layer.one(x), lambda: layer.one(2 * x))

    graph = onnx.load(exported(flowing(both), tmp_path / "out") / "onnx" / "model.onnx").graph
    assert [tensor.name for tensor in graph.initializer if tensor.name.endswith("kernel")] == [
        "flowing/one/kernel"
    ]


def test_a_loop_that_is_an_operation_of_the_functional_model(tmp_path: Path):
    x = keras.Input((4,), name="x")
    model = keras.Model(x, ops.while_loop(lambda y: ops.max(y) < 100.0, lambda y: 2 * y + 1, x))
    folder = exported(model, tmp_path / "out")
    assert nodes_of(folder)["Loop"] == 1
    everywhere(model, folder)


def test_other_threads_see_keras_own_operations(tmp_path: Path):
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

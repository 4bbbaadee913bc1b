"""Exports in threads: other threads see Keras unchanged, and the model is never changed."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import keras
import keras.src.backend
import keras.src.ops
import numpy as np
import pytest
from keras import layers, ops
from keras.src.ops import core as operations_core

from keras_tx_onnx import export_onnx
from keras_tx_onnx.reading import keras_patches
from tests.drawing import as_numpy, draw, redraw


class Positions(layers.Layer):
    """A layer that an export opens, and that uses the replaced functions of Keras."""

    def __init__(self, observe: Callable[[], None] = lambda: None, **kwargs):
        super().__init__(**kwargs)
        self.observe = observe

    def build(self, shape):
        self.table = self.add_weight(shape=(64, shape[-1]), name="table")

    def call(self, x):
        self.observe()
        length = ops.shape(x)[1]
        steps = ops.cast(ops.arange(length), x.dtype)[:, None] * self.table[:length]
        return x + steps + ops.zeros((length, ops.shape(x)[2]), x.dtype)

    def compute_output_shape(self, shape):
        return shape


def model_of(observe: Callable[[], None] = lambda: None, dtype: str = "float32") -> keras.Model:
    x = keras.Input((None, 4), name="x")
    y = Positions(observe, dtype=dtype)(layers.Dense(4, dtype=dtype)(x))
    return redraw(keras.Model(x, layers.Dense(3, dtype=dtype)(y)))


def everything_is_as_usual() -> None:
    assert not isinstance(ops.zeros((2,)), keras.KerasTensor)
    assert not isinstance(keras.ops.arange(3), keras.KerasTensor)
    assert keras.config.backend() == keras.backend.backend()
    assert len(keras.Sequential([keras.Input((3,)), layers.Dense(2)]).layers) == 1
    assert keras.random.normal((2,), seed=keras.random.SeedGenerator(1)).shape == (2,)


def test_other_thread_sees_unchanged_keras_during_an_export(tmp_path):
    failures, traced = [], []

    def observe() -> None:
        if not isinstance(ops.zeros((2,)), keras.KerasTensor):  # Keras runs the layer
            return
        traced.append(1)

        def check() -> None:
            try:
                everything_is_as_usual()
                table = model.layers[2].table
                assert isinstance(table, keras.Variable)
                np.testing.assert_array_equal(as_numpy(model(batch)), expected)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=check)
        thread.start()
        thread.join()

    model = model_of(observe)
    batch = draw(2, 5, 4)
    expected = as_numpy(model(batch))
    export_onnx(model, tmp_path / "out")
    assert traced and not failures
    everything_is_as_usual()


def test_eight_threads_export_predict_and_build(tmp_path):
    batch = draw(2, 5, 4)
    shared = [model_of(dtype=dtype) for dtype in ("float32", "mixed_float16")]
    expected = [as_numpy(model(batch)) for model in shared]
    nodes = [[len(part._inbound_nodes) for part in model._flatten_layers()] for model in shared]
    start = threading.Barrier(8)

    def export(index: int) -> None:
        start.wait()
        for turn in range(2):
            report = export_onnx(shared[index % 2], tmp_path / f"{index}_{turn}")
            assert "opened" in report.manifest.tiers.values()

    def predict(index: int) -> None:
        start.wait()
        for _ in range(30):
            got = as_numpy(shared[index % 2](batch))
            assert got.dtype == expected[index % 2].dtype
            np.testing.assert_array_equal(got, expected[index % 2])

    def build(index: int) -> None:
        start.wait()
        for _ in range(10):
            everything_is_as_usual()
            assert model_of().count_params() == shared[0].count_params()

    with ThreadPoolExecutor(8) as pool:
        work = (export, predict, export, predict, export, build, export, build)
        futures = [pool.submit(function, index // 2) for index, function in enumerate(work)]
    for future in futures:
        future.result()
    assert nodes == [[len(part._inbound_nodes) for part in model._flatten_layers()] for model in shared]
    everything_is_as_usual()


def replaced_functions() -> dict[str, object]:
    """The current functions of Keras that the exporter replaces."""
    owners = (keras.ops, keras.src.ops, keras.src.backend, keras.config, keras.KerasTensor)
    owners += (keras.Operation, keras.layers.Layer, keras.random.SeedGenerator, operations_core.Cond)
    return {f"{owner.__name__}.{name}": x for owner in owners for name, x in vars(owner).items()}


def test_keras_is_restored_after_the_last_of_two_threads():
    before = replaced_functions()
    inside, leave = threading.Event(), threading.Event()

    def second() -> None:
        with keras_patches.patched():
            inside.set()
            leave.wait(60)

    with keras_patches.patched():
        thread = threading.Thread(target=second)
        thread.start()
        assert inside.wait(60)
    assert replaced_functions() != before  # the other thread still needs them
    everything_is_as_usual()
    leave.set()
    thread.join()
    assert replaced_functions() == before


@pytest.mark.parametrize("owner", [keras.ops, keras.KerasTensor, operations_core.Cond])
def test_keras_is_restored_after_an_error(owner, monkeypatch):
    before = replaced_functions()
    with pytest.raises(RuntimeError, match="inside"), keras_patches.patched():
        raise RuntimeError("inside")
    assert replaced_functions() == before

    assign = keras_patches._assign

    def fail(target: object, name: str, value: object) -> None:
        if target is owner:
            raise RuntimeError("replacing")
        assign(target, name, value)

    monkeypatch.setattr(keras_patches, "_assign", fail)
    with pytest.raises(RuntimeError, match="replacing"), keras_patches.patched():
        pass
    assert replaced_functions() == before


def test_function_replaced_by_another_library_is_kept(monkeypatch):
    usual = keras.ops.arange
    with keras_patches.patched():
        monkeypatch.setattr(keras.ops, "arange", len)
    assert keras.ops.arange is len
    monkeypatch.setattr(keras.ops, "arange", usual)


def test_functions_imported_by_name_are_traced(tmp_path):
    module = types.ModuleType("module_of_a_user")
    exec("from keras.ops import arange, shape, zeros", vars(module))
    sys.modules[module.__name__] = module

    class Steps(layers.Layer):
        def call(self, x):
            n = module.shape(x)[1]
            return x + module.zeros((n, 1)) + ops.cast(module.arange(n), x.dtype)[:, None]

    try:
        x = keras.Input((None, 4), name="x")
        model = keras.Model(x, Steps()(x))
        report = export_onnx(model, tmp_path / "out")
    finally:
        del sys.modules[module.__name__]
    assert report.nodes["Range"] == 1

"""Embeddings in both directions, masking, and functions as layers."""

from __future__ import annotations

import keras
import numpy as np
import onnx
import pytest
from keras import layers, ops

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from tests.drawing import draw, redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run
from tests.tolerances import assert_close

OPSETS = pytest.mark.parametrize("opset", [17, 23])


def ids(batch: int, length: int, dtype: str = "int64") -> np.ndarray:
    return np.random.default_rng(0).integers(0, 7, (batch, length)).astype(dtype)


def check(model: keras.Model, folder, *makers, opset: int = 23) -> None:
    redraw(model)
    exported(model, folder / "out", opset=opset)
    for batch, length in ((2, 3), (1, 6)):
        arrays = [make(batch, length) for make in makers]
        for mine, expected in zip(run(folder / "out", *arrays), outputs_of(model, *arrays), strict=True):
            assert_close(mine, expected)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float32", "bool"])
def test_embedding_accepts_any_dtype(dtype: str, tmp_path):
    x = keras.Input((None,), dtype=dtype, name="x")
    if dtype == "int64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has no int64 by default")
    held = dtype if dtype in ("float32", "bool") else "int64"

    def make(batch: int, length: int) -> np.ndarray:
        return (ids(batch, length) % (2 if dtype == "bool" else 7)).astype(held)

    check(keras.Model(x, layers.Embedding(7, 4)(x)), tmp_path, make)


def test_embedding_with_lora(tmp_path):
    x = keras.Input((None,), dtype="int32", name="x")
    check(keras.Model(x, layers.Embedding(7, 4, lora_rank=2)(x)), tmp_path, ids)


def table_sizes(folder) -> list[list[int]]:
    graph = onnx.load(folder / "onnx" / "model.onnx").graph
    return [list(tensor.dims) for tensor in graph.initializer if len(tensor.dims) == 2]


@OPSETS
@pytest.mark.parametrize("options", [{}, {"logit_soft_cap": 2.0}, {"mask_zero": True}], ids=str)
def test_tied_table_is_stored_once(options: dict, opset: int, tmp_path):
    x = keras.Input((None,), dtype="int32", name="x")
    table = layers.ReversibleEmbedding(7, 4, **options)
    check(keras.Model(x, table(table(x) * 2, reverse=True)), tmp_path, ids, opset=opset)
    assert table_sizes(tmp_path / "out") == [[7, 4]]
    assert nodes_of(tmp_path / "out")["Gemm"] == 1


def test_untied_reversible_embedding(tmp_path):
    x = keras.Input((None,), dtype="int32", name="x")
    table = layers.ReversibleEmbedding(7, 4, tie_weights=False, reverse_dtype="float32")
    check(keras.Model(x, table(table(x), reverse=True)), tmp_path, ids)
    assert sorted(table_sizes(tmp_path / "out")) == [[4, 7], [7, 4]]


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_reverse_embedding_of_any_rank(rank: int, tmp_path):
    x = keras.Input((*([None] * (rank - 2)), 4), name="x")
    output = layers.ReversibleEmbedding(7, 4)(x, reverse=True)
    check(keras.Model(x, output), tmp_path, lambda batch, length: draw(batch, *([length] * (rank - 2)), 4))


@OPSETS
@pytest.mark.parametrize("value", [0.0, 0.5])
def test_masking(value: float, opset: int, tmp_path):
    x = keras.Input((None, 4), name="x")

    def make(batch: int, length: int) -> np.ndarray:
        steps = draw(batch, length, 4)
        steps[0, 1:] = value
        steps[0, 0, :2] = value
        return steps

    check(keras.Model(x, layers.Masking(value)(x)), tmp_path, make, opset=opset)


def test_masking_of_integers(tmp_path):
    x = keras.Input((None, 4), dtype="int32", name="x")
    output = layers.Masking(3, dtype="int32")(x)
    check(keras.Model(x, output), tmp_path, lambda b, n: np.full((b, n, 4), 3) + (np.arange(n) % 2)[:, None])


@pytest.mark.parametrize(
    "layer",
    [
        lambda: layers.Lambda(lambda x: ops.transpose(x, (0, 2, 1)) @ x),
        lambda: layers.Lambda(lambda x: ops.flip(x, 1)),
        lambda: layers.Lambda(lambda x, scale: x * scale, arguments={"scale": 3.0}),
        lambda: layers.Lambda(lambda x, mask=None: x if mask is None else x * 2),
        lambda: layers.Lambda(lambda x: ops.concatenate([x, ops.zeros((ops.shape(x)[0], 2, 4))], 1)),
    ],
)
def test_lambda_is_opened(layer, tmp_path):
    x = keras.Input((None, 4), name="x")
    check(keras.Model(x, layer()(x)), tmp_path, lambda batch, length: draw(batch, length, 4))


def test_lambda_that_cannot_be_opened_raises(tmp_path):
    def outside(x):
        return ops.convert_to_tensor(np.tanh(np.asarray(x)))

    x = keras.Input((None, 4), name="x")
    model = keras.Model(x, layers.Lambda(outside, output_shape=(None, 4), name="odd")(x))
    with pytest.raises(
        ExportError, match=r"(?s)layer 'odd' \(.*Lambda\) .*Write it with .*keras.ops.*Keras tensors"
    ):
        export_onnx(model, tmp_path / "out", verify=False)
    assert not list(tmp_path.iterdir())

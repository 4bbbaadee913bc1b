"""The product of vectors and the rows of an embedding table."""

from __future__ import annotations

import onnx_ir as ir

from keras_tx_onnx.graph.builder import GraphContext, shape_of


def scores(cx: GraphContext, table: ir.Value, x: ir.Value) -> ir.Value:
    """x times each row of a table (rows, width), which Gemm transposes, so that lookups share the table."""
    assert table.shape is not None
    rows, width = table.shape.numpy()
    rank = len(shape_of(x))
    if rank == 2:
        return cx.op.Gemm(x, table, transB=1)
    sizes = cx.op.Concat(cx.op.Shape(x, start=0, end=rank - 1), [rows], axis=0)
    return cx.op.Reshape(cx.op.Gemm(cx.op.Reshape(x, [-1, width]), table, transB=1), sizes)

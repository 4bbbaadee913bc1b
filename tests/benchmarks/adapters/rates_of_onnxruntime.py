"""What onnxruntime multiplies and reads a second."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.benchmarks.machine import (
    BILLIONS_OF_BYTES,
    BILLIONS_OF_OPERATIONS,
    COLUMNS,
    ROWS,
    SIZE,
    threads_of_onnxruntime,
)

GRAPHS = {  # operator, type of what is given and of the weights, type of what is made, rows, shape of weights
    "fp32": ("MatMul", "float32", "float32", SIZE, (SIZE, SIZE)),
    "int8": ("MatMulInteger", "uint8", "int8", SIZE, (SIZE, SIZE)),
    "memory": ("MatMul", "float32", "float32", 1, (ROWS, COLUMNS)),  # one row reads all the weights
}


def prepare(place: Path, kind: str) -> None:
    """It makes its graph while loading."""


def load(place: Path, kind: str) -> _Loaded:
    return _Loaded(kind)


class _Loaded:
    def __init__(self, kind: str) -> None:
        import onnxruntime

        self.billions = BILLIONS_OF_BYTES if kind == "memory" else BILLIONS_OF_OPERATIONS
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads_of_onnxruntime() or 0
        self._session = onnxruntime.InferenceSession(
            _graph(kind), options, providers=["CPUExecutionProvider"]
        )
        _, dtype, _, rows, shape = GRAPHS[kind]
        self._given = np.random.default_rng(0).integers(0, 9, (rows, shape[0])).astype(dtype)

    def run(self) -> None:
        self._session.run(None, {"x": self._given})


def _graph(kind: str) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    operator, given, dtype, rows, shape = GRAPHS[kind]
    weights = np.random.default_rng(1).integers(-9, 9, shape).astype(dtype)
    made = TensorProto.FLOAT if operator == "MatMul" else TensorProto.INT32
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w"], ["y"])],
        "multiply",
        [
            helper.make_tensor_value_info(
                "x", helper.np_dtype_to_tensor_dtype(np.dtype(given)), [rows, shape[0]]
            )
        ],
        [helper.make_tensor_value_info("y", made, [rows, shape[1]])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()

"""The rates of the machine: matrix products and reads of memory, with three libraries. Option: kind."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.adapters import Adapter
from tests.benchmarks.machine import threads, threads_of_onnxruntime

SIZE = 1536  # of the matrices
ROWS, COLUMNS = 4096, 16384  # of the weights that are read: more than the caches hold
GRAPHS = {  # operator, dtypes of the input and the weights, rows of the input, shape of the weights
    "fp32": ("MatMul", "float32", "float32", SIZE, (SIZE, SIZE)),
    "int8": ("MatMulInteger", "uint8", "int8", SIZE, (SIZE, SIZE)),
    "memory": ("MatMul", "float32", "float32", 1, (ROWS, COLUMNS)),  # one row reads all the weights
}


class _Rate(Adapter):
    billions = 2 * SIZE**3 / 1e9  # of operations

    @property
    def kind(self) -> str:
        return str(self.options["kind"])


class OnnxRuntime(_Rate):
    def load(self) -> None:
        import onnxruntime

        if self.kind == "memory":
            self.billions = 4 * ROWS * COLUMNS / 1e9  # bytes
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads_of_onnxruntime() or 0
        self.session = onnxruntime.InferenceSession(
            _graph(self.kind), options, providers=["CPUExecutionProvider"]
        )
        _, dtype, _, rows, shape = GRAPHS[self.kind]
        self.input = np.random.default_rng(0).integers(0, 9, (rows, shape[0])).astype(dtype)

    def multiply(self) -> None:
        self.session.run(None, {"x": self.input})


def _graph(kind: str) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    operator, input_dtype, dtype, rows, shape = GRAPHS[kind]
    weights = np.random.default_rng(1).integers(-9, 9, shape).astype(dtype)
    input_type = helper.np_dtype_to_tensor_dtype(np.dtype(input_dtype))
    output_type = TensorProto.FLOAT if operator == "MatMul" else TensorProto.INT32
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w"], ["y"])],
        "multiply",
        [helper.make_tensor_value_info("x", input_type, [rows, shape[0]])],
        [helper.make_tensor_value_info("y", output_type, [rows, shape[1]])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


class Torch(_Rate):
    def load(self) -> None:
        import torch

        torch.set_num_threads(threads())
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[self.kind]
        self.linear = torch.nn.Linear(SIZE, SIZE, bias=False, dtype=dtype)
        self.input = torch.rand(SIZE, SIZE, dtype=dtype)

    def multiply(self) -> None:
        import torch

        with torch.inference_mode():
            self.linear(self.input)


class OpenVino(_Rate):
    def load(self) -> None:
        import openvino
        from openvino import opset13

        parameter = opset13.parameter([SIZE, SIZE], np.float32)
        weights = opset13.constant(np.random.default_rng(1).random((SIZE, SIZE), "float32"))
        model = openvino.Model([opset13.matmul(parameter, weights, False, True)], [parameter])
        hint = {"fp32": "f32", "bf16": "bf16"}[self.kind]
        options = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads()}
        self.request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
        self.input = np.random.default_rng(0).random((SIZE, SIZE), "float32")

    def multiply(self) -> None:
        self.request.infer([self.input], share_inputs=True, share_outputs=True)

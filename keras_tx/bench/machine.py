"""What the machine can do: matrix multiplies in onnxruntime, and reading memory."""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SIZE = 1536
REPEATS = 7


@dataclasses.dataclass(frozen=True)
class Machine:
    """Billions of operations a second, by the kind of number; gigabytes a second."""

    cores: int
    processor: str
    multiply: dict[str, float]
    memory: float

    def __str__(self) -> str:
        rates = ", ".join(f"{kind} {rate:,.0f}" for kind, rate in self.multiply.items())
        return (
            f"{self.cores} cores of {self.processor}; matrix multiply, GFLOP/s: {rates}; "
            f"memory read {self.memory:.0f} GB/s"
        )


def look() -> Machine:
    """Takes some seconds, in which nothing else should run."""
    return Machine(
        os.cpu_count() or 1,
        _processor(),
        {kind: _multiply(kind) for kind in ("fp32", "int8")},
        _memory(),
    )


def _multiply(kind: str) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(_graph(kind), providers=["CPUExecutionProvider"])
    dtype = "float32" if kind == "fp32" else "uint8"
    given = np.random.default_rng(0).integers(0, 9, (SIZE, SIZE)).astype(dtype)
    return 2 * SIZE**3 / _usual(lambda: session.run(None, {"x": given})) / 1e9


def _graph(kind: str) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    dtype, made, element = {
        "fp32": ("float32", TensorProto.FLOAT, TensorProto.FLOAT),
        "int8": ("int8", TensorProto.INT32, TensorProto.UINT8),
    }[kind]
    weights = np.random.default_rng(1).integers(-9, 9, (SIZE, SIZE)).astype(dtype)
    node = helper.make_node("MatMul" if kind == "fp32" else "MatMulInteger", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node],
        "multiply",
        [helper.make_tensor_value_info("x", element, [SIZE, SIZE])],
        [helper.make_tensor_value_info("y", made, [SIZE, SIZE])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def _memory() -> float:
    """Read by all cores, as a MatMul of one row reads its weights: more than the caches hold."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    weights = np.ones((4096, 16384), "float32")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node],
        "read",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4096])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16384])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given = np.ones((1, 4096), "float32")
    return weights.nbytes / _usual(lambda: session.run(None, {"x": given})) / 1e9


def _usual(run: Callable[[], Any]) -> float:
    """The median: a machine that is shared is never at its best for long."""
    run()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

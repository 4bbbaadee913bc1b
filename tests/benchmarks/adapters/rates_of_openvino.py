"""What OpenVINO multiplies a second."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.benchmarks.machine import BILLIONS_OF_OPERATIONS, SIZE, threads


def prepare(place: Path, kind: str) -> None:
    """It needs no files."""


def load(place: Path, kind: str) -> _Loaded:
    return _Loaded(kind)


class _Loaded:
    billions = BILLIONS_OF_OPERATIONS

    def __init__(self, kind: str) -> None:
        import openvino  # pyright: ignore[reportMissingImports]
        from openvino import opset13  # pyright: ignore[reportMissingImports]

        given = opset13.parameter([SIZE, SIZE], np.float32)
        weights = opset13.constant(np.random.default_rng(1).random((SIZE, SIZE), "float32"))
        model = openvino.Model([opset13.matmul(given, weights, False, True)], [given])
        hint = {"fp32": "f32", "bf16": "bf16"}[kind]
        options = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads()}
        self._request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
        self._given = np.random.default_rng(0).random((SIZE, SIZE), "float32")

    def run(self) -> None:
        self._request.infer([self._given], share_inputs=True, share_outputs=True)

"""OpenVINO on the file that Optimum exported, in fp32 or bf16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.machine import threads


def prepare(place: Path, hint: str) -> None:
    if not (place / "optimum" / "model.onnx").exists():
        raise FileNotFoundError("it reads Optimum's file, which is not there: run with Optimum first")


def load(place: Path, hint: str) -> _Loaded:
    import openvino  # pyright: ignore[reportMissingImports]

    core = openvino.Core()
    options = {
        "INFERENCE_PRECISION_HINT": hint,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads(),
    }
    return _Loaded(core.compile_model(core.read_model(place / "optimum" / "model.onnx"), "CPU", options))


class _Loaded:
    def __init__(self, model: Any) -> None:
        self._request = model.create_infer_request()

    def images(self, pixels: np.ndarray) -> np.ndarray:
        return self._run({"pixel_values": pixels})

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        return self._run({"input_ids": ids, "attention_mask": mask, "token_type_ids": segments})

    def _run(self, given: dict[str, np.ndarray]) -> np.ndarray:
        return next(iter(self._request.infer(given).values())).copy()

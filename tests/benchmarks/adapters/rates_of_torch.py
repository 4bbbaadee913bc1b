"""What PyTorch multiplies a second."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.machine import BILLIONS_OF_OPERATIONS, SIZE, threads


def prepare(place: Path, kind: str) -> None:
    """It needs no files."""


def load(place: Path, kind: str) -> _Loaded:
    return _Loaded(kind)


class _Loaded:
    billions = BILLIONS_OF_OPERATIONS

    def __init__(self, kind: str) -> None:
        import torch

        torch.set_num_threads(threads())
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[kind]
        self._linear = torch.nn.Linear(SIZE, SIZE, bias=False, dtype=dtype)
        self._given = torch.rand(SIZE, SIZE, dtype=dtype)

    def run(self) -> None:
        import torch

        with torch.inference_mode():
            self._linear(self._given)

"""llama.cpp through llama-cpp-python, on a GGUF file of the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.machine import threads


def prepare(place: Path, kind: str) -> None:
    from tests.benchmarks.gguf_file import write_gpt2

    path = _path(place, kind)
    if not path.exists():
        write_gpt2(place / "huggingface", path, kind)


def load(place: Path, kind: str) -> _Loaded:
    import llama_cpp  # pyright: ignore[reportMissingImports]

    return _Loaded(
        llama_cpp.Llama(
            str(_path(place, kind)),
            n_ctx=1024,
            n_batch=512,
            n_threads=threads(),  # its own choice is half of the cores
            n_threads_batch=threads(),
            verbose=False,
        )
    )


def _path(place: Path, kind: str) -> Path:
    return place / f"gpt2-{kind}.gguf"


class _Loaded:
    def __init__(self, model: Any) -> None:
        self._model = model

    def tokens(self, ids: np.ndarray, count: int) -> Iterator[int]:
        self._model.reset()
        made = self._model.generate(ids.tolist(), temp=0.0, top_k=1, repeat_penalty=1.0)
        for _ in range(count):
            yield int(next(made))

"""onnxruntime-genai, on the folder that we export."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.machine import threads_of_onnxruntime


def prepare(place: Path) -> None:
    """It opens our folder."""


def load(place: Path) -> _Loaded:
    import onnxruntime_genai  # pyright: ignore[reportMissingImports]

    config = onnxruntime_genai.Config(str(place / "keras_tx"))
    threads = threads_of_onnxruntime()
    if threads is not None:
        options = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": options}}))
    return _Loaded(onnxruntime_genai.Model(config))


class _Loaded:
    def __init__(self, model: Any) -> None:
        self._model = model

    def tokens(self, ids: np.ndarray, count: int) -> Iterator[int]:
        import onnxruntime_genai  # pyright: ignore[reportMissingImports]

        options = onnxruntime_genai.GeneratorParams(self._model)
        options.set_search_options(max_length=len(ids) + count, min_length=len(ids) + count, do_sample=False)
        generator = onnxruntime_genai.Generator(self._model, options)
        generator.append_tokens(ids[None].astype("int32"))
        for _ in range(count):
            generator.generate_next_token()
            yield int(generator.get_next_tokens()[0])

"""transformers in PyTorch: eager, compiled, or in bfloat16."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.machine import threads


def prepare(place: Path, way: str) -> None:
    """It reads the Hugging Face folder as it is."""


def imports(place: Path) -> None:
    import transformers

    getattr(transformers, architecture_of(place))  # it is lazy


def architecture_of(place: Path) -> str:
    (found,) = json.loads((place / "huggingface" / "config.json").read_text("utf-8"))["architectures"]
    return found


def load(place: Path, way: str) -> _Loaded:
    import torch
    import transformers

    torch.set_num_threads(threads())
    folder = place / "huggingface"
    dtype = torch.bfloat16 if way == "bf16" else torch.float32
    model = getattr(transformers, architecture_of(place)).from_pretrained(folder, dtype=dtype).eval()
    return _Loaded(torch.compile(model) if way == "compiled" else model, dtype)


class _Loaded:
    def __init__(self, model: Any, dtype: Any) -> None:
        self._model, self._dtype = model, dtype

    def images(self, pixels: np.ndarray) -> np.ndarray:
        import torch

        with torch.inference_mode():
            return self._model(torch.from_numpy(pixels).to(self._dtype)).logits.float().numpy()

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        import torch

        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
        with torch.inference_mode():
            found = self._model(**{name: torch.from_numpy(x) for name, x in given.items()})
        return found.last_hidden_state.float().numpy()

    def tokens(self, ids: np.ndarray, count: int) -> Iterator[int]:
        import torch

        given, past = torch.from_numpy(ids[None]), None
        with torch.inference_mode():
            for _ in range(count):
                found = self._model(given, past_key_values=past, use_cache=True, logits_to_keep=1)
                past, given = found.past_key_values, found.logits[:, -1:].argmax(-1)
                yield int(given)

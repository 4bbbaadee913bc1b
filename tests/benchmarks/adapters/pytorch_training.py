"""A step of transformers' model in PyTorch, in float32 or with autocast to bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.adapters.pytorch import architecture_of
from tests.benchmarks.machine import threads


def prepare(place: Path, autocast: bool) -> None:
    """It reads the Hugging Face folder as it is."""


def imports(place: Path) -> None:
    import transformers

    getattr(transformers, architecture_of(place))


def load(place: Path, autocast: bool) -> _Loaded:
    import torch
    import transformers

    torch.set_num_threads(threads())
    kind = getattr(transformers, architecture_of(place))
    return _Loaded(kind.from_pretrained(place / "huggingface").train(), autocast)


class _Loaded:
    def __init__(self, model: Any, autocast: bool) -> None:
        import torch

        self._model, self._autocast = model, autocast
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.004)

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        import torch

        given = torch.from_numpy(x)
        if x.ndim == 4:
            named = {"pixel_values": given.permute(0, 3, 1, 2).contiguous()}
        else:
            named = {"input_ids": given.long()}
        self._optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._autocast):
            logits = self._model(**named).logits.float()
            loss = torch.nn.functional.cross_entropy(
                logits.reshape(-1, logits.shape[-1]), torch.from_numpy(y).long().reshape(-1)
            )
        loss.backward()
        self._optimizer.step()
        return float(loss)

"""keras-hub's GPT-2 and its compiled `generate`, on the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.adapters.hub_models import hub_imports, hub_model


def prepare(place: Path) -> None:
    """The weights are carried over while loading."""


def imports(place: Path) -> None:
    hub_imports()


def load(place: Path) -> _Loaded:
    return _Loaded(hub_model(place))


class _Loaded:
    def __init__(self, model: Any) -> None:
        self._model = model
        self._model.preprocessor = None
        self._model.compile(sampler="greedy")

    def tokens(self, ids: np.ndarray, count: int) -> Iterator[int]:
        """All at once, since it does not stream; the caller subtracts the prefill."""
        length = len(ids) + count
        padded = np.zeros((1, length), "int32")
        padded[0, : len(ids)] = ids
        mask = np.zeros((1, length), "int32")
        mask[0, : len(ids)] = 1
        made = self._model.generate({"token_ids": padded, "padding_mask": mask}, stop_token_ids=None)
        yield from np.asarray(made["token_ids"])[0, len(ids) :].tolist()

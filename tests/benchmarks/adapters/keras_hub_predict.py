"""keras-hub's ViT and BERT in Keras, on the same weights."""

from __future__ import annotations

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
    channels_last = True

    def __init__(self, model: Any) -> None:
        self._model = model
        if hasattr(model, "preprocessor"):
            model.preprocessor = None  # it gets what its backbone takes
        model.compile(loss=None, jit_compile=True)

    def images(self, pixels: np.ndarray) -> np.ndarray:
        return self._model.predict_on_batch(pixels)

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        given = {"token_ids": ids, "padding_mask": mask, "segment_ids": segments}
        found = self._model.predict_on_batch({name: x.astype("int32") for name, x in given.items()})
        return found["sequence_output"]

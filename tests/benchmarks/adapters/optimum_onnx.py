"""Optimum's own export of the PyTorch model, in its own classes on onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.machine import threads_of_onnxruntime

TASKS = {
    "ViTForImageClassification": ("image-classification", "ORTModelForImageClassification"),
    "BertModel": ("feature-extraction", "ORTModelForFeatureExtraction"),
    "GPT2LMHeadModel": ("text-generation-with-past", "ORTModelForCausalLM"),
}


def prepare(place: Path) -> None:
    folder = place / "optimum"
    if folder.exists():
        return
    from optimum.exporters.onnx import main_export  # pyright: ignore[reportMissingImports]

    aside = place / "optimum.unfinished"
    main_export(str(place / "huggingface"), output=aside, task=task_of(place)[1], do_validation=False)
    aside.rename(folder)


def imports(place: Path) -> None:
    import optimum.onnxruntime  # pyright: ignore[reportMissingImports]
    import transformers

    architecture, _, name = task_of(place)
    getattr(transformers, architecture)
    getattr(optimum.onnxruntime, name)


def load(place: Path) -> _Loaded:
    import onnxruntime
    import optimum.onnxruntime  # pyright: ignore[reportMissingImports]

    _, task, name = task_of(place)
    session = onnxruntime.SessionOptions()
    session.intra_op_num_threads = threads_of_onnxruntime() or 0
    options: dict[str, Any] = {"use_cache": True, "use_io_binding": False} if "generation" in task else {}
    return _Loaded(
        getattr(optimum.onnxruntime, name).from_pretrained(
            place / "optimum", session_options=session, **options
        )
    )


def task_of(place: Path) -> tuple[str, str, str]:
    """transformers' class, the name of its task, and Optimum's class."""
    (architecture,) = json.loads((place / "huggingface" / "config.json").read_text("utf-8"))["architectures"]
    return architecture, *TASKS[architecture]


class _Loaded:
    def __init__(self, model: Any) -> None:
        self._model = model

    def images(self, pixels: np.ndarray) -> np.ndarray:
        return self._model(pixel_values=pixels).logits

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        return self._model(input_ids=ids, attention_mask=mask, token_type_ids=segments).last_hidden_state

    def tokens(self, ids: np.ndarray, count: int) -> Iterator[int]:
        """All at once; the caller subtracts the prefill."""
        import torch

        given = torch.from_numpy(ids[None])
        made = self._model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        yield from made[0, len(ids) :].tolist()

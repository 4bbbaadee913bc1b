"""Optimum's export of the PyTorch model, without its own comparison."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.adapters.exporting import Exporting
from tests.benchmarks.adapters.optimum_onnx import task_of


def prepare(place: Path) -> None:
    """It reads the Hugging Face folder as it is."""


def imports(place: Path) -> None:
    import transformers
    from optimum.exporters.onnx import onnx_export_from_model  # noqa: F401  # pyright: ignore

    getattr(transformers, task_of(place)[0])


def load(place: Path) -> Exporting:
    import transformers
    from optimum.exporters.onnx import onnx_export_from_model  # pyright: ignore[reportMissingImports]

    architecture, task, _ = task_of(place)
    model = getattr(transformers, architecture).from_pretrained(place / "huggingface")
    return Exporting(
        lambda folder: onnx_export_from_model(model, folder, task=task, do_validation=False),
        place,
        "model.onnx",
    )

"""Exports of a Hugging Face folder by libraries whose exporter has no command line.

    python -m tests.benchmarks.peer_exports transformers CHECKPOINT FOLDER
    python -m tests.benchmarks.peer_exports keras CHECKPOINT FOLDER

`keras` is `keras.Model.export` of keras_tx's model: through tf2onnx on TensorFlow, and jax2onnx on JAX.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKENS, ROWS = 8, 2  # of the example that is traced


def export_with_transformers(checkpoint: Path, folder: Path) -> None:
    """`transformers.exporters`, with dynamic sizes; of a decoder the graphs for `generate`."""
    import torch
    import transformers
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter

    (name,) = json.loads((checkpoint / "config.json").read_text("utf-8"))["architectures"]
    model: Any = getattr(transformers, name).from_pretrained(checkpoint).eval()
    exporter, config = OnnxExporter(), OnnxConfig(dynamic=True)
    if hasattr(model.config, "image_size"):
        size = model.config.image_size
        inputs = {"pixel_values": torch.zeros(ROWS, model.config.num_channels, size, size)}
    else:
        ids = torch.arange(ROWS * TOKENS).reshape(ROWS, TOKENS) + 3
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    export: Callable[..., Any] = exporter.export
    options = {}
    if model.can_generate():
        export, options = exporter.export_for_generation, {"multi_token_decode": True}
    export(model, inputs, config, **options).save_pretrained(folder)


def export_with_keras(checkpoint: Path, folder: Path) -> None:
    """Keras's own export, which keras_tx's models override."""
    import keras
    import numpy as np

    import keras_tx

    model = keras_tx.from_checkpoint(checkpoint)
    inputs = {
        spec.name: np.zeros([TOKENS if size is None else size for size in spec.shape], spec.dtype)
        for spec in model.inputs
    }
    model(inputs if len(inputs) > 1 else next(iter(inputs.values())))  # Keras requires a call
    keras.Model.export(model, folder / "model.onnx", format="onnx", verbose=False)


EXPORTS = {"transformers": export_with_transformers, "keras": export_with_keras}

if __name__ == "__main__":
    name, source, target = sys.argv[1:]
    Path(target).mkdir(parents=True, exist_ok=True)
    EXPORTS[name](Path(source), Path(target))

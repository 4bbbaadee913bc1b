"""Folders of ViTs, with the outputs of keras_tx.runtime for images of exactly their size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import keras_tx
from keras_tx import contract
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.clients import execution_targets, precisions
from tests.drawing import redraw

LABELS = ["rose", "tulip, wild", "päonie", "iris"]
PICTURES = 3

# What differs between folders for a client: keys of the JSON files, outputs, where the weights are.
CASES: dict[str, dict[str, Any]] = {
    "square": {"image_size": 8, "num_classes": len(LABELS)},
    "wide": {"image_size": (8, 12), "num_classes": len(LABELS)},
    "grey": {"image_size": 8, "channels": 1, "num_classes": len(LABELS)},
    "tokens": {"image_size": 8, "pooling": "none"},
    "embedding": {"image_size": 8},
    "vit_opset_17": {"image_size": 8, "num_classes": len(LABELS)},
    "vit_for_webgpu": {"image_size": 8, "num_classes": len(LABELS)},
    "vit_for_openvino": {"image_size": 8, "num_classes": len(LABELS)},
    "vit_large": {"image_size": 8, "num_classes": len(LABELS), "width": 1024, "mlp_dim": 3072, "depth": 2},
    "ladder_vit": {"image_size": 8, "num_classes": len(LABELS), "width": 64, "num_heads": 4, "mlp_dim": 128},
}


def make(out: Path, name: str) -> dict[str, dict[str, Any]]:
    """The folder, and what is asked about each of its files."""
    config = CASES[name]
    model = redraw(keras_tx.vit("Mu/2", **config))
    labels = LABELS if "num_classes" in config else None
    export_onnx(
        model,
        out / name,
        labels=labels,
        opset=17 if name.endswith("opset_17") else None,
        target=execution_targets.of(name),
        precision=precisions.of(name),
        overwrite=True,
    )
    transform = model.processing
    random = np.random.default_rng(0)
    pictures = []
    for index in range(PICTURES):
        colour = random.uniform(0, 255, transform.channels)  # noise alone looks the same to a ViT
        pixels = colour + random.normal(0, 40, (transform.height, transform.width, transform.channels))
        pixels = pixels.clip(0, 255).astype("uint8")
        pictures.append(f"{name}_{index}.png")
        Image.fromarray(pixels.squeeze(-1) if transform.channels == 1 else pixels).save(out / pictures[-1])
    paths = [out / picture for picture in pictures]

    def answer(precision: str) -> dict[str, Any]:
        with load(out / name, provider="cpu", precision=precision) as loaded:
            (output,) = loaded.session.outputs
            pixel_values = np.ascontiguousarray(transform(paths).transpose(0, 3, 1, 2))
            values = loaded.session.run({contract.PIXEL_VALUES: pixel_values})[output.name]
            scores = loaded(paths, top_k=len(LABELS)) if labels else None
        return {
            "kind": "pictures",
            "task": model.task,
            "output": output.name,
            "labels": labels,
            "channels": transform.channels,
            "pictures": pictures,
            "pixel_values": pixel_values.tolist(),
            "values": values.tolist(),
            "scores": scores,
        }

    return precisions.cases(name, answer)

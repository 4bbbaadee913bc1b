"""Exports a few models and prints their graphs, so that those of two backends can be compared.

KERAS_BACKEND=jax python -m tests.export.graph_of_backend FOLDER
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import keras
import onnx
from keras import layers, ops

import keras_tx
from keras_tx_onnx import export_onnx
from tests.drawing import redraw


class Own(layers.Layer):
    """Opened: sizes, a table, a range."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(128, shape[-1]), name="table")

    def compute_output_shape(self, shape: Any) -> Any:
        return shape

    def call(self, x: Any) -> Any:
        batch, length, width = ops.shape(x)
        steps = ops.cast(ops.expand_dims(ops.arange(length), -1), x.dtype)
        rows = ops.slice(ops.convert_to_tensor(self.table), (0, 0), (length, width))
        return (
            ops.reshape(ops.reshape(x, (batch, length, 2, width // 2)), (batch, length, width)) + rows * steps
        )


def text() -> keras.Model:
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.Embedding(11, 8, mask_zero=True, name="embedding")(ids)
    x = Own(name="own")(x)
    x = layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    x = layers.LayerNormalization(name="norm")(x)
    return keras.Model(ids, layers.GlobalAveragePooling1D(name="average")(x), name="text")


def picture() -> keras.Model:
    image = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(4, 3, padding="same", activation="relu", name="conv")(image)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.MaxPooling2D(2, name="pool")(x)
    return keras.Model(image, layers.Dense(3, name="answer")(layers.Flatten(name="flat")(x)), name="picture")


def video() -> Any:
    inputs = keras.Input((4, 4, 6, 2), name="video")
    x = keras_tx.PatchEmbedding(12, (2, 2, 3), name="patches")(inputs)
    x = keras_tx.PositionalEmbedding((2, 2, 2), "sine-cosine", name="positions")(x)
    return keras.Model(inputs, keras_tx.TransformerBlock(2, 16, name="block")(x), name="video_tokens")


def graphs(folder: Path) -> dict[str, Any]:
    """Every node and weight of each model, in order."""
    descriptions = {}
    models = {
        "text": text,
        "picture": picture,
        "vit": lambda: keras_tx.vit("Mu/2", image_size=8, num_classes=3),
        "video": video,
        "t5": lambda: keras_tx.t5("tiny"),
        "transformer": lambda: keras_tx.transformer("tiny"),
    }
    for name, make in models.items():
        keras.utils.clear_session()
        export_onnx(redraw(make()), folder / name)
        for path in sorted((folder / name / "onnx").glob("*.onnx")):
            descriptions[f"{name}/{path.name}"] = _description(onnx.load(path).graph)
    return descriptions


def _description(graph: onnx.GraphProto) -> dict[str, Any]:
    return {
        "nodes": [
            [
                node.op_type,
                node.name,
                list(node.input),
                list(node.output),
                [str(a) for a in node.attribute],
            ]
            for node in graph.node
        ],
        "weights": sorted(
            [w.name, list(w.dims), hashlib.sha256(w.raw_data).hexdigest()] for w in graph.initializer
        ),
        "inputs": [str(x) for x in graph.input],
        "outputs": [str(x) for x in graph.output],
    }


if __name__ == "__main__":
    print(json.dumps(graphs(Path(sys.argv[1]))))

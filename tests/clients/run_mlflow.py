"""mlflow: the graph is logged as an ONNX model, loaded, and called as a pyfunc."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import onnx
from comparing import Comparison, fed, main


def predicted(path: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    model = onnx.load(path)
    with mlflow.start_run():
        logged = mlflow.onnx.log_model(model, name="model")
    return mlflow.pyfunc.load_model(logged.model_uri).predict(dict(inputs))


def texts(folder: Path, case: dict[str, Any], comparison: Comparison) -> None:
    outputs = predicted(folder / case["file"], fed(case["batch"], list(case["batch"])))
    for name, expected in case["outputs"].items():
        comparison.close(name, outputs[name], expected)


def pictures(folder: Path, case: dict[str, Any], comparison: Comparison) -> None:
    pixel_values = np.asarray(case["pixel_values"], "float32")
    outputs = predicted(folder / case["file"], {"pixel_values": pixel_values})
    comparison.close("output", outputs[case["output"]], case["values"])


def decoders(folder: Path, case: dict[str, Any], comparison: Comparison) -> None:
    ids = np.asarray(case["ids"][:1])
    inputs = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.arange(ids.shape[1])[None],
    }
    for name, (heads, size, kind) in case["past"].items():
        inputs[name] = np.zeros((1, heads, 0, size), kind)
    comparison.close("logits", predicted(folder / case["file"], inputs)["logits"], case["logits"])


def encoder_decoders(folder: Path, case: dict[str, Any], comparison: Comparison) -> None:
    ids = np.asarray(case["ids"][:1])
    mask = np.ones_like(ids)
    encoded = predicted(folder / case["encoder_file"], {"input_ids": ids, "attention_mask": mask})
    comparison.close("encoder", encoded["last_hidden_state"], case["encoder_outputs"])
    inputs = {
        "input_ids": np.array([[case["start_id"]]]),
        "encoder_hidden_states": encoded["last_hidden_state"],
        "encoder_attention_mask": mask,
        "use_cache_branch": np.array([False]),
    }
    for name, (heads, size, kind) in case["past"].items():
        inputs[name] = np.zeros((1, heads, 0, size), kind)
    comparison.close("logits", predicted(folder / case["file"], inputs)["logits"], case["logits"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as store:
        os.chdir(store)
        mlflow.set_tracking_uri(f"sqlite:///{store}/mlflow.db")
        packages = f"onnx {version('onnx')}, onnxruntime {version('onnxruntime')}"
        asks = {
            "texts": texts,
            "pictures": pictures,
            "decoders": decoders,
            "encoder_decoders": encoder_decoders,
        }
        main("mlflow", f"{version('mlflow')} ({packages})", asks)

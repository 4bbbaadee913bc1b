"""sentence-transformers on onnxruntime: embedders, and classifiers of pairs as its CrossEncoder."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from comparing import Comparison, main
from sentence_transformers import CrossEncoder, SentenceTransformer


def options(case: dict[str, Any]) -> dict[str, Any]:
    chosen = {"provider": "CPUExecutionProvider"}
    if case["precision"] != "fp32":
        chosen["file_name"] = case["file"]
    return {"backend": "onnx", "device": "cpu", "model_kwargs": chosen}


def texts(folder: Path, case: dict[str, Any], comparison: Comparison) -> None:
    one, _ = case["long"]
    if case["task"] == "feature-extraction":
        model = SentenceTransformer(str(folder), **options(case))
        comparison.close("sentence_embedding", model.encode(case["texts"]), case["answers"])
        comparison.same(
            "long texts", model.preprocess([one])["input_ids"][0].tolist(), case["long_ids"]["text"]
        )
        return
    model = CrossEncoder(str(folder), **options(case))
    logits = model.predict(list(zip(case["texts"], case["pairs"], strict=True)), activation_fn=as_it_is)
    comparison.close(
        "logits", np.reshape(logits, np.shape(case["outputs"]["logits"])), case["outputs"]["logits"]
    )


def as_it_is(logits: Any) -> Any:
    return logits


def only(case: dict[str, Any]) -> bool:
    task = case["task"]
    return task == "feature-extraction" or (task == "text-classification" and case["pairs"] is not None)


if __name__ == "__main__":
    names = ("optimum-onnx", "transformers", "onnxruntime")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    package = "sentence-transformers"
    main(package, f"{version(package)} ({packages})", {"texts": texts}, only)

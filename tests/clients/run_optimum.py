"""Optimum's ORTModel, with the image processor that transformers finds in the folder."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from comparing import Answer, main
from optimum.onnxruntime import (
    ORTModelForCustomTasks,
    ORTModelForFeatureExtraction,
    ORTModelForImageClassification,
)
from PIL import Image
from transformers import AutoImageProcessor, pipeline


def answer(folder: Path, case: dict[str, Any], pictures: list[Path]) -> Answer:
    processor = AutoImageProcessor.from_pretrained(folder, use_fast=False)  # the fast one wants torchvision
    images: list[Any] = [Image.open(picture) for picture in pictures]
    grey = images[0].mode == "L"
    if grey:  # transformers takes grey pictures only as arrays with a channel axis
        images = [np.asarray(image)[..., None] for image in images]
    inputs = processor(images, return_tensors="np")
    if case["output"] == "image_embeds":  # its class for features wants a last_hidden_state
        return ORTModelForCustomTasks.from_pretrained(folder)(**inputs)["image_embeds"], None
    if case["output"] == "last_hidden_state":
        return ORTModelForFeatureExtraction.from_pretrained(folder)(**inputs).last_hidden_state, None
    model = ORTModelForImageClassification.from_pretrained(folder)
    logits = model(**inputs).logits
    if grey:  # and its pipeline makes every picture colour
        return logits, None
    classify = pipeline("image-classification", model=model, image_processor=processor)
    return logits, classify(images, top_k=len(case["labels"]))


if __name__ == "__main__":
    names = ("optimum-onnx", "transformers", "onnxruntime")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    main(f"optimum {version('optimum')} ({packages})", answer)

"""OpenVINO opens the ONNX file by itself; the pixels are prepared here, as preprocessor_config.json says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from comparing import Answer, main
from PIL import Image


def answer(folder: Path, case: dict[str, Any], pictures: list[Path]) -> Answer:
    core = openvino.Core()
    model = core.read_model(folder / "onnx" / "model.onnx")
    # On machines that have bf16 OpenVINO computes in it, unless told.
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    pixel_values = np.stack([prepare(folder, picture) for picture in pictures])
    return compiled({"pixel_values": pixel_values})[case["output"]], None


def prepare(folder: Path, picture: Path) -> np.ndarray:
    config = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    pixels = np.asarray(Image.open(picture).convert("RGB" if config["do_convert_rgb"] else "L"), "float32")
    pixels = np.atleast_3d(pixels) * config["rescale_factor"]
    pixels = (pixels - config["image_mean"]) / config["image_std"]
    return pixels.transpose(2, 0, 1).astype("float32")  # -> (channels, height, width)


if __name__ == "__main__":
    main(f"openvino {openvino.__version__.split('-')[0]}", answer)

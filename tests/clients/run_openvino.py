"""OpenVINO opens the ONNX file by itself: pixels and ids are prepared here, as the other files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from comparing import Found, main
from PIL import Image
from tokenizers import Tokenizer


def compiled(folder: Path) -> Any:
    # On machines that have bf16 OpenVINO computes in it, unless told.
    return openvino.compile_model(folder / "onnx/model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def pictures(folder: Path, case: dict[str, Any], found: Found) -> None:
    pixel_values = np.stack([prepare(folder, folder.parent / picture) for picture in case["pictures"]])
    found.close("output", compiled(folder)({"pixel_values": pixel_values})[case["output"]], case["values"])


def prepare(folder: Path, picture: Path) -> np.ndarray:
    config = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    pixels = np.asarray(Image.open(picture).convert("RGB" if config["do_convert_rgb"] else "L"), "float32")
    pixels = np.atleast_3d(pixels) * config["rescale_factor"]
    pixels = (pixels - config["image_mean"]) / config["image_std"]
    return pixels.transpose(2, 0, 1).astype("float32")  # -> (channels, height, width)


def texts(folder: Path, case: dict[str, Any], found: Found) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id(config["pad_token"]))
    given = case["texts"] if case["pairs"] is None else list(zip(case["texts"], case["pairs"], strict=True))
    rows = tokenizer.encode_batch(given)
    batch = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
    if "token_type_ids" in config["model_input_names"]:
        batch["token_type_ids"] = [row.type_ids for row in rows]
    found.same("batch", batch, case["batch"])
    outputs = compiled(folder)({name: np.array(rows) for name, rows in batch.items()})
    for name, expected in case["outputs"].items():
        found.close(name, outputs[name], expected)


def decoders(folder: Path, case: dict[str, Any], found: Found) -> None:
    """One run for the prompts, padded in front, and one for each further token of all of them."""
    model = compiled(folder)
    length = max(map(len, case["ids"]))
    ids = np.array([[0] * (length - len(row)) + row for row in case["ids"]])
    mask = np.array([[0] * (length - len(row)) + [1] * len(row) for row in case["ids"]])
    past = {}
    for port in model.inputs:
        if port.any_name.startswith("past_key_values"):
            _, heads, _, size = port.partial_shape
            past[port.any_name] = np.zeros((len(ids), heads.get_length(), 0, size.get_length()), "float32")
    made: list[np.ndarray] = []
    while len(made) < case["new_tokens"]:
        positions = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -ids.shape[1] :]
        out = model({"input_ids": ids, "attention_mask": mask, "position_ids": positions, **past})
        if not made:
            first = out["logits"][:1, length - len(case["ids"][0]) :]
            found.close("logits", first, case["logits"])
        past = {name: np.copy(out[name.replace("past_key_values", "present")]) for name in past}
        ids = out["logits"][:, -1:].argmax(axis=-1)
        mask = np.concatenate([mask, np.ones_like(ids)], axis=1)
        made.append(ids[:, 0])
    for row, expected in zip(np.stack(made, axis=1).tolist(), case["new_ids"], strict=True):
        found.same("tokens of a batch", row[: len(expected)], expected)


if __name__ == "__main__":
    asks = {"pictures": pictures, "texts": texts, "decoders": decoders}
    main("OpenVINO", openvino.__version__.split("-")[0], asks)

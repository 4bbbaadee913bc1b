"""OpenVINO opens the ONNX file. Pixels and ids are prepared here, from the folder's other files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from comparing import Comparison, main
from PIL import Image
from tokenizers import Tokenizer


def compiled(folder: Path, case: dict[str, Any], name: str = "file") -> Any:
    # On machines that have bf16 OpenVINO computes in it, unless told.
    return openvino.compile_model(folder / case[name], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def pictures(folder: Path, case: dict[str, Any], comparison: Comparison) -> None:
    pixel_values = np.stack([prepare(folder, folder.parent / picture) for picture in case["pictures"]])
    comparison.close(
        "output", compiled(folder, case)({"pixel_values": pixel_values})[case["output"]], case["values"]
    )


def prepare(folder: Path, picture: Path) -> np.ndarray:
    config = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    pixels = np.asarray(Image.open(picture).convert("RGB" if config["do_convert_rgb"] else "L"), "float32")
    pixels = np.atleast_3d(pixels) * config["rescale_factor"]
    pixels = (pixels - config["image_mean"]) / config["image_std"]
    return pixels.transpose(2, 0, 1).astype("float32")  # -> (channels, height, width)


def texts(folder: Path, case: dict[str, Any], comparison: Comparison) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id(config["pad_token"]))
    texts = case["texts"] if case["pairs"] is None else list(zip(case["texts"], case["pairs"], strict=True))
    rows = tokenizer.encode_batch(texts)
    batch = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
    if "token_type_ids" in config["model_input_names"]:
        batch["token_type_ids"] = [row.type_ids for row in rows]
    comparison.same("batch", batch, case["batch"])
    outputs = compiled(folder, case)({name: np.array(rows) for name, rows in batch.items()})
    for name, expected in case["outputs"].items():
        comparison.close(name, outputs[name], expected)


def decoders(folder: Path, case: dict[str, Any], comparison: Comparison) -> None:
    """All prompts at once, where that changes no answer."""
    model = compiled(folder, case)
    prompts = range(len(case["ids"]))
    for group in [list(prompts)] if case["together"] else [[index] for index in prompts]:
        ids, new_ids = ([case[name][index] for index in group] for name in ("ids", "new_ids"))
        logits, steps = continued(model, ids, new_ids)
        if group[0] == 0:
            comparison.close("logits", logits, case["logits"])
        most_likely(steps, new_ids, case, comparison)


def most_likely(
    steps: list[np.ndarray], new_ids: list[list[int]], case: dict[str, Any], comparison: Comparison
) -> None:
    """Whether the tokens have the highest logits."""
    if case["precision"] == "fp32":
        best = [step.argmax(axis=-1).tolist() for step in steps]
        comparison.same("tokens", best, new_ids)
        return
    # Two of like worth may change places; then ours is nearly the best.
    for step, chosen in zip(steps, new_ids, strict=True):
        comparison.close("tokens", step[np.arange(len(chosen)), chosen], step.max(axis=-1))


def continued(
    model: Any, ids: list[list[int]], new_ids: list[list[int]]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The logits of the first prompt, and of each prompt those in front of its new tokens.

    One run for the prompts, padded in front, and one for each further token of all of them.
    """
    length, count = max(map(len, ids)), max(map(len, new_ids))
    input_ids = np.array([[0] * (length - len(row)) + row for row in ids])
    mask = np.array([[0] * (length - len(row)) + [1] * len(row) for row in ids])
    new = np.array([row + [0] * (count - len(row)) for row in new_ids])
    past = {}
    for port in model.inputs:
        if port.any_name.startswith("past_key_values"):
            _, heads, _, size = port.partial_shape
            kind = port.element_type.to_dtype()
            past[port.any_name] = np.zeros((len(ids), heads.get_length(), 0, size.get_length()), kind)
    first, steps = np.zeros(0), []
    for index in range(count):
        positions = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -input_ids.shape[1] :]
        out = model({"input_ids": input_ids, "attention_mask": mask, "position_ids": positions, **past})
        if index == 0:
            first = np.copy(out["logits"][:1, length - len(ids[0]) :])
        steps.append(np.copy(out["logits"][:, -1]))
        past = {name: np.copy(out[name.replace("past_key_values", "present")]) for name in past}
        input_ids = new[:, index : index + 1]
        mask = np.concatenate([mask, np.ones_like(input_ids)], axis=1)
    return first, [np.stack(steps, axis=1)[row, : len(own)] for row, own in enumerate(new_ids)]


def encoder_decoders(folder: Path, case: dict[str, Any], comparison: Comparison) -> None:
    """All sources together, if that changes no answer."""
    encoder, decoder = (compiled(folder, case, name) for name in ("encoder_file", "file"))
    sources = range(len(case["ids"]))
    for group in [list(sources)] if case["together"] else [[index] for index in sources]:
        ids, new_ids = ([case[name][index] for index in group] for name in ("ids", "new_ids"))
        steps = translated(encoder, decoder, ids, new_ids, case)
        if group[0] == 0:
            comparison.close("logits", steps[0][:1], np.array(case["logits"])[0])
        if case["pad_id"] not in case["new_ids"][0]:  # excluded from Marian's targets
            for step in steps:
                step[:, case["pad_id"]] = -1e4
        most_likely(steps, new_ids, case, comparison)


def translated(
    encoder: Any, decoder: Any, ids: list[list[int]], new_ids: list[list[int]], case: dict[str, Any]
) -> list[np.ndarray]:
    """For each source the logits in front of each token of its target, in a batch padded behind."""
    length, count = max(map(len, ids)), max(map(len, new_ids))
    sources = np.array([row + [case["pad_id"]] * (length - len(row)) for row in ids])
    mask = np.array([[1] * len(row) + [0] * (length - len(row)) for row in ids])
    targets = np.array([[case["start_id"], *row] + [0] * (count - len(row)) for row in new_ids])
    states = np.copy(encoder({"input_ids": sources, "attention_mask": mask})["last_hidden_state"])
    past = {
        name: np.zeros((len(ids), heads, 0, size), dtype)
        for name, (heads, size, dtype) in case["past"].items()
    }
    steps = []
    for index in range(count):
        outputs = decoder(
            {
                "input_ids": targets[:, index : index + 1],
                "encoder_hidden_states": states,
                "encoder_attention_mask": mask,
                "use_cache_branch": np.array([index > 0]),
                **past,
            }
        )
        steps.append(np.copy(outputs["logits"][:, -1]))
        for name in past:
            if index == 0 or ".decoder." in name:  # later those of the source are empty
                past[name] = np.copy(outputs[name.replace("past_key_values", "present")])
    return [np.stack(steps, axis=1)[row, : len(own)] for row, own in enumerate(new_ids)]


if __name__ == "__main__":
    asks = {
        "pictures": pictures,
        "texts": texts,
        "decoders": decoders,
        "encoder_decoders": encoder_decoders,
    }
    version = openvino.__version__.split("-")[0]
    main("OpenVINO", version, asks, own_kernels=True)

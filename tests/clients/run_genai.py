"""onnxruntime-genai: its own tokenizer, its own cache, greedy."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as genai
from comparing import Comparison, main


def decoders(folder: Path, case: dict[str, Any], comparison: Comparison) -> None:
    config = genai.Config(str(folder))
    if case["precision"] != "fp32":
        config.overlay(json.dumps({"model": {"decoder": {"filename": case["file"]}}}))
    model = genai.Model(config)
    for ids, expected in zip(case["ids"], case["new_ids"], strict=True):
        rows, logits = generated(model, np.array([ids], "int32"), case)
        comparison.same("tokens", rows[0], expected)
        if ids == case["ids"][0]:
            comparison.close("logits", logits[0, -1], case["logits"][0][-1])
    adapters = genai.Adapters(model)
    for name, new_ids in case["new_ids_of_adapters"].items():
        adapters.load(str(folder / "adapters" / f"{name}.onnx_adapter"), name)
        for ids, expected in zip(case["ids"], new_ids, strict=True):
            rows, _ = generated(model, np.array([ids], "int32"), case, (adapters, name))
            comparison.same(f"tokens with adapter {name}", rows[0], expected)
    if case["prompts"] is None:
        return
    tokenizer = genai.Tokenizer(model)
    tokenizer.update_options(add_special_tokens="true")
    ids = [tokenizer.encode(prompt) for prompt in case["prompts"]]
    comparison.same("ids", [row.tolist() for row in ids], case["ids"])
    comparison.same("decoded", [tokenizer.decode(row) for row in ids], case["prompts"])
    if not case["together"] or case["distances"]:
        return
    # It pads behind the texts; a padding token in front of one is text to it.
    rows, _ = generated(model, tokenizer.encode_batch(case["prompts"]).as_numpy(), case)
    for row, expected in zip(rows, case["new_ids"], strict=True):
        comparison.same("tokens of a batch", row[: len(expected)], expected)


def generated(
    model: Any, ids: Any, case: dict[str, Any], adapter: tuple[Any, str] | None = None
) -> tuple[list[list[int]], np.ndarray]:
    """The new tokens of each row, and the logits of the prompts."""
    batch, length = ids.shape
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(do_sample=False, batch_size=batch, max_length=length + case["new_tokens"])
    generator = genai.Generator(model, parameters)
    if adapter is not None:
        generator.set_active_adapter(*adapter)
    generator.append_tokens(ids)
    logits = np.copy(generator.get_logits())
    while not generator.is_done():
        generator.generate_next_token()
    return [generator.get_sequence(row)[length:].tolist() for row in range(batch)], logits


if __name__ == "__main__":
    packages = f"{version('onnxruntime-genai')} (onnxruntime {version('onnxruntime')})"
    main("onnxruntime-genai", packages, {"decoders": decoders})

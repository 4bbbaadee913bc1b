"""Our GPT-2 as a GGUF file, for llama.cpp. The package gguf knows the format and its quantizations."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# The names of the layers: (llama.cpp's, Hugging Face's), and whether Hugging Face's is (in, out).
BLOCK = (
    ("attn_norm", "ln_1", False),
    ("attn_qkv", "attn.c_attn", True),
    ("attn_output", "attn.c_proj", True),
    ("ffn_norm", "ln_2", False),
    ("ffn_up", "mlp.c_fc", True),
    ("ffn_down", "mlp.c_proj", True),
)


def write_gpt2(folder: Path, path: Path, kind: str) -> None:
    """`kind` is f32, q8_0 or q4_0, of every matrix but the positions: the head is the embedding."""
    import gguf  # pyright: ignore[reportMissingImports]

    config = json.loads((folder / "config.json").read_text("utf-8"))
    aside = path.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(aside, "gpt2")
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(config["n_inner"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    # It refuses a file without a tokenizer; ids are all that is asked of this one.
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"<{index}>" for index in range(config["vocab_size"])])
    writer.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
    writer.add_token_merges(["< >"])
    writer.add_bos_token_id(config["vocab_size"] - 1)
    writer.add_eos_token_id(config["vocab_size"] - 1)
    for name, value in _tensors(folder, config["n_layer"]):
        if value.ndim < 2 or kind == "f32" or name.startswith("position"):
            writer.add_tensor(name, np.ascontiguousarray(value))
            continue
        quantization = getattr(gguf.GGMLQuantizationType, kind.upper())
        quantized = gguf.quants.quantize(np.ascontiguousarray(value), quantization)
        writer.add_tensor(name, quantized, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(aside, path)


def _tensors(folder: Path, depth: int) -> Iterator[tuple[str, Any]]:
    from safetensors.numpy import load_file  # our own reader stands beside Keras, which is not here

    tensors = load_file(folder / "model.safetensors")

    def read(name: str) -> np.ndarray:
        return tensors[name if name in tensors else f"transformer.{name}"]

    yield "token_embd.weight", read("wte.weight")
    yield "position_embd.weight", read("wpe.weight")
    for index in range(depth):
        for theirs, ours, swapped in BLOCK:
            weight = read(f"h.{index}.{ours}.weight")
            yield f"blk.{index}.{theirs}.weight", weight.T if swapped else weight
            yield f"blk.{index}.{theirs}.bias", read(f"h.{index}.{ours}.bias")
    yield "output_norm.weight", read("ln_f.weight")
    yield "output_norm.bias", read("ln_f.bias")

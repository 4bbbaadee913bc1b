"""Folders of GPTs, with the texts that keras_tx.runtime generates."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import keras_tx
from keras_tx.processing import train_byte_bpe
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.clients import execution_targets, precisions
from tests.clients.text_folders import CORPUS
from tests.drawing import redraw

# Of different lengths, so that a batch has padding in front.
PROMPTS = ["The cat", "Ada Lovelace lives in London; her naïve friends", "東京!\n\nIt"]
NEW_TOKENS = 24

GPT_2 = train_byte_bpe(CORPUS, 330)
LLAMA = train_byte_bpe(CORPUS, 330, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("pico", {"processing": GPT_2}),
    "gpt2_untied": ("pico", {"processing": LLAMA, "tied": False, "activation": "gelu"}),
    "llama": ("llama-tiny", {"processing": LLAMA}),
    "llama_tied": ("llama-tiny", {"processing": GPT_2, "tied": True, "rotary_base": 500.0}),
    "qwen2": ("llama-tiny", {"processing": GPT_2, "qkv_bias": True}),
    "qwen3": ("llama-tiny", {"processing": GPT_2, "qk_norm": True}),
    "gemma": (
        "llama-tiny",
        {"processing": LLAMA, "scale_embedding": True, "activation": "geglu", "head_dim": 24},
    ),
    "gpt2_endless": ("pico", {"vocabulary_size": 330}),
    "gpt2_opset_17": ("pico", {"processing": GPT_2}),
    "llama_opset_17": ("llama-tiny", {"processing": LLAMA}),
    "llama_for_webgpu": ("llama-tiny", {"processing": LLAMA}),
    "gpt2_for_openvino": ("pico", {"processing": GPT_2}),
    "gpt2_large": ("pico", {"processing": GPT_2, "width": 1024, "num_heads": 16}),
    "gpt2_adapters": ("pico", {"processing": GPT_2, "width": 64}),
    "ladder_gpt2": ("pico", {"processing": GPT_2, "width": 64}),
    "ladder_llama": ("llama-tiny", {"processing": LLAMA, "width": 64}),
}


def drawn(model: Any, seed: int = 1) -> Any:
    """With every weight redrawn; biases small, or a model this small says the same whatever it reads."""
    for weight in redraw(model, seed).trainable_weights:
        if weight.name in ("bias", "beta"):
            weight.assign(weight * 0.1)
    return model


def make(out: Path, name: str) -> dict[str, dict[str, Any]]:
    """The folder, and the texts that each of its files generates."""
    variant, options = CASES[name]
    model = drawn(keras_tx.gpt(variant, max_length=64, **options))
    opset = 17 if name.endswith("opset_17") else None
    options = {"opset": opset, "precision": precisions.of(name, model.task), "overwrite": True}
    options["target"] = execution_targets.of(name)
    with tempfile.TemporaryDirectory() as folder:
        adapters = _adapters(model, Path(folder)) if name.endswith("adapters") else None
        export_onnx(model, out / name, adapters=adapters, **options)

    def answer(precision: str) -> dict[str, Any]:
        with load(out / name, provider="cpu", precision=precision) as loaded:
            case = continued(loaded, model.task, together=precision == "fp32")
            return {**case, "new_ids_of_adapters": _with_adapters(loaded, case["ids"])}

    return precisions.cases(name, answer, model.task)


def _adapters(model: Any, folder: Path) -> dict[str, Path]:
    """Two adapters of a model, of different ranks and layers."""
    model.save(folder / "base.keras")
    for rank, targets in enumerate(("attention", "dense"), 2):
        copy = keras_tx.load_model(folder / "base.keras")
        adapted = redraw(keras_tx.lora(copy, rank, targets=targets), seed=rank)
        keras_tx.save_adapter(adapted, folder / targets)
    return {targets: folder / targets for targets in ("attention", "dense")}


def _with_adapters(loaded: Any, ids: list[list[int]]) -> dict[str, list[list[int]]]:
    """The new tokens with each adapter of a folder."""
    return {
        name: [list(one.ids) for one in loaded.generate(ids, max_new_tokens=NEW_TOKENS, adapter=name)]
        for name in loaded.adapters
    }


def continued(loaded: Any, task: str, together: bool) -> dict[str, Any]:
    """With all texts `together`, or one by one: int8-dynamic computes its ranges from the whole batch."""
    with_text = loaded.tokenizer is not None
    ids = [GPT_2.encode([prompt])[0].ids.tolist() for prompt in PROMPTS]
    if with_text:
        ids = [loaded.tokenizer.encode(prompt).ids for prompt in PROMPTS]
    prompts = PROMPTS if with_text else ids
    groups = [prompts] if together else [[one] for one in prompts]
    made = [one for group in groups for one in loaded.generate(group, max_new_tokens=NEW_TOKENS)]
    assert all(len(set(one.ids)) > 5 for one in made), f"{loaded.folder.path} repeats itself: proves little"
    ports = [spec for spec in loaded.session.inputs if spec.name.startswith("past_key_values.")]
    logits = loaded.decoder.run(*_batch(ids[:1]), None, True)[0]
    return {
        "kind": "decoders",
        "task": task,
        "refused_by": {},
        "byte_fallback": False,
        "distances": False,
        "prompts": PROMPTS if with_text else None,
        "together": together,
        "ids": ids,
        "past": {spec.name: (spec.shape[1], spec.shape[3], spec.dtype) for spec in ports},
        "logits": logits.tolist(),  # of the first prompt
        "new_tokens": NEW_TOKENS,
        "new_ids": [list(one.ids) for one in made],
        "new_texts": [one.text for one in made],
    }


def _batch(ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    array = np.array(ids, "int64")
    return array, np.ones_like(array), np.arange(array.shape[1])[None]

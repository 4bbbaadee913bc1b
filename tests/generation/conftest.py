"""Decoders of transformers, with the same weights in Keras and in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx_onnx import export_onnx


@pytest.fixture(scope="module", params=["GPT2LMHeadModel", "LlamaForCausalLM"])
def both(request, tmp_path_factory) -> tuple[Any, Any, Path]:
    """A model of transformers, the Keras model with its weights, and the exported folder."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch

    from tests.golden import make_gpt
    from tests.weights.states import put, state_of

    llama = request.param.startswith("Llama")
    sizes = {
        "max_position_embeddings" if llama else "n_positions": 60,
        "hidden_size" if llama else "n_embd": 32,
    }
    torch.set_num_threads(1)
    theirs = make_gpt.redrawn(
        request.param, {**(make_gpt.LLAMA if llama else make_gpt.GPT2), **sizes}, 9 if llama else 8
    )
    random = np.random.default_rng(9 if llama else 8)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            # A tied table of positive numbers would give one word again and again.
            mean = 0.0 if not llama and name.endswith(("wte.weight", "wpe.weight")) else 0.1
            drawn = random.standard_normal(tuple(parameter.shape)) * 0.3 + mean
            parameter.copy_(torch.from_numpy((drawn * (4 if "wpe" in name else 1)).astype("float32")))
    state = state_of(theirs)
    sizes = {"width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 24, "vocabulary_size": 40, "max_length": 60}
    ours = keras_tx.gpt("llama-tiny" if llama else "pico", **sizes)
    put(ours, state)
    folder = tmp_path_factory.mktemp(request.param) / "poet"
    export_onnx(ours, folder, cache="shared")
    return theirs, ours, folder

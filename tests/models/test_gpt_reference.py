"""GPT gives what Hugging Face's GPT-2 and Llama give, with the same weights, at every real token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from tests.drawing import as_numpy
from tests.models.reference_gpt import load
from tests.tolerances import assert_close

GOLDEN = Path(__file__).parents[1] / "golden" / "gpt.npz"
INPUTS = ("input_ids", "attention_mask", "position_ids")
SIZES = {"width": 16, "depth": 2, "num_heads": 4, "mlp_dim": 24, "vocabulary": 40, "max_length": 12}


def compare(
    state: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], variant: str, **options: Any
) -> None:
    if "logits" not in expected:
        options["head"] = None
    model = keras_tx.gpt(variant, **{**SIZES, **options})
    load(model, state)
    inputs = {name: expected[name] for name in INPUTS}
    real = expected["attention_mask"].astype(bool)
    parts = keras.Model(model.input, [model.get_layer(name).output for name in ("block_0", "norm")])
    for mine, theirs in zip(parts(model.complete(inputs)), expected["hidden"][1:], strict=True):
        assert_close(as_numpy(mine)[real], theirs[real])
    theirs = expected["logits"] if "logits" in expected else expected["hidden"][-1]
    assert_close(as_numpy(model(inputs))[real], theirs[real])
    del inputs["position_ids"]
    assert_close(as_numpy(model(inputs))[real], theirs[real])  # as generate() counts them


@pytest.mark.parametrize(
    ("name", "variant"), [("GPT2LMHeadModel", "pico"), ("LlamaForCausalLM", "llama-tiny")]
)
def test_equals_the_golden_file(name: str, variant: str):
    with np.load(GOLDEN, allow_pickle=False) as golden:
        arrays = {key.removeprefix(f"{name}/"): golden[key] for key in golden if key.startswith(name)}
    state = {key.removeprefix("state/"): value for key, value in arrays.items() if key.startswith("state/")}
    compare(state, arrays, variant)


CASES = [
    ("GPT2Model", {}, {}),
    ("GPT2LMHeadModel", {}, {}),
    ("GPT2LMHeadModel", {"activation_function": "gelu"}, {"activation": "gelu"}),
    ("GPT2LMHeadModel", {"activation_function": "relu"}, {"activation": "relu"}),
    ("GPT2LMHeadModel", {"layer_norm_epsilon": 0.01}, {"norm_epsilon": 0.01}),
    ("LlamaModel", {}, {}),
    ("LlamaForCausalLM", {}, {}),
    ("LlamaForCausalLM", {"tie_word_embeddings": True}, {"tied": True}),
    ("LlamaForCausalLM", {"rms_norm_eps": 0.01}, {"norm_epsilon": 0.01}),
    ("LlamaForCausalLM", {"num_key_value_heads": 1}, {"kv_heads": 1}),
    ("LlamaForCausalLM", {"num_key_value_heads": 4}, {"kv_heads": None}),
    (
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
        {"rotary_base": 100.0},
    ),
]


@pytest.mark.parametrize(("name", "theirs", "ours"), CASES, ids=str)
def test_equals_transformers(name: str, theirs: dict[str, Any], ours: dict[str, Any]):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    from tests.golden import make_gpt

    llama = name.startswith("Llama")
    config = make_gpt.LLAMA if llama else make_gpt.GPT2
    compare(*make_gpt.reference(3, name, {**config, **theirs}), "llama-tiny" if llama else "pico", **ours)

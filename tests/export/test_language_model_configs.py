"""config.json of keras-hub's language models: transformers builds the same model from it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_tx import contract
from keras_tx.models.keras_hub_model_types import ARCHITECTURES, decoder_config
from keras_tx_onnx import export_onnx
from tests.drawing import redraw_torch
from tests.export.keras_hub_weights import copy_weights
from tests.export.test_language_models import (
    CASES,
    GEMMA_2,
    LENGTH,
    LLAMA_3_2,
    MOE,
    SMOLLM_3,
    VOCABULARY,
    WINDOW,
    Case,
    grouped,
    models,
)
from tests.tolerances import assert_close
from tests.weights.test_keras_hub_tokenizers import sentence_pieces

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')

MORE = {"opt": 2 * 16}  # two positions
NORMS = dict.fromkeys(("use_query_key_norm", "use_post_ffw_norm", "use_post_attention_norm"), True)
SIZES = {"bloom": {"intermediate_dim": 64}, "gemma 3": NORMS}
TYPES = {
    "llama 3.2": "llama",
    "mistral, window": "mistral",
    "qwen 2.5": "qwen2",
    "qwen 2, window": "qwen2",
    "qwen 3": "qwen3",
    "qwen moe": "qwen2_moe",
    "qwen 3 moe": "qwen3_moe",
    "gemma 2": "gemma2",
    "gemma 3": "gemma3_text",
    "phi 3": "phi3",
    "gpt neox": "gpt_neox",
    "smollm 3": "smollm3",
}


def config_of(name: str) -> dict:
    fields = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "pad_token_id": 0}
    case = CASES[name]
    model = dataclasses.replace(case, sizes={**case.sizes, **SIZES.get(name, {})}).model()
    config = decoder_config(model.backbone, fields, LENGTH)
    assert config.note is None and json.dumps(config.content)
    return {**config.content, "parameters": sum(math.prod(x.shape) for x in model.trainable_weights)}


@pytest.mark.parametrize("name", CASES)
def test_transformers_builds_a_model_of_the_same_size(name: str):
    content = config_of(name)
    expected = content.pop("parameters")
    assert content["model_type"] == TYPES.get(name, name)
    architecture = getattr(transformers, content["architectures"][0])
    options = architecture.config_class.from_dict(content)
    assert options.hidden_size == 16 and options.num_hidden_layers == 2
    with torch.device("meta"):
        theirs = architecture(options)
    assert theirs.num_parameters() == expected + MORE.get(name, 0)


@pytest.mark.parametrize("name", ["qwen moe", "qwen 3 moe"])
@pytest.mark.parametrize(
    "options",
    [
        {"decoder_sparse_step": 2},
        {"mlp_only_layers": [1]},
        {"decoder_sparse_step": 3, "mlp_only_layers": [2]},
    ],
)
def test_layers_without_experts(name: str, options: dict):
    case = dataclasses.replace(CASES[name], sizes={**CASES[name].sizes, **options, "num_layers": 7})
    model = case.model()
    content = decoder_config(model.backbone, {"vocab_size": VOCABULARY}, LENGTH).content
    architecture = getattr(transformers, content["architectures"][0])
    with torch.device("meta"):
        theirs = architecture(architecture.config_class.from_dict(content))
    assert theirs.num_parameters() == sum(math.prod(x.shape) for x in model.trainable_weights)


def test_each_type_is_tested():
    assert {TYPES.get(name, name) for name in CASES} == set(ARCHITECTURES)
    assert {case.name for case in CASES.values()} == {case.name for case in OPTIONS.values()}


# keras-hub's module that reads a checkpoint of transformers into each architecture.
CONVERTERS = {
    "GPT2": "gpt2",
    "Llama": "llama3",
    "Llama3": "llama3",
    "Mistral": "mistral",
    "Mixtral": "mixtral",
    "Qwen": "qwen",
    "Qwen3": "qwen3",
    "QwenMoe": "qwen_moe",
    "Qwen3Moe": "qwen3_moe",
    "Gemma": "gemma",
    "Gemma3": "gemma3",
    "SmolLM3": "smollm3",
}
QWEN_MOE = {"moe_intermediate_dim": 8, "shared_expert_intermediate_dim": 8, **MOE}
QWEN_3 = {"head_dim": 8, "layer_norm_epsilon": 1e-5}  # that of the norms of its heads
QWEN_3_MOE = {"head_dim": 8, "moe_intermediate_dim": 8, **MOE}
GEMMA_3 = {"head_dim": 8, "image_size": 16, **NORMS}
NO_HEAD_SCALE = {"query_head_dim_normalize": False}
OTHER = {"rope_max_wavelength": 500, "layer_norm_epsilon": 0.1}
OPTIONS = {
    "gpt2": CASES["gpt2"],
    "llama": Case("Llama", grouped(**OTHER, tie_word_embeddings=True)),
    "llama, scaled positions": Case("Llama", grouped(rope_position_scaling_factor=4.0)),
    "llama 3.2": Case("Llama3", grouped(**LLAMA_3_2)),
    "mistral": Case("Mistral", grouped(**OTHER, head_dim=8, sliding_window=None)),
    "mistral, window": Case("Mistral", grouped(sliding_window=4)),
    "mixtral": Case("Mixtral", grouped(**OTHER, **MOE, sliding_window=None)),
    "mixtral, window": Case("Mixtral", grouped(num_experts=4, top_k=1, sliding_window=4)),
    "qwen 2": Case("Qwen", grouped(sliding_window_size=4)),
    "qwen 2, window": Case("Qwen", grouped(**OTHER, **WINDOW, tie_word_embeddings=False)),
    "qwen 3": Case("Qwen3", grouped(**QWEN_3, sliding_window_size=None, rope_max_wavelength=500)),
    "qwen 3, window": Case("Qwen3", grouped(**QWEN_3, sliding_window_size=4, tie_word_embeddings=True)),
    "qwen 2 moe": Case("QwenMoe", grouped(**OTHER, **QWEN_MOE, norm_top_k_prob=True)),
    "qwen 2 moe, window": Case("QwenMoe", grouped(**QWEN_MOE, **WINDOW)),
    "qwen 3 moe": Case("Qwen3Moe", grouped(**QWEN_3_MOE, sliding_window_size=None, norm_top_k_prob=True)),
    "qwen 3 moe, window": Case("Qwen3Moe", grouped(**QWEN_3_MOE, sliding_window_size=4)),
    "gemma": Case("Gemma", grouped(head_dim=8, **NO_HEAD_SCALE)),
    "gemma 2": Case("Gemma", grouped(head_dim=8, **GEMMA_2, **NO_HEAD_SCALE)),
    "gemma 2, no window": Case("Gemma", grouped(head_dim=8, **{**GEMMA_2, **dict.fromkeys(WINDOW, 0)})),
    "gemma 3": Case("Gemma3", grouped(**GEMMA_3, **NO_HEAD_SCALE, final_logit_soft_cap=3.0)),
    "gemma 3, window": Case(
        "Gemma3", grouped(**GEMMA_3, **WINDOW, num_layers=7, global_rope_scaling_factor=8.0)
    ),
    "smollm 3": Case("SmolLM3", {**SMOLLM_3, "rope_theta": 500.0, "layer_norm_epsilon": 0.1}),
    "smollm 3, types": Case("SmolLM3", {**SMOLLM_3, "layer_types": ["sliding_attention"] * 2}),
    "smollm 3, positions": Case("SmolLM3", {**SMOLLM_3, "rope_layer_enabled_list": [False]}),
    "opt": CASES["opt"],
    "phi 3": Case("Phi3", grouped(**OTHER)),
    "bloom": Case("Bloom", {"num_heads": 4, "intermediate_dim": 64, "layer_norm_epsilon": 0.1}),
    "falcon": CASES["falcon"],
    "gpt neox": CASES["gpt neox"],
    "gpt neox, other": Case(
        "GPTNeoX",
        {"num_heads": 4, "rotary_percentage": 1.0, "rotary_max_wavelength": 500, "layer_norm_epsilon": 0.1},
    ),
}


def convert_weights(backbone: Any, converter: str, theirs: Any, content: dict, folder: Path) -> None:
    """keras-hub reads its weights from a checkpoint of transformers."""
    converters = "keras_hub.src.utils.transformers"
    loading = importlib.import_module(f"{converters}.safetensor_utils")
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.copy_(weight.half())  # as some converters do
    theirs.save_pretrained(folder)
    with loading.SafetensorLoader(str(folder)) as loader:
        importlib.import_module(f"{converters}.convert_{converter}").convert_weights(
            backbone, loader, content
        )


@pytest.mark.parametrize("name", OPTIONS)
def test_transformers_computes_the_same(name: str, tmp_path: Path):
    """On more tokens than a window has, with the same weights."""
    case = OPTIONS[name]
    model = case.model()
    fields = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "pad_token_id": 0}
    content = json.loads(json.dumps(decoder_config(model.backbone, fields, LENGTH).content))
    architecture = getattr(transformers, content["architectures"][0])
    theirs = redraw_torch(architecture(architecture.config_class.from_dict(content)).eval())
    if case.name in CONVERTERS:
        convert_weights(model.backbone, CONVERTERS[case.name], theirs, content, tmp_path)
    else:
        copy_weights(model.backbone, theirs.state_dict())
    ids = np.random.default_rng(0).integers(1, VOCABULARY, (2, 20))
    with torch.no_grad():
        logits = theirs(torch.tensor(ids)).logits.numpy()
    ours = model({"token_ids": ids, "padding_mask": np.ones_like(ids)}, training=False)
    assert_close(keras.ops.convert_to_numpy(ours), logits)


@pytest.mark.parametrize(
    ("name", "sizes", "option"),
    [
        ("bloom", {"intermediate_dim": 20}, "intermediate_dim=20"),
        ("qwen 3", {"rope_scaling_factor": 2.0}, "rope_scaling_factor=2.0"),
        ("gemma 3", {**NORMS, "use_query_key_norm": False}, "has use_query_key_norm=False."),
        ("gemma 3", {**NORMS, "attention_logit_soft_cap": 5.0}, "attention_logit_soft_cap=5.0"),
        ("gemma", {"layer_norm_epsilon": 0.1}, "layer_norm_epsilon=0.1 with 1e-06 in some norms"),
        ("falcon", {"layer_norm_epsilon": 0.1}, "layer_norm_epsilon=0.1 with 1e-05 in some norms"),
        ("smollm 3", {"attention_bias": True}, "attention_bias=True"),
    ],
)
def test_options_without_counterpart_leave_the_type_out(name: str, sizes: dict, option: str):
    case = CASES[name]
    common = {"vocabulary_size": VOCABULARY, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 64}
    backbone = getattr(models, f"{case.name}Backbone")(**{**common, **case.sizes, **sizes})
    config = decoder_config(backbone, {}, LENGTH)
    assert "model_type" not in config.content and option in (config.note or "")


class Capitals(models.LlamaTokenizer):
    def tokenize(self, inputs):
        return super().tokenize([text.upper() for text in inputs])


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "Capitals"])
def test_the_tokenizer_is_compared_with_that_of_keras_hub(kind: str, tmp_path):
    """A folder without a tokenizer accepts ids, and the report says why."""
    tokenizer = sentence_pieces("LlamaTokenizer")
    if kind == "Capitals":
        tokenizer = Capitals(proto=bytes(tokenizer.proto))
    preprocessor = models.LlamaCausalLMPreprocessor(tokenizer, sequence_length=LENGTH)
    model = CASES["llama"].model(tokenizer.vocabulary_size(), preprocessor)
    notes = export_onnx(model, tmp_path / "out").manifest.notes
    converted = kind == "LlamaTokenizer"
    assert (tmp_path / "out" / contract.TOKENIZER).exists() == converted
    assert any("different ids" in note and "prompts are token ids" in note for note in notes) != converted


def test_other_architectures_have_no_type():
    backbone = models.GptOssBackbone(
        vocabulary_size=VOCABULARY, num_layers=1, hidden_dim=16, intermediate_dim=8, num_experts=3, top_k=2,
        head_dim=4, **grouped(),
    )  # fmt: skip
    config = decoder_config(backbone, {"vocab_size": VOCABULARY}, LENGTH)
    assert config.content == {"vocab_size": VOCABULARY} and "GptOssBackbone" in (config.note or "")

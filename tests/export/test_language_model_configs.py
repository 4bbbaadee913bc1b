"""config.json of keras-hub's language models: transformers builds the same model from it."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from keras_tx import contract
from keras_tx.models.keras_hub_model_types import ARCHITECTURES, decoder_config
from keras_tx_onnx import export_onnx
from tests.export.test_language_models import CASES, LENGTH, VOCABULARY, grouped, models
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


def test_each_type_is_tested():
    assert {TYPES.get(name, name) for name in CASES} == set(ARCHITECTURES)


@pytest.mark.parametrize(
    ("name", "sizes", "option"),
    [
        ("bloom", {"intermediate_dim": 20}, "intermediate_dim=20"),
        ("qwen 3", {"rope_scaling_factor": 2.0}, "rope_scaling_factor=2.0"),
        ("gemma 3", {**NORMS, "use_query_key_norm": False}, "has use_query_key_norm=False."),
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

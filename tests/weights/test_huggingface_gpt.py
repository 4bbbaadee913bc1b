"""Decoders of Hugging Face: equal outputs and tensors after loading and saving."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_tx
from keras_tx import runtime
from keras_tx.errors import ConfigError
from keras_tx.models.gpt import huggingface
from keras_tx.models.source_lookup import open_source
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy
from tests.tolerances import assert_close
from tests.weights.states import State, loaded, put, state_of, write

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = (
    "gpt2-v4",
    "gpt2-v5",
    "llama-v4",
    "llama-v5",
    "openai-gpt-v5",
    "qwen2-v5",
    "qwen3-v5",
    "gemma-v5",
)
INPUTS = ("input_ids", "attention_mask", "position_ids")


def opened(name: str) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, np.ndarray]]:
    """State, config and expected outputs of a golden folder."""
    folder = GOLDEN / name
    config = json.loads((folder / "config.json").read_text())
    return load_file(folder / "model.safetensors"), config, load_file(folder / "expected.safetensors")


def assert_same(one: State, other: State, model_type: str) -> None:
    """Bit for bit, except the norms of Gemma, to which 1 is added while they are loaded."""
    assert set(one) == set(other)
    for name, x in one.items():
        assert x.dtype == other[name].dtype
        rounding = 2e-7 if model_type == "gemma" and "norm" in name else 0
        np.testing.assert_allclose(x, other[name], rtol=0, atol=rounding, err_msg=name)


def compare(model: Any, expected: State) -> None:
    """Hidden states and logits at every real token, with explicit and with derived positions."""
    inputs = {name: expected[name] for name in INPUTS}
    real = expected["attention_mask"].astype(bool)
    blocks = [model.get_layer(f"block_{index}") for index in range(model.config.depth)]
    outputs = [blocks[0].input[0], *(block.output for block in blocks[:-1]), model.encoded.tokens]
    parts = keras.Model(model.input, outputs)
    for mine, theirs in zip(parts(model.complete(inputs)), expected["hidden"], strict=True):
        assert_close(as_numpy(mine)[real], theirs[real])
    theirs = expected["logits"] if "logits" in expected else expected["hidden"][-1]
    assert_close(as_numpy(model(inputs))[real], theirs[real])
    del inputs["position_ids"]
    assert_close(as_numpy(model(inputs))[real], theirs[real])


@pytest.mark.parametrize("name", FOLDERS)
def test_equals_the_golden_folders(name: str):
    _, _, expected = opened(name)
    model = keras_tx.from_checkpoint(GOLDEN / name)
    compare(model, expected)
    greedy = keras_tx.generate(model, expected["input_ids"][0].tolist(), max_new_tokens=6)
    assert list(greedy.ids) == expected["greedy"][0].tolist()


@pytest.mark.parametrize("name", FOLDERS)
def test_in_and_out_and_in_again(name: str, tmp_path):
    state, config, _ = opened(name)
    model = keras_tx.from_checkpoint(GOLDEN / name)
    folder = keras_tx.save_checkpoint(model, tmp_path / "again")
    assert_same(load_file(folder / "model.safetensors"), state, config["model_type"])
    assert json.loads((folder / "config.json").read_text())["architectures"] == config["architectures"]
    again = keras_tx.from_checkpoint(folder)
    assert again.config == model.config
    for mine, theirs in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(theirs))


@pytest.mark.parametrize("name", FOLDERS)
def test_exported_folder_generates_the_same_tokens(name: str, tmp_path):
    _, _, expected = opened(name)
    export_onnx(keras_tx.from_checkpoint(GOLDEN / name), tmp_path / "poet")
    with runtime.load(tmp_path / "poet") as poet:
        made = poet.generate(expected["input_ids"][0].tolist(), max_new_tokens=6, stop_tokens=[])
    assert list(made.ids) == expected["greedy"][0].tolist()


def test_several_tokens_that_end_a_text(tmp_path):
    _, _, expected = opened("llama-v4")
    prompt, greedy = expected["input_ids"][0].tolist(), expected["greedy"][0].tolist()
    unseen = next(number for number in range(1, 30) if number not in greedy)
    folder = shutil.copytree(GOLDEN / "llama-v4", tmp_path / "llama")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [unseen, greedy[3]]}))
    model = keras_tx.from_checkpoint(folder)
    assert model.config.stop_ids == (unseen, greedy[3])
    upto = keras_tx.generate(model, prompt, max_new_tokens=6, stop_tokens=[greedy[3]])
    assert upto.finish == "stop" and len(upto.ids) < len(greedy)
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    import torch

    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    whole = theirs.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)[0].tolist()
    assert whole in ([*prompt, *upto.ids], [*prompt, *upto.ids, greedy[3]])  # with the end, or without
    assert keras_tx.generate(model, prompt, max_new_tokens=6).ids == upto.ids
    export_onnx(model, tmp_path / "poet")
    with runtime.load(tmp_path / "poet") as poet:
        assert poet.generate(prompt, max_new_tokens=6).ids == upto.ids
    genai = json.loads((tmp_path / "poet/genai_config.json").read_text())["model"]
    assert (genai["eos_token_id"], genai["pad_token_id"]) == ([unseen, greedy[3]], unseen)
    again = keras_tx.save_checkpoint(model, tmp_path / "again")
    assert json.loads((again / "generation_config.json").read_text())["eos_token_id"] == [unseen, greedy[3]]
    assert keras_tx.from_checkpoint(again).config == model.config
    keras_tx.gpt("pico", stop_ids=[3]).save(tmp_path / "a.keras")
    assert keras_tx.load_model(tmp_path / "a.keras").config.stop_ids == (3,)


def test_generation_defaults(tmp_path):
    """They are read, used in Keras and in the folder as in transformers, and written."""
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    import torch

    folder = shutil.copytree(GOLDEN / "llama-v4", tmp_path / "llama")
    _, _, expected = opened("llama-v4")
    prompt = expected["input_ids"][0].tolist()
    first, second, *_ = expected["greedy"][0].tolist()
    options = {"suppress_tokens": [first], "bad_words_ids": [[prompt[-1], second]], "min_new_tokens": 4}
    options |= {"repetition_penalty": 1.5, "num_beams": 2}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 3, **options}))
    model = keras_tx.from_checkpoint(folder)
    assert model.config.generation == options
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        ids = theirs.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)[0].tolist()
    made = keras_tx.generate(model, prompt, max_new_tokens=6).ids
    assert list(made) == ids[len(prompt) :][: len(made)] and len(made) >= 4 and first not in made
    export_onnx(model, tmp_path / "poet")
    with runtime.load(tmp_path / "poet") as poet:
        assert poet.generate(prompt, max_new_tokens=6).ids == made
        none = {**dict.fromkeys(options), "repetition_penalty": 1.0, "num_beams": 1}
        assert poet.generate(prompt, max_new_tokens=1, **none).ids == (first,)
    again = keras_tx.save_checkpoint(model, tmp_path / "again")
    assert keras_tx.from_checkpoint(again).config == model.config
    (folder / "generation_config.json").write_text(json.dumps({"suppress_tokens": 3}))
    with pytest.raises(ConfigError, match="suppress_tokens is 3"):
        keras_tx.from_checkpoint(folder)
    (folder / "generation_config.json").write_text(json.dumps({"sequence_bias": [[[1], 2.0]]}))
    with pytest.warns(UserWarning, match="sequence_bias"):
        assert keras_tx.from_checkpoint(folder).config.generation is None


@pytest.mark.parametrize("eos", ["</s>", [1, "x"], 1.5])
def test_invalid_eos_token_id_raises(eos: Any):
    state, config, _ = opened("llama-v4")
    with pytest.raises(ConfigError, match="eos_token_id="):
        loaded(state, {**config, "eos_token_id": eos})
    for wrong in ([-1], [256], [], "3"):
        with pytest.raises(ConfigError, match="stop_ids"):
            keras_tx.gpt("pico", stop_ids=wrong)
    assert keras_tx.gpt("pico", stop_ids=[3, 3]).config.stop_ids == (3,)


def test_old_spellings_of_gpt2():
    """The first checkpoints have no prefix, and buffers and the tied head beside the weights."""
    state, config, expected = opened("gpt2-v4")
    old = {name.removeprefix("transformer."): x for name, x in state.items()}
    for index in range(2):
        old[f"h.{index}.attn.bias"] = np.ones((1, 1, 20, 20), "float32")
        old[f"h.{index}.attn.masked_bias"] = np.float32(-1e4).reshape(())
    old["lm_head.weight"] = old["wte.weight"]
    compare(loaded(old, config), expected)


def test_old_spellings_of_llama():
    state, config, expected = opened("llama-v4")
    state = {**state, "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, "float32")}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
    compare(loaded(state, config), expected)


def test_a_tied_head_that_differs_raises():
    state, config, _ = opened("gpt2-v4")
    state["lm_head.weight"] = state["transformer.wte.weight"] + 1
    with pytest.raises(ConfigError, match=r"lm_head.weight differs from transformer.wte.weight"):
        loaded(state, config)


def test_backbone_without_a_head(tmp_path):
    state, config, expected = opened("gpt2-v4")
    config["architectures"] = ["GPT2Model"]
    body = {name.removeprefix("transformer."): x for name, x in state.items()}
    model = loaded(body, config)
    assert model.head is None
    assert_close(as_numpy(model(expected["input_ids"][:1])), expected["hidden"][-1][:1])
    folder = keras_tx.save_checkpoint(model, tmp_path / "body")
    assert_same(load_file(folder / "model.safetensors"), body, "gpt2")


def test_backbone_of_a_classifier():
    state, config, _ = opened("llama-v5")
    config["architectures"] = ["LlamaForQuestionAnswering"]
    state["score.weight"] = state.pop("lm_head.weight")[:2]
    with pytest.raises(ConfigError, match=r"LlamaForQuestionAnswering.*head=None"):
        loaded(state, config)
    with pytest.warns(UserWarning, match=r"score.weight"):
        assert loaded(state, config, head=None).head is None


def test_new_head_on_a_loaded_backbone():
    state, config, _ = opened("llama-v5")
    del state["lm_head.weight"]
    with pytest.raises(ConfigError, match="CausalLMHead:.*\\n  missing: lm_head.weight"):
        loaded(state, config)
    with pytest.warns(UserWarning, match="logits/kernel"):
        loaded(state, config, head=keras_tx.CausalLMHead())


def test_fewer_positions():
    state, config, expected = opened("gpt2-v4")
    ids = expected["input_ids"]
    assert_close(as_numpy(loaded(state, config, max_length=9)(ids)), as_numpy(loaded(state, config)(ids)))
    with pytest.raises(ConfigError, match="20 positions .*21"):
        loaded(state, config, max_length=21)


REFUSED = [
    ("gpt2-v4", "scale_attn_weights", "no", "scale_attn_weights='no'; expected true or false"),
    ("gpt2-v4", "scale_attn_by_inverse_layer_idx", 1, "scale_attn_by_inverse_layer_idx=1"),
    ("gpt2-v4", "add_cross_attention", True, "add_cross_attention=True"),
    ("gpt2-v4", "activation_function", "silu", "activation_function='silu'.*'gelu'"),
    ("gpt2-v4", "n_embd", -16, "n_embd=-16"),
    ("gpt2-v4", "n_embd", 10**12, "n_embd=1000000000000"),
    ("gpt2-v4", "n_positions", 10**12, "n_positions=1000000000000"),
    ("gpt2-v4", "n_inner", 10**12, "n_inner=1000000000000"),
    ("gpt2-v4", "n_layer", 10**12, "n_layer=1000000000000"),
    ("gpt2-v4", "n_head", 3, "n_embd=16 is not divisible by n_head=3"),
    ("gpt2-v4", "tie_word_embeddings", "yes", "tie_word_embeddings='yes'"),
    ("gpt2-v4", "layer_norm_epsilon", "1e-5", "layer_norm_epsilon='1e-5'"),
    ("gpt2-v4", "quantization_config", {"bits": 4}, "quantization_config="),
    ("gpt2-v4", "model_type", "gptj", "model_type='gptj'"),
    ("gpt2-v4", "is_causal", False, "is_causal=False"),
    ("llama-v4", "hidden_act", "gelu", "hidden_act='gelu'"),
    ("llama-v4", "mlp_bias", True, "mlp_bias=True"),
    ("llama-v4", "attention_bias", True, "mlp_bias=False"),
    ("llama-v4", "rope_scaling", {"rope_type": "yarn", "factor": 2.0}, "rope_scaling=.*'linear', 'llama3'"),
    ("llama-v4", "rope_scaling", {"rope_type": "llama3", "factor": 2.0}, "rope_scaling=.*'llama3'"),
    ("llama-v4", "rope_scaling", [2.0], r"rope_scaling=\[2.0\]"),
    ("llama-v4", "rope_parameters", {"rope_type": "default", "rope_theta": 9.0}, "rope_theta=500.0.*9.0"),
    ("llama-v4", "rope_theta", "many", "rope_theta='many'"),
    ("llama-v4", "partial_rotary_factor", 0.5, "partial_rotary_factor=0.5"),
    ("llama-v4", "rope_interleaved", True, "rope_interleaved=True"),
    ("llama-v4", "num_key_value_heads", 3, "num_attention_heads=4 is not divisible by num_key_value_heads=3"),
    ("llama-v4", "is_causal", False, "is_causal=False"),
    ("openai-gpt-v5", "afn", "gelu_new", "afn='gelu_new'"),
    ("openai-gpt-v5", "n_embd", 10**12, "n_embd=1000000000000"),
    ("qwen2-v5", "hidden_act", "gelu", "hidden_act='gelu'"),
    ("qwen2-v5", "rope_parameters", {"rope_type": "yarn", "factor": 4.0}, "rope_parameters=.*'yarn'"),
    (
        "qwen2-v5",
        "layer_types",
        ["chunked_attention"] * 2,
        "layer_types=.*full_attention or sliding_attention",
    ),
    ("qwen2-v5", "layer_types", ["full_attention"], "layer_types=.*a list of 2"),
    ("qwen3-v5", "attention_bias", True, "attention_bias=True"),
    ("qwen3-v5", "head_dim", None, "head_dim=None"),
    ("gemma-v5", "attention_bias", True, "attention_bias=True"),
    ("gemma-v5", "use_bidirectional_attention", True, "use_bidirectional_attention=True"),
    ("gemma-v5", "hidden_act", "relu", "hidden_act='relu'"),
    ("gemma-v5", "hidden_activation", "gelu", "hidden_activation='gelu'.*hidden_act='gelu_pytorch_tanh'"),
    ("gemma-v5", "num_key_value_heads", None, "num_key_value_heads=None"),
]


@pytest.mark.parametrize(("name", "field", "value", "message"), REFUSED, ids=lambda x: str(x)[:30])
def test_unsupported_config_raises(name: str, field: str, value: Any, message: str):
    state, config, _ = opened(name)
    with pytest.raises(ConfigError, match=message):
        loaded(state, {**config, field: value})


def test_a_second_dropout_rate_warns():
    state, config, _ = opened("gpt2-v4")
    with pytest.warns(UserWarning, match="'resid_pdrop': 0.3"):
        assert loaded(state, {**config, "resid_pdrop": 0.3}).config.dropout == 0.3


def test_rotary_positions_may_exceed_the_number_of_weights():
    """A small model of a long context has fewer numbers than positions."""
    state, config, _ = opened("llama-v5")
    assert loaded(state, {**config, "max_position_embeddings": 131072}).config.max_length == 131072


def test_pad_token_equal_to_end_of_text_is_ignored():
    state, config, _ = opened("llama-v4")
    for pad, expected in ((0, None), (7, 7), (-1, None), (None, None)):
        assert loaded(state, {**config, "pad_token_id": pad}).config.pad_id == expected


def test_window_of_the_full_context_is_ignored():
    state, config, _ = opened("llama-v5")
    for name in [name for name in state if name.endswith("bias")]:
        del state[name]
    config = {**config, "model_type": "mistral", "attention_bias": None, "mlp_bias": None}
    for window in ({"sliding_window": 20}, {"sliding_window": None}, {}):
        loaded(state, {**config, **window})
    with pytest.raises(ConfigError, match="sliding_window=19"):
        loaded(state, {**config, "sliding_window": 19})
    with pytest.raises(ConfigError, match="sliding_window=4096"):  # the default of transformers
        loaded(state, {**config, "max_position_embeddings": 5000})


@pytest.mark.parametrize("name", ["qwen2-v5", "qwen3-v5"])
def test_windows_of_qwen(name: str):
    state, config, _ = opened(name)
    del config["layer_types"]
    config |= {"use_sliding_window": True, "sliding_window": 19, "max_window_layers": 1}
    with pytest.raises(ConfigError, match="sliding_window=19"):
        loaded(state, config)
    with pytest.raises(ConfigError, match="sliding_window=19"):
        loaded(state, {**config, "layer_types": ["sliding_attention", "full_attention"]})
    with pytest.raises(ConfigError, match="layer_types=.*use_sliding_window=true"):
        types = ["sliding_attention", "full_attention"]
        loaded(state, {**config, "layer_types": types, "use_sliding_window": False})
    longer = {"max_position_embeddings": 5000, "sliding_window": None}
    for unlimited in (
        {"max_window_layers": 2},  # every layer attends to everything
        {"sliding_window": 20},
        {"use_sliding_window": False},
        {"layer_types": ["full_attention"] * 2},
        {"use_sliding_window": False, **longer},
    ):
        loaded(state, {**config, **unlimited})


DEFAULTS = ("openai-gpt-v5", "qwen2-v5", "qwen3-v5", "gemma-v5")


@pytest.mark.parametrize("name", DEFAULTS)
def test_missing_fields_have_the_defaults_of_transformers(name: str, tmp_path):
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    kind, folder = name.removesuffix("-v5"), tmp_path / "folder"
    folder.mkdir()
    state, config, _ = opened(name)
    write(folder, state, {key: config[key] for key in ("model_type", "architectures")})
    fields = open_source(folder).fields
    theirs = transformers.AutoConfig.for_model(kind)
    sizes = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
        "vocab_size",
    )
    ours = ("width", "depth", "num_heads", "max_length", "vocabulary_size")
    assert [fields[key] for key in ours] == [getattr(theirs, key) for key in sizes]
    assert fields["tied"] == theirs.tie_word_embeddings
    heads = fields["num_heads"]
    if kind != "openai-gpt":
        assert fields["kv_heads"] == theirs.num_key_value_heads
        assert fields["mlp_dim"] == theirs.intermediate_size
        assert fields["head_dim"] == getattr(theirs, "head_dim", None)
        assert fields["norm_epsilon"] == theirs.rms_norm_eps
        assert fields["rotary_base"] == theirs.rope_parameters["rope_theta"]
    assert fields["width"] % heads == 0
    assert (fields["pad_id"], fields["stop_ids"]) == ((0, (1,)) if kind == "gemma" else (None, None))


@pytest.mark.parametrize(
    ("variant", "options", "message"),
    [
        ("pico", {"norm_position": "post", "mlp_dim": 64}, "mlp_dim=64 with .* norm_position='post'"),
        ("pico", {"norm_position": "post", "activation": "gelu"}, "activation='gelu' with learned"),
        ("pico", {"qk_norm": True}, "qk_norm=True with learned"),
        ("pico", {"qkv_bias": False}, "qkv_bias=False with learned"),
        ("pico", {"scale_embedding": True}, "scale_embedding=True with learned"),
        ("llama-tiny", {"norm_position": "post"}, "norm_position='post' with rotary"),
        ("llama-tiny", {"use_bias": True, "qkv_bias": False}, "qkv_bias=False with rotary"),
        ("llama-tiny", {"qk_norm": True, "qkv_bias": True}, "qkv_bias=True with qk_norm=True"),
        ("llama-tiny", {"qk_norm": True, "use_bias": True}, "use_bias=True with qk_norm=True"),
        ("llama-tiny", {"scale_embedding": True, "use_bias": True}, "use_bias=True with scale_embedding"),
        ("llama-tiny", {"scale_embedding": True, "qk_norm": True}, "qk_norm=True with scale_embedding"),
        ("llama-tiny", {"scale_embedding": True, "qkv_bias": True}, "qkv_bias=True with scale_embedding"),
    ],
)
def test_combinations_that_no_class_has_raise(variant: str, options: dict[str, Any], message: str, tmp_path):
    model = keras_tx.gpt(variant, **options)
    with pytest.raises(ConfigError, match=message):
        keras_tx.save_checkpoint(model, tmp_path / "folder")
    with pytest.raises(ConfigError, match=message):
        huggingface.plan(model)
    export_onnx(model, tmp_path / "poet")
    assert "model_type" not in json.loads((tmp_path / "poet/config.json").read_text())


def test_options_that_neither_supports_raise():
    model = keras_tx.gpt("char", depth=1)
    with pytest.raises(ConfigError, match="use_bias=False with learned positions"):
        huggingface.plan(model)


def test_missing_and_unexpected_tensors_in_one_error():
    state, _, _ = opened("llama-v5")
    state["model.extra"] = state.pop("model.norm.weight")
    model = loaded(*opened("llama-v5")[:2])
    before = as_numpy(model.weights[0])
    with pytest.raises(ConfigError, match=r"(?s)missing: model.norm.weight 16.*not expected: model.extra 16"):
        put(model, state)
    np.testing.assert_array_equal(as_numpy(model.weights[0]), before)


LIVE = [
    ("GPT2Model", {}),
    ("GPT2LMHeadModel", {}),
    ("GPT2LMHeadModel", {"tie_word_embeddings": False}),
    ("GPT2LMHeadModel", {"activation_function": "gelu"}),
    ("GPT2LMHeadModel", {"activation_function": "gelu_new"}),
    ("GPT2LMHeadModel", {"activation_function": "gelu_fast"}),
    ("GPT2LMHeadModel", {"activation_function": "relu"}),
    ("GPT2LMHeadModel", {"layer_norm_epsilon": 0.01}),
    ("GPT2LMHeadModel", {"n_inner": None}),
    ("GPT2LMHeadModel", {"reorder_and_upcast_attn": True}),
    ("GPT2LMHeadModel", {"scale_attn_weights": False}),
    ("GPT2Model", {"scale_attn_by_inverse_layer_idx": True}),
    ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False}),
    ("LlamaModel", {}),
    ("LlamaForCausalLM", {}),
    ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    ("LlamaForCausalLM", {"rms_norm_eps": 0.01}),
    ("LlamaForCausalLM", {"num_key_value_heads": 1}),
    ("LlamaForCausalLM", {"num_key_value_heads": 4}),
    ("LlamaForCausalLM", {"head_dim": 6}),
    ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}}),
    ("LlamaForCausalLM", {"rope_parameters": "llama3"}),
    ("MistralForCausalLM", {}),
    ("MistralForCausalLM", {"sliding_window": 20}),
    ("LlamaForCausalLM", {"hidden_act": "gelu_pytorch_tanh"}),
    ("OpenAIGPTModel", {}),
    ("OpenAIGPTLMHeadModel", {}),
    ("OpenAIGPTLMHeadModel", {"tie_word_embeddings": False}),
    ("OpenAIGPTLMHeadModel", {"afn": "relu"}),
    ("OpenAIGPTLMHeadModel", {"afn": "silu"}),
    ("OpenAIGPTLMHeadModel", {"layer_norm_epsilon": 0.01}),
    ("Qwen2Model", {}),
    ("Qwen2ForCausalLM", {}),
    ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    ("Qwen2ForCausalLM", {"head_dim": 6}),
    ("Qwen2ForCausalLM", {"num_key_value_heads": None}),
    ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0}),
    ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2}),
    ("Qwen2ForCausalLM", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}}),
    ("Qwen3Model", {}),
    ("Qwen3ForCausalLM", {}),
    ("Qwen3ForCausalLM", {"head_dim": 4, "rms_norm_eps": 0.01}),
    ("Qwen3ForCausalLM", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    ("Qwen3ForCausalLM", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    ("GemmaModel", {}),
    ("GemmaForCausalLM", {}),
    ("GemmaForCausalLM", {"tie_word_embeddings": False}),
    ("GemmaForCausalLM", {"hidden_act": "gelu"}),
    ("GemmaForCausalLM", {"hidden_act": "silu", "num_key_value_heads": 1}),
    ("GemmaForCausalLM", {"head_dim": 4, "rms_norm_eps": 0.01}),
]


@pytest.mark.parametrize(("name", "changes"), LIVE, ids=str)
def test_equals_transformers(name: str, changes: dict[str, Any], tmp_path, caplog):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch
    import transformers

    from tests.golden import make_gpt

    config = make_gpt.config_of(name)
    if changes.get("rope_parameters") == "llama3":
        changes = {"rope_parameters": {**make_gpt.LLAMA3, "rope_theta": 100.0}}
    theirs = make_gpt.redrawn(name, {**config, **changes}, seed=3)
    config = {**theirs.config.to_dict(), "architectures": [name]}
    model = loaded(state_of(theirs), config)
    outputs = make_gpt.outputs(theirs, seed=4)
    compare(model, outputs)
    if "greedy" in outputs:
        count = outputs["greedy"].shape[1]
        greedy = keras_tx.generate(
            model, outputs["input_ids"][0].tolist(), max_new_tokens=count, stop_tokens=[]
        )
        assert list(greedy.ids) == outputs["greedy"][0].tolist()
    folder = keras_tx.save_checkpoint(model, tmp_path / "back")
    # A Mistral goes back as the Llama that computes the same.
    again_class = getattr(transformers, name.replace("Mistral", "Llama"))
    caplog.clear()
    transformers.utils.logging.enable_propagation()  # or caplog would see nothing
    again, notes = again_class.from_pretrained(folder, output_loading_info=True)
    assert not caplog.records
    assert not any(notes.values()), notes
    if "scale_attn" not in str(changes):
        assert_same(state_of(again), state_of(theirs), config["model_type"])
        return
    # The queries have absorbed the scales: an ordinary GPT-2 with the same outputs.
    assert again.config.scale_attn_weights and not again.config.scale_attn_by_inverse_layer_idx
    output = "logits" if "logits" in outputs else "hidden"
    real = outputs["attention_mask"].astype(bool)
    theirs_again = make_gpt.outputs(again, seed=4)[output]
    assert_close(theirs_again[..., real, :], outputs[output][..., real, :])
    if "greedy" in outputs:
        export_onnx(model, tmp_path / "poet")
        with runtime.load(tmp_path / "poet") as poet:
            made = poet.generate(outputs["input_ids"][0].tolist(), max_new_tokens=count, stop_tokens=[])
        assert list(made.ids) == outputs["greedy"][0].tolist()
    inputs = {key: torch.from_numpy(outputs[key]) for key in INPUTS}
    real = outputs["attention_mask"].astype(bool)
    with torch.no_grad():
        got = again(**inputs)[0].numpy()
    assert_close(got[real], outputs.get("logits", outputs["hidden"][-1])[real])


def test_the_tokenizer_of_the_folder(tmp_path):
    transform = keras_tx.processing.byte_bpe(
        {token: index for index, token in enumerate(["<|endoftext|>", "a", "b", "ab", "Ġ"])},
        [("a", "b")],
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
    )
    transform.save(tmp_path)
    write(tmp_path, *opened("gpt2-v4")[:2])
    model = keras_tx.from_checkpoint(tmp_path)
    assert model.processing("ab a")["input_ids"].tolist() == [[3, 4, 1]]
    folder = keras_tx.save_checkpoint(model, tmp_path / "again")
    content = json.loads((folder / "config.json").read_text())
    assert (content["bos_token_id"], content["eos_token_id"], content["pad_token_id"]) == (0, 0, None)
    assert keras_tx.from_checkpoint(folder).processing == model.processing


def test_an_unsupported_tokenizer_warns(tmp_path):
    write(tmp_path, *opened("llama-v4")[:2])
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"tokenizer.model but no tokenizer.json"):
        assert keras_tx.from_checkpoint(tmp_path).processing is None

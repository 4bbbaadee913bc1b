"""keras-hub's GPT-2 and Llama: equal outputs, tokens and tensors after conversion in both directions."""

from __future__ import annotations

from typing import Any

import keras
import keras_hub
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.models.gpt import keras_hub as keras_hub_gpt
from keras_tx.models.gpt.keras_hub import to_keras_hub
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close

MODELS: Any = keras_hub.models
IDS = np.random.default_rng(0).integers(1, 40, (2, 9))
MASK = np.ones_like(IDS)
MASK[1, 6:] = 0
THEIRS = {"token_ids": IDS, "padding_mask": MASK}
OURS = {"input_ids": IDS, "attention_mask": MASK}
SIZES = {"vocabulary_size": 40, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 24}
LLAMA3 = {
    "rope_frequency_adjustment_factor": 4.0,
    "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_pretraining_sequence_length": 8,
}
CASES = {
    "gpt2": {"max_sequence_length": 20},
    "llama": {},
    "llama, tied": {"tie_word_embeddings": True, "layer_norm_epsilon": 0.01},
    "llama, base 100": {"rope_max_wavelength": 100},
    "llama 3": LLAMA3,
}


def backbone_of(case: str) -> Any:
    if case == "gpt2":
        return MODELS.GPT2Backbone(**SIZES, num_heads=4, **CASES[case])
    kind = MODELS.Llama3Backbone if case == "llama 3" else MODELS.LlamaBackbone
    return kind(**SIZES, num_query_heads=4, num_key_value_heads=2, **CASES[case])


def task_of(case: str) -> Any:
    backbone = backbone_of(case)
    kinds = {"gpt2": MODELS.GPT2CausalLM, "llama 3": MODELS.Llama3CausalLM}
    return redraw(kinds.get(case, MODELS.LlamaCausalLM)(backbone))


@pytest.mark.parametrize("case", CASES)
def test_task_to_keras_hub_and_back(case: str):
    theirs = task_of(case)
    model = keras_tx.from_checkpoint(theirs)
    real = MASK.astype(bool)
    expected = as_numpy(theirs(THEIRS))
    assert_close(as_numpy(model(OURS))[real], expected[real])
    hidden = [theirs.backbone.get_layer(f"transformer_layer_{index}").output for index in range(2)]
    mine = [model.get_layer(f"block_{index}").output for index in range(2)]
    ours = keras.Model(model.input, mine)(model.complete(OURS))
    for one, other in zip(ours, keras.Model(theirs.backbone.input, hidden)(THEIRS), strict=True):
        assert_close(as_numpy(one)[real], as_numpy(other)[real])
    back = to_keras_hub(model)
    assert type(back).__name__ in (type(theirs).__name__, "LlamaCausalLM")
    same = {variable.path: as_numpy(variable) for variable in back.weights}
    assert set(same) == {variable.path for variable in theirs.weights}
    for variable in theirs.weights:
        np.testing.assert_array_equal(same[variable.path], as_numpy(variable))
    np.testing.assert_array_equal(as_numpy(back(THEIRS)), expected)


@pytest.mark.parametrize("case", ["gpt2", "llama", "llama 3"])
def test_generates_the_same_tokens(case: str):
    theirs = task_of(case)
    theirs.compile(sampler="greedy")
    prompt = {
        "token_ids": np.pad(IDS[:1, :5], ((0, 0), (0, 12))),
        "padding_mask": np.pad(np.ones((1, 5), "int64"), ((0, 0), (0, 12))),
    }
    expected = np.asarray(theirs.generate(prompt, stop_token_ids=None)["token_ids"])[0, 5:]
    made = keras_tx.generate(keras_tx.from_checkpoint(theirs), IDS[0, :5].tolist(), max_new_tokens=12)
    assert list(made.ids) == expected.tolist()


@pytest.mark.parametrize("case", ["gpt2", "llama, tied"])
def test_backbone_to_keras_hub_and_back(case: str):
    theirs = redraw(backbone_of(case))
    model = keras_tx.from_checkpoint(theirs)
    assert model.head is None
    real = MASK.astype(bool)
    expected = as_numpy(theirs(THEIRS))
    assert_close(as_numpy(model(OURS))[real], expected[real])
    np.testing.assert_array_equal(as_numpy(to_keras_hub(model)(THEIRS)), expected)


def test_untied_backbone_has_a_head():
    theirs = task_of("llama")
    with pytest.warns(UserWarning, match="reverse_embeddings"):
        assert keras_tx.from_checkpoint(theirs.backbone).head is None
    model = keras_tx.from_checkpoint(theirs.backbone, head=keras_tx.CausalLMHead())
    real = MASK.astype(bool)
    assert_close(as_numpy(model(OURS))[real], as_numpy(theirs(THEIRS))[real])


@pytest.mark.parametrize("case", ["gpt2", "llama", "llama 3"])
def test_a_preset(case: str, tmp_path):
    theirs = task_of(case)
    theirs.save_to_preset(str(tmp_path / "preset"))
    model = keras_tx.from_checkpoint(tmp_path / "preset")
    assert model.head == keras_tx.CausalLMHead()
    np.testing.assert_array_equal(as_numpy(model(OURS)), as_numpy(keras_tx.from_checkpoint(theirs)(OURS)))


def test_as_weights_of_a_variant():
    theirs = task_of("gpt2")
    with pytest.raises(ConfigError, match=r"'pico' has .*but the keras-hub model 'gpt2_causal_lm.*' has"):
        keras_tx.gpt("pico", weights=theirs)


def tokenizer() -> keras_tx.TextTransform:
    corpus = ["To be, or not to be: that is the question.", "Whether 'tis nobler in the mind to suffer"] * 4
    return keras_tx.processing.train_byte_bpe(corpus, 300)


def test_tokenizer_is_converted(tmp_path):
    transform = tokenizer()
    model = keras_tx.gpt("pico", processing=transform, max_length=20)
    theirs = to_keras_hub(model)
    text = "To be in the mind, that's not 12 questions!"
    assert list(theirs.preprocessor.tokenizer(text)) == transform(text)["input_ids"][0].tolist()
    assert theirs.preprocessor.sequence_length == 20
    again = keras_tx.from_checkpoint(theirs)
    assert again.processing.vocabulary == transform.vocabulary
    for words in (text, "line\n\nline", "  two spaces", "naïve 漢字"):
        assert again.processing(words)["input_ids"].tolist() == transform(words)["input_ids"].tolist()
    assert again.processing.eos_token == "<|endoftext|>"


def test_an_unsupported_tokenizer_warns():
    model = keras_tx.gpt("llama-tiny", processing=tokenizer())
    with pytest.warns(UserWarning, match="tokenizer of model 'gpt'"):
        assert to_keras_hub(model).preprocessor is None

    class LlamaTokenizer:
        pass

    with pytest.warns(UserWarning, match="the model has a LlamaTokenizer.*processing="):
        assert keras_hub_gpt._processing(LlamaTokenizer(), "the model") is None


@pytest.mark.parametrize(
    ("variant", "options", "message"),
    [
        ("pico", {"norm_epsilon": 1e-3}, "norm_epsilon=0.001 with learned positions"),
        ("pico", {"activation": "gelu"}, "activation='gelu' with learned positions"),
        ("pico", {"tied": False}, "tied=False with learned positions"),
        ("llama-tiny", {"use_bias": True}, "use_bias=True with rotary positions"),
        ("llama-tiny", {"head_dim": 8}, "head_dim=8"),
        ("llama-tiny", {"rotary_scaling": {"rope_type": "linear", "factor": 2.0}}, "rotary_scaling=.*linear"),
        ("char", {"depth": 1}, "use_bias=False with learned positions"),
        ("pico", {"norm_position": "post"}, "norm_position='post'"),
        ("llama-tiny", {"qkv_bias": True}, "qkv_bias=True"),
        ("llama-tiny", {"qk_norm": True}, "qk_norm=True"),
        ("llama-tiny", {"scale_embedding": True}, "scale_embedding=True"),
        ("llama-tiny", {"activation": "geglu"}, "activation='geglu'"),
    ],
)
def test_options_that_keras_hub_lacks_raise(variant: str, options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        to_keras_hub(keras_tx.gpt(variant, **options))


def test_a_scaling_factor_that_keras_hub_ignores_raises():
    sizes = {**SIZES, "num_query_heads": 4, "num_key_value_heads": 2}
    stretched = redraw(MODELS.LlamaBackbone(**sizes, rope_position_scaling_factor=2.0))
    plain = redraw(MODELS.LlamaBackbone(**sizes))
    np.testing.assert_array_equal(as_numpy(stretched(THEIRS)), as_numpy(plain(THEIRS)))
    with pytest.raises(ConfigError, match=r"rope_position_scaling_factor=2.0"):
        keras_tx.from_checkpoint(stretched)

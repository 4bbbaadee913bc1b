"""A GPT in Keras, its exported folder and transformers generate the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError, InputError
from keras_tx.models.generation import generate, generator_of, stream
from keras_tx.runtime import TextGenerator, load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close

VARIANTS = ("pico", "llama-tiny")
PROMPTS = [[5, 17, 99], [1], [200, 3, 3, 42, 7, 9]]


def gpt(variant: str, **options: Any) -> Any:
    return redraw(keras_tx.gpt(variant, **options))


def exported(model: Any, folder: Path, **options: Any) -> TextGenerator:
    export_onnx(model, folder, **options)
    loaded = load(folder, provider="cpu", threads=1)
    assert isinstance(loaded, TextGenerator)
    return loaded


@pytest.mark.exports
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("opset", [17, 23])
def test_cached_greedy_is_uncached_greedy_for_256_tokens(variant, opset, tmp_path):
    model = gpt(variant, max_length=300)
    with exported(model, tmp_path / "poet", opset=opset) as poet:
        made = poet.generate(PROMPTS, max_new_tokens=256)
    for prompt, text in zip(PROMPTS, made, strict=True):
        assert len(text.ids) == 256
        # Keras reads the whole text once: its best token at each place is what greedy takes there.
        best = as_numpy(model(np.array([[*prompt, *text.ids]]), training=False))[0].argmax(axis=-1)
        assert text.ids == tuple(best[len(prompt) - 1 : -1])


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS)
def test_keras_gives_the_tokens_of_the_folder(variant, tmp_path):
    model = gpt(variant, max_length=90)
    options: list[dict[str, Any]] = [
        {},
        {"seed": 4, "temperature": 0.8, "top_k": 30, "samples": 2},
        {"seed": 4, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2},
        {"at_context": "slide", "max_new_tokens": 110},
    ]
    with exported(model, tmp_path / "poet") as poet:
        for option in options:
            option = {"max_new_tokens": 70, **option}
            here = generate(model, PROMPTS, **option)
            assert here == poet.generate(PROMPTS, **option)
        alone = generate(model, PROMPTS[0], max_new_tokens=20, log_probabilities=True)
        there = poet.generate(PROMPTS[0], max_new_tokens=20, log_probabilities=True)
        assert alone.ids == there.ids
        np.testing.assert_allclose(alone.log_probabilities, there.log_probabilities, atol=1e-4)
        assert tuple(stream(model, PROMPTS[0], max_new_tokens=20)) == alone.ids


@pytest.mark.exports
def test_scores_are_those_of_keras(tmp_path):
    model = gpt("pico")
    text = np.random.default_rng(0).integers(0, 256, 40)
    logits = as_numpy(model(text[None], training=False))[0].astype("float64")
    expected = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    with exported(model, tmp_path / "poet") as poet:
        scores = poet.score(text).log_probabilities
    np.testing.assert_allclose(scores, expected[np.arange(39), text[1:]], atol=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras_tx.gpt("pico", head=None), "model is a GPT with head=None, expected"),
        (lambda: keras_tx.vit("Mu/2", image_size=8), "model is a ViT, expected"),
        (lambda: keras_tx.t5("tiny", head=None), "model is a T5 with head=None, expected"),
    ],
)
def test_models_without_generation_raise(make, message):
    with pytest.raises(ConfigError, match=message):
        generate(make(), [1])


def test_bad_prompts_in_keras():
    model = keras_tx.gpt("pico")
    with pytest.raises(InputError, match="prompt 0 has the id 256"):
        generate(model, [256])
    with pytest.raises(InputError, match="prompt 0 is empty, and model 'gpt'"):
        generate(model, [[]])
    model = keras_tx.t5("tiny", max_length=8)
    with pytest.raises(InputError, match="source 0 is empty"):
        generate(model, [[]])
    with pytest.raises(InputError, match="source 0 has 9 tokens.* 8"):
        generate(model, [[5] * 9])
    with pytest.raises(InputError, match=r"source 0 is text, but model 't5' has no tokenizer\.json"):
        generate(model, "text")


@pytest.mark.exports
@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_equals_generate_of_transformers(name, tmp_path):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch

    from tests.golden import make_gpt
    from tests.weights.states import loaded, state_of

    llama = name.startswith("Llama")
    length = {"max_position_embeddings" if llama else "n_positions": 120}
    config = {**(make_gpt.LLAMA if llama else make_gpt.GPT2), **length}
    theirs = make_gpt.redrawn(name, config, seed=5)
    ours = loaded(state_of(theirs), {**theirs.config.to_dict(), "architectures": [name]})
    prompts = [[5, 17, 9], [1], [20, 3, 3, 39, 7, 9]]
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    options = {"do_sample": False, "max_new_tokens": 100, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad():
        expected = theirs.generate(ids, attention_mask=mask, **options)[:, longest:].tolist()
    with exported(ours, tmp_path / "poet") as poet:
        made = poet.generate(prompts, max_new_tokens=100)
    assert [list(text.ids) for text in made] == expected


def test_tokenizer_and_stop_tokens_are_those_of_the_model(tmp_path):
    corpus = ["To be, or not to be: that is the question."] * 4
    model = keras_tx.gpt(
        "pico", processing=keras_tx.processing.train_byte_bpe(corpus, 270), vocabulary_size=270
    )
    with exported(model, tmp_path / "poet") as poet:
        for options in ({}, {"stop_tokens": []}):
            expected = poet.generate("To be", max_new_tokens=30, **options)
            assert generate(model, "To be", max_new_tokens=30, **options) == expected


def test_stop_token_does_not_repeat_text():
    corpus = ["To be, or not to be: that is the question."] * 4
    processing = keras_tx.processing.train_byte_bpe(corpus, 270)
    model = keras_tx.gpt("pico", processing=processing, vocabulary_size=270)
    options = {"do_sample": True, "seed": 0}
    ids = generate(model, "To be", max_new_tokens=12, stop_tokens=[], **options).ids
    place = next(i for i, x in enumerate(ids) if i > 2 and x not in ids[:i])
    expected = generate(model, "To be", max_new_tokens=place, stop_tokens=[], **options)
    made = generate(model, "To be", max_new_tokens=12, stop_tokens=[ids[place]], **options)
    assert (made.text, made.ids, made.finish) == (expected.text, ids[: place + 1], "stop")
    pieces = stream(model, "To be", max_new_tokens=12, stop_tokens=[ids[place]], **options)
    assert "".join(pieces) == expected.text


@pytest.mark.parametrize("variant", ["pico", "llama-tiny"])
def test_prefill_computes_the_logits_of_the_last_token_only(variant, monkeypatch):
    model = redraw(keras_tx.gpt(variant, vocabulary_size=50))
    decoder: Any = generator_of(model).decoder
    counts, call = [], decoder._head.call
    monkeypatch.setattr(decoder._head, "call", lambda x, **k: counts.append(x.shape[1]) or call(x, **k))
    ids = np.arange(1, 9)[None]
    mask, positions = np.ones_like(ids), np.arange(8)[None]
    last, _ = decoder.run(ids, mask, positions, None, all_logits=False)
    every, _ = decoder.run(ids, mask, positions, None, all_logits=True)
    assert (counts, last.shape, every.shape) == ([1, 8], (1, 1, 50), (1, 8, 50))
    assert_close(last, every[:, -1:])
    assert_close(every, as_numpy(model(ids)))

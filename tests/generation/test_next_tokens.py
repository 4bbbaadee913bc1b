"""The next tokens of a GPT and of an encoder-decoder, against a softmax of transformers' logits."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError, InputError, RunError
from keras_tx.generation import Generator, NextToken, NextTokens
from keras_tx.generation.next_tokens import token_text
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import redraw
from tests.runtime.counting_decoder import byte_tokenizer
from tests.tolerances import FP32

PROMPT = [5, 17, 9, 9, 2]
SOURCE = [3, 17, 30, 1]


def check(made: NextTokens, logits: Any) -> None:
    """Asserts that the tokens are the best of a softmax, in its order, with its probabilities."""
    values = logits.numpy().astype("float64")
    expected = np.exp(values - values.max())
    expected /= expected.sum()
    order = np.argsort(-expected)[: len(made)]
    assert [token.id for token in made] == order.tolist()
    np.testing.assert_allclose([t.probability for t in made], expected[order], rtol=10 * FP32)
    np.testing.assert_allclose([t.log_probability for t in made], np.log(expected[order]), atol=10 * FP32)


def test_gpt_equals_softmax_of_transformers(tmp_path):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch

    from tests.golden import make_gpt
    from tests.weights.states import loaded, state_of

    theirs = make_gpt.redrawn("GPT2LMHeadModel", make_gpt.GPT2, seed=5)
    ours: Any = loaded(state_of(theirs), {**theirs.config.to_dict(), "architectures": ["GPT2LMHeadModel"]})
    with torch.no_grad():
        logits = theirs(torch.tensor([PROMPT])).logits[0, -1]
    check(ours.next(PROMPT, top_k=7), logits)
    export_onnx(ours, tmp_path / "poet", verify=False)
    with load(tmp_path / "poet", provider="cpu", threads=1) as poet:
        made = poet.next(np.array(PROMPT))
        assert len(made) == 10 and made[0].text is None
        check(made, logits)
        check(poet.next(PROMPT, top_k=len(logits)), logits)
        assert made[0].id == poet.generate(PROMPT, max_new_tokens=1).ids[0]


def test_encoder_decoder_equals_softmax_of_transformers(tmp_path):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch
    import transformers

    ours = redraw(keras_tx.t5("tiny", vocabulary_size=40, dropout=0.0, max_length=6))
    keras_tx.save_checkpoint(ours, tmp_path / "checkpoint")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "checkpoint").eval()
    export_onnx(ours, tmp_path / "export", verify=False)
    with load(tmp_path / "export", provider="cpu", threads=1) as translator:
        for target in ([], [9, 3, 12]):
            with torch.no_grad():
                outputs = theirs(torch.tensor([SOURCE]), decoder_input_ids=torch.tensor([[0, *target]]))
            check(ours.next(SOURCE, target), outputs.logits[0, -1])
            check(translator.next(SOURCE, target, top_k=4), outputs.logits[0, -1])
        check(translator.next(SOURCE, target), outputs.logits[0, -1])
        with pytest.raises(InputError, match="target has 7 tokens.* 6"):
            translator.next(SOURCE, [4] * 6)
        with pytest.raises(InputError, match="source 0 is empty"):
            translator.next([])
        with pytest.raises(InputError, match="target 0 is text"):
            translator.next(SOURCE, "text")
        with pytest.raises(InputError, match="one target, not 2"):
            translator.next(SOURCE, [[4], [5]])
        with pytest.raises(ConfigError, match=r"top_k=41 .*40"):
            translator.next(SOURCE, top_k=41)


class ToyDecoder:
    """Logits of the next token by the last one, and the ids that were run."""

    vocabulary_size = 33
    context = 4

    def __init__(self) -> None:
        self.ids: list[int] = []

    def run(
        self, ids: Any, mask: Any, positions: Any, past: Any, all_logits: bool, room: int = 0
    ) -> tuple[np.ndarray, Any]:
        self.ids = ids[0].tolist()
        return np.linspace(0, 8, 33, dtype="float32")[None, None], None

    def select(self, past: Any, rows: Any, first: int = 0) -> Any:
        return past


def toy(stop_ids: frozenset[int] = frozenset({30}), tokenizer: Any = None) -> Generator:
    return Generator(ToyDecoder(), stop_ids, "toy", tokenizer)


def test_prompts_are_those_of_generate():
    generator = toy(tokenizer=byte_tokenizer())
    assert isinstance(generator.decoder, ToyDecoder)
    for prompt in ("", []):
        generator.next(prompt)
        assert generator.decoder.ids == [30]  # the end-of-text token
    generator.next("cab")
    assert generator.decoder.ids == generator.tokenizer.encode("cab").ids
    with pytest.raises(InputError, match="prompt 0 is empty, and toy"):
        toy(frozenset()).next([])
    with pytest.raises(InputError, match="one prompt, not 2"):
        generator.next(["a", "b"])
    with pytest.raises(InputError, match="prompt 0 has 8 tokens.* 4"):
        generator.next("abcde" * 2)
    with pytest.raises(InputError, match="prompt 0 has the id 33"):
        generator.next([33])


@pytest.mark.parametrize("top_k", [0, -1, 2.5, True, "3", None])
def test_top_k_that_is_not_a_count_raises(top_k):
    with pytest.raises(ConfigError, match=f"top_k is {top_k!r}"):
        toy().next([1], top_k=top_k)


def test_top_k_above_the_vocabulary_raises():
    assert len(toy().next([1], top_k=33)) == 33
    with pytest.raises(ConfigError, match=r"top_k=34 .*vocabulary_size=33"):
        toy().next([1], top_k=34)


def test_text_of_a_token():
    tokenizer = byte_tokenizer()
    assert [token_text(tokenizer, [0], token) for token in (1, 12, 5)] == ["b", " b", " "]
    assert token_text(tokenizer, [0], 30) == "<|endoftext|>"
    assert token_text(tokenizer, [0], 31) is None  # logits beyond the tokenizer's vocabulary
    # é has the bytes of tokens 6 and 7: alone, the first one is not a character
    assert token_text(tokenizer, [0], 6) == "\ufffd"
    assert token_text(tokenizer, [0, 6], 7) == "é"


def test_tokens_print_as_a_table():
    made = toy(tokenizer=byte_tokenizer()).next("a", top_k=4)
    assert [token.id for token in made] == [32, 31, 30, 29]
    lines = str(made).split("\n")
    assert lines[0].split("  ")[-1] == "log probability" and len(lines) == 5
    assert len({len(line) for line in lines}) == 1
    assert lines[3].split()[:2] == ["30", "'<|endoftext|>'"]
    small = NextTokens([NextToken(7, "\n", 1e-9, math.log(1e-9))])
    assert repr(small).split("\n")[1].split() == ["7", r"'\n'", "1.0e-09", "-20.7233"]
    assert isinstance(made, list)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made[0].id = 3  # type: ignore[misc]


def test_nan_logits_raise(monkeypatch):
    generator = toy()
    logits = np.full((1, 1, 33), np.nan, "float32")
    monkeypatch.setattr(generator.decoder, "run", lambda *args, **kwargs: (logits, None))
    with pytest.raises(RunError, match="NaN"):
        generator.next([1])

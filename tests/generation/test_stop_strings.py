"""stop_strings end a text as in transformers: after the token that completes one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import keras_tx
from keras_tx.errors import ConfigError, InputError
from keras_tx.processing import train_byte_bpe
from keras_tx.processing.stop_strings import StopStringCriterion
from keras_tx.runtime import load
from keras_tx.serving import TextEngine
from keras_tx_onnx import export_onnx
from tests.drawing import redraw
from tests.exported_folders import CORPUS

PROMPT = "the cat sat on the"
COUNT = 30


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Any, Any, Any, Path]:
    """A model of transformers with its tokenizer, the same in Keras, and the directory of its checkpoint."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import transformers

    ours = redraw(keras_tx.gpt("pico", processing=train_byte_bpe(CORPUS, size=280)))
    folder = keras_tx.save_checkpoint(ours, tmp_path_factory.mktemp("stop") / "checkpoint")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    return theirs, tokenizer, ours, folder


def of_transformers(model: Any, tokenizer: Any, strings: list[str] | None, **options: Any) -> list[int]:
    import torch

    ids = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    stops: dict[str, Any] = {} if strings is None else {"stop_strings": strings}
    with torch.no_grad():
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=COUNT,
            eos_token_id=None,
            pad_token_id=0,
            tokenizer=tokenizer,
            **stops,
            **options,
        )
    return made[0, ids.shape[1] :].tolist()


def test_criterion_equals_that_of_transformers(models):
    """Random tokens, special ones among them, and parts of their text as stop strings."""
    import torch
    from transformers.generation.stopping_criteria import StopStringCriteria

    _, tokenizer, _, folder = models
    from tokenizers import Tokenizer

    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    chance = random.Random(0)
    plain = [
        number
        for number in range(own.get_vocab_size())
        if (text := own.decode([number], skip_special_tokens=False)) and "\ufffd" not in text
    ]
    ended = 0
    for _ in range(60):
        ids = [chance.choice(plain) for _ in range(24)]
        text = own.decode(ids, skip_special_tokens=False)
        strings = []
        for _ in range(2):
            start = chance.randrange(len(text) - 1)
            strings.append(text[start : start + chance.randrange(1, 9)])
        start = chance.randrange(1, 12)
        theirs = StopStringCriteria(tokenizer, strings)
        criterion = StopStringCriterion(
            lambda numbers: own.decode(numbers, skip_special_tokens=False), strings, ids[:start]
        )
        for end in range(start, len(ids)):
            stopped = criterion.copy().add(ids[end])
            assert criterion.add(ids[end]) is stopped
            assert stopped == bool(theirs(torch.tensor([ids[: end + 1]]), None)[0]), (strings, ids, end)
            ended += stopped
    assert ended > 60


@pytest.mark.parametrize("num_beams", [1, 3])
def test_texts_equal_those_of_transformers(models, tmp_path, num_beams):
    theirs, tokenizer, ours, _ = models
    whole = of_transformers(theirs, tokenizer, None, num_beams=num_beams)
    text = tokenizer.decode(whole, skip_special_tokens=False)
    export_onnx(ours, tmp_path / "poet", cache="shared", verify=False)
    options: dict[str, Any] = {"max_new_tokens": COUNT, "stop_tokens": [], "num_beams": num_beams}
    lengths = set()
    with load(tmp_path / "poet", provider="cpu") as poet:
        for start, length in ((6, 1), (9, 3), (14, 5), (20, 2)):
            strings = [text[start : start + length], "never occurs"]
            expected = of_transformers(theirs, tokenizer, strings, num_beams=num_beams)
            made = poet.generate(PROMPT, stop_strings=strings, **options)
            assert list(made.ids) == expected
            assert made.text == poet.tokenizer.decode(expected)
            assert keras_tx.generate(ours, PROMPT, stop_strings=strings, **options) == made
            lengths.add(len(expected))
    assert len(lengths) > 1 and min(lengths) < COUNT


def test_default_of_a_checkpoint(models, tmp_path):
    """It is read, used in Keras, in the folder and by the engine, and written."""
    theirs, tokenizer, _, folder = models
    whole = of_transformers(theirs, tokenizer, None)
    string = tokenizer.decode(whole)[9:12]
    expected = of_transformers(theirs, tokenizer, [string])
    assert len(expected) < len(whole)
    path = folder / "generation_config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "stop_strings": [string], "renormalize_logits": True}))
    model = keras_tx.from_checkpoint(folder)
    path.write_text(json.dumps(content))
    assert model.config.generation == {"stop_strings": [string], "renormalize_logits": True}
    options: dict[str, Any] = {"max_new_tokens": COUNT, "stop_tokens": []}
    made = keras_tx.generate(model, PROMPT, **options)
    assert list(made.ids) == expected and made.finish == "stop" and string in made.text
    export_onnx(model, tmp_path / "poet", cache="shared", verify=False)
    with load(tmp_path / "poet", provider="cpu") as poet, TextEngine(poet) as engine:
        assert poet.generate(PROMPT, **options) == made
        assert "".join(poet.stream(PROMPT, **options)) == made.text
        assert engine.submit(PROMPT, **options).result(60) == made
        assert list(poet.generate(PROMPT, stop_strings=None, **options).ids) == whole
        before = poet.generate(PROMPT, stop=string, stop_strings=None, **options)
        assert before.ids == made.ids and string not in before.text
    again = keras_tx.save_checkpoint(model, tmp_path / "again")
    assert json.loads((again / "generation_config.json").read_text())["stop_strings"] == [string]


def test_invalid_stop_strings_raise(models, tmp_path):
    _, _, ours, _ = models
    export_onnx(ours, tmp_path / "poet", verify=False)
    with load(tmp_path / "poet", provider="cpu") as poet:
        for wrong in ([""], [3], 3):
            with pytest.raises(ConfigError, match="stop_strings is"):
                poet.generate(PROMPT, stop_strings=wrong)
        with pytest.raises(ConfigError, match="stop_strings=.* is not supported with"):
            poet.generate(PROMPT, stop_strings=["a"], regex="a")
    with pytest.raises(ConfigError, match=r"generation: stop_strings is"):
        keras_tx.gpt("pico", generation={"stop_strings": [""]})
    own = keras_tx.gpt("pico", generation={"stop_strings": "a"})
    notes = export_onnx(own, tmp_path / "ids", verify=False).manifest.notes
    assert any("stop_strings are 'a', but the folder has no tokenizer" in note for note in notes)
    with load(tmp_path / "ids", provider="cpu") as poet:
        for options in ({}, {"stop_tokens": [3]}):
            with pytest.raises(InputError, match=r"own stop_strings are 'a'.* stop_strings=None, or export"):
                poet.generate([1, 2], **options)
        with pytest.raises(InputError, match=r"stop_strings is 'b', but .* Pass ids as stop_tokens"):
            poet.generate([1, 2], stop_strings="b")
        assert poet.generate([1, 2], max_new_tokens=2, stop_strings=None).ids

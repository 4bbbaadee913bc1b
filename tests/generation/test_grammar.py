"""Constrained output: sampled texts of random-weight models match a regular expression or a JSON schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import keras_tx
from keras_tx.errors import ConfigError, InputError
from keras_tx.generation import Generator
from keras_tx.generation.grammar import Grammar, GrammarCompiler
from keras_tx.models.generation import generate
from keras_tx.processing import TextTransform, sentencepiece, train_byte_bpe, train_unigram
from keras_tx.processing.token_bytes import token_bytes
from keras_tx.runtime import TextGenerator, TextToTextGenerator, load
from keras_tx.serving import TextEngine
from keras_tx_onnx import export_onnx
from tests.drawing import redraw
from tests.runtime.counting_decoder import make

pytest.importorskip("llguidance", reason='pip install "keras-tx[constrained]"')

CORPUS = [
    'The quick brown fox jumps over the lazy dog, doesn\'t it? {"name": "fox", "legs": 4, "tail": true}',
    'In 1999 prices rose by 3.5 %, and in 2024 by -17 %... [1, 2, 3] {"a": null, "b": false}',
    "Über den Wolken, naïve café. 東京 🙂 yes no maybe 2026-11-20",
] * 4
TEXTS = 200
REGEXES = [
    "yes|no|maybe",
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    r"(the|a) [a-z]{1,12}( fox| café)?\.",
    "[^a-z ]{3,9}",
    "東京[🙂!]{1,4}",
    r"-?[1-9][0-9]{0,4}(\.[0-9]{1,3})?",
]
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "legs": {"type": "integer", "minimum": -3, "maximum": 1000},
            "tail": {"type": ["boolean", "null"]},
        },
        "required": ["name", "legs", "tail"],
        "additionalProperties": False,
    },
    {
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": {"anyOf": [{"enum": ["fox", "dog"]}, {"type": "string", "pattern": "^[A-F]{1,5}$"}]},
    },
    {
        "$defs": {"date": {"type": "string", "format": "date"}},
        "type": "object",
        "properties": {"day": {"$ref": "#/$defs/date"}, "ok": {"const": True}},
        "required": ["day"],
        "additionalProperties": False,
    },
]


def _llama() -> TextTransform:
    pytest.importorskip("sentencepiece", reason='pip install "keras-tx[parity]"')
    from tests.processing.test_sentencepiece import MODELS, train

    options = {**MODELS["llama"], "sentence_iterator": iter(CORPUS), "vocab_size": 420}
    return sentencepiece(train(**options))


TOKENIZERS = {"byte-level BPE": lambda: train_byte_bpe(CORPUS, size=380), "SentencePiece BPE": _llama}


@pytest.fixture(scope="module", params=TOKENIZERS)
def poet(request, tmp_path_factory):
    transform = TOKENIZERS[request.param]()
    folder = tmp_path_factory.mktemp("grammar") / "poet"
    model = keras_tx.gpt("pico", processing=transform, max_length=400)
    export_onnx(redraw(model), folder, verify=False, cache="shared")
    with load(folder, provider="cpu", threads=1) as loaded:
        assert isinstance(loaded, TextGenerator)
        yield loaded


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """An encoder-decoder with T5's kind of tokenizer, whose texts begin with a space that is omitted."""
    letters = "abcdefghijklmnopqrstuvwxyz{}[]:,.-_0123456789ABCDEF"
    transform = train_unigram([*CORPUS, *letters, '"'], 160, sentinels=2)
    folder = tmp_path_factory.mktemp("grammar") / "writer"
    export_onnx(redraw(keras_tx.t5("tiny", processing=transform)), folder, verify=False)
    with load(folder, provider="cpu", threads=1) as loaded:
        assert isinstance(loaded, TextToTextGenerator)
        yield loaded


def sampled(model: Any, prompt: str, count: int = TEXTS, **options: Any) -> list[str]:
    (texts,) = model.generate([prompt], samples=count, temperature=1.0, seed=3, max_new_tokens=300, **options)
    assert {text.finish for text in texts} == {"stop"}
    return [text.text for text in texts]


@pytest.mark.parametrize("regex", REGEXES)
@pytest.mark.parametrize("prompt", ["The quick", "", "A "])
def test_sampled_texts_match_the_regular_expression(poet, regex, prompt):
    texts = sampled(poet, prompt, regex=regex)
    for text in texts:
        assert re.fullmatch(regex, text, re.DOTALL), text
    assert len({*texts}) > (2 if regex == REGEXES[0] else 20)


@pytest.mark.parametrize("schema", SCHEMAS, ids=["object", "array", "reference"])
def test_sampled_texts_conform_to_the_schema(poet, schema):
    jsonschema = pytest.importorskip("jsonschema", reason='pip install "keras-tx[test]"')
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    texts = sampled(poet, "{", json_schema=schema)
    for text in texts:
        validator.validate(json.loads(text))
    assert len({*texts}) > 20


def test_targets_of_an_encoder_decoder_match(writer):
    jsonschema = pytest.importorskip("jsonschema", reason='pip install "keras-tx[test]"')
    for regex in ("yes|no|maybe", r"[a-z]{2,5} [0-9]{1,3}", r"[0-9]{4}-[0-9]{2}"):
        for text in sampled(writer, "the quick fox", regex=regex):
            assert re.fullmatch(regex, text), text
    for text in sampled(writer, "the quick fox", json_schema=SCHEMAS[0]):
        jsonschema.validate(json.loads(text), SCHEMAS[0])
    made = writer.generate("the quick fox", regex="[a-z]{4}")
    assert writer.tokenizer.id_to_token(made.ids[0]).startswith("▁")  # as all texts of the model
    with pytest.raises(InputError, match="excluded by regex"):
        writer.generate("the quick fox", regex=" yes")  # decoding omits the space


def test_the_most_likely_permitted_token_is_selected(poet):
    """Greedy texts equal those of an exhaustive search among the permitted texts, token by token."""
    choices = ["yes", "no", "maybe", "东", "1999", "fox fox", "foxes"]
    ids = poet.tokenizer.encode("In 1999").ids
    made = poet.generate(ids, regex="|".join(choices))
    assert made.text in choices
    text: list[int] = []
    while (said := poet.tokenizer.decode([*ids, *text])[len("In 1999") :]) != made.text:
        ranked = poet.next([*ids, *text], top_k=poet.decoder.vocabulary_size)
        permitted = [x for x in ranked if x.text and any(c.startswith(said + x.text) for c in choices)]
        whole = [x for x in permitted if "\ufffd" not in (x.text or "")]
        text.append(whole[0].id)
        assert len(text) < 9
    if all("\ufffd" not in poet.tokenizer.decode([one]) for one in made.ids):
        assert list(made.ids) == text


def test_stream_batches_and_keras_generate_the_same_texts(poet, writer):
    regex = r"(the|a) [a-z]{1,8}\."
    options: dict[str, Any] = {"regex": regex, "temperature": 1.0, "seed": 5, "max_new_tokens": 40}
    for model in (poet, writer):
        prompts = ["The quick", "In", "yes no maybe"]
        together = model.generate(prompts, **options)
        for prompt, text in zip(prompts, together, strict=True):
            assert re.fullmatch(regex, text.text)
            assert model.generate(prompt, **options) == text
            assert "".join(model.stream(prompt, **options)) == text.text
    model = redraw(keras_tx.gpt("pico", processing=train_byte_bpe(CORPUS, size=300)))
    assert re.fullmatch(regex, generate(model, "In", **options).text)


def test_a_text_may_end_where_it_matches(poet):
    """At a stop token, which is permitted where the text matches; without one at max_new_tokens."""
    (end,) = poet.stop_ids
    texts = poet.generate(["a"], samples=50, regex="[a-z]+[0-9]*", seed=1, max_new_tokens=30)[0]
    for text in texts:
        assert re.fullmatch("[a-z]+[0-9]*", text.text)
        assert (text.finish == "stop") == (text.ids[-1] == end)
    free = poet.generate("a", regex="[a-z]+[0-9]*", stop_tokens=[], max_new_tokens=30)
    assert (free.finish, len(free.ids)) == ("length", 30)
    cut = poet.generate("a", regex="[0-9]{50}", max_new_tokens=4)
    assert cut.finish == "length" and re.fullmatch("[0-9]{1,49}", cut.text)
    stops = ids_of(poet, "b")
    stopped = poet.generate(["a"], samples=30, regex="x(b|c)|y", stop_tokens=stops, seed=0)[0]
    assert {text.text for text in stopped} == {"xc", "y"}


def ids_of(poet: Any, text: str) -> list[int]:
    """The tokens with these bytes: with byte fallback a letter has two."""
    table = token_bytes(poet.tokenizer, poet.decoder.vocabulary_size)
    return [id for id, token in enumerate(table) if token == text.encode()]


def test_other_constraints_apply_too(poet):
    x, y = (ids_of(poet, letter) for letter in "xy")
    pairs = [[one, other] for one in y for other in y] + [[id] for id in ids_of(poet, "yy")]
    texts = sampled(poet, "a", 50, regex="[xyz]{3}", suppress_tokens=x, bad_words_ids=pairs)
    assert {*texts} <= {"yzy", "zyz", "yzz", "zzy", "zzz"} and len({*texts}) > 2
    with pytest.raises(InputError, match="excluded by regex"):
        poet.generate("a", regex="x", suppress_tokens=x)
    with pytest.raises(InputError, match="min_new_tokens"):
        poet.generate("a", regex="xy", min_new_tokens=9)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"regex": "a", "json_schema": {}}, "one of regex and json_schema"),
    ({"regex": ""}, "regex is ''"),
    ({"regex": 5}, "regex is 5"),
    ({"regex": "(a"}, r"regex='\(a' is not supported"),
    ({"regex": "a)|(b"}, "is not supported"),
    ({"regex": "(?=a)a"}, "is not supported"),
    ({"regex": r"(a)\1"}, "is not supported"),
    ({"regex": "a\ud800"}, "not valid Unicode"),
    ({"json_schema": {"x-guidance": 3}}, "x-guidance of json_schema is 3"),
    (  # llguidance panics when it shortens its message inside of a character
        {"json_schema": {"enum": {"a": {}}, "const": "é" * 200}},
        "json_schema=.* is not supported",
    ),
    ({"json_schema": []}, r"json_schema is \[\], expected a dict"),
    ({"json_schema": "{"}, "json_schema is not JSON"),
    ({"json_schema": {"type": "texts"}}, "json_schema=.*texts"),
    ({"json_schema": {"not": {"type": "string"}}}, "json_schema=.*not"),
    ({"json_schema": {"type": "array", "uniqueItems": True}}, "json_schema=.*uniqueItems"),
    ({"regex": "a", "num_beams": 2}, "num_beams=2 is not supported with regex='a'"),
    ({"regex": "a", "stop": "x"}, r"stop=\['x'\] is not supported with regex='a'"),
    ({"regex": "a", "forced_eos_token_id": 3}, "forced_eos_token_id=3 is not supported with regex"),
    ({"regex": "a", "length_penalty": 2.0}, "length_penalty=2.0 requires num_beams"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[row[1] for row in BAD])
def test_invalid_grammars_raise(poet, options, message):
    with pytest.raises(ConfigError, match=message):
        poet.generate("a", **options)
    if "num_beams" not in options and "length_penalty" not in options:
        with pytest.raises(ConfigError, match=message):
            poet.stream("a", **options)


def test_anchors_do_not_change_what_matches(poet):
    """A regular expression matches the whole text, with anchors or without, or is refused."""
    for regex in ("^(yes|no)$", r"\Ayes|no", r"yes\b"):
        try:
            texts = sampled(poet, "a", 20, regex=regex)
        except ConfigError as error:
            assert "is not supported" in str(error)
        else:
            assert {*texts} <= {"yes", "no"}


def test_defaults_of_a_model_that_would_break_a_text_do_not_apply(poet):
    end = min(poet.stop_ids)
    defaults = {"forced_eos_token_id": end, "forced_bos_token_id": end, "num_beams": 3}
    model = Generator(poet.decoder, poet.stop_ids, "poet", poet.tokenizer, defaults)
    assert model.generate("a", regex="[0-9]{8}", max_new_tokens=3).finish == "length"
    made = model.generate("a", regex="[0-9]{3}")
    assert re.fullmatch("[0-9]{3}", made.text) and made.score is None


def test_without_a_tokenizer_raises(tmp_path: Path):
    with load(make(tmp_path / "counter"), provider="cpu") as counter:
        assert isinstance(counter, TextGenerator)
        with pytest.raises(InputError, match="need a tokenizer"):
            counter.generate([1], regex="a")


def test_wordpiece_raises():
    from tests.wordpiece import wordpiece

    with pytest.raises(InputError, match="WordPiece"):
        GrammarCompiler(wordpiece(), 100)


def test_replaced_regular_expression_raises(poet):
    import tokenizers
    from tokenizers import decoders

    tokenizer = tokenizers.Tokenizer.from_str(poet.tokenizer.to_str())
    pattern = tokenizers.Regex("▁+")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(pattern, " "), decoders.Fuse()])
    with pytest.raises(InputError, match="no bytes of its own"):
        token_bytes(tokenizer, poet.decoder.vocabulary_size)


def test_missing_library_names_the_command(poet, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "keras-tx\[constrained\]"'):
        GrammarCompiler(poet.tokenizer, poet.decoder.vocabulary_size)


def test_streams_of_an_engine_equal_generate(poet):
    """Each stream has a grammar of its own, beside streams without one."""
    jobs: list[dict[str, Any]] = [
        {"regex": r"(the|a) [a-z]{1,8}\."},
        {"json_schema": SCHEMAS[0]},
        {},
        {"regex": "[0-9]{40}", "max_new_tokens": 7},
    ]
    options = {"temperature": 1.0, "max_new_tokens": 60}
    with TextEngine(poet, max_streams=8) as engine:
        streams = [
            engine.submit("The quick", seed=number, **{**options, **job})
            for number, job in enumerate(jobs * 2)
        ]
        made = [stream.result() for stream in streams]
        with pytest.raises(ConfigError, match=r"regex='\(' is not supported"):
            engine.submit("a", regex="(")
    for number, (text, job) in enumerate(zip(made, jobs * 2, strict=True)):
        expected = poet.generate("The quick", seed=number, **{**options, **job})
        assert (text.text, text.finish) == (expected.text, expected.finish)
        if "regex" in job and text.finish == "stop":
            assert re.fullmatch(job["regex"], text.text)
    assert {text.finish for text in made} == {"stop", "length"}


def test_guessed_tokens_of_an_engine_keep_to_the_grammar(poet):
    prompt = "yes no maybe yes no maybe "
    with TextEngine(poet) as engine:
        for seed in range(3):
            options = {"regex": "(yes no maybe ){6,9}!", "temperature": 0.7, "max_new_tokens": 150}
            made = engine.submit(prompt, seed=seed, **options).result()
            assert made.ids == poet.generate(prompt, seed=seed, **options).ids
            assert re.fullmatch(options["regex"], made.text)
        assert engine.stats.accepted_tokens > 0


def test_text_grammar_of_one_text(poet):
    """What a scheduler of many texts uses: `restrict` and `accept`, text by text."""
    import numpy as np

    one, other = (
        poet.grammars.start(Grammar(regex=regex), poet.tokenizer.encode("a").ids, poet.stop_ids)
        for regex in ("xy", "[0-9]+")
    )
    scores = np.zeros(poet.decoder.vocabulary_size, "float32")

    def permitted(grammar: Any) -> set[str]:
        ids = np.flatnonzero(np.isfinite(grammar.restrict(scores))).tolist()
        return {"END" if id in poet.stop_ids else poet.tokenizer.decode([id]) for id in ids}

    assert permitted(one) == {"x", "xy"} & {poet.tokenizer.decode([i]) for i in range(len(scores))}
    digits = permitted(other)
    assert all(text.isdigit() for text in digits)
    one.accept(poet.tokenizer.token_to_id("x"))
    assert permitted(one) == {"y"} and not one.complete
    one.accept(poet.tokenizer.token_to_id("y"))
    assert one.complete
    other.accept(poet.tokenizer.token_to_id("7"))
    assert permitted(other) == {*digits, "END"}
    assert not scores.any()
    with pytest.raises(InputError, match="breaks the grammar"):
        other.accept(poet.tokenizer.token_to_id("x"))
    with pytest.raises(InputError, match="cannot be applied"):
        other.restrict(scores)

"""keras-tx generate: streams, samples, JSON, ids, and one-line errors."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_tx.runtime import TextGenerator, Translator, load
from keras_tx.runtime.cached_decoder import CachedDecoder
from tests.runtime.counting_decoder import byte_tokenizer, continued, make
from tests.runtime.counting_encoder_decoder import continued as counted
from tests.runtime.counting_encoder_decoder import make as encoder_decoder


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    return make(tmp_path / "counter", end=None)


@pytest.fixture
def writer(tmp_path: Path) -> Path:
    pytest.importorskip("tokenizers")
    return make(tmp_path / "writer", tokenizer=byte_tokenizer())


def text_of(folder: Path, prompt: str, **options: Any) -> str:
    with load(folder, provider="cpu") as model:
        assert isinstance(model, TextGenerator)
        return str(model.generate(prompt, **options))


def test_stream(tx, writer):
    expected = text_of(writer, "ab", max_new_tokens=20, temperature=40.0, seed=1)
    ran = tx("generate", writer, "ab", "--max-new-tokens", 20, "--temperature", 40, "--seed", 1)
    assert (ran.code, ran.out, ran.err) == (0, f"{expected}\n", "")
    assert tx("generate", writer, "ab", "--max-new-tokens", 5, "--prompt").out.startswith("ab")


def test_stop(tx, writer):
    options = ["--max-new-tokens", 30, "--temperature", 40, "--seed", 1]
    whole = tx("generate", writer, "ab", *options).out
    ran = tx("generate", writer, "ab", *options, "--stop", whole[3:5])
    assert ran.out.rstrip("\n") == whole[: whole.index(whole[3:5])]


def test_samples(tx, writer):
    options = ["--seed", 0, "--temperature", 40, "--max-new-tokens", 9]
    ran = tx("generate", writer, "ab", "--samples", 3, *options)
    assert len(ran.out.split("\n---\n")) == 3
    first = tx("generate", writer, "ab", *options)
    assert ran.out.split("\n---\n")[0] == first.out.rstrip("\n")


def test_json(tx, counter):
    answer = json.loads(tx("generate", counter, "5 17", "--ids", "--max-new-tokens", 4, "--json").out)
    assert answer["ids"] == continued([5, 17], 4)
    assert answer["finish"] == "length"
    assert answer["text"] is None
    assert len(answer["log_probabilities"]) == 4


def test_beams(tx, writer):
    options = {"num_beams": 3, "length_penalty": -1.0, "early_stopping": True}
    flags = ["--num-beams", 3, "--length-penalty", "-1", "--early-stopping", "--max-new-tokens", 9]
    expected = text_of(writer, "ab", max_new_tokens=9, **options)
    assert tx("generate", writer, "ab", *flags).out == f"{expected}\n"
    answers = tx("generate", writer, "ab", *flags, "--samples", 2, "--json").out.splitlines()
    scores = [json.loads(answer)["score"] for answer in answers]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    assert "length_penalty=1.0" in tx("generate", writer, "ab", "--length-penalty", 1).err
    assert "--interactive" in tx("generate", writer, "ab", "--num-beams", 2, "--interactive").err


def test_ids_and_standard_input(tx, counter, monkeypatch):
    expected = " ".join(map(str, continued([5, 17], 6)))
    ran = tx("generate", counter, "5 17", "--ids", "--max-new-tokens", 6, "--stats")
    assert ran.out.rstrip() == expected
    assert ran.err.startswith("first after ")
    monkeypatch.setattr(sys, "stdin", io.StringIO("5\n17\n"))
    assert tx("generate", counter, "-", "--ids", "--max-new-tokens", 6).out.rstrip() == expected


def test_slide(tx, counter):
    short = tx("generate", counter, "1", "--ids").out.split()
    long = tx("generate", counter, "1", "--ids", "--slide").out.split()
    assert (len(short), len(long)) == (40, 128)


def test_control_characters_are_escaped(tx, writer, monkeypatch):
    monkeypatch.setattr(TextGenerator, "stream", lambda *a, **k: iter(["a\x1b[2Jb\n", "\tc"]))
    assert tx("generate", writer, "ab").out == "a\\x1b[2Jb\n\tc\n"


def test_interruption(tx, writer, monkeypatch):
    def stream(*arguments, **options):
        yield "a"
        raise KeyboardInterrupt

    monkeypatch.setattr(TextGenerator, "stream", stream)
    ran = tx("generate", writer, "ab")
    assert (ran.code, ran.out, ran.err) == (130, "a\n", "")


@pytest.mark.parametrize(
    ("prompt", "more", "expected"),
    [
        ("text", [], "prompt 0 is text"),
        ("5 x", ["--ids"], "'5 x' with --ids"),
        ("99", ["--ids"], "prompt 0 has the id 99"),
        ("1 " * 50, ["--ids"], "prompt 0 has 50 tokens"),
        ("", ["--ids"], "prompt 0 is empty"),
        ("5", ["--ids", "--temperature", "-1"], "temperature is -1.0"),
        ("5", ["--ids", "--top-p", "2"], "top_p is 2.0"),
    ],
)
def test_errors(tx, counter, prompt, more, expected):
    ran = tx("generate", counter, prompt, *more)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("keras-tx: error: ")
    assert expected in ran.err
    assert ran.err.count("\n") == 1


def test_other_tasks_raise(tx, exports, counter, picture):
    assert "'image-classification'" in tx("generate", exports / "flowers", "To be").err
    assert "keras-tx generate" in tx("run", counter, picture).err


def test_interactive_ids(tx, counter, monkeypatch):
    read = []
    run = CachedDecoder.run

    def counted(self, ids, *more, **options):
        read.append(ids.shape[1])
        return run(self, ids, *more, **options)

    monkeypatch.setattr(CachedDecoder, "run", counted)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n8 9\n3\n"))
    ran = tx("generate", counter, "5 17", "--ids", "--max-new-tokens", 3, "--interactive")
    first = continued([5, 17], 3)
    second = continued([5, 17, *first, 8, 9], 3)
    third = continued([5, 17, *first, 8, 9, *second, 3], 3)
    assert (ran.code, ran.err) == (0, "")
    assert [list(map(int, line.split())) for line in ran.out.splitlines()] == [first, second, third]
    assert read == [2, 1, 1, 3, 1, 1, 2, 1, 1]
    assert "--json" in tx("generate", counter, "5", "--ids", "--json", "--interactive").err
    assert "PROMPT is -" in tx("generate", counter, "-", "--ids", "--interactive").err


def test_interactive_text(tx, writer, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a b\n"))
    ran = tx("generate", writer, "ab", "--max-new-tokens", 3, "--interactive", "--slide")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("\n") >= 2


def test_encoder_decoder(tx, tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    folder = encoder_decoder(tmp_path / "translator", task="translation", tokenizer=byte_tokenizer())
    options = ["--max-new-tokens", 8]
    with load(folder, provider="cpu") as model:
        assert isinstance(model, Translator)
        first, second = model.translate(["ab", "e d"], max_new_tokens=8)
        beam = model.translate(
            "ab", max_new_tokens=8, num_beams=3, no_repeat_ngram_size=1, forced_bos_token_id=2
        )
    assert tx("generate", folder, "ab", *options).out == f"{first}\n"
    flags = ["--num-beams", 3, "--no-repeat-ngram-size", 1, "--forced-bos-token-id", 2]
    assert tx("generate", folder, "ab", *options, *flags).out == f"{beam}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("e d\n"))
    assert tx("generate", folder, "ab", *options, "--interactive").out == f"{first}\n{second}\n"
    ran = tx("generate", folder, " ")
    assert (ran.code, ran.out) == (2, "") and "source 0 is empty" in ran.err
    assert "at_context" in tx("generate", folder, "ab", "--slide").err
    (folder / "lines.txt").write_text("ab\n\ne d\n")
    with load(folder, provider="cpu") as model:
        long, other = model(["ab", "e d"])
    ran = tx("run", folder, folder / "lines.txt")
    assert ran.code == 2 and "source 0 is empty" in ran.err
    assert ran.out.splitlines()[1:] == ["ab", f"  {long}", "e d", f"  {other}"]
    answer = json.loads(tx("run", folder, "ab", "--json").out)
    assert answer == {"text": "ab", "translation_text": long}


def test_beams_of_the_folder(tx, tmp_path):
    folder = encoder_decoder(tmp_path / "counter", num_beams=3, length_penalty=-2.0)
    options = ["--ids", "--max-new-tokens", 4, "--json"]
    expected = json.loads(tx("generate", folder, "4 9", *options, "--num-beams", 3).out)
    assert expected["score"] is not None
    assert json.loads(tx("generate", folder, "4 9", *options).out) == expected
    shown = tx("generate", folder, "4 9", *options[:-1]).out
    assert shown == " ".join(map(str, expected["ids"])) + "\n"
    assert json.loads(tx("generate", folder, "4 9", *options, "--seed", 1).out)["score"] is None


def test_ids_of_an_encoder_decoder(tx, tmp_path):
    folder = encoder_decoder(tmp_path / "counter")
    ran = tx("generate", folder, "4 9", "--ids", "--max-new-tokens", 3)
    assert ran.out.split() == [str(i) for i in counted([4, 9], 3)]
    ran = tx("run", folder, "a text")
    assert (ran.code, "no tokenizer.json" in ran.err) == (2, True)


def test_grammars(tx, writer, tmp_path):
    pytest.importorskip("llguidance", reason='pip install "keras-tx[constrained]"')
    options = ["--temperature", 2, "--seed", 3, "--max-new-tokens", 30]
    out = tx("generate", writer, "ab", "--regex", "[ab]{3},[cd]{2}", *options).out
    assert re.fullmatch("[ab]{3},[cd]{2}\n", out)
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"enum": ["abc", "de"]}))
    ran = tx("generate", writer, "ab", "--json-schema", file)  # the tokenizer has no quotation mark
    assert (ran.code, "excluded by regex, json_schema" in ran.err) == (2, True)
    assert "regex='(' is not supported" in tx("generate", writer, "ab", "--regex", "(").err
    both = ["--regex", "a", "--json-schema", file]
    assert "one of regex and json_schema" in tx("generate", writer, "ab", *both).err
    assert "schema.txt" in tx("generate", writer, "ab", "--json-schema", tmp_path / "schema.txt").err

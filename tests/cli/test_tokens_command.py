"""keras-tx tokens: a folder to train on, from text files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from keras_tx.processing import TextTransform, TokenFile


@pytest.fixture
def poem(tmp_path: Path) -> Path:
    path = tmp_path / "poem.txt"
    path.write_text("".join(f"line {i} of a poem\n" for i in range(40)), encoding="utf-8")
    return path


def test_characters(tx, tmp_path, poem):
    ran = tx("tokens", tmp_path / "out", poem, "--characters")
    assert (ran.code, ran.err) == (0, "")
    transform, tokens = TextTransform.load(tmp_path / "out"), TokenFile(tmp_path / "out" / "train.tokens")
    vocabulary = len(set(poem.read_text())) + 1
    assert transform.vocabulary_size == tokens.vocabulary_size == vocabulary
    unseen = TokenFile(tmp_path / "out" / "validation.tokens")
    assert transform.decode([*tokens[:-1], *unseen[:-1]]) == poem.read_text()
    assert 40 < len(unseen) < 100
    assert f"{vocabulary} tokens" in ran.out and "<|endoftext|>" in ran.out
    assert f"train.tokens {len(tokens):>19} tokens, uint16; 1 document, 1.00 bytes" in ran.out


def test_trained_bpe_is_reused(tx, tmp_path, poem):
    more = ("--document-per", "line", "--validation", 0)
    assert tx("tokens", tmp_path / "a", poem, "--train-bpe", 280, *more).code == 0
    assert TextTransform.load(tmp_path / "a").vocabulary_size <= 280
    for source in (tmp_path / "a", tmp_path / "a" / "tokenizer.json"):
        folder = tmp_path / f"from {source.name}"
        assert tx("tokens", folder, poem, poem, "--tokenizer", source, *more).code == 0
        one, two = (TokenFile(x / "train.tokens") for x in (tmp_path / "a", folder))
        assert [*one[:], *one[:]] == two[:].tolist()
        assert two.header.documents == 80
        assert not (folder / "validation.tokens").exists()


def test_trained_unigram_has_sentinels(tx, tmp_path, poem):
    assert tx("tokens", tmp_path / "out", poem, "--train-unigram", 200, "--validation", 0).code == 0
    transform, tokens = TextTransform.load(tmp_path / "out"), TokenFile(tmp_path / "out" / "train.tokens")
    assert len(transform.sentinel_ids()) == 100
    assert tokens.end_of_text == transform.id_of("</s>") == 1
    assert transform.decode(tokens[:]) == " ".join(poem.read_text().split())


def test_a_separator(tx, tmp_path):
    (tmp_path / "all.txt").write_text("a\n\nb\n***\nc\n***\n", encoding="utf-8")
    options = ("--characters", "--separator", "***", "--validation", 0.5)
    assert tx("tokens", tmp_path / "out", tmp_path / "all.txt", *options).code == 0
    transform = TextTransform.load(tmp_path / "out")
    assert transform.decode(TokenFile(tmp_path / "out" / "train.tokens")[:]) == "a\n\nb"
    assert transform.decode(TokenFile(tmp_path / "out" / "validation.tokens")[:]) == "c"


def test_progress_bar_on_a_terminal(tx, tmp_path, poem, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    ran = tx("tokens", tmp_path / "out", poem, "--characters")
    assert "0.0 of 0.0 MB read for the vocabulary" in ran.err and "0.0 of 0.0 MB tokenized" in ran.err


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], "--tokenizer --characters --train-bpe --train-unigram is required"),
        (["--characters", "--train-bpe", "300"], "not allowed with argument"),
        (["--train-bpe", "none"], "--train-bpe: 'none'"),
        (["--train-bpe", "12"], "size=12"),
        (["--train-unigram", "100"], "size=100"),
        (["--characters", "--validation", "10"], "--validation: '10'"),
        (["--characters", "--document-per", "page"], "invalid choice: 'page'"),
        (["--characters", "--document-per", "line", "--separator", "x"], "not allowed with argument"),
        (["--tokenizer", "nowhere"], "nowhere does not exist"),
        (["--characters", "--document-per", "line", "--validation", "0.01"], "validation=0.01"),
    ],
)
def test_errors(tx, tmp_path, poem, more, expected):
    ran = tx("tokens", tmp_path / "out", poem, *more)
    assert (ran.code, ran.out) == (2, "")
    assert expected in ran.err
    assert ran.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["poem.txt"]


def test_files_are_looked_at_first(tx, tmp_path, poem):
    assert "a.txt is not a file" in tx("tokens", tmp_path / "o", poem, "a.txt", "--characters").err
    assert "exists. Add --overwrite" not in (ran := tx("tokens", tmp_path, poem, "--characters")).err
    assert "exists. Remove it, or choose another name." in ran.err

"""Text files to token files: documents, splits, pieces of long texts, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_tx.errors import ConfigError, TextError
from keras_tx.processing import (
    TextTransform,
    TokenFile,
    character_vocabulary,
    characters,
    corpus,
    documents,
    train_byte_bpe,
    train_unigram,
    write_tokens,
)

END = "<|endoftext|>"
LETTERS = characters("abcdefghij \n\r*<|>éx", eos_token=END)
BYTES = train_byte_bpe(["the cat sat on the mat\n\nand the dog?\n"] * 3, 300)


def read(folder: Path, name: str = "train") -> list[str]:
    """The documents of a token file, as text."""
    tokens, transform = TokenFile(folder / f"{name}.tokens"), TextTransform.load(folder)
    assert tokens.vocabulary_size == transform.vocabulary_size
    texts = [transform.decode(tokens[a : b - 1]) for a, b in zip(*tokens.documents(), strict=True)]
    assert tokens.header.documents == len(texts)
    assert tokens.header.text_bytes == sum(len(text.encode()) for text in texts)
    return texts


def files(folder: Path, *texts: str) -> list[Path]:
    paths = [folder / f"{index}.txt" for index in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text.encode("utf-8"))
    return paths


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["ab\n\n \ncd\nef\n***\n\ngh", "é\r\na\r\n\r\nb"]),
        ({"document_per": "line"}, ["ab", "cd", "ef", "***", "gh", "é", "a", "b"]),
        ({"document_per": "paragraph"}, ["ab", "cd\nef\n***", "gh", "é\r\na", "b"]),
        ({"separator": "***"}, ["ab\n\n \ncd\nef", "\ngh", "é\r\na\r\n\r\nb"]),
    ],
)
@pytest.mark.parametrize("at_once", [3, 1 << 20])
def test_documents(tmp_path, monkeypatch, options, expected, at_once):
    monkeypatch.setattr(documents, "READ", at_once)
    paths = files(tmp_path, "ab\n\n \ncd\nef\n***\n\ngh", "", "é\r\na\r\n\r\nb")
    size = sum(path.stat().st_size for path in paths)
    seen = []
    write_tokens(tmp_path / "out", paths, LETTERS, progress=lambda *x: seen.append(x), **options)
    assert read(tmp_path / "out") == expected
    assert seen[-1] == (size, size)
    assert not list(tmp_path.glob("out/validation*"))


def test_special_token_in_the_text_is_encoded_as_text(tmp_path):
    for index, transform in enumerate((character_vocabulary([END], eos_token=END), BYTES)):
        write_tokens(tmp_path / str(index), files(tmp_path, f"{END}{END}"), transform)
        assert read(tmp_path / str(index)) == [f"{END}{END}"]


@given(text=st.text(alphabet=st.one_of(st.sampled_from("the cat\n\n  '?é1"), st.characters(codec="utf-8"))))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("transform", [BYTES, train_byte_bpe(["the cat\n sat"], 280, add_prefix_space=True)])
def test_pieces_of_a_long_text_have_the_same_tokens(transform, text, monkeypatch):
    for name, value in (("LONG", 12), ("AROUND", 6), ("LONGEST", 1 << 30)):
        monkeypatch.setattr(corpus, name, value)
    text = f"the cat {text} sat on {text}"
    tokenizer = corpus._plain(transform)
    streams = [("", documents.Chunk(text[i : i + 7], i + 7 >= len(text), 0)) for i in range(0, len(text), 7)]
    pieces = [chunk.text for _, chunk in corpus._pieces(streams, tokenizer)]
    assert "".join(pieces) == text
    ids = [i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False).ids]
    assert ids == tokenizer.encode(text, add_special_tokens=False).ids


def test_long_texts_are_split_or_raise(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "LONG", 500)
    monkeypatch.setattr(corpus, "LONGEST", 4000)
    monkeypatch.setattr(documents, "READ", 700)
    whole = "the cat sat on the mat\n" * 300
    write_tokens(tmp_path / "a", files(tmp_path, whole), BYTES)
    assert read(tmp_path / "a") == [whole]
    assert TokenFile(tmp_path / "a" / "train.tokens")[:-1].tolist() == BYTES.encode(whole)[0].ids.tolist()
    write_tokens(tmp_path / "b", files(tmp_path, "abcx" * 3000), LETTERS)  # characters fall apart anywhere
    with pytest.raises(TextError, match=r"\d+ .*'thethe"):
        write_tokens(tmp_path / "c", files(tmp_path, "the" * 3000), BYTES)


def test_validation_is_the_end_of_each_of_few_files(tmp_path):
    texts = ["".join(f"{c}{c}\n" for c in "abcdefghij"), "é" * 10 + "\n" + "b" * 3]
    write_tokens(tmp_path / "out", files(tmp_path, *texts), LETTERS, validation=0.25)
    train, unseen = read(tmp_path / "out"), read(tmp_path / "out", "validation")
    assert train == [texts[0][:24], texts[1][:11]]
    assert [a + b for a, b in zip(train, unseen, strict=True)] == texts
    with pytest.raises(TextError, match=r"0\.txt is too short to be split, 25%"):
        write_tokens(tmp_path / "other", files(tmp_path, "a"), LETTERS, validation=0.25)


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("a" * 100, 74),
        ("é" * 41, 30),  # not within a character
        ("ab\n" + "a" * 97, 74),  # not after the first line
        ("a" * 60 + " " + "b" * 39, 61),
        ("a" * 60 + "\n" + "b c " * 10, 61),
        ("a" * 80 + "\n" + "b" * 19, 81),
    ],
)
def test_long_lines_are_split_near_their_place(tmp_path, text, cut):
    write_tokens(tmp_path / "out", files(tmp_path, text), LETTERS, validation=0.25)
    lengths = [len(TokenFile(tmp_path / "out" / f"{name}.tokens")) - 1 for name in ("train", "validation")]
    assert lengths == [cut, len(text) - cut]


def test_validation_is_every_nth_of_many_documents(tmp_path):
    lines = [chr(97 + i % 10) * (i + 1) for i in range(22)]
    paths = files(tmp_path, "\n".join(lines))
    write_tokens(tmp_path / "out", paths, LETTERS, document_per="line", validation=0.2)
    assert read(tmp_path / "out", "validation") == lines[4::5]
    assert read(tmp_path / "out") == [line for i, line in enumerate(lines) if i % 5 != 4]
    with pytest.raises(TextError, match="validation=0.01 of 22 documents"):
        write_tokens(tmp_path / "b", paths, LETTERS, document_per="line", validation=0.01)


def test_one_document_requires_no_end_of_text(tmp_path):
    plain = characters("ab\n")
    (one,) = files(tmp_path, "ab\nab\nb\n")
    write_tokens(tmp_path / "out", [one], plain, validation=0.3)
    assert TokenFile(tmp_path / "out" / "train.tokens")[:].tolist() == [0, 1, 2, 0, 1, 2]
    for paths, options in (([one, one], {}), ([one], {"document_per": "line"})):
        with pytest.raises(ConfigError, match="eos_token"):
            write_tokens(tmp_path / "b", paths, plain, **options)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"ab\xffc", {}, "0.txt .*UTF-8.*byte 2 "),
        (b"abc\xc3", {}, "0.txt .*UTF-8.*byte 3 "),
        (b"", {}, "0.txt "),
        (b"\n \n", {"document_per": "paragraph"}, "documents"),
        (b"abZ", {}, r"vocabulary .*'Z'"),
        (b"ab", {"document_per": "page"}, "document_per='page'"),
        (b"ab", {"separator": "a\nb"}, "separator='a.nb'"),
        (b"ab", {"validation": 1.0}, "validation=1.0"),
    ],
)
@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_invalid_corpus_or_option_writes_no_file(tmp_path, monkeypatch, content, options, message, at_once):
    monkeypatch.setattr(documents, "READ", at_once)
    (tmp_path / "0.txt").write_bytes(content)
    with pytest.raises((ConfigError, TextError), match=message):
        write_tokens(tmp_path / "out", [tmp_path / "0.txt"], LETTERS, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["0.txt"]


def test_invalid_paths_raise(tmp_path):
    paths = files(tmp_path, "ab")
    with pytest.raises(ConfigError, match="exists"):
        write_tokens(tmp_path, paths, LETTERS)
    with pytest.raises(ConfigError, match="folder"):
        write_tokens(tmp_path / "a" / "b", paths, LETTERS)
    with pytest.raises(TextError, match=r"missing\.txt"):
        write_tokens(tmp_path / "b", [tmp_path / "missing.txt"], LETTERS)
    with pytest.raises(TextError, match="is a folder"):
        write_tokens(tmp_path / "b", [tmp_path], LETTERS)


def test_long_file_is_read_in_chunks(tmp_path):
    """The file is never in memory as a whole."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab cd\n" * 2_000_000)
    sizes = [len(chunk.text) for chunk in documents.documents(documents.whole_files([path]))]
    assert sum(sizes) == 12_000_000 and max(sizes) <= documents.READ
    pieces = corpus._pieces(
        (("", chunk) for chunk in documents.documents(documents.whole_files([path]))), corpus._plain(LETTERS)
    )
    assert max(len(chunk.text) for _, chunk in pieces) <= corpus.LONG


def test_long_document_has_the_tokens_of_the_whole(tmp_path, monkeypatch):
    """Unigram's tokens start with the space before a word, and each chunk gets one."""
    monkeypatch.setattr(corpus, "LONG", 300)
    text = " ".join(f"the cat {number} </s> sat on  the\nmat" for number in range(200))
    transform = train_unigram([text], 60, sentinels=0)
    write_tokens(tmp_path / "out", files(tmp_path, text), transform)
    plain = corpus._plain(transform)
    tokens = TokenFile(tmp_path / "out" / "train.tokens")
    assert tokens[:].tolist() == [*plain.encode(text, add_special_tokens=False).ids, 1]
    assert tokens[:].tolist().count(1) == 1

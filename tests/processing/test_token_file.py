"""Token files: their format, and errors for damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from keras_tx.errors import ConfigError, TextError
from keras_tx.processing import TokenFile, TokenWriter


def write(path: Path, vocabulary: int = 100, end: int | None = 99) -> Path:
    with TokenWriter(path, vocabulary, end) as writer:
        writer.add([1, 2, 3], text_bytes=7)
        writer.end_document()
        writer.add(np.array([4]), text_bytes=1)
        writer.add([])
        writer.end_document()
    return path


def with_header(path: Path, **changes: object) -> None:
    content = path.read_bytes()
    header = {**json.loads(content[:4096]), **changes}
    header = {name: value for name, value in header.items() if value is not ...}
    path.write_bytes(json.dumps(header).encode().ljust(4096) + content[4096:])


@pytest.mark.parametrize(("vocabulary", "dtype"), [(100, "<u2"), (65536, "<u2"), (65537, "<u4")])
def test_file_format(tmp_path, vocabulary: int, dtype: str):
    """Parsed without keras-tx."""
    content = write(tmp_path / "a", vocabulary).read_bytes()
    header = json.loads(content[:4096].decode("ascii"))
    assert header == {
        "format": "keras-tx tokens", "version": 1, "dtype": "uint16" if dtype == "<u2" else "uint32",
        "tokens": 6, "documents": 2, "text_bytes": 8, "vocabulary_size": vocabulary, "end_of_text": 99,
    }  # fmt: skip
    assert np.frombuffer(content[4096:], dtype).tolist() == [1, 2, 3, 99, 4, 99]
    tokens = TokenFile(tmp_path / "a")
    assert (len(tokens), tokens[:].tolist(), tokens.bytes_per_token) == (6, [1, 2, 3, 99, 4, 99], 8 / 6)
    assert tokens.at(np.array([[5, 0], [2, 2]])).tolist() == [[99, 1], [3, 3]]
    for at_once in (1, 2, 100):
        starts, ends = tokens.documents(at_once)
        assert (starts.tolist(), ends.tolist()) == ([0, 4], [4, 6])


def test_file_without_end_of_text_is_one_document(tmp_path):
    tokens = TokenFile(write(tmp_path / "a", end=None))
    assert tokens[:].tolist() == [1, 2, 3, 4]
    assert [x.tolist() for x in tokens.documents()] == [[0], [4]]


def test_failed_write_keeps_the_previous_file(tmp_path):
    path = write(tmp_path / "a")
    before = path.read_bytes()
    with (
        pytest.raises(TextError, match="100.*0 to 99"),
        TokenWriter(path, 100) as writer,
    ):
        writer.add([5])
        writer.add([100])
    with pytest.raises(KeyboardInterrupt), TokenWriter(tmp_path / "b", 100) as writer:
        writer.add([5])
        raise KeyboardInterrupt
    assert [x.name for x in tmp_path.iterdir()] == ["a"]
    assert path.read_bytes() == before
    for ids, message in (
        ([-1], "ids contain -1"),
        ([1.5], "ids are float64"),
        ([[1]], r"ids are int64 \(1, 1\)"),
    ):
        with pytest.raises(TextError, match=message), TokenWriter(path, 100) as writer:
            writer.add(ids)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokens": 7},
            "truncated.* 4108 bytes.* 7 tokens of uint16, 4110 bytes",
        ),
        ({"tokens": 5}, "damaged.*4108 bytes"),
        ({"dtype": "uint32"}, "truncated.* 4108 bytes.* 6 tokens of uint32"),
        ({"dtype": "object"}, "dtype is 'object'"),
        ({"vocabulary_size": 70000}, "vocabulary_size is 70000.*uint16"),
        ({"vocabulary_size": 0}, "vocabulary_size is 0"),
        ({"vocabulary_size": 50, "end_of_text": 70}, "end_of_text is 70"),
        ({"tokens": "6"}, "tokens is '6'"),
        ({"tokens": -1}, "tokens is -1"),
        ({"version": 2}, "its version is 2"),
        ({"format": "tokens"}, "'keras-tx tokens'"),
        ({"documents": ...}, "its header has"),
        ({"more": 1}, "its header has"),
    ],
)
def test_invalid_header_raises(tmp_path, changes, message):
    path = write(tmp_path / "a.tokens")
    with_header(path, **changes)
    with pytest.raises(ConfigError, match=f"a.tokens.*{message}"):
        TokenFile(path)


def test_id_out_of_range_raises_when_read(tmp_path):
    path = write(tmp_path / "a.tokens")
    with_header(path, vocabulary_size=99, end_of_text=98)
    tokens = TokenFile(path)
    assert tokens[:3].tolist() == [1, 2, 3]
    for read in (lambda: tokens[:], lambda: tokens.at(np.array([3])), tokens.documents):
        with pytest.raises(ConfigError, match=r"a.tokens.* id 99, .* 0 to 98"):
            read()


def test_other_files_raise(tmp_path):
    for content in (b"", b"short", b"x" * 5000, b"\xff" * 5000, b"[1]".ljust(4096), b"[" * 4096):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(ConfigError, match="a is not a token file"):
            TokenFile(tmp_path / "a")
    with pytest.raises(ConfigError, match="b .*No such file"):
        TokenFile(tmp_path / "b")
    with pytest.raises(ConfigError, match="Is a directory"):
        TokenFile(tmp_path)
    with TokenWriter(tmp_path / "c", 5):
        pass
    with pytest.raises(ConfigError, match="c .*tokens"):
        TokenFile(tmp_path / "c")

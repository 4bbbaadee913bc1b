"""safetensors files: equal to the safetensors package in both directions; invalid files raise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.weights import safetensors_file
from keras_tx.weights.safetensors_file import DTYPES, open_tensors, write_tensors


def file_of(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A file by the specification: length, header, data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def written(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    write_tensors(path, {name: (x.dtype, x.shape) for name, x in arrays.items()}, arrays.__getitem__)
    return path


def numbers(dtype: Any, *shape: int) -> np.ndarray:
    random = np.random.default_rng(0)
    return (random.standard_normal(shape) * 3).astype(dtype)


ALL = {name: numbers(dtype, 3, 2) for name, dtype in DTYPES.items()}
UNUSUAL = {"scalar": numbers("float32"), "empty": numbers("float16", 0, 4), "größe/é": numbers("float32", 1)}


def test_file_of_the_specification(tmp_path):
    data = np.array([1.5, -2.0], "<f4").tobytes() + np.array([3], "<i8").tobytes()
    header = {"__metadata__": {"a": "b"}, "w": entry(), "n": entry("I64", [], [8, 16])}
    tensors = open_tensors(file_of(tmp_path / "a.safetensors", header, data))
    assert tensors.shapes == {"w": (2,), "n": ()}
    assert tensors.nbytes == 16 and tensors.numbers == 3
    assert tensors.read("w").tolist() == [1.5, -2.0] and tensors.read("n") == 3


@pytest.mark.parametrize("arrays", [ALL, UNUSUAL, {}], ids=["all dtypes", "unusual shapes", "none"])
def test_write_and_read(arrays, tmp_path):
    path = written(tmp_path / "a.safetensors", arrays)
    tensors = open_tensors(path)
    assert set(tensors.shapes) == set(arrays)
    for name, array in arrays.items():
        value = tensors.read(name)
        assert value.dtype == tensors.dtypes[name] == array.dtype and value.shape == array.shape
        assert value.tobytes() == array.tobytes()
    assert [x.name for x in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("arrays", [ALL, UNUSUAL, {}], ids=["all dtypes", "unusual shapes", "none"])
def test_safetensors_package_reads_and_writes_the_same(arrays, tmp_path):
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    package = pytest.importorskip("safetensors.torch", reason='pip install "keras-tx[parity]"')
    ours = written(tmp_path / "ours.safetensors", arrays)
    theirs = package.load_file(ours)
    assert set(theirs) == set(arrays)
    for name, array in arrays.items():
        assert tuple(theirs[name].shape) == array.shape
        assert bytes(theirs[name].reshape(-1).view(torch.uint8).numpy()) == array.tobytes()
    package.save_file(theirs, tmp_path / "theirs.safetensors")
    back = open_tensors(tmp_path / "theirs.safetensors")
    assert {name: back.read(name).tobytes() for name in back.shapes} == {
        name: array.tobytes() for name, array in arrays.items()
    }


@pytest.mark.parametrize("length", [0x80, 0x180, 0x4B50])
def test_length_that_begins_like_another_format(length, tmp_path):
    """A pickle begins with 0x80, a zip archive with PK, 0x4b50."""
    text = json.dumps({"w": entry()}).encode()
    path = file_of(tmp_path / "a.safetensors", text + b" " * (length - len(text)), bytes(8))
    assert path.read_bytes()[0] in (0x80, 0x50)
    assert open_tensors(path).shapes == {"w": (2,)}


def test_tensors_are_read_only_views(tmp_path):
    tensors = open_tensors(written(tmp_path / "a.safetensors", {"w": numbers("float32", 4, 4)}))
    view = tensors.read("w")
    assert not view.flags.owndata and not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 0


def test_tensors_are_aligned(tmp_path):
    arrays = {"a": numbers("int8", 3), "b": numbers("float64", 2), "c": numbers(ml_dtypes.bfloat16, 3)}
    tensors = open_tensors(written(tmp_path / "a.safetensors", arrays))
    assert all(tensors.read(name).flags.aligned for name in arrays)


DATA = bytes(8)
INVALID: dict[str, tuple[Any, bytes, str]] = {
    "no JSON": (b"{'a'", DATA, "its header is not JSON"),
    "not UTF-8": (b'{"\xff": 1}', DATA, "its header is not JSON"),
    "no object": (b"[1, 2]", DATA, "does not begin with"),
    "nested beyond the stack": (b'{"a":' + b"[" * 100_000, DATA, "its header is not JSON"),
    "a name twice": (b'{"a": {}, "a": {}}', DATA, "contains 'a' twice"),
    "a key twice": (b'{"a": {"dtype": "F32", "dtype": "F16"}}', DATA, "contains 'dtype' twice"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", "__metadata__"),
    "no entry": ({"a": 3}, DATA, "'a' is not .* data_offsets, dtype, shape"),
    "a key too many": ({"a": {**entry(), "more": 1}}, DATA, "'a' is not"),
    "unknown dtype": ({"a": entry("F31")}, DATA, "'a' has the dtype 'F31', expected one of BOOL, U8"),
    "dtype of another kind": ({"a": entry(["F32"])}, DATA, "has the dtype .'F32'., expected"),  # type: ignore[arg-type]
    "negative size": ({"a": entry(shape=[-1, -2])}, DATA, "has the shape .-1, -2., expected"),
    "a fraction": ({"a": entry(shape=[2.0])}, DATA, "has the shape .2.0., expected"),
    "true": ({"a": entry(shape=[True, 2])}, DATA, "has the shape .True, 2., expected"),
    "a shape of text": ({"a": entry(shape="2")}, DATA, "has the shape '2', expected"),
    "a million axes": ({"a": entry(shape=[1] * 10**6)}, DATA, "has the shape .1, 1.*\\.\\.\\., expected"),
    "an offset of text": ({"a": entry(offsets=[0, "8"])}, DATA, "data_offsets .0, '8'."),
    "three offsets": ({"a": entry(offsets=[0, 4, 8])}, DATA, "data_offsets .0, 4, 8."),
    "backwards": ({"a": entry(offsets=[8, 0])}, DATA, "'a'.* 8 to 0.* 8 bytes"),
    "beyond the end": ({"a": entry(shape=[4], offsets=[0, 16])}, DATA, "'a'.* 0 to 16"),
    "10^12 numbers": (
        {"a": entry(shape=[10**12], offsets=[0, 4 * 10**12])},
        DATA,
        "'a'.* 4000000000000.* 8 bytes",
    ),
    "10^12 numbers in 8 bytes": ({"a": entry(shape=[10**12])}, DATA, "'a' has 8 bytes.* 4000000000000"),
    "a product that overflows": ({"a": entry(shape=[2**32, 2**32])}, DATA, "'a' has 8 bytes.* 4294967296"),
    "too few bytes": ({"a": entry(shape=[3])}, DATA, "'a' has 8 bytes.* 12"),
    "an overlap": (
        {"a": entry(), "b": entry("F32", [1], [4, 8])},
        DATA,
        "'b' begins at byte 4.* 8 .an overlap",
    ),
    "two on one place": ({"a": entry(), "b": entry()}, DATA, "byte 0.* 8 .an overlap"),
    "a gap": ({"a": entry("F32", [1], [4, 8])}, DATA, "'a' begins at byte 4.* 0 .a gap"),
    "bytes at the end": ({"a": entry()}, DATA + b"x", "8 bytes.* 9"),
    "bytes missing": ({"a": entry()}, DATA[1:], "'a'.* 0 to 8.* 7 bytes"),
    "data without tensors": ({}, DATA, "0 bytes.* 8"),
}


@pytest.mark.parametrize(("header", "data", "message"), INVALID.values(), ids=INVALID)
def test_invalid_header_raises(header, data, message, tmp_path):
    path = file_of(tmp_path / "a.safetensors", header, data)
    with pytest.raises(ConfigError, match=message) as error:
        open_tensors(path)
    assert str(error.value).startswith(f"{path} is not a valid safetensors file: ")
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes, expected at least 8"),
        (b"1234567", "7 bytes"),
        ((10**12).to_bytes(8, "little") + b"{}", "1000000000000 bytes.* 10 bytes"),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", "18446744073709551615 bytes.* 10 bytes"),
        ((3).to_bytes(8, "little") + b"{}", "3 bytes"),
        (b"PK\x03\x04" + bytes(40), "zip archive"),
        (b"\x80\x02}q\x00" + bytes(40), "pickle"),
        (b"version https://git-lfs.github.com/spec/v1\noid ...", "git lfs pull"),
    ],
)
def test_other_file_raises(content, message, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        open_tensors(tmp_path / "a.safetensors")


def test_large_header_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(safetensors_file, "LONGEST_HEADER", 100)
    path = file_of(tmp_path / "a.safetensors", b"{" + b" " * 100 + b"}")
    with pytest.raises(ConfigError, match=" 100[.]"):
        open_tensors(path)


def test_missing_file_raises(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        open_tensors(tmp_path / "a.safetensors")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        open_tensors(tmp_path)


def test_failed_write_keeps_the_file(tmp_path):
    path = written(tmp_path / "a.safetensors", {"w": numbers("float32", 2)})
    before = path.read_bytes()

    def fails(name: str) -> np.ndarray:
        raise RuntimeError(name)

    with pytest.raises(RuntimeError):
        write_tensors(path, {"w": (np.dtype("float32"), (2,))}, fails)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]

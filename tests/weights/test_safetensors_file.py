"""safetensors files by code of our own: equal to the safetensors package both ways, and never fooled."""

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
ODD = {"scalar": numbers("float32"), "nobody": numbers("float16", 0, 4), "größe/é": numbers("float32", 1)}


def test_the_bytes_are_those_of_the_specification(tmp_path):
    data = np.array([1.5, -2.0], "<f4").tobytes() + np.array([3], "<i8").tobytes()
    header = {"__metadata__": {"a": "b"}, "w": entry(), "n": entry("I64", [], [8, 16])}
    tensors = open_tensors(file_of(tmp_path / "a.safetensors", header, data))
    assert tensors.shapes == {"w": (2,), "n": ()}
    assert tensors.nbytes == 16 and tensors.numbers == 3
    assert tensors.read("w").tolist() == [1.5, -2.0] and tensors.read("n") == 3


@pytest.mark.parametrize("arrays", [ALL, ODD, {}], ids=["all dtypes", "odd ones", "none"])
def test_what_was_written_is_read(arrays, tmp_path):
    path = written(tmp_path / "a.safetensors", arrays)
    tensors = open_tensors(path)
    assert set(tensors.shapes) == set(arrays)
    for name, array in arrays.items():
        found = tensors.read(name)
        assert found.dtype == tensors.dtypes[name] == array.dtype and found.shape == array.shape
        assert found.tobytes() == array.tobytes()
    assert [x.name for x in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("arrays", [ALL, ODD, {}], ids=["all dtypes", "odd ones", "none"])
def test_the_package_reads_what_we_write_and_writes_what_we_read(arrays, tmp_path):
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
def test_a_length_may_look_like_the_beginning_of_another_format(length, tmp_path):
    """A pickle begins with 0x80, a zip archive with PK, 0x4b50."""
    text = json.dumps({"w": entry()}).encode()
    path = file_of(tmp_path / "a.safetensors", text + b" " * (length - len(text)), bytes(8))
    assert path.read_bytes()[0] in (0x80, 0x50)
    assert open_tensors(path).shapes == {"w": (2,)}


def test_nothing_is_copied_and_nothing_can_be_changed(tmp_path):
    tensors = open_tensors(written(tmp_path / "a.safetensors", {"w": numbers("float32", 4, 4)}))
    view = tensors.read("w")
    assert not view.flags.owndata and not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 0


def test_tensors_are_aligned_by_writing_wide_ones_first(tmp_path):
    arrays = {"a": numbers("int8", 3), "b": numbers("float64", 2), "c": numbers(ml_dtypes.bfloat16, 3)}
    tensors = open_tensors(written(tmp_path / "a.safetensors", arrays))
    assert all(tensors.read(name).flags.aligned for name in arrays)


DATA = bytes(8)
UNSOUND: dict[str, tuple[Any, bytes, str]] = {
    "no JSON": (b"{'a'", DATA, "its header is not JSON"),
    "not UTF-8": (b'{"\xff": 1}', DATA, "its header is not JSON"),
    "no object": (b"[1, 2]", DATA, "does not begin with a brace"),
    "nested beyond the stack": (b'{"a":' + b"[" * 100_000, DATA, "its header is not JSON"),
    "a name twice": (b'{"a": {}, "a": {}}', DATA, "'a' stands in its header twice"),
    "a key twice": (b'{"a": {"dtype": "F32", "dtype": "F16"}}', DATA, "'dtype' stands in its header twice"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", "__metadata__ is not an object of strings"),
    "no entry": ({"a": 3}, DATA, "the entry of 'a' is not an object of data_offsets, dtype, shape"),
    "a key too many": ({"a": {**entry(), "more": 1}}, DATA, "the entry of 'a' is not"),
    "unknown dtype": ({"a": entry("F31")}, DATA, "'a' has the dtype 'F31', expected one of BOOL, U8"),
    "dtype of another kind": ({"a": entry(["F32"])}, DATA, "has the dtype .'F32'., expected"),  # type: ignore[arg-type]
    "negative size": ({"a": entry(shape=[-1, -2])}, DATA, "has the shape .-1, -2., expected"),
    "a fraction": ({"a": entry(shape=[2.0])}, DATA, "has the shape .2.0., expected"),
    "true": ({"a": entry(shape=[True, 2])}, DATA, "has the shape .True, 2., expected"),
    "a shape of text": ({"a": entry(shape="2")}, DATA, "has the shape '2', expected"),
    "a million axes": ({"a": entry(shape=[1] * 10**6)}, DATA, "has the shape .1, 1.*\\.\\.\\., expected"),
    "an offset of text": ({"a": entry(offsets=[0, "8"])}, DATA, "data_offsets .0, '8'., expected two"),
    "three offsets": ({"a": entry(offsets=[0, 4, 8])}, DATA, "expected two whole numbers"),
    "backwards": ({"a": entry(offsets=[8, 0])}, DATA, "bytes 8 to 0 of the data, which has 8"),
    "beyond the end": ({"a": entry(shape=[4], offsets=[0, 16])}, DATA, "bytes 0 to 16 of the data"),
    "10^12 numbers": ({"a": entry(shape=[10**12], offsets=[0, 4 * 10**12])}, DATA, "which has 8"),
    "10^12 numbers in 8 bytes": ({"a": entry(shape=[10**12])}, DATA, "is 4000000000000 bytes, but has 8"),
    "a product that overflows": ({"a": entry(shape=[2**32, 2**32])}, DATA, "bytes, but has 8"),
    "too few bytes": ({"a": entry(shape=[3])}, DATA, "is 12 bytes, but has 8"),
    "an overlap": ({"a": entry(), "b": entry("F32", [1], [4, 8])}, DATA, "'b' begins at byte 4.*overlaps"),
    "two on one place": ({"a": entry(), "b": entry()}, DATA, "expected 8: it overlaps"),
    "a gap": ({"a": entry("F32", [1], [4, 8])}, DATA, "'a' begins at byte 4.*expected 0: it leaves a gap"),
    "bytes at the end": ({"a": entry()}, DATA + b"x", "its tensors have 8 bytes, but 9 are there"),
    "bytes missing": ({"a": entry()}, DATA[1:], "bytes 0 to 8 of the data, which has 7"),
    "data without tensors": ({}, DATA, "its tensors have 0 bytes, but 8 are there"),
}


@pytest.mark.parametrize(("header", "data", "message"), UNSOUND.values(), ids=UNSOUND)
def test_an_unsound_header_is_refused(header, data, message, tmp_path):
    path = file_of(tmp_path / "a.safetensors", header, data)
    with pytest.raises(ConfigError, match=message) as error:
        open_tensors(path)
    assert str(error.value).startswith(f"{path} is not a sound safetensors file: ")
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has 0 bytes, expected at least the 8"),
        (b"1234567", "it has 7 bytes"),
        ((10**12).to_bytes(8, "little") + b"{}", "said to have 1000000000000 bytes, but the file has 10"),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", "but the file has 10 in all"),
        ((3).to_bytes(8, "little") + b"{}", "said to have 3 bytes"),
        (b"PK\x03\x04" + bytes(40), "It is a zip archive, as PyTorch's pickles are"),
        (b"\x80\x02}q\x00" + bytes(40), "It is a pickle, which may execute code"),
        (b"version https://git-lfs.github.com/spec/v1\noid ...", "run `git lfs pull`"),
    ],
)
def test_what_is_no_safetensors_file_is_refused(content, message, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        open_tensors(tmp_path / "a.safetensors")


def test_a_header_of_many_megabytes_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(safetensors_file, "LONGEST_HEADER", 100)
    path = file_of(tmp_path / "a.safetensors", b"{" + b" " * 100 + b"}")
    with pytest.raises(ConfigError, match="no more than 100 are read"):
        open_tensors(path)


def test_a_file_that_cannot_be_opened_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        open_tensors(tmp_path / "a.safetensors")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        open_tensors(tmp_path)


def test_a_failure_leaves_what_was_there(tmp_path):
    path = written(tmp_path / "a.safetensors", {"w": numbers("float32", 2)})
    before = path.read_bytes()

    def fails(name: str) -> np.ndarray:
        raise RuntimeError(name)

    with pytest.raises(RuntimeError):
        write_tensors(path, {"w": (np.dtype("float32"), (2,))}, fails)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]

import contextlib
import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike
from PIL import Image

from keras_tx.errors import ImageError
from keras_tx.processing import ImageTransform, image_file

COLOUR = ImageTransform((2, 3))
GREY = ImageTransform((2, 3), channels=1)
RGB = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[10, 20, 30], [255, 255, 255], [0, 0, 0]]], "uint8")
L = np.array([[0, 1, 127], [128, 254, 255]], "uint8")
LUMA = np.asarray(Image.fromarray(RGB).convert("L"))


def encoded(image: Image.Image, file_format: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def tiff(samples: bytes, bits: int, photometric: int) -> bytes:
    """A grey TIFF of 3 x 2, of the kinds that Pillow reads but does not write."""
    tags = [(256, 3), (257, 2), (258, bits), (259, 1), (262, photometric), (273, 134), (277, 1), (278, 2)]
    tags += [(279, len(samples))]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    header = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + entries + bytes(4)
    return header.ljust(134, b"\0") + samples


def assert_colour(source, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(COLOUR.resize(source)[0], expected)


def assert_grey(source, expected: ArrayLike) -> None:
    np.testing.assert_array_equal(GREY.resize(source)[0, :, :, 0], expected)


def test_grey_is_repeated_and_colour_becomes_luma():
    file = encoded(Image.fromarray(L), "PNG")
    assert_colour(file, np.stack([L] * 3, -1))
    assert_grey(file, L)
    assert_grey(encoded(Image.fromarray(RGB), "PNG"), LUMA)


def test_alpha_is_dropped_not_blended():
    alpha = np.array([[0, 128, 255], [0, 0, 0]], "uint8")
    rgba = Image.fromarray(np.dstack([RGB, alpha]))
    assert_colour(encoded(rgba, "PNG"), RGB)
    assert_colour(rgba, RGB)
    assert_grey(encoded(rgba, "PNG"), LUMA)
    la = Image.merge("LA", [Image.fromarray(L), Image.fromarray(alpha)])
    assert_colour(encoded(la, "PNG"), np.stack([L] * 3, -1))
    assert_grey(encoded(la, "PNG"), L)


@pytest.mark.parametrize("transparency", [None, 1, bytes([0, 128, 255])])
def test_palettes(transparency: int | bytes | None):
    image = Image.new("P", (3, 2))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    image.putdata([0, 1, 2, 2, 1, 0])
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], "uint8")
    expected = colours[[[0, 1, 2], [2, 1, 0]]]
    options = {} if transparency is None else {"transparency": transparency}
    assert_colour(encoded(image, "PNG", **options), expected)
    assert_grey(encoded(image, "PNG", **options), np.asarray(Image.fromarray(expected).convert("L")))


def test_cmyk():
    image = Image.fromarray(RGB).convert("CMYK")
    assert_colour(encoded(image, "TIFF"), RGB)
    assert_grey(encoded(image, "TIFF"), LUMA)
    big = Image.new("CMYK", (3, 2), (0, 255, 255, 0))
    np.testing.assert_allclose(COLOUR.resize(encoded(big, "JPEG"))[0, 0, 0], [255, 0, 0], atol=3)


def test_one_bit():
    bits = Image.fromarray(np.where(L > 127, 255, 0).astype("uint8")).convert("1")
    expected = np.where(L > 127, 255, 0)
    assert_grey(encoded(bits, "PNG"), expected)
    assert_colour(bits, np.stack([expected] * 3, -1))


def test_16_bit_grey_is_scaled_not_clipped():
    deep = np.array([[0, 257, 1000], [32768, 65000, 65535]], "uint16")
    expected = np.rint(deep / 257).astype("uint8")
    for file_format in ("PNG", "TIFF", "PPM"):
        assert_grey(encoded(Image.fromarray(deep), file_format), expected)
    assert_colour(Image.fromarray(deep), np.stack([expected] * 3, -1))
    big_endian = Image.frombytes("I;16B", (3, 2), deep.astype(">u2").tobytes())
    assert_grey(encoded(big_endian, "TIFF"), expected)


def test_12_bit_and_white_is_zero_tiff():
    assert_grey(
        tiff(bytes.fromhex("000fff8000 800fff0000"), 12, 1),
        [[0, 255, 128], [128, 255, 0]],
    )
    samples = np.array([[0, 65535, 257], [0, 0, 0]], "<u2").tobytes()
    assert_grey(tiff(samples, 16, 0), [[255, 0, 254], [255, 255, 255]])


@pytest.mark.parametrize("mode", ["I", "F"])
def test_32_bit_samples_raise(mode: str):
    with pytest.raises(ImageError, match=f"32-bit .*'{mode}'.*NumPy"):
        GREY(encoded(Image.new(mode, (3, 2)), "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation(orientation: int, tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    # what the camera stores so that turning it by its tag gives RGB again
    undo = [None, None, 0, 3, 1, 5, 2, 6, 4][orientation]
    stored = Image.fromarray(RGB) if undo is None else Image.fromarray(RGB).transpose(Image.Transpose(undo))
    file = tmp_path / "turned.png"
    stored.save(file, exif=exif)
    assert_colour(file, RGB)
    with Image.open(file) as image:
        assert_colour(image, RGB)


def test_rotated_16_bit_file():
    deep = np.array([[0, 25700], [65535, 257], [514, 771]], "uint16")
    exif = Image.Exif()
    exif[0x0112] = 6
    file = encoded(Image.fromarray(deep), "PNG", exif=exif)
    assert_grey(file, np.rint(np.rot90(deep, -1) / 257))


def test_animation_uses_the_first_frame():
    frames = [Image.fromarray(L), Image.fromarray(255 - L)]
    assert_grey(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), L)


def test_input_image_is_not_changed():
    image = Image.fromarray(RGB).convert("RGBA")
    COLOUR(image)
    assert image.mode == "RGBA"
    assert image.size == (3, 2)


def png_of(width: int, height: int) -> bytes:
    """A header that declares the size, without pixels."""

    def chunk(body: bytes) -> bytes:
        return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))

    header = chunk(b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT")


@pytest.mark.parametrize("side", [9_500, 100_000])
def test_decompression_bomb_raises_before_decoding(side: int, tmp_path: Path):
    file = tmp_path / "bomb.png"
    file.write_bytes(png_of(side, side))
    with pytest.raises(ImageError, match=r"bomb\.png' .*reduce\(4\)"):
        COLOUR(file)


def test_pixel_limit_without_the_limit_of_pillow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(ImageError, match="9500 x 9500.*89478485"):
        COLOUR(png_of(9_500, 9_500))
    with pytest.raises(ImageError, match=r"^images\[1\] .*9500 x 9500"):
        COLOUR([RGB, Image.open(io.BytesIO(png_of(9_500, 9_500)))])
    monkeypatch.setattr(image_file, "MAX_PIXELS", 5)
    with pytest.raises(ImageError, match="3 x 2 .*5"):
        COLOUR(Image.fromarray(RGB))


def test_truncated_file_raises(tmp_path: Path):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), "uint8"))
    for file_format in ("JPEG", "PNG", "BMP", "TIFF", "WEBP"):
        content = encoded(noise, file_format)
        file = tmp_path / f"cut.{file_format.lower()}"
        for part in (8, len(content) // 2):
            file.write_bytes(content[:part])
            with pytest.raises(ImageError, match=rf"cut\.{file_format.lower()}' is"):
                COLOUR(file)


def test_damaged_bytes_raise_image_error_only():
    rng = np.random.default_rng(1)
    image = Image.fromarray(rng.integers(0, 256, (16, 16, 3), "uint8"))
    for file_format in ("JPEG", "PNG", "GIF", "TIFF", "WEBP", "PPM"):
        content = np.frombuffer(encoded(image, file_format), "uint8")
        for _ in range(40):
            damaged = content.copy()
            damaged[rng.integers(0, len(damaged), 4)] = rng.integers(0, 256, 4)
            with contextlib.suppress(ImageError):
                assert COLOUR.resize(damaged.tobytes()).shape == (1, 2, 3, 3)


def test_invalid_files_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "page.jpg").write_text("<!DOCTYPE html>")
    (tmp_path / "picture.eps").write_bytes(encoded(Image.fromarray(RGB), "EPS"))
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "notes.txt").touch()
    cases = {
        "missing.jpg": r"'missing\.jpg'",
        "text": r"'text' .*directory",
        "empty.jpg": r"'empty\.jpg' .*0 bytes",
        "page.jpg": r"'page\.jpg' .*b'<!DOCTYPE ht'.*JPEG",
        "picture.eps": r"'picture\.eps' is EPS.*JPEG",
        "pipe.jpg": r"'pipe\.jpg' .*regular file",
        "x" * 5000: "File name too long",
    }
    for name, message in cases.items():
        with pytest.raises(ImageError, match=message):
            COLOUR(name)
    with pytest.raises(ImageError, match=r"images\[1\] 'missing\.jpg'"):
        COLOUR([RGB, Path("missing.jpg")])
    with pytest.raises(ImageError, match=r"images\[0\] 'text' .*directory"):
        COLOUR(["text"])
    for empty in (b"", io.BytesIO()):
        with pytest.raises(ImageError, match="0 bytes"):
            COLOUR(empty)
    with pytest.raises(ImageError, match="text.*'rb'"):
        COLOUR(io.StringIO("x"))
    closed = io.BytesIO(b"x")
    closed.close()
    with pytest.raises(ImageError, match=r"images\[0\] .*closed file"):
        COLOUR([closed])
    with pytest.raises(ImageError, match="0 x 4"):
        COLOUR(Image.new("RGB", (0, 4)))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission_raises(tmp_path: Path):
    file = tmp_path / "secret.png"
    file.write_bytes(encoded(Image.fromarray(RGB), "PNG"))
    file.chmod(0)
    with pytest.raises(ImageError, match=r"secret\.png' .*Permission denied"):
        COLOUR(file)


def test_sources_of_images(tmp_path: Path):
    one, other = encoded(Image.fromarray(RGB), "PNG"), encoded(Image.fromarray(RGB[::-1]), "PNG")
    (tmp_path / "b.PNG").write_bytes(other)
    (tmp_path / "a.png").write_bytes(one)
    (tmp_path / "notes.txt").touch()
    expected = COLOUR([one, other])
    written = io.BytesIO()
    written.write(one)  # its place is now at the end
    for source in (bytearray(one), memoryview(one), io.BytesIO(one), written):
        np.testing.assert_array_equal(COLOUR(source), expected[:1])
    with (tmp_path / "a.png").open("rb") as file:
        np.testing.assert_array_equal(COLOUR(file), expected[:1])
    paths = [tmp_path / "a.png", tmp_path / "b.PNG"]
    for several in (
        tmp_path,
        str(tmp_path),
        (path for path in paths),
        map(str, paths),
        [*map(io.BytesIO, (one, other))],
    ):
        np.testing.assert_array_equal(COLOUR(several), expected)
    np.testing.assert_array_equal(COLOUR(tmp_path.glob("*.png")), expected[:1])
    assert [len(batch) for batch in COLOUR.batches(iter([RGB] * 5), 2)] == [2, 2, 1]
    assert COLOUR(iter([])).shape == (0, *expected.shape[1:])

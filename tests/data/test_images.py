"""Batches of image files: the pixels of serving, order, crops, broken files, layouts and tables."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

import keras_tx as tx
from keras_tx.data import image_reader
from keras_tx.data.augmentation import deit_augmentation
from keras_tx.data.image_crop import draw_crop
from keras_tx.data.image_list import list_folder
from keras_tx.errors import ConfigError, ImageError, TextError

CLASSES = ("daisy", "rose", "tulip")
SIZE = (20, 24)
TRANSFORM = tx.ImageTransform(SIZE, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))


def drawn(seed: int, height: int = 60, width: int = 80) -> Image.Image:
    """Smooth colors with an edge, unlike any other seed."""
    random = np.random.default_rng(seed)
    small = Image.fromarray(random.integers(0, 256, (5, 6, 3), "uint8"))
    image = small.resize((width, height), Image.Resampling.BICUBIC)
    image.paste(tuple(random.integers(0, 256, 3).tolist()), (3, 4, width // 2, height // 3))
    return image


def photos(folder: Path, count: int = 6, classes: tuple[str, ...] = CLASSES, **options: Any) -> Path:
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            drawn(100 * number + index).save(folder / name / f"{index:03}.jpg", **options)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return photos(tmp_path / "photos")


def every(batches: Any) -> list[Any]:
    return [batches[index] for index in range(len(batches))]


def equal(first: Any, second: Any) -> bool:
    one, two = keras.tree.flatten(first), keras.tree.flatten(second)
    return len(one) == len(two) and all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_pixels_equal_those_of_the_transform_that_serves(folder):
    odd = {
        "exif.jpg": lambda path: drawn(1).save(path, exif=sideways()),
        "gray.png": lambda path: drawn(2).convert("L").save(path),
        "cmyk.jpg": lambda path: drawn(3).convert("CMYK").save(path),
        "palette.png": lambda path: drawn(4).convert("P").save(path),
        "alpha.png": lambda path: drawn(5).convert("RGBA").save(path),
        "deep.png": lambda path: Image.fromarray(np.arange(4800, dtype="uint16").reshape(60, 80) * 13).save(
            path
        ),
        "moving.gif": lambda path: drawn(6).save(path, save_all=True, append_images=[drawn(7)]),
        "exact.png": lambda path: drawn(8, *SIZE).save(path),
    }
    for name, write in odd.items():
        write(folder / "rose" / name)
    batches = tx.image_folder(folder, TRANSFORM, batch_size=5, shuffle=False)
    x = np.concatenate([batch[0] for batch in every(batches)])
    y = np.concatenate([batch[1] for batch in every(batches)])
    paths = sorted(folder.glob("*/*"))
    np.testing.assert_array_equal(x, TRANSFORM(paths))
    assert x.dtype == np.float32
    assert [batches.labels[number] for number in y] == [path.parent.name for path in paths]


def sideways() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def test_an_epoch_is_a_seeded_permutation(folder):
    one, same = (tx.image_folder(folder, TRANSFORM, batch_size=4, seed=3) for _ in range(2))
    other = tx.image_folder(folder, TRANSFORM, batch_size=4, seed=4)
    assert equal(every(one), every(same))
    assert not equal(every(one), every(other))
    first = every(one)
    one.on_epoch_end()
    assert not equal(first, every(one))
    y = np.concatenate([batch[1] for batch in every(one)])
    assert sorted(y) == sorted([0, 1, 2] * 6)


def test_crops_and_augmentation_do_not_depend_on_the_number_of_threads(folder):
    def noisy(x, y, random):
        return np.clip(x + random.normal(0, 9, x.shape), 0, 255), y

    options: dict[str, Any] = {"batch_size": 4, "crop": (0.1, 1.0), "augment": noisy}
    one, four = (tx.image_folder(folder, TRANSFORM, workers=count, **options) for count in (1, 4))
    four.seek(2)
    for _ in range(2):
        one.on_epoch_end()
    assert equal(every(one), [four[index] for index in reversed(range(len(four)))][::-1])
    plain = tx.image_folder(folder, TRANSFORM, **options | {"augment": None})
    assert not equal(every(one), every(plain))


def test_crops_have_the_areas_and_ratios_of_the_paper():
    random = np.random.default_rng(0)
    size, target = (640, 400), (224, 224)
    boxes = np.array([draw_crop(size, target, (0.08, 1.0), random) for _ in range(4000)])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert boxes.min() == 0
    assert boxes[:, 2].max() == 640
    assert boxes[:, 3].max() == 400
    area, ratio = width * height / (640 * 400), width / height
    assert 0.079 < area.min() < 0.1
    assert 0.74 < ratio.min() < 0.76
    assert 1.32 < ratio.max() < 1.345
    small = area < 0.4  # these fit whatever their ratio is
    assert abs(area[small].mean() - 0.24) < 0.01
    assert abs(np.log(ratio[small]).mean()) < 0.02
    assert len(np.unique(boxes[:, 0])) > 300


@pytest.mark.parametrize("size", [(10, 1000), (1000, 10), (1, 1)])
def test_crops_of_long_images_are_inside(size):
    random = np.random.default_rng(0)
    for _ in range(50):
        left, upper, right, lower = draw_crop(size, (224, 224), (0.9, 1.0), random)
        assert 0 <= left < right <= size[0]
        assert 0 <= upper < lower <= size[1]


def test_a_crop_is_the_part_of_the_image_in_its_box(folder):
    """The crop of the whole image is the image; a crop of one half has the colors of that half."""
    halves = np.zeros((60, 80, 3), "uint8")
    halves[:, 40:] = 200
    path = folder / "halves.png"
    Image.fromarray(halves).save(path)
    batches = tx.image_batches([path] * 200, [0, 1] * 100, TRANSFORM, batch_size=200, crop=(0.1, 0.3))
    pixels = batches[0][0] * np.array(TRANSFORM.std) + np.array(TRANSFORM.mean)
    shares = (pixels > 0.5).mean(axis=(1, 2, 3))
    assert (shares < 0.05).any()
    assert (shares > 0.7 * 0.95).any()  # 200 / 255 is above 0.5 everywhere
    assert len(np.unique(shares)) > 5


def test_reduced_decoding_is_close_and_smaller_files_are_exact(tmp_path):
    for index in range(4):
        path = tmp_path / "large" / "a" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn(index, 8 * SIZE[0], 8 * SIZE[1]).save(
            path, exif=sideways() if index else Image.Exif(), quality=90
        )
    options: dict[str, Any] = {"shuffle": False, "batch_size": 4}
    transform = tx.ImageTransform(SIZE, mean=0, std=1, rescale=1)
    exact, reduced = (
        tx.image_folder(tmp_path / "large", transform, reduced_decoding=flag, **options)[0][0]
        for flag in (False, True)
    )
    difference = np.abs(exact - reduced)
    assert 0 < difference.mean() < 0.7
    assert np.quantile(difference, 0.99) <= 4
    small = photos(tmp_path / "small")
    exact, reduced = (
        tx.image_folder(small, transform, reduced_decoding=flag, **options)[0][0] for flag in (False, True)
    )
    np.testing.assert_array_equal(exact, reduced)


def test_reduced_crops_are_those_of_the_whole_file(tmp_path):
    path = tmp_path / "large.jpg"
    drawn(3, 16 * SIZE[0], 12 * SIZE[1]).save(path, quality=95)
    transform = tx.ImageTransform(SIZE, mean=0, std=1, rescale=1)
    exact, reduced = (
        tx.image_batches(
            [path] * 8, [0, 1] * 4, transform, crop=(0.3, 1.0), reduced_decoding=flag, shuffle=False
        )[0][0]
        for flag in (False, True)
    )
    assert 0 < np.abs(exact - reduced).mean() < 1 < np.abs(exact - exact[::-1]).mean()


def test_validation_split_is_stratified_and_nearly_stable(tmp_path):
    folder = photos(tmp_path / "photos", count=50, classes=("a", "b"))
    train, held_out = tx.image_folder(folder, TRANSFORM, validation_split=0.2)
    assert np.bincount(held_out.images.targets).tolist() == [10, 10]
    assert np.bincount(train.images.targets).tolist() == [40, 40]
    assert not set(train.images.names) & set(held_out.images.names)
    assert equal(every(held_out), every(tx.image_folder(folder, TRANSFORM, validation_split=0.2)[1]))
    other = tx.image_folder(folder, TRANSFORM, validation_split=0.2, seed=1)[1]
    assert set(other.images.names) != set(held_out.images.names)
    for index in range(50, 60):
        drawn(index).save(folder / "a" / f"{index}.jpg")
    moved = folder.rename(tmp_path / "elsewhere")
    larger = tx.image_folder(moved, TRANSFORM, validation_split=0.2)[1]
    assert len(set(held_out.images.names) - set(larger.images.names)) <= 2


def test_a_path_that_is_listed_twice_is_in_one_part(folder):
    paths = sorted(folder.glob("*/*.jpg"))
    labels = [path.parent.name for path in paths]
    train, held_out = tx.image_batches(paths * 2, labels * 2, TRANSFORM, validation_split=0.25)
    assert (len(train.images), len(held_out.images)) == (24, 12)
    assert not set(train.images.names) & set(held_out.images.names)


def test_validation_images_are_exact_whatever_the_training_options(folder):
    _, plain = tx.image_folder(folder, TRANSFORM, validation_split=0.5)
    _, held_out = tx.image_folder(
        folder,
        TRANSFORM,
        validation_split=0.5,
        crop=(0.1, 0.5),
        augment=lambda x, y: (255 - x, y),
        reduced_decoding=True,
        cache=True,
    )
    assert equal(every(plain), every(held_out))


def test_labels_reach_the_model_and_the_exported_folder(folder, tmp_path):
    train, validation = tx.image_folder(folder, tx.ImageTransform(8), validation_split=0.3)
    assert train.labels == validation.labels == CLASSES
    model = tx.vit("Mu/2", image_size=8, num_classes=3)
    model.compile()
    model.fit(train, validation_data=validation, verbose=0)
    assert model.head.labels == CLASSES
    tx.export_onnx(model, tmp_path / "flowers")
    config = json.loads((tmp_path / "flowers" / "config.json").read_text())
    assert config["id2label"] == {"0": "daisy", "1": "rose", "2": "tulip"}


def test_other_labels_than_those_of_the_model_are_refused(folder):
    batches = tx.image_folder(folder, tx.ImageTransform(8))
    model = tx.vit("Mu/2", image_size=8, num_classes=4)
    model.compile()
    with pytest.raises(ConfigError, match="3 classes.*has 4"):
        model.fit(batches)
    head = tx.ClassifierHead(3, labels=("rose", "daisy", "tulip"))
    model = tx.vit("Mu/2", image_size=8, head=head)
    model.compile()
    for call in (model.fit, model.evaluate):
        with pytest.raises(ConfigError, match="'daisy', 'rose', 'tulip'.*'rose', 'daisy', 'tulip'"):
            call(batches)
    model.fit(tx.image_folder(folder, tx.ImageTransform(8), labels=head.labels), verbose=0)
    assert model.head is head


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX does not run eagerly")
def test_fit_reads_each_epoch_in_its_seeded_order(folder):
    batches = tx.image_folder(folder, tx.ImageTransform(8), batch_size=4, crop=(0.2, 1.0))
    expected = []
    for epoch in range(4):
        batches.seek(epoch)
        expected.append(np.concatenate([x.mean(axis=(1, 2, 3)) for x, _ in every(batches)]))
    batches.seek(0)
    means = Means()
    model = keras.Sequential([means, keras.layers.Flatten(), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, run_eagerly=True, jit_compile=False)
    model.fit(batches, epochs=3, shuffle=False, verbose=0)
    got = np.concatenate(means.seen)[-3 * 18 :]
    # Keras counts the batch with which it builds a model as an epoch.
    assert any(np.allclose(got, np.concatenate(expected[start : start + 3]), atol=1e-6) for start in (0, 1))


class Means(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seen: list[np.ndarray] = []

    def call(self, x):
        if not isinstance(x, keras.KerasTensor):
            self.seen.append(keras.ops.convert_to_numpy(keras.ops.mean(x, axis=(1, 2, 3))))
        return x


def test_fit_of_a_model_does_not_shuffle_batches_again(folder, monkeypatch):
    requested: list[int] = []
    batches = tx.image_folder(folder, tx.ImageTransform(8), batch_size=1)
    original = tx.data.ImageBatches.__getitem__
    monkeypatch.setattr(
        tx.data.ImageBatches, "__getitem__", lambda self, i: requested.append(i) or original(self, i)
    )
    model = tx.vit("Mu/2", image_size=8, num_classes=3)
    model.compile()
    model.fit(batches, verbose=0)
    assert requested[-18:] == list(range(18))


def test_batches_in_another_order_are_the_same(folder):
    batches = tx.image_folder(folder, TRANSFORM, batch_size=2, crop=(0.2, 1.0))
    expected = every(batches)
    order = [4, 5, 6, 0, 1, 8, 7, 2, 3]
    assert equal([expected[i] for i in order], [batches[i] for i in order])
    batches.seek(1)
    assert not equal(expected[1], batches[1])
    batches.seek(0, 2)
    assert equal(expected[2:], every(batches))


def test_training_resumes_exactly(folder, tmp_path):
    def build() -> Any:
        keras.utils.set_random_seed(0)
        model = tx.vit("Mu/2", image_size=8, num_classes=3)
        model.compile("sgd")
        batches = tx.image_folder(
            folder, model.processing, batch_size=4, crop=(0.2, 1.0), augment=flipped, cache=tmp_path / "c"
        )
        return model, batches

    def flipped(x, y, random):
        return np.where(random.random((len(x), 1, 1, 1)) < 0.5, x[:, :, ::-1], x), y

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                self.model.stop_training = True

    model, batches = build()
    tx.fit_resumable(model, batches, tmp_path / "whole.state", epochs=2, verbose=0)
    stopped, batches = build()
    path = tmp_path / "stopped.state"
    tx.fit_resumable(stopped, batches, path, epochs=2, every=1, callbacks=[Stop()], verbose=0)
    resumed, batches = build()
    tx.fit_resumable(resumed, batches, path, epochs=2, every=1, verbose=0)
    assert equal(model.get_weights(), resumed.get_weights())
    assert not equal(model.get_weights(), stopped.get_weights())
    with pytest.raises(ConfigError, match="crop"):
        other = tx.image_folder(folder, model.processing, batch_size=4)
        tx.fit_resumable(resumed, other, path, epochs=2, verbose=0)


def test_tf_data_has_the_same_batches(folder):
    batches = tx.image_folder(folder, TRANSFORM, batch_size=5)
    data = batches.tf_data()
    assert equal(every(batches), [(x.numpy(), y.numpy()) for x, y in data])
    assert data.element_spec[0].shape.as_list() == [None, *SIZE, 3]


def test_mixed_labels_of_an_augmentation_train_a_classifier(folder):
    def one_hot(x, y):
        return x.astype("float32"), np.eye(3, dtype="float32")[y]

    model = tx.vit("Mu/2", image_size=8, num_classes=3)
    model.compile(loss="categorical_crossentropy")
    model.fit(tx.image_folder(folder, model.processing, augment=one_hot), verbose=0)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # of Keras's layers
def test_augmentation_with_layers_of_keras_is_seeded(folder):
    options: dict[str, Any] = {"batch_size": 9, "crop": (0.3, 1.0)}
    one, three = (
        tx.image_folder(folder, tx.ImageTransform(8), augment=deit_augmentation(3), workers=count, **options)
        for count in (1, 3)
    )
    batches = every(one)
    assert equal(batches, [three[1], three[0]][::-1])
    assert batches[0][1].shape == (9, 3)
    assert one.fingerprint() == three.fingerprint()
    model = tx.vit("Mu/2", image_size=8, num_classes=3)
    model.compile()
    model.fit(one, verbose=0)


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (lambda x, y: (x[:, :5], y), r"augment returned images \(4, 5, 24, 3\)"),
        (lambda x, y: (x * 2.0, y), r"0 to 5\d\d"),
        (lambda x, y: (x / np.float32("nan"), y), "nan to nan"),
    ],
)
def test_images_of_an_augmentation_are_checked(folder, result, problem):
    with pytest.raises(ConfigError, match=problem):
        tx.image_folder(folder, TRANSFORM, batch_size=4, augment=result)[0]


def test_broken_headers_are_named_before_training(folder):
    (folder / "rose" / "empty.jpg").write_bytes(b"")
    (folder / "tulip" / "text.png").write_bytes(b"no image at all")
    with pytest.raises(
        ImageError, match=r"2 of 20(?s:.*)empty.jpg' is empty(?s:.*)text.png' is not an image"
    ):
        tx.image_folder(folder, TRANSFORM)
    with pytest.warns(UserWarning, match="2 of 20 images are left out"):
        batches = tx.image_folder(folder, TRANSFORM, batch_size=4, skip_broken=True)
    assert [Path(path).name for path in batches.skipped] == ["empty.jpg", "text.png"]
    assert sum(len(y) for _, y in every(batches)) == 18


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_truncated_files_are_named_or_left_out(folder):
    truncate(folder / "rose" / "002.jpg")
    batches = tx.image_folder(folder, TRANSFORM, batch_size=6, shuffle=False)
    with pytest.raises(ImageError, match=r"002.jpg' is damaged or truncated.*skip_broken=True"):
        every(batches)
    batches = tx.image_folder(folder, TRANSFORM, batch_size=6, shuffle=False, skip_broken=True)
    with pytest.warns(UserWarning, match="002.jpg' is damaged"):
        sizes = [len(y) for _, y in every(batches)]
    assert sizes == [6, 5, 6]
    assert [Path(path).name for path in batches.skipped] == ["002.jpg"]
    assert [len(y) for _, y in every(batches)] == [6, 5, 6]  # without a second warning
    for index in range(6):
        (folder / "rose" / f"{index:03}.jpg").write_bytes(b"")
    with pytest.raises(ConfigError, match="class 'rose'"), pytest.warns(UserWarning, match="6 of 18"):
        tx.image_folder(folder, TRANSFORM, skip_broken=True)


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_a_cache_returns_the_same_batches(folder, tmp_path, where):
    cache = True if where == "memory" else tmp_path / "cache"
    plain = tx.image_folder(folder, TRANSFORM, batch_size=4)
    cached = tx.image_folder(folder, TRANSFORM, batch_size=4, cache=cache)
    for path in folder.glob("*/*"):
        os.rename(path, f"{path}.away")
    batches = every(cached)
    for path in folder.glob("*/*"):
        os.rename(path, str(path).removesuffix(".away"))
    assert equal(batches, every(plain))


def test_crops_of_a_cache_are_those_of_the_files(folder):
    """Of the same boxes, from a canvas of twice the size."""
    options: dict[str, Any] = {"crop": (0.5, 1.0), "batch_size": 18}
    plain = tx.image_folder(folder, TRANSFORM, **options)[0][0]
    cached = tx.image_folder(folder, TRANSFORM, cache=True, **options)[0][0]
    assert 0 < np.abs(plain - cached).mean() < 0.05 < np.abs(plain - plain[::-1]).mean() / 5


def test_a_stale_cache_is_written_again(folder, tmp_path, capsys):
    cache = tmp_path / "cache"
    tx.image_folder(folder, TRANSFORM, cache=cache)
    before = (cache / "pixels.npy").stat().st_mtime_ns
    tx.image_folder(folder, TRANSFORM, cache=cache)
    assert (cache / "pixels.npy").stat().st_mtime_ns == before
    assert "written again" not in capsys.readouterr().err
    drawn(77).save(folder / "rose" / "000.jpg")
    batches = tx.image_folder(folder, TRANSFORM, cache=cache, shuffle=False)
    assert "cache is written again: changed images" in capsys.readouterr().err
    assert equal(every(batches), every(tx.image_folder(folder, TRANSFORM, shuffle=False)))
    tx.image_folder(folder, tx.ImageTransform(8), cache=cache)
    assert "changed size" in capsys.readouterr().err


def test_a_cache_is_complete_or_absent(folder, tmp_path):
    truncate(folder / "rose" / "002.jpg")
    with pytest.raises(ImageError, match="1 of 18(?s:.*)002.jpg"):
        tx.image_folder(folder, TRANSFORM, cache=tmp_path / "cache")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]
    for _ in range(2):  # written, and read again
        with pytest.warns(UserWarning, match="1 of 18 images are left out"):
            batches = tx.image_folder(
                folder, TRANSFORM, cache=tmp_path / "cache", skip_broken=True, shuffle=False, batch_size=20
            )
        paths = [
            path for path in sorted(folder.glob("*/*")) if path.name != "002.jpg" or "rose" not in str(path)
        ]
        np.testing.assert_array_equal(batches[0][0], TRANSFORM(paths))


def test_caches_that_are_too_large_or_not_ours_are_refused(folder, tmp_path, monkeypatch):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("a")
    with pytest.raises(ConfigError, match="notes' exists, and is not a cache"):
        tx.image_folder(folder, TRANSFORM, cache=tmp_path / "notes")
    monkeypatch.setattr("keras_tx.data.image_cache.MEMORY_LIMIT", 1000)
    with pytest.raises(ConfigError, match="cache='memory' needs"):
        tx.image_folder(folder, TRANSFORM, cache=True)


def test_layouts_that_are_not_classes_are_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        tx.image_folder(tmp_path / "absent", TRANSFORM)
    with pytest.raises(ConfigError, match="has no subfolders"):
        tx.image_folder(_without_images(tmp_path / "flat"), TRANSFORM)
    with pytest.raises(ConfigError, match="outside of class folders"):
        tx.image_folder(folder / "rose", TRANSFORM)
    (tmp_path / "flat").rename(tmp_path / "photos" / "rose" / "flat")
    with pytest.raises(ConfigError, match="flat' is a folder in the class folder"):
        tx.image_folder(folder, TRANSFORM)
    shutil.rmtree(folder / "rose" / "flat")
    (folder / "weed").mkdir()
    (folder / "weed" / ".hidden.jpg").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"weed' has no images"):
        tx.image_folder(folder, TRANSFORM)


def _without_images(folder: Path) -> Path:
    folder.mkdir()
    (folder / "readme.txt").write_text("a")
    return folder


def test_hidden_files_are_ignored_and_others_are_named(folder):
    (folder / "rose" / ".DS_Store").write_bytes(b"a")
    (folder / ".git").mkdir()
    (folder / "labels.csv").write_text("a")
    assert len(list_folder(folder, None)) == 18
    (folder / "rose" / "photo.heic").write_bytes(b"a")
    with pytest.warns(UserWarning, match=r"1 files .* left out.*photo.heic"):
        assert len(list_folder(folder, None)) == 18


def test_labels_of_another_folder_keep_their_numbers(folder, tmp_path):
    test = photos(tmp_path / "test", classes=("tulip", "daisy"))
    batches = tx.image_folder(test, TRANSFORM, labels=CLASSES, shuffle=False)
    assert batches.labels == CLASSES
    assert np.concatenate([y for _, y in every(batches)]).tolist() == [0] * 6 + [2] * 6
    with pytest.raises(ConfigError, match="'tulip' is not one of"):
        tx.image_folder(test, TRANSFORM, labels=("daisy", "rose"))


def test_a_table_has_the_batches_of_the_folder(folder, tmp_path):
    paths = sorted(folder.glob("*/*"))
    table = tmp_path / "photos.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "note", "kind"])
        writer.writerows((path.relative_to(tmp_path), "a, b", path.parent.name) for path in paths)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": False}
    expected = every(tx.image_folder(folder, TRANSFORM, **options))
    assert equal(expected, every(tx.image_table(table, TRANSFORM, image="file", label="kind", **options)))
    names = [path.parent.name for path in paths]
    assert equal(expected, every(tx.image_batches(paths, names, TRANSFORM, **options)))
    numbers = np.array([CLASSES.index(name) for name in names])
    by_number = tx.image_batches(paths, numbers, TRANSFORM, classes=CLASSES, **options)
    assert equal(expected, every(by_number))
    assert by_number.labels == CLASSES
    with pytest.raises(TextError, match="no column 'kin'.*Did you mean 'kind'"):
        tx.image_table(table, TRANSFORM, image="file", label="kin")


@pytest.mark.parametrize(
    ("name", "lines", "options"),
    [
        ("a.tsv", ["image\tkind", "{}\t{}"], {}),
        ("a.csv", ["image;kind", "{};{}"], {"encoding": "utf-16"}),
        ("a.jsonl", ["", '{{"image": "{}", "kind": {}}}'], {}),
        ("b.csv", ["", "{},{}"], {"columns": ["image", "kind"]}),
    ],
)
def test_formats_of_tables_of_images_and_the_order_of_numbers(tmp_path, name, lines, options):
    """Numbers are classes in their numeric order, as in a table of texts."""
    rows = [lines[0]] if lines[0] else []
    for index, label in enumerate((10, 2, 2, 10)):
        drawn(index).save(tmp_path / f"é{index}.png")
        rows.append(lines[1].format(f"é{index}.png", label))
    (tmp_path / name).write_text("\n".join(rows) + "\n", encoding=options.get("encoding", "utf-8"))
    columns = {"image": "image", "label": "kind"}
    batches = tx.image_table(tmp_path / name, TRANSFORM, **columns, **options, shuffle=False)
    assert batches.labels == ("2", "10") and batches[0][1].tolist() == [1, 0, 0, 1]
    paths = [tmp_path / f"é{index}.png" for index in range(4)]
    assert equal(batches[0], tx.image_batches(paths, ["10", "2", "2", "10"], TRANSFORM, shuffle=False)[0])


def test_broken_rows_of_a_table_of_images_are_named_or_left_out(folder):
    rows = ["photos/rose/000.jpg,rose", ",rose", "photos/tulip/000.jpg,", "photos/tulip/001.jpg,tulip"]
    table = folder.parent / "photos.csv"
    table.write_text("\n".join(["file,kind", *rows]) + "\n")
    columns = {"image": "file", "label": "kind"}
    broken = "line 3, column 'file': the path is empty; line 4, column 'kind': the label is empty"
    with pytest.raises(TextError, match=f"photos.csv has 2 broken rows of 4: {broken}"):
        tx.image_table(table, TRANSFORM, **columns)
    with pytest.warns(UserWarning, match=f"2 broken rows of .*photos.csv are left out: {broken}"):
        batches = tx.image_table(table, TRANSFORM, **columns, skip_broken=True)
    assert len(batches.images) == 2


def test_several_labels_and_numbers_of_a_table_of_images(folder):
    table = folder.parent / "photos.csv"
    rows = ["000.jpg,a|b,0.5", "001.jpg,,1", "002.jpg,b,2"]
    table.write_text("\nphotos/rose/".join(["file,kinds,score", *rows]) + "\n")
    several = tx.image_table(table, TRANSFORM, image="file", label="kinds", separator="|", shuffle=False)
    assert several.labels == ("a", "b") and several[0][1].tolist() == [[1, 1], [0, 0], [0, 1]]
    numbers = tx.image_table(table, TRANSFORM, image="file", label="score", shuffle=False)
    assert numbers.labels is None and numbers[0][1].tolist() == [0.5, 1.0, 2.0]
    with pytest.raises(ConfigError, match="regression=True and separator="):
        tx.image_table(table, TRANSFORM, image="file", label="kinds", separator="|", regression=True)


def test_a_missing_file_of_a_table_is_named(tmp_path):
    drawn(0).save(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("image,label\na.png,x\nb.png,y\n")
    with pytest.raises(ImageError, match="b.png' does not exist"):
        tx.image_table(tmp_path / "t.csv", TRANSFORM, image="image", label="label")


@pytest.mark.parametrize("crop", [None, (0.3, 1.0)])
def test_arrays_are_like_files(folder, crop):
    paths = sorted(folder.glob("*/*"))
    pixels = np.stack([np.asarray(Image.open(path)) for path in paths])
    labels = [path.parent.name for path in paths]
    options: dict[str, Any] = {"batch_size": 4, "crop": crop}
    files, arrays = (tx.image_batches(x, labels, TRANSFORM, **options) for x in (paths, pixels))
    assert equal(every(files), every(arrays))


def test_gray_arrays_and_other_targets(tmp_path):
    transform = tx.ImageTransform(8, channels=1)
    digits = np.random.default_rng(0).integers(0, 256, (10, 8, 8), "uint8")
    targets = np.random.default_rng(1).random((10, 4)).astype("float32")
    for crop in (None, (0.5, 1.0)):
        x, y = tx.image_batches(digits, targets, transform, crop=crop, shuffle=False)[0]
        assert x.shape == (10, 8, 8, 1)
        np.testing.assert_array_equal(y, targets)
    train, held_out = tx.image_batches(digits, targets, transform, validation_split=0.3)
    assert (len(train.images), len(held_out.images)) == (7, 3)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"validation_split": 1.5}, "validation_split=1.5"),
        ({"crop": (0.5, 2)}, r"crop is \(0.5, 2\)"),
        ({"crop": 0.5}, "crop is 0.5"),
        ({"augment": "flip"}, "augment is 'flip'"),
        ({"workers": 0}, "workers is 0"),
        ({"cache": 3}, "cache is 3"),
        ({"seed": -1}, "seed is -1"),
        ({"skip_broken": 1}, "skip_broken is 1"),
        ({"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_options_out_of_range_are_refused(folder, options, problem):
    with pytest.raises(ConfigError, match=problem):
        tx.image_folder(folder, TRANSFORM, **options)


@pytest.mark.parametrize(
    ("images", "labels", "problem"),
    [
        ("photos", [0], "image_folder"),
        (["a.png"], [0, 1], "1 images but 2 labels"),
        ([], [], "no images"),
        ([3], [0], r"images\[0\] is int"),
        (np.zeros((2, 8, 8, 3)), [0, 1], "float64"),
        (["a.png"], [-1], r"labels\[0\] is -1"),
        (["a.png"], [None], "labels are object"),
    ],
)
def test_images_and_labels_that_do_not_fit_are_refused(images, labels, problem):
    with pytest.raises(ConfigError, match=problem):
        tx.image_batches(images, labels, TRANSFORM)


def test_another_processing_is_refused(folder):
    with pytest.raises(ConfigError, match="processing is a int"):
        tx.image_folder(folder, 224)


def test_only_the_next_batches_are_decoded(folder, monkeypatch):
    decoded: list[str] = []
    decode = image_reader.decode_image

    def counted(image, mode, name, **options):
        decoded.append(name)
        return decode(image, mode, name, **options)

    monkeypatch.setattr(image_reader, "decode_image", counted)
    batches = tx.image_folder(folder, TRANSFORM, batch_size=3, max_queue_size=2)
    assert not decoded
    batches[0]
    for future in batches._look_ahead.futures.values():
        future.result()
    assert len(decoded) == 9
    batches[5]  # out of order: nothing is prepared
    assert len(decoded) == 12


def test_progress_is_shown_for_many_images(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("keras_tx.data.image_reader.MANY", 5)
    monkeypatch.setattr("keras_tx.data.image_cache.SHOWN", 5)
    buffer = io.BytesIO()
    drawn(0).save(buffer, "png")
    for index in range(6):
        path = tmp_path / "photos" / f"c{index % 2}" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(buffer.getvalue())
    tx.image_folder(tmp_path / "photos", TRANSFORM)
    assert "6 of 6 images checked" in capsys.readouterr().err
    tx.image_folder(tmp_path / "photos", TRANSFORM, cache=True)
    assert "6 of 6 images cached" in capsys.readouterr().err

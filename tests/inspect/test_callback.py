"""InspectionCallback: files and events of TensorBoard, before training and at the ends of epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_tx as tx
from keras_tx.errors import ConfigError
from keras_tx.inspect import InspectionCallback, inspect
from keras_tx.inspect.callback import draw_rollout, write_summary
from keras_tx.inspect.figures import draw_token_scores, overlay_map
from tests.drawing import redraw
from tests.wordpiece import wordpiece


def images(count: int = 4) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), "uint8")


def small_vit(**options: object) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = redraw(tx.vit("Mu/2", image_size=8, num_classes=3, **options))
    model.compile(optimizer=keras.optimizers.SGD(0.1), run_eagerly=True)
    return model


def train(model: keras.Model, callback: InspectionCallback | None, epochs: int = 2, **options: int) -> None:
    callbacks = [] if callback is None else [callback]
    x, y = model.processing(images()), np.array([0, 1, 2, 0])
    model.fit(x, y, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks, **options)


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_figures_show_the_weights_of_their_epoch(tmp_path: Path):
    model, photograph = small_vit(), images(1)[0].repeat(5, 0).repeat(7, 1)
    names = ["layers", "rollout", "distance"]
    callback = InspectionCallback(photograph, names, tmp_path / "figures", every=2)
    grid = inspect(model).grid(photograph)

    def rollout() -> np.ndarray:
        (weights,) = inspect(model).rollout(photograph)
        return overlay_map(photograph, weights[0, grid.prefix :].reshape(grid.rows, grid.columns))

    before = rollout()
    train(model, callback, epochs=3)
    written = sorted(path.relative_to(tmp_path / "figures").as_posix() for path in tmp_path.rglob("*.png"))
    assert written == sorted(f"epoch_000{e}/{name}_0.png" for e in (0, 2) for name in names)
    np.testing.assert_array_equal(pixels(tmp_path / "figures/epoch_0000/rollout_0.png"), before)
    trained = pixels(tmp_path / "figures/epoch_0002/rollout_0.png")
    assert (trained != before).any()
    callback = InspectionCallback([photograph, images(1)[0]], ["rollout"], tmp_path / "figures")
    train(model, callback, epochs=4, initial_epoch=3)
    assert (tmp_path / "figures/epoch_0003/rollout_1.png").is_file()
    np.testing.assert_array_equal(pixels(tmp_path / "figures/epoch_0004/rollout_0.png"), rollout())


def test_training_is_not_changed(tmp_path: Path):
    with_figures = small_vit(dropout=0.5)  # seeds all generators
    train(with_figures, InspectionCallback(images(1)[0], folder=tmp_path), epochs=1)
    assert (tmp_path / "epoch_0001/heads_0.png").is_file()
    without = small_vit(dropout=0.5)
    train(without, None, epochs=1)
    for one, other in zip(with_figures.get_weights(), without.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def events(folder: Path) -> list[tuple[int, Any]]:
    """The step and the summary of each image."""
    records = [record for path in folder.iterdir() for record in tf.data.TFRecordDataset(str(path))]
    parsed = [tf.compat.v1.Event.FromString(record.numpy()) for record in records]
    return sorted((event.step, value) for event in parsed for value in event.summary.value)


def test_tensorboard_has_the_same_images(tmp_path: Path):
    callback = InspectionCallback(images(1)[0], ["rollout"], tmp_path / "files", tensorboard=tmp_path / "log")
    train(small_vit(), callback, epochs=1)
    written = events(tmp_path / "log")
    assert [(step, value.tag) for step, value in written] == [(0, "rollout/0"), (1, "rollout/0")]
    for step, value in written:
        path = tmp_path / f"files/epoch_000{step}/rollout_0.png"
        assert list(value.tensor.string_val) == [b"8", b"8", path.read_bytes()]
        assert value.metadata.plugin_data.plugin_name == "images"


def test_event_equals_that_of_tensorflow(tmp_path: Path):
    pytest.importorskip("tensorboard", reason="tf.summary.image needs TensorBoard: pip install tensorboard")
    png = tf.io.encode_png(images(1)[0])
    write_summary(tmp_path / "ours", "rollout/0", png.numpy(), 3)
    with tf.summary.create_file_writer(str(tmp_path / "theirs")).as_default():
        tf.summary.image("rollout/0", images(1), step=3)
    ((step, ours),), ((their_step, theirs),) = events(tmp_path / "ours"), events(tmp_path / "theirs")
    assert (step, ours.tag, ours.metadata) == (their_step, theirs.tag, theirs.metadata)
    assert ours.tensor.string_val[:2] == theirs.tensor.string_val[:2]
    np.testing.assert_array_equal(*(tf.io.decode_png(x.tensor.string_val[2]) for x in (ours, theirs)))


def test_texts_and_functions(tmp_path: Path):
    def norms(inspector, text):
        states = inspector.hidden_states(text)[-1][0]
        return draw_token_scores(inspector.tokens(text)[0], np.linalg.norm(states, axis=-1))

    options = {"depth": 1, "width": 8, "num_heads": 2, "mlp_dim": 8, "max_length": 16}
    model = tx.bert("tiny", head=tx.ClassifierHead(2), processing=tx.TextTransform.of(wordpiece()), **options)
    model.compile(run_eagerly=True)
    callback = InspectionCallback(["the cat sat", "a mat"], ["tokens", norms], tmp_path)
    model.fit(model.processing(["the cat", "a mat"]), np.array([0, 1]), verbose=0, callbacks=[callback])
    expected = {
        f"epoch_000{e}/{name}_{i}.png" for e in (0, 1) for name in ("tokens", "norms") for i in (0, 1)
    }
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")} == expected


def test_invalid_arguments_raise(tmp_path: Path):
    (tmp_path / "file").touch()
    for options, message in (
        ({"figures": ["head"]}, r"'head'.*'heads'"),
        ({"figures": "heads"}, "figures is 'heads'"),
        ({"figures": []}, r"figures is \[\]"),
        ({"figures": [3]}, "figures has 3"),
        ({"figures": ["heads", "heads"]}, "'heads' twice"),
        ({"figures": [lambda inspector, image: None]}, "<lambda>"),
        ({"every": 0}, "every is 0"),
        ({"folder": tmp_path / "file"}, r"folder is .*file"),
        ({"tensorboard": tmp_path / "file" / "log"}, r"tensorboard is .*log"),
    ):
        with pytest.raises(ConfigError, match=message):
            InspectionCallback(images(1)[0], **{"folder": tmp_path / "figures", **options})
    with pytest.raises(ConfigError, match="inputs is empty"):
        InspectionCallback([], folder=tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_figure_that_does_not_fit_raises_before_training(tmp_path: Path):
    model = small_vit()
    before = model.get_weights()
    with pytest.raises(ConfigError, match="'tokens'.*'heads', 'layers'"):
        train(model, InspectionCallback(images(1)[0], ["tokens"], tmp_path / "figures"))
    without_class_token = small_vit(pooling="average")
    with pytest.raises(ConfigError, match="class token"):
        train(without_class_token, InspectionCallback(images(1)[0], ["heads"], tmp_path / "figures"))
    draw_rollout(inspect(without_class_token), images(1)[0])
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not (tmp_path / "figures").exists()

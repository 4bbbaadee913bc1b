"""keras-tx export: a .keras file in, a folder out, and files that are none."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

import keras_tx
from keras_tx.runtime import load, open_folder
from keras_tx.weights.safetensors_file import write_tensors
from tests.drawing import as_numpy, redraw
from tests.naming import shown
from tests.tolerances import assert_close
from tests.wordpiece import VOCABULARY


def test_the_folder_and_its_report(tx, exports, tmp_path):
    folder = tmp_path / "out"
    ran = tx("export", exports / "flowers.keras", folder, "--labels", "daisy, rose ,tulip")
    assert (ran.code, ran.err) == (0, "")
    assert f"folder     {folder}" in ran.out
    assert "onnxruntime within" in ran.out
    with load(folder) as model:
        assert model.labels == ("daisy", "rose", "tulip")


def test_every_option(tx, exports, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("dé\n rose\ntulip\n\n", encoding="utf-8")
    folder = tmp_path / "out"
    options = ["--labels-file", names, "--raw-pixels", "--opset", 17, "--no-verify", "--overwrite"]
    for _ in range(2):
        ran = tx("export", exports / "flowers.keras", folder, *options)
        assert (ran.code, ran.err) == (0, "")
    manifest = open_folder(folder).manifest
    assert (manifest.labels, manifest.opset, manifest.parity) == (("dé", "rose", "tulip"), 17, None)
    assert manifest.inputs[0].name == "pixels"


def test_a_gpt_with_its_tokenizer(tx, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    from tests.runtime.counting_decoder import byte_tokenizer

    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    keras_tx.gpt("pico", vocabulary_size=byte_tokenizer().get_vocab_size()).save(tmp_path / "poet.keras")
    options = ["--tokenizer", tmp_path / "tokenizer.json"]
    ran = tx("export", tmp_path / "poet.keras", tmp_path / "poet", *options)
    assert (ran.code, ran.err) == (0, "")
    assert "in chunks" in ran.out
    ran = tx("generate", tmp_path / "poet", "ab", "--max-new-tokens", 5, "--json")
    assert len(json.loads(ran.out)["ids"]) == 5
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "poet" / "tokenizer.json"))
    (tmp_path / "tokenizer.json").write_text("{}")
    ran = tx("export", tmp_path / "poet.keras", tmp_path / "again", *options)
    assert "tokenizer.json is not a tokenizer that tokenizers can read" in ran.err
    ran = tx("export", tmp_path / "poet.keras", tmp_path / "again", "--tokenizer", tmp_path / "none.json")
    assert "none.json: No such file or directory" in ran.err


GOLDEN = Path(__file__).parents[1] / "golden"


def same_as_keras(folder: Path, model: Any) -> None:
    """The folder's graph against the model in Keras, on some ids."""
    with load(folder) as loaded:
        given = {
            spec.name: np.ones((2, 6), "int64") if "mask" in spec.name else np.arange(12).reshape(2, 6) % 2
            for spec in loaded.session.inputs
        }
        got = loaded.session.run(given)
    expected = keras.tree.flatten(as_numpy(model({x.name: given[x.name] for x in model.inputs})))
    for one, other in zip(got.values(), expected, strict=True):
        assert_close(one, other)


def test_a_hugging_face_folder(tx, tmp_path):
    checkpoint = GOLDEN / "bert" / "4-BertForSequenceClassification"
    ran = tx("export", checkpoint, tmp_path / "out")
    assert (ran.code, ran.err) == (0, "")
    same_as_keras(tmp_path / "out", keras_tx.from_checkpoint(checkpoint))


def test_a_preset_of_keras_hub(tx, tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    sizes = {"vocabulary_size": 30, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    keras_hub.models.BertBackbone(**sizes, max_sequence_length=16).save_to_preset(tmp_path / "preset")
    ran = tx("export", tmp_path / "preset", tmp_path / "out")
    assert (ran.code, ran.err) == (0, "")
    same_as_keras(tmp_path / "out", keras_tx.from_checkpoint(tmp_path / "preset"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("nowhere/at-all", "hf://nowhere/at-all"),
        ("hf://only-an-owner", "expected hf://owner/name"),
        ("no_such_preset", "neither a path nor a preset of keras-hub"),
        ("{tmp}/empty", "has no weights"),
        ("{tmp}/t5", "keras_hub.models.T5Backbone"),
    ],
)
def test_checkpoints_that_cannot_be_read(tx, tmp_path, source, expected):
    (tmp_path / "empty").mkdir()
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "config.json").write_text('{"model_type": "t5"}')
    write_tensors(tmp_path / "t5" / "model.safetensors", {}, {}.__getitem__)
    ran = tx("export", source.format(tmp=tmp_path), tmp_path / "out")
    assert (ran.code, ran.out) == (2, "")
    assert expected in ran.err
    assert not (tmp_path / "out").exists()


def test_an_existing_folder_is_not_touched(tx, exports, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    ran = tx("export", exports / "flowers.keras", folder)
    assert (
        ran.err
        == f"keras-tx: error: {folder} exists. Add --overwrite to replace it, or choose another name.\n"
    )
    ran = tx("export", exports / "flowers.keras", folder, "--overwrite")
    assert (ran.code, "is not an export" in ran.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (folder / "mine.txt").read_text() == "mine"


def write_zip(path, *names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "{}")


@pytest.mark.parametrize(
    ("name", "write", "expected"),
    [
        ("none.keras", None, "there is no such file"),
        ("folder.keras", lambda path: path.mkdir(), "is a directory, expected a .keras file"),
        ("model.h5", lambda path: path.write_bytes(b"\x89HDF"), "is not a .keras file. Load it in Python"),
        ("cut.keras", lambda path: path.write_bytes(b"PK\x03\x04cut"), "is not a whole .keras file"),
        ("other.keras", lambda path: write_zip(path, "a.txt"), "has no config.json in it"),
        ("odd.keras", lambda path: write_zip(path, "config.json", "model.weights.h5"), "cannot be loaded"),
    ],
)
def test_files_that_are_no_model(tx, tmp_path, name, write, expected):
    path = tmp_path / name
    if write:
        write(path)
    ran = tx("export", path, tmp_path / "out")
    assert (ran.code, ran.out) == (2, "")
    assert expected in ran.err
    assert ran.err.startswith(f"keras-tx: error: {path}")
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_code_in_a_file_is_refused(tx, tmp_path):
    inputs = keras.Input((2,))
    path = tmp_path / "lambda.keras"
    keras.Model(inputs, keras.layers.Lambda(lambda x: x + 1)(inputs)).save(path)
    ran = tx("export", path, tmp_path / "out")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "cannot be loaded" in ran.err
    assert "Lambda" in ran.err or "lambda" in ran.err


@pytest.mark.parametrize(
    ("labels", "expected"),
    [("a,b", "2 labels"), ("a,,c", "label 2 is empty"), ("a,a,b", "more than once")],
)
def test_wrong_labels(tx, exports, tmp_path, labels, expected):
    ran = tx("export", exports / "flowers.keras", tmp_path / "out", "--labels", labels)
    assert (ran.code, expected in ran.err) == (2, True), ran.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"\xff\xfe\x00", "is not UTF-8 text"), (b"\n\n", "names.txt: it has no labels")],
)
def test_wrong_label_files(tx, exports, tmp_path, content, expected):
    names = tmp_path / "names.txt"
    names.write_bytes(content)
    ran = tx("export", exports / "flowers.keras", tmp_path / "out", "--labels-file", names)
    assert (ran.code, expected in ran.err, ran.err.count("\n")) == (2, True, 1)


def test_a_missing_label_file(tx, exports, tmp_path):
    names = tmp_path / "names.txt"
    ran = tx("export", exports / "flowers.keras", tmp_path / "out", "--labels-file", names)
    assert ran.err.startswith(f"keras-tx: error: {names}: No such file or directory.")


def test_a_classifier_of_keras_applications_runs_on_a_file(tx, tmp_path):
    model = keras.applications.MobileNetV2(weights=None, classes=3, input_shape=(32, 32, 3), alpha=0.35)
    model.save(tmp_path / "m.keras")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 32, 3), "uint8")
    Image.fromarray(pixels).save(tmp_path / "a.png")
    done = tx("export", tmp_path / "m.keras", tmp_path / "out", "--labels", "daisy,rose,tulip")
    assert done.code == 0, done.err
    done = tx("run", tmp_path / "out", tmp_path / "a.png", "--json", "--top-k", "3")
    (line,) = done.out.splitlines()
    assert {found["label"] for found in json.loads(line)["predictions"]} == {"daisy", "rose", "tulip"}


def plain_classifier(path: Path, units: int = 3) -> Any:
    x = keras.Input((8, 8, 3))
    activation = "softmax" if units > 1 else "sigmoid"
    model = redraw(
        keras.Model(x, keras.layers.Dense(units, activation=activation)(keras.layers.Flatten()(x)))
    )
    model.save(path)
    return model


def scores_in_order(folder: Path, pixels: np.ndarray, labels: tuple[str, ...]) -> np.ndarray:
    with load(folder) as classify:
        answers = classify(pixels, top_k=len(labels))
    by_label = [{found["label"]: found["score"] for found in row} for row in answers]
    return np.array([[row[label] for label in labels] for row in by_label])


@pytest.mark.parametrize(
    ("image", "prepare"),
    [
        (["--image", "resnet"], keras.applications.resnet.preprocess_input),
        (["--image", "0..255"], lambda x: x),
        (["--image", "0..1"], lambda x: x / 255),
        (["--image=-1..1"], lambda x: x / 127.5 - 1),
        (["--image", "{tmp}/preprocessor_config.json"], lambda x: (x / 255 - 0.25) / 0.5),
    ],
    ids=shown,
)
def test_a_classifier_of_any_kind(tx, tmp_path, image, prepare):
    model = plain_classifier(tmp_path / "m.keras")
    transform = keras_tx.ImageTransform(8, mean=0.25, std=0.5)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(transform.to_preprocessor_config()))
    options = ["--task", "image-classification", *(option.format(tmp=tmp_path) for option in image)]
    ran = tx("export", tmp_path / "m.keras", tmp_path / "out", *options)
    assert (ran.code, ran.err) == (0, "")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), "uint8")
    expected = as_numpy(model(prepare(pixels.astype("float32"))))
    assert_close(scores_in_order(tmp_path / "out", pixels, ("LABEL_0", "LABEL_1", "LABEL_2")), expected)


def test_two_labels_of_one_sigmoid(tx, tmp_path):
    model = plain_classifier(tmp_path / "m.keras", units=1)
    options = ["--labels", "no,yes", "--image", "0..1"]
    assert tx("export", tmp_path / "m.keras", tmp_path / "out", *options).code == 0
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), "uint8")
    p = as_numpy(model(pixels / np.float32(255)))
    assert_close(scores_in_order(tmp_path / "out", pixels, ("no", "yes")), np.concatenate([1 - p, p], axis=1))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--image", "resnett"], "--image 'resnett': expected a module of keras.applications"),
        (["--image", "1..0"], "--image 1..0"),
        (["--image", "{tmp}/none.json"], "none.json: No such file or directory"),
        (["--image", "{tmp}/list.json"], "list.json is not a preprocessor_config.json"),
        (["--task", "image-classification"], "image=keras_tx.ImageTransform"),
        (["--task", "text-classification"], "Pass 'image-classification'"),
    ],
    ids=str,
)
def test_preprocessing_that_is_not_known(tx, tmp_path, options, expected):
    plain_classifier(tmp_path / "m.keras")
    (tmp_path / "list.json").write_text("[1]")
    ran = tx("export", tmp_path / "m.keras", tmp_path / "out", *(x.format(tmp=tmp_path) for x in options))
    assert (ran.code, ran.out, expected in ran.err, ran.err.count("\n")) == (2, "", True, 1), ran.err
    assert not (tmp_path / "out").exists()


def test_a_text_classifier_of_keras_hub(tx, tmp_path):
    models = pytest.importorskip("keras_hub").models
    sizes = {"vocabulary_size": 39, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    tokenizer = models.BertTokenizer(vocabulary=list(VOCABULARY), lowercase=True)
    model = redraw(
        models.BertTextClassifier(
            models.BertBackbone(**sizes, max_sequence_length=16),
            num_classes=2,
            preprocessor=models.BertTextClassifierPreprocessor(tokenizer, sequence_length=12),
            activation="softmax",
        )
    )
    model.save(tmp_path / "m.keras")
    ran = tx("export", tmp_path / "m.keras", tmp_path / "out", "--task", "text-classification")
    assert (ran.code, ran.err) == (0, "")
    ran = tx("run", tmp_path / "out", "The cat sat on the mat.", "--json")
    (line,) = ran.out.splitlines()
    scores = {found["label"]: found["score"] for found in json.loads(line)["predictions"]}
    expected = model.predict(["The cat sat on the mat."], verbose=0)
    assert_close(np.array([[scores["LABEL_0"], scores["LABEL_1"]]]), expected)

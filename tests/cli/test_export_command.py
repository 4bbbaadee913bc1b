"""keras-tx export: .keras files, checkpoints, options, and invalid files."""

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
from keras_tx.processing import train_unigram
from keras_tx.runtime import load, open_folder
from keras_tx.weights.safetensors_file import write_tensors
from keras_tx_onnx.tolerances import FLOAT32
from tests.drawing import as_numpy, redraw
from tests.naming import shown
from tests.tolerances import assert_close
from tests.wordpiece import VOCABULARY


def test_folder_and_report(tx, exports, tmp_path):
    folder = tmp_path / "out"
    ran = tx("export", exports / "flowers.keras", folder, "--labels", "daisy, rose ,tulip")
    assert (ran.code, ran.err) == (0, "")
    assert f"folder     {folder}" in ran.out
    assert "onnxruntime within" in ran.out
    with load(folder) as model:
        assert model.labels == ("daisy", "rose", "tulip")


def test_all_options(tx, exports, tmp_path):
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


def test_adapter(tx, tmp_path):
    model = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
    model.save(tmp_path / "base.keras")
    keras_tx.save_adapter(redraw(keras_tx.lora(model, 2), seed=3), tmp_path / "adapter")
    ran = tx("export", tmp_path / "base.keras", tmp_path / "out", "--adapter", tmp_path / "adapter")
    assert (ran.code, ran.err) == (0, "")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), "uint8")
    expected = as_numpy(keras.ops.softmax(model(model.processing(pixels[None]))))[0]
    with load(tmp_path / "out") as classifier:
        scores = {x["label"]: x["score"] for x in classifier(pixels, top_k=3)}
    assert_close(np.array([scores[label] for label in sorted(scores)]), expected)
    ran = tx("export", tmp_path / "base.keras", tmp_path / "none", "--adapter", tmp_path)
    assert ran.code == 2 and "adapter_config.json" in ran.err
    assert not (tmp_path / "none").exists()


def test_adapters_beside_the_base(tx, tmp_path):
    base = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
    base.save(tmp_path / "base.keras")
    copy = keras_tx.load_model(tmp_path / "base.keras")
    adapted = redraw(keras_tx.lora(copy, 2, targets="dense"), seed=3)
    keras_tx.save_adapter(adapted, tmp_path / "roses")
    ran = tx("export", tmp_path / "base.keras", tmp_path / "out", "--adapters", tmp_path / "roses")
    assert (ran.code, ran.err) == (0, "")
    assert "roses, within" in ran.out
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), "uint8")
    Image.fromarray(pixels).save(tmp_path / "rose.png")
    for model, options in ((base, []), (adapted, ["--adapter", "roses"])):
        expected = as_numpy(keras.ops.softmax(model(model.processing(pixels[None]))))[0]
        ran = tx("run", tmp_path / "out", tmp_path / "rose.png", "--json", "--top-k", 3, *options)
        assert (ran.code, ran.err) == (0, "")
        scores = {x["label"]: x["score"] for x in json.loads(ran.out)["predictions"]}
        assert_close(np.array([scores[label] for label in sorted(scores)]), expected, FLOAT32)
    ran = tx("run", tmp_path / "out", tmp_path / "rose.png", "--adapter", "tulips")
    assert ran.code == 2 and "'tulips'" in ran.err and "roses" in ran.err
    ran = tx("verify", tmp_path / "out")
    assert (ran.code, ran.err) == (0, "") and "adapter roses" in ran.out
    folders = ["--adapter", tmp_path / "roses", "--adapters", tmp_path / "roses"]
    ran = tx("export", tmp_path / "base.keras", tmp_path / "both", *folders)
    assert ran.code == 2 and "not allowed with" in ran.err


def test_translation(tx, tmp_path):
    words = train_unigram(["uno due tre", "one two three"] * 2, 30, sentinels=0)
    model = keras_tx.transformer("marian", depth=1, width=16, num_heads=2, mlp_dim=16, processing=words)
    keras_tx.save_checkpoint(model, tmp_path / "marian")
    ran = tx("export", tmp_path / "marian", tmp_path / "out", "--task", "translation", "--no-verify")
    assert (ran.code, ran.err) == (0, "")
    ran = tx("run", tmp_path / "out", "uno due", "--json")
    with load(tmp_path / "out") as translator:
        assert translator.translate("uno due") in ran.out
        assert open_folder(tmp_path / "out").manifest.task == "translation"


def test_gpt_with_tokenizer(tx, tmp_path):
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
    ran = tx("export", tmp_path / "poet.keras", tmp_path / "invalid", *options)
    assert f"--tokenizer {options[1]} is not a valid tokenizer.json" in ran.err
    ran = tx("export", tmp_path / "poet.keras", tmp_path / "invalid", "--tokenizer", tmp_path / "none.json")
    assert "none.json: No such file or directory" in ran.err


GOLDEN = Path(__file__).parents[1] / "golden"


def same_as_keras(folder: Path, model: Any) -> None:
    """Compares the exported graph with Keras on some ids."""
    with load(folder) as loaded:
        inputs = {
            spec.name: np.ones((2, 6), "int64") if "mask" in spec.name else np.arange(12).reshape(2, 6) % 2
            for spec in loaded.session.inputs
        }
        outputs = loaded.session.run(inputs)
    expected = keras.tree.flatten(as_numpy(model({x.name: inputs[x.name] for x in model.inputs})))
    for one, other in zip(outputs.values(), expected, strict=True):
        assert_close(one, other)


def test_hugging_face_folder(tx, tmp_path):
    checkpoint = GOLDEN / "bert" / "5-BertForSequenceClassification"
    ran = tx("export", checkpoint, tmp_path / "out")
    assert (ran.code, ran.err) == (0, "")
    same_as_keras(tmp_path / "out", keras_tx.from_checkpoint(checkpoint))


def test_keras_hub_preset(tx, tmp_path):
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
        ("{tmp}/whisper", "keras_hub.models.WhisperBackbone"),
    ],
)
def test_invalid_checkpoint_raises(tx, tmp_path, source, expected):
    (tmp_path / "empty").mkdir()
    (tmp_path / "whisper").mkdir()
    (tmp_path / "whisper" / "config.json").write_text('{"model_type": "whisper"}')
    write_tensors(tmp_path / "whisper" / "model.safetensors", {}, {}.__getitem__)
    ran = tx("export", source.format(tmp=tmp_path), tmp_path / "out")
    assert (ran.code, ran.out) == (2, "")
    assert expected in ran.err
    assert not (tmp_path / "out").exists()


def test_existing_folder_raises(tx, exports, tmp_path):
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
        ("none.keras", None, "none.keras does not exist"),
        ("folder.keras", lambda path: path.mkdir(), "folder.keras is a directory"),
        ("model.h5", lambda path: path.write_bytes(b"\x89HDF"), "model.save('model.keras')"),
        ("cut.keras", lambda path: path.write_bytes(b"PK\x03\x04cut"), "cut.keras is damaged"),
        ("other.keras", lambda path: write_zip(path, "a.txt"), "config.json"),
        ("odd.keras", lambda path: write_zip(path, "config.json", "model.weights.h5"), "odd.keras cannot"),
    ],
)
def test_invalid_model_file_raises(tx, tmp_path, name, write, expected):
    path = tmp_path / name
    if write:
        write(path)
    ran = tx("export", path, tmp_path / "out")
    assert (ran.code, ran.out) == (2, "")
    assert expected in ran.err
    assert ran.err.startswith(f"keras-tx: error: {path}")
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_file_with_code_raises(tx, tmp_path):
    inputs = keras.Input((2,))
    path = tmp_path / "lambda.keras"
    keras.Model(inputs, keras.layers.Lambda(lambda x: x + 1)(inputs)).save(path)
    ran = tx("export", path, tmp_path / "out")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "cannot be loaded" in ran.err
    assert "Lambda" in ran.err or "lambda" in ran.err


@pytest.mark.parametrize(
    ("labels", "expected"),
    [("a,b", "2 names"), ("a,,c", "label 2 is empty"), ("a,a,b", "more than once")],
)
def test_invalid_labels_raise(tx, exports, tmp_path, labels, expected):
    ran = tx("export", exports / "flowers.keras", tmp_path / "out", "--labels", labels)
    assert (ran.code, expected in ran.err) == (2, True), ran.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"\xff\xfe\x00", "is not UTF-8 text"), (b"\n\n", "names.txt: it has no labels")],
)
def test_invalid_label_file_raises(tx, exports, tmp_path, content, expected):
    names = tmp_path / "names.txt"
    names.write_bytes(content)
    ran = tx("export", exports / "flowers.keras", tmp_path / "out", "--labels-file", names)
    assert (ran.code, expected in ran.err, ran.err.count("\n")) == (2, True, 1)


def test_missing_label_file_raises(tx, exports, tmp_path):
    names = tmp_path / "names.txt"
    ran = tx("export", exports / "flowers.keras", tmp_path / "out", "--labels-file", names)
    assert ran.err.startswith(f"keras-tx: error: {names}: No such file or directory.")


def test_keras_applications_classifier_runs_on_a_file(tx, tmp_path):
    model = keras.applications.MobileNetV2(weights=None, classes=3, input_shape=(32, 32, 3), alpha=0.35)
    model.save(tmp_path / "m.keras")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 32, 3), "uint8")
    Image.fromarray(pixels).save(tmp_path / "a.png")
    done = tx("export", tmp_path / "m.keras", tmp_path / "out", "--labels", "daisy,rose,tulip")
    assert done.code == 0, done.err
    done = tx("run", tmp_path / "out", tmp_path / "a.png", "--json", "--top-k", "3")
    (line,) = done.out.splitlines()
    assert {prediction["label"] for prediction in json.loads(line)["predictions"]} == {
        "daisy",
        "rose",
        "tulip",
    }


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
    by_label = [{prediction["label"]: prediction["score"] for prediction in row} for row in answers]
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
def test_classifier_with_image_option(tx, tmp_path, image, prepare):
    model = plain_classifier(tmp_path / "m.keras")
    transform = keras_tx.ImageTransform(8, mean=0.25, std=0.5)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(transform.to_preprocessor_config()))
    options = ["--task", "image-classification", *(option.format(tmp=tmp_path) for option in image)]
    ran = tx("export", tmp_path / "m.keras", tmp_path / "out", *options)
    assert (ran.code, ran.err) == (0, "")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), "uint8")
    expected = as_numpy(model(prepare(pixels.astype("float32"))))
    assert_close(scores_in_order(tmp_path / "out", pixels, ("LABEL_0", "LABEL_1", "LABEL_2")), expected)


def test_labels_of_one_sigmoid(tx, tmp_path):
    model = plain_classifier(tmp_path / "m.keras", units=1)
    options = ["--labels", "no,yes", "--image", "0..1"]
    assert tx("export", tmp_path / "m.keras", tmp_path / "out", *options).code == 0
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), "uint8")
    p = as_numpy(model(pixels / np.float32(255)))
    assert_close(scores_in_order(tmp_path / "out", pixels, ("no", "yes")), np.concatenate([1 - p, p], axis=1))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--image", "resnett"], "--image 'resnett' is not a module"),
        (["--image", "1..0"], "--image 1..0"),
        (["--image", "{tmp}/none.json"], "none.json: No such file or directory"),
        (["--image", "{tmp}/list.json"], "list.json"),
        (["--task", "image-classification"], "image=keras_tx.ImageTransform"),
        (["--task", "text-classification"], "Pass 'image-classification'"),
    ],
    ids=str,
)
def test_invalid_preprocessing_raises(tx, tmp_path, options, expected):
    plain_classifier(tmp_path / "m.keras")
    (tmp_path / "list.json").write_text("[1]")
    ran = tx("export", tmp_path / "m.keras", tmp_path / "out", *(x.format(tmp=tmp_path) for x in options))
    assert (ran.code, ran.out, expected in ran.err, ran.err.count("\n")) == (2, "", True, 1), ran.err
    assert not (tmp_path / "out").exists()


def test_keras_hub_text_classifier(tx, tmp_path):
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
    scores = {prediction["label"]: prediction["score"] for prediction in json.loads(line)["predictions"]}
    expected = model.predict(["The cat sat on the mat."], verbose=0)
    assert_close(np.array([[scores["LABEL_0"], scores["LABEL_1"]]]), expected)

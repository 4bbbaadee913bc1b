"""Attention weights and hidden states of exported folders equal those of the Keras models."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.data import sequence_to_sequence_batches
from keras_tx.errors import ConfigError, FolderError, InputError
from keras_tx.inspect import Inspector, inspect
from keras_tx.inspect import folder as folder_reader
from keras_tx.processing import TextTransform, train_unigram, train_wordpiece
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import draw, redraw
from tests.tolerances import ANOTHER_BRANCH, HALF, assert_close

ROOT = Path(__file__).parents[2]
IMAGES = (np.random.default_rng(0).random((2, 8, 8, 3)) * 255).astype("uint8")
IDS = np.array([[5, 6, 7, 8, 1], [9, 10, 1, 0, 0]])
TEXT = {"input_ids": IDS, "attention_mask": (IDS != 0).astype("int64")}
TARGETS = np.array([[11, 12, 13], [14, 15, 16]])
CLASSES = keras_tx.ClassifierHead(3)

MODELS: dict[str, Any] = {
    "vit": lambda: keras_tx.vit("Mu/2", image_size=8, depth=3, num_classes=3),
    "bert": lambda: keras_tx.bert("tiny", vocabulary_size=50, depth=2, head=CLASSES),
    "gpt": lambda: keras_tx.gpt("llama-tiny", depth=2),
    "t5": lambda: keras_tx.t5("tiny"),
}
MORE: dict[str, tuple[Any, dict[str, Any]]] = {
    "pixels": (
        lambda: keras_tx.vit("Mu/2", image_size=8, registers=2, layer_scale=0.5, num_classes=3),
        {"raw_pixels": True},
    ),
    "remainder": (
        lambda: keras_tx.vit("Mu/2", image_size=8, patch_size=3, drop_remainder=True, num_classes=3),
        {},
    ),
    "convolutions": (
        lambda: keras_tx.vit("Mu/2", image_size=8, patch_size=4, stem="convolutions", num_classes=3),
        {},
    ),
    "average": (
        lambda: keras_tx.vit("Mu/2", image_size=8, pooling="average", registers=2, num_classes=3),
        {},
    ),
    "distilled": (
        lambda: keras_tx.vit(
            "Mu/2", image_size=8, distillation=True, registers=1, head=keras_tx.DistilledClassifierHead(3)
        ),
        {"opset": 24},
    ),
    "relative": (
        lambda: keras_tx.vit("Mu/2", image_size=8, depth=2, positions="relative", num_classes=3),
        {},
    ),
    "padded": (MODELS["bert"], {"unpad": False}),
    "tags": (
        lambda: keras_tx.bert("tiny", vocabulary_size=50, segments=0, head=keras_tx.TokenClassifierHead(3)),
        {},
    ),
    "features": (lambda: keras_tx.bert("tiny", vocabulary_size=50, head=None), {}),
    "gpt2": (lambda: keras_tx.gpt("pico"), {}),
    "transformer": (lambda: keras_tx.transformer("tiny", vocabulary_size=50), {}),
}


class Pair(NamedTuple):
    """Inspectors of a Keras model and of its folder."""

    keras: Inspector
    folder: Inspector


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Any:
    """Inspectors by name of the model, each exported once."""
    made: dict[str, Pair] = {}
    parent = tmp_path_factory.mktemp("folders")

    def pair(name: str) -> Pair:
        if name not in made:
            build, options = MORE[name] if name in MORE else (MODELS[name], {})
            model = redraw(build())
            export_onnx(model, parent / name, verify=False, **options)
            made[name] = Pair(inspect(model), inspect(parent / name))
        return made[name]

    return pair


def assert_equal(one: Inspector, other: Inspector, inputs: Any, tolerance: float | None = None) -> None:
    """Compares all arrays of all parts."""
    options = {} if tolerance is None else {"tolerance": tolerance}
    for part in one.parts or (None,):
        targets = TARGETS if part else None
        assert one.layer_names(part) == other.layer_names(part)
        pairs = [(x.attention(inputs, targets=targets, part=part)) for x in (one, other)]
        if part != "cross":
            states = [x.hidden_states(inputs, targets=targets, part=part) for x in (one, other)]
            pairs = [[*mine, *more] for mine, more in zip(pairs, states, strict=True)]
        for expected, actual in zip(*pairs, strict=True):
            assert actual.dtype == np.float32
            assert_close(actual, expected, **options)


@pytest.mark.parametrize(
    "name", [*MODELS, *(pytest.param(name, marks=pytest.mark.thorough) for name in MORE)]
)
def test_arrays_equal_those_of_the_keras_model(name, pairs):
    one, other = pairs(name)
    assert_equal(one, other, IMAGES if one.kind == "image" else TEXT)
    if one.kind == "image":
        assert other.grid(IMAGES) == one.grid(IMAGES)
    assert other.parts == one.parts and other.kind == one.kind


def test_a_row_without_tokens_has_no_weights(pairs):
    empty = {**TEXT, "attention_mask": np.array([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])}
    for name in ("bert", "t5"):
        assert_equal(*pairs(name), empty)
    one = pairs("t5").folder.attention(empty, targets=TARGETS, part="cross")[0]
    assert (one[1] == 0).all() and (one[0] != 0).any()


def test_groups_of_layers_equal_all_layers(pairs, monkeypatch):
    inspected = pairs("vit").folder
    expected = inspected.attention(IMAGES)
    for size in (0, 2 * expected[0].nbytes):
        monkeypatch.setattr(folder_reader, "RUN_BYTES", size)
        for layers, indices in ((None, [0, 1, 2]), ([2, 0, 0], [2, 0, 0])):
            arrays = list(inspected.attention_layers(IMAGES, layers=layers))
            assert len(arrays) == len(indices)
            for array, index in zip(arrays, indices, strict=True):
                assert_close(array, expected[index])


def test_texts_are_tokenized_by_the_folder(exported_folders):
    texts = ["the cat sat on the mat", "the dog"]
    model, path = exported_folders["gpt"]
    for text in texts:  # each alone: the folder pads on the left, for text generation
        assert_equal(inspect(model), inspect(path), text)
        assert inspect(path).tokens(text) == inspect(model).tokens(text)
    assert inspect(path).tokens("the cat")[0][-2:] == ["the", " cat"]
    model, path = exported_folders["bert, classifier"]
    inspected = inspect(path)
    assert inspected.tokens(texts)[1] == ["[CLS]", "the", "dog", "[SEP]", *["[PAD]"] * 4]
    inputs = TextTransform.load(path)(texts)
    for array, expected in zip(inspected.attention(texts), inspect(model).attention(inputs), strict=True):
        assert_close(array, expected)


def test_targets_are_tokenized_as_in_training(tmp_path):
    """From texts, with a tokenizer that adds an end token and one that does not."""
    sources, targets = ["the cat sat", "Ada lives in London"], ["on the mat", "the cat"]
    corpus = [*sources, *targets] * 3
    for processing in (train_unigram(corpus, size=150), train_wordpiece(corpus, 80)):
        model = redraw(keras_tx.t5("tiny", processing=processing))
        inspected = inspect(model)
        for pair in zip(sources, targets, strict=True):
            texts = ([text] for text in pair)
            batches = sequence_to_sequence_batches(*texts, model.processing, start_id=model.start_id)
            ids = inspected.reader.adapter.tensors(*pair)["decoder_input_ids"]
            np.testing.assert_array_equal(ids, batches[0][0]["decoder_input_ids"])
        weights = inspected.attention(sources, targets=targets, part="cross")
        folder = tmp_path / type(processing._tokenizer.model).__name__
        export_onnx(model, folder, verify=False)
        other = inspect(folder).attention(sources, targets=targets, part="cross")
        for one, two in zip(weights, other, strict=True):
            assert_close(two, one)
        assert len(inspected.tokens(sources, targets=targets, part="decoder")[0]) == one.shape[2]


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_every_precision(name, tmp_path):
    wide = {"vit": {"width": 64, "mlp_dim": 128}, "bert": {}, "gpt": {}, "t5": {"width": 64}}
    build = {
        "vit": lambda: keras_tx.vit("Mu/2", image_size=8, depth=2, num_classes=3, **wide["vit"]),
        "t5": lambda: keras_tx.t5("tiny", **wide["t5"]),
    }.get(name, MODELS[name])
    model = redraw(build())
    inputs = IMAGES if name == "vit" else TEXT
    precisions = [x for x in contract.precisions_of(model.task) if x != "int4"]
    export_onnx(model, tmp_path / "folder", precision=precisions, verify=False)
    for precision in precisions[1:]:
        tolerance = HALF["mixed_float16"] if precision == "fp16" else ANOTHER_BRANCH
        assert_equal(inspect(model), inspect(tmp_path / "folder", precision=precision), inputs, tolerance)


@pytest.mark.parametrize(
    "precision", ["int8", *(pytest.param(x, marks=pytest.mark.thorough) for x in ("int8-blocks", "int4"))]
)
def test_the_last_hidden_state_is_the_output_of_the_folder(precision, tmp_path):
    model = redraw(keras_tx.bert("tiny", vocabulary_size=50, head=None))
    export_onnx(model, tmp_path / "folder", precision=["fp32", precision], verify=False)
    last = inspect(tmp_path / "folder", precision=precision).hidden_states(TEXT)[-1]
    inputs = {**TEXT, "token_type_ids": np.zeros_like(IDS)}
    with load(tmp_path / "folder", precision=precision) as model:
        assert_close(last, model.session.run(inputs)["last_hidden_state"])
        np.testing.assert_array_equal(inspect(model).hidden_states(TEXT)[-1], last)
    exact = inspect(tmp_path / "folder").hidden_states(TEXT)[-1]
    assert np.abs(last - exact).max() > 1e-3


def test_a_loaded_model_is_inspected_in_its_precision(exported_folders):
    with load(exported_folders["vit"].path) as model:
        inspected = inspect(model)
    expected = inspect(exported_folders["vit"].path).attention(IMAGES)
    for array, weights in zip(inspected.attention(IMAGES), expected, strict=True):
        np.testing.assert_array_equal(array, weights)


def test_weights_in_an_external_file(tmp_path, monkeypatch):
    monkeypatch.setattr(contract, "EXTERNAL_DATA_FROM", 1000)
    model = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
    export_onnx(model, tmp_path / "folder", verify=False)
    assert (tmp_path / "folder/onnx/model.onnx_data").exists()
    assert_equal(inspect(model), inspect(tmp_path / "folder"), IMAGES)


def test_other_keras_models(tmp_path):
    tokens = keras.Input((6, 8), name="tokens")
    x = keras.layers.MultiHeadAttention(2, 4, name="first")(tokens, tokens)
    x = keras_tx.layers.MultiHeadAttention(4, name="second")(keras.layers.Dense(8)(x), tokens)
    model = redraw(keras.Model(tokens, keras.layers.Dense(3)(x[:, 2])))
    export_onnx(model, tmp_path / "folder", verify=False)
    inputs = draw(2, 6, 8)
    one, other = inspect(model), inspect(tmp_path / "folder")
    assert one.layer_names() == other.layer_names() == ["first", "second"]
    for expected, actual in zip(one.attention(inputs), other.attention({"tokens": inputs}), strict=True):
        assert_close(actual, expected)
    with pytest.raises(ConfigError, match="hidden states"):
        other.hidden_states(inputs)
    with pytest.raises(InputError, match="no grid"):
        other.grid(inputs)


@pytest.mark.thorough
def test_keras_hub_model_whose_attention_is_inside_layers(tmp_path):
    keras_hub = pytest.importorskip("keras_hub", reason='pip install "keras-tx[cpu]"')
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
    backbone = keras_hub.models.BertBackbone(vocabulary_size=50, max_sequence_length=8, **sizes)
    export_onnx(redraw(backbone), tmp_path / "folder", verify=False)
    with pytest.raises(ConfigError, match="'transformer_layer_0' .*export_onnx"):
        inspect(backbone)
    mask = TEXT["attention_mask"]
    inputs = {"token_ids": IDS, "padding_mask": mask, "segment_ids": np.zeros_like(IDS)}
    weights = inspect(tmp_path / "folder").attention(inputs)
    assert len(weights) == 2
    for array in weights:
        assert_close(array.sum(-1), np.ones((2, 2, 5), "float32"))
        assert (array[1, :, :, 3:] == 0).all() and (array[0] > 0).all()


def test_folder_without_attention_nodes_raises(tmp_path):
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    export_onnx(model, tmp_path / "folder", opset=17, verify=False)
    with pytest.raises(FolderError, match=r"no Attention nodes \(opset 17\). .*opset=23"):
        inspect(tmp_path / "folder")
    with pytest.raises(ConfigError, match="precision is 'int8'"):
        inspect(tmp_path / "folder", precision="int8")
    with pytest.raises(FolderError, match="missing"):
        inspect(tmp_path / "missing")


def test_wrong_inputs_of_a_folder_raise(pairs):
    vit, bert, t5 = (pairs(name).folder for name in ("vit", "bert", "t5"))
    with pytest.raises(InputError, match="'A cat.', but .* accepts images"):
        vit.attention("A cat.")
    with pytest.raises(ConfigError, match="no layer 'block_7'"):
        vit.attention(IMAGES, layers="block_7")
    with pytest.raises(InputError, match="'pixels'"):
        vit.attention({"pixels": IMAGES})
    with pytest.raises(InputError, match="has no tokenizer"):
        bert.attention("A cat.")
    with pytest.raises(InputError, match="accepts texts"):
        bert.attention(IMAGES)
    with pytest.raises(InputError, match="requires 'input_ids'"):
        bert.attention({"attention_mask": IDS})
    with pytest.raises(InputError, match="2 inputs, but 1 targets"):
        t5.attention(TEXT, targets=TARGETS[:1], part="cross")


def test_ids_and_targets_that_are_missing_or_out_of_range_raise(pairs):
    for inspected in pairs("bert"):
        for number in (-1, 50):
            with pytest.raises((ConfigError, InputError), match=rf"input_ids has {number}.*0 to 49"):
                inspected.attention(np.array([[5, number]]))
    for inspected in pairs("t5"):
        for part in ("decoder", "cross"):
            with pytest.raises(
                InputError, match=rf"part='{part}' requires 'decoder_input_ids'.*\['input_ids'\]"
            ):
                inspected.attention({"input_ids": IDS[:, :2]}, part=part)
        with pytest.raises((ConfigError, InputError), match="decoder_input_ids has -1"):
            inspected.attention(IDS[:1], targets=np.array([[7, -1]]), part="decoder")


def test_a_folder_that_changes_raises(exported_folders, tmp_path):
    path = exported_folders.copy("vit", tmp_path / "folder")
    inspected = inspect(path)
    graph = path / contract.MODEL
    graph.write_bytes(graph.read_bytes())
    with pytest.raises(FolderError, match="changed or replaced"):
        inspected.attention(IMAGES)


def test_only_numpy_onnxruntime_and_pillow_are_needed(exported_folders, without_training_packages):
    code = f"""
import numpy as np
from keras_tx.inspect import inspect
image = inspect({str(exported_folders["vit"].path)!r})
print(image.attention(np.zeros((8, 8, 3), "uint8"))[0].shape, image.grid(np.zeros((8, 8, 3), "uint8")))
text = inspect({str(exported_folders["gpt"].path)!r})
print(len(text.hidden_states("the cat")), text.tokens("the cat"))
"""
    command = without_training_packages(code)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("(1, 2, 17, 17) PatchGrid(rows=4, columns=4, prefix=1,")

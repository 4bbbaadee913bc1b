"""from_checkpoint, weights= and save_checkpoint: all sources, and errors."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx import atomic_write
from keras_tx.errors import ConfigError
from keras_tx.models import source_lookup
from keras_tx.processing import wordpiece
from keras_tx.weights import huggingface_hub
from keras_tx.weights.checkpoint import WEIGHTS
from tests.drawing import as_numpy, redraw
from tests.weights.small_models import HEADS, LABELS, MODELS, assert_same_weights, bert
from tests.weights.states import quietly_opened

IDS = np.array([[2, 7, 9, 3, 0], [2, 8, 8, 8, 3]])


@pytest.fixture(scope="module")
def tagger(tmp_path_factory) -> tuple[Any, Path]:
    model = redraw(bert(keras_tx.TokenClassifierHead(4)))
    return model, keras_tx.save_checkpoint(model, tmp_path_factory.mktemp("checkpoints") / "tagger")


def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    def saved(name: str, words: list[str]) -> Path:
        model = keras_tx.bert("tiny", depth=1, head=keras_tx.ClassifierHead(2), processing=wordpiece(words))
        return keras_tx.save_checkpoint(redraw(model), tmp_path / name)

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    target, new = saved("served", [*special, "old"]), saved("new", [*special, "new"])
    expected = keras_tx.from_checkpoint(new)
    original, calls = source_lookup.open_checkpoint, []

    def replaced_after(path: Path) -> Any:
        opened = original(path)
        if not calls:
            with atomic_write.atomic_directory(target, ConfigError) as folder:
                shutil.copytree(new, folder, dirs_exist_ok=True)
        calls.append(path)
        return opened

    monkeypatch.setattr(source_lookup, "open_checkpoint", replaced_after)
    model = keras_tx.from_checkpoint(target)
    assert "new" in model.processing.vocabulary
    assert_same_weights(model, expected)
    assert len(calls) == 2


@pytest.mark.parametrize("name", [name for name in MODELS if name != "gemma"])
def test_out_and_in_again_is_bit_equal(name, tmp_path):
    model = redraw(MODELS[name]())
    folder = keras_tx.save_checkpoint(model, tmp_path / "folder")
    back = keras_tx.from_checkpoint(folder)
    assert type(back) is type(model) and back.head == model.head
    assert_same_weights(model, back)
    again = keras_tx.save_checkpoint(back, tmp_path / "again")
    assert (again / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()
    assert (again / "config.json").read_text() == (folder / "config.json").read_text()


def test_out_and_in_again_rounds_the_norms_of_gemma_alone(tmp_path):
    """Their scales are stored as differences from 1."""
    model = redraw(MODELS["gemma"]())
    back = keras_tx.from_checkpoint(keras_tx.save_checkpoint(model, tmp_path / "folder"))
    assert back.config == model.config
    for mine, theirs in zip(model.weights, back.weights, strict=True):
        rounding = 2e-7 if mine.name == "scale" else 0
        np.testing.assert_allclose(as_numpy(mine), as_numpy(theirs), rtol=0, atol=rounding)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_transformers_opens_it_without_a_warning(make, tmp_path):
    pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    folder = keras_tx.save_checkpoint(redraw(make()), tmp_path / "folder")
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    _, info = quietly_opened(getattr(transformers, name), folder)
    assert not any(info.values()), info


class TestFactories:
    def test_weights_of_a_variant(self, tagger):
        model, folder = tagger
        back = keras_tx.bert("tiny", weights=folder, head=keras_tx.TokenClassifierHead(4))
        assert_same_weights(model, back)
        assert back.config == model.config  # the vocabulary is the checkpoint's

    def test_fields_without_weights_may_differ(self, tagger):
        model, folder = tagger
        back = keras_tx.bert("tiny", weights=folder, head=model.head, dropout=0.3, max_length=9, name="mine")
        assert (back.config.dropout, back.config.max_length, back.name) == (0.3, 9, "mine")
        table = back.get_layer("positions").weights[0]
        np.testing.assert_array_equal(as_numpy(table), as_numpy(model.get_layer("positions").weights[0])[:9])

    def test_a_dtype_policy_is_used(self, tagger):
        back = keras_tx.from_checkpoint(tagger[1], dtype="bfloat16")
        assert back.get_layer("token_embedding").weights[0].dtype == "bfloat16"

    def test_another_head_is_new_and_the_users_line_is_named(self, tagger):
        for call in (
            lambda: keras_tx.from_checkpoint(tagger[1], head=keras_tx.ClassifierHead(2)),
            lambda: keras_tx.bert("tiny", weights=tagger[1], head=keras_tx.ClassifierHead(2)),
        ):
            with pytest.warns(UserWarning, match="logits/kernel") as warned:
                back = call()
            assert [x.filename for x in warned] == [__file__]
            assert as_numpy(back(IDS)).shape == (2, 2)

    def test_without_a_head(self, tagger):
        with pytest.warns(UserWarning, match="classifier"):
            back = keras_tx.from_checkpoint(tagger[1], head=None)
        assert back.head is None

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (
                lambda x: keras_tx.bert(weights=x),
                "variant='base' has width=768.* has width=128",
            ),
            (lambda x: keras_tx.bert("huge", weights=x), "variant='huge' is unknown"),
            (lambda x: keras_tx.gpt("pico", weights=x), "weights=.* a Bert, .* a GPT"),
            (lambda x: keras_tx.vit("Mu/2", weights=x), "weights=.* a Bert, .* a ViT"),
            (
                lambda x: keras_tx.from_checkpoint(x, vocabulary_size=41),
                "vocabulary_size=41 .*vocabulary_size=40",
            ),
            (lambda x: keras_tx.from_checkpoint(x, vocabluary=41), "no field 'vocabluary'"),
            (lambda x: keras_tx.from_checkpoint(x, max_length=99), "has 16 positions"),
            (lambda x: keras_tx.from_checkpoint(x, dropout=2), "dropout is 2"),
            (lambda x: keras_tx.from_checkpoint(x, head="tags"), "head='tags'"),
            (lambda x: keras_tx.from_checkpoint(x / WEIGHTS), f"{WEIGHTS} .*no config"),
        ],
    )
    def test_contradictions_raise(self, call, message, tagger):
        with pytest.raises(ConfigError, match=message):
            call(tagger[1])

    def test_single_file_needs_a_variant(self, tagger):
        model, folder = tagger
        options = {"head": model.head, "vocabulary_size": 40, "max_length": 16}
        assert_same_weights(model, keras_tx.bert("tiny", weights=folder / WEIGHTS, **options))
        with pytest.raises(
            ConfigError, match="shape: bert.embeddings.word_embeddings.weight is 40 x 128, but"
        ):
            keras_tx.bert("tiny", weights=folder / WEIGHTS, head=model.head, max_length=16)

    def test_tokenizer_is_loaded(self, tmp_path):
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
        model = redraw(
            keras_tx.bert("tiny", head=HEADS["classes"], processing=wordpiece(words), max_length=16)
        )
        folder = keras_tx.save_checkpoint(model, tmp_path / "folder")
        back = keras_tx.from_checkpoint(folder)
        assert back.processing(["a b c"])["input_ids"].tolist() == [[2, 5, 6, 7, 3]]
        other = wordpiece([*words, "i"])
        with pytest.raises(
            ConfigError, match="processing has a vocabulary of 14 tokens, but the model has 13"
        ):
            keras_tx.from_checkpoint(folder, processing=other)


class TestTrainingOn:
    """A model that was filled without ever being drawn is a model like any other."""

    def test_fit_save_and_load(self, tagger, tmp_path):
        model = keras_tx.from_checkpoint(tagger[1], dropout=0.2)
        model.compile()
        model.fit(IDS, np.array([[0, 1, 2, 3, -100]] * 2), epochs=2, verbose=0)
        assert not np.array_equal(model.get_weights()[0], tagger[0].get_weights()[0])
        model.save(tmp_path / "model.keras")
        assert_same_weights(model, keras_tx.load_model(tmp_path / "model.keras"))
        model.save_weights(tmp_path / "model.weights.h5")
        model.load_weights(tmp_path / "model.weights.h5")

    def test_outputs_are_those_of_the_model_that_was_saved(self, tagger):
        model, folder = tagger
        np.testing.assert_array_equal(as_numpy(model(IDS)), as_numpy(keras_tx.from_checkpoint(folder)(IDS)))

    def test_nothing_of_it_waits_for_a_value(self, tagger):
        keras_tx.from_checkpoint(tagger[1])
        with keras.StatelessScope():  # Keras gives values to what waits when it leaves one
            pass
        assert as_numpy(bert()(IDS)["last_hidden_state"]).shape == (2, 5, 128)


class TestSources:
    @pytest.mark.parametrize(
        ("source", "message"),
        [
            (3, "weights is a int"),
            ("nowhere/at/all", "nowhere/at/all does not exist"),
            ("owner/name", 'from_checkpoint."hf://owner/name"'),
            ("model.keras", "model.keras does not exist"),
        ],
    )
    def test_unknown_sources_raise(self, source, message):
        with pytest.raises(ConfigError, match=message):
            keras_tx.from_checkpoint(source)

    def test_exported_folder_raises(self, tmp_path):
        (tmp_path / "keras_tx.json").write_text("{}")
        with pytest.raises(ConfigError, match="exported ONNX folder"):
            keras_tx.from_checkpoint(tmp_path)

    def test_unsupported_model_type_raises(self, tagger, tmp_path):
        folder = self.edited(tagger[1], tmp_path, model_type="berd")
        with pytest.raises(ConfigError, match="model_type='berd'.*'bert'"):
            keras_tx.from_checkpoint(folder)

    def test_a_repository_of_the_hub(self, tagger, monkeypatch):
        monkeypatch.setattr(huggingface_hub, "download", {"hf://owner/name@main": tagger[1]}.__getitem__)
        assert_same_weights(tagger[0], keras_tx.from_checkpoint("hf://owner/name@main"))

    @pytest.mark.parametrize("size", [0, 2, 7, 10**6, 10**12])
    @pytest.mark.parametrize(
        "field",
        ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"],
    )
    def test_impossible_sizes_are_refused(self, field, size, tagger, tmp_path):
        if (field, size) == ("num_hidden_layers", 2):
            return  # what it has
        if (field, size) == ("num_attention_heads", 2):
            return
        with pytest.raises(ConfigError):
            keras_tx.from_checkpoint(self.edited(tagger[1], tmp_path, **{field: size}))

    def test_labels_that_the_head_does_not_have(self, tagger, tmp_path):
        names = {str(index): f"L{index}" for index in range(9)}
        folder = self.edited(tagger[1], tmp_path, id2label=names)
        with pytest.raises(ConfigError, match=r"TokenClassifierHead:\n  shape: classif"):
            keras_tx.from_checkpoint(folder)

    def edited(self, folder: Path, place: Path, **fields: Any) -> Path:
        config = json.loads((folder / "config.json").read_text())
        (place / "config.json").write_text(json.dumps({**config, **fields}))
        (place / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
        return place


class TestKerasHub:
    def test_unknown_preset_raises(self):
        pytest.importorskip("keras_hub")
        with pytest.raises(
            ConfigError, match="neither a path nor a preset of keras-hub. Did you mean 'bert_tiny_e"
        ):
            keras_tx.from_checkpoint("bert_tiny_en_uncase")

    def test_preset_without_a_network_raises(self, monkeypatch):
        keras_hub = pytest.importorskip("keras_hub")

        def fails(*args: Any) -> None:
            raise ConnectionError("no route")

        monkeypatch.setattr("keras_hub.src.utils.preset_utils.check_file_exists", fails)
        assert "bert_tiny_en_uncased" in keras_hub.models.Backbone.presets
        with pytest.raises(ConfigError, match="could not load the preset .*: ConnectionError: no route"):
            keras_tx.from_checkpoint("bert_tiny_en_uncased")

    def test_unsupported_backbone_raises(self):
        keras_hub = pytest.importorskip("keras_hub")
        backbone = keras_hub.models.FNetBackbone(
            vocabulary_size=9, num_layers=1, hidden_dim=4, intermediate_dim=4
        )
        with pytest.raises(ConfigError, match="FNetBackbone 'f_net_backbone'"):
            keras_tx.from_checkpoint(backbone)


class TestSaving:
    def test_labels_are_written(self, tmp_path):
        model = bert(keras_tx.ClassifierHead(3))
        folder = keras_tx.save_checkpoint(model, tmp_path / "folder", labels=LABELS)
        assert keras_tx.from_checkpoint(folder).head.labels == LABELS
        assert json.loads((folder / "config.json").read_text())["id2label"]["2"] == "perhaps"

    @pytest.mark.parametrize(
        ("make", "options", "message"),
        [
            (lambda: keras.Sequential(), {}, "Sequential.*model.save"),
            (
                lambda: keras_tx.gpt("pico", norm="rms"),
                {},
                "has norm='rms'.*, which no class of transformers",
            ),
            (lambda: bert(), {"labels": ["a"]}, "labels.*'bert'"),
            (lambda: bert(HEADS["classes"]), {"labels": ["a"]}, "labels has 1 names.*3 classes"),
        ],
    )
    def test_unsupported_models_raise(self, make, options, message, tmp_path):
        with pytest.raises(ConfigError, match=message):
            keras_tx.save_checkpoint(make(), tmp_path / "folder", **options)
        assert not list(tmp_path.iterdir())

    def test_only_checkpoint_folders_are_replaced(self, tmp_path):
        folder = keras_tx.save_checkpoint(bert(), tmp_path / "folder")
        with pytest.raises(ConfigError, match="exists. Pass overwrite=True"):
            keras_tx.save_checkpoint(bert(), folder)
        model = redraw(bert())
        keras_tx.save_checkpoint(model, folder, overwrite=True)
        assert_same_weights(model, keras_tx.from_checkpoint(folder))
        (folder / "thesis.tex").write_text("all of it")
        with pytest.raises(ConfigError, match="'thesis.tex'"):
            keras_tx.save_checkpoint(model, folder, overwrite=True)
        nested = keras_tx.save_checkpoint(model, tmp_path / "no" / "folder")
        assert_same_weights(model, keras_tx.from_checkpoint(nested))

    def test_failed_save_leaves_no_files(self, tmp_path, monkeypatch):
        def fails(*args: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("keras_tx.models.checkpoint_saving.write_tensors", fails)
        with pytest.raises(ConfigError, match="could not be written: No space left on device"):
            keras_tx.save_checkpoint(bert(), tmp_path / "folder")
        assert not list(tmp_path.iterdir())


def test_nothing_is_warned_about_where_all_fits(tagger):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keras_tx.from_checkpoint(tagger[1])

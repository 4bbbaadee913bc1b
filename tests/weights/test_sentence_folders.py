"""Folders of sentence-transformers: invalid files raise, and no file outside the folder is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import keras_tx
from keras_tx.errors import ConfigError
from tests.drawing import redraw


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    head = keras_tx.SentenceEmbeddingHead("class")
    model = redraw(
        keras_tx.bert("tiny", vocabulary_size=20, depth=1, width=16, num_heads=2, max_length=8, head=head)
    )
    return keras_tx.save_checkpoint(model, tmp_path / "sentences")


def test_saved_folder_loads_again(folder: Path):
    assert keras_tx.from_checkpoint(folder).head == keras_tx.SentenceEmbeddingHead("class")


@pytest.mark.parametrize("path", ["../outside", "/outside", "1_Pooling/../../outside", "", None])
def test_modules_outside_the_folder(path: Any, folder: Path):
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = str(outside) if path == "/outside" else path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match=r"inside the folder|1_Pooling|pooling modes \(none\)"):
        keras_tx.from_checkpoint(folder)


def test_link_to_a_file_outside_raises(folder: Path, tmp_path: Path):
    outside = tmp_path / "config.json"
    (folder / "1_Pooling" / "config.json").rename(outside)
    (folder / "1_Pooling" / "config.json").symlink_to(outside)
    with pytest.raises(ConfigError, match="is a link to .*, outside the folder"):
        keras_tx.from_checkpoint(folder)


@pytest.mark.parametrize(
    "name", ["1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert_config.json"]
)
def test_files_of_another_kind(name: str, folder: Path):
    (folder / name).write_text("[1, 2]")
    if name.startswith("sentence_bert"):  # it is read with a tokenizer only
        keras_tx.from_checkpoint(folder)
        return
    with pytest.raises(ConfigError, match="holds a list, expected a JSON object"):
        keras_tx.from_checkpoint(folder)
    (folder / name).write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        keras_tx.from_checkpoint(folder)


def test_modules_json_must_be_a_list(folder: Path):
    (folder / "modules.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds a dict, expected a list"):
        keras_tx.from_checkpoint(folder)

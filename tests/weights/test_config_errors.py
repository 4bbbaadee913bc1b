"""Errors about a checkpoint's config name the file, the key, and the name in keras-tx."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import keras_tx
from keras_tx.errors import ConfigError
from tests.weights.small_models import MODELS, bert

LAYERS = 10**9
WIDTH = 2**40
DISTILBERT = {"segments": 0, "norm_epsilon": 1e-12}
SOURCES: dict[str, Any] = {
    "bert": (MODELS["bert, classes"], "hidden_size", "num_hidden_layers", "num_attention_heads"),
    "distilbert": (lambda: bert(pooler=None, depth=1, **DISTILBERT), "dim", "n_layers", "n_heads"),
    "gpt2": (MODELS["gpt"], "n_embd", "n_layer", "n_head"),
    "llama": (MODELS["llama"], "hidden_size", "num_hidden_layers", "num_attention_heads"),
    "openai-gpt": (MODELS["openai-gpt"], "n_embd", "n_layer", "n_head"),
    **{
        name: (MODELS[name], "hidden_size", "num_hidden_layers", "num_attention_heads")
        for name in ("qwen2", "qwen3", "gemma")
    },
    "vit": (MODELS["vit"], "hidden_size", "num_hidden_layers", "num_attention_heads"),
}


@pytest.fixture(params=SOURCES)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    make, *keys = SOURCES[request.param]
    folder = keras_tx.save_checkpoint(make(), tmp_path / "folder")
    assert json.loads((folder / "config.json").read_text())["model_type"] == request.param
    return folder, keys


def changed(folder: Path, **fields: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder


def test_size_of_zero_names_the_key_of_the_file(saved):
    folder, (width, depth, heads) = saved
    for key in (width, depth, heads):
        original = (folder / "config.json").read_text()
        with pytest.raises(ConfigError, match=rf"folder/config.json: {key} is 0, expected"):
            keras_tx.from_checkpoint(changed(folder, **{key: 0}))
        (folder / "config.json").write_text(original)


def test_sizes_that_the_tensors_cannot_have(saved):
    folder, (width, depth, _) = saved
    original = (folder / "config.json").read_text()
    with pytest.raises(
        ConfigError, match=rf"folder/config.json has {depth}={LAYERS}, but the checkpoint has"
    ):
        keras_tx.from_checkpoint(changed(folder, **{depth: LAYERS}))
    (folder / "config.json").write_text(original)
    with pytest.raises(ConfigError, match=rf"folder/config.json has {width}={WIDTH}, but the checkpoint's"):
        keras_tx.from_checkpoint(changed(folder, **{width: WIDTH}))


def test_width_not_divisible_by_heads_raises(saved):
    folder, (width, _, heads) = saved
    with pytest.raises(
        ConfigError, match=rf"config.json: ({width}|{heads})=\d+ is not divisible by \w+=\d\."
    ):
        keras_tx.from_checkpoint(changed(folder, **{heads: 7}))


def test_more_classes_than_numbers(tmp_path: Path):
    folder = keras_tx.save_checkpoint(MODELS["vit"](), tmp_path / "folder")
    with pytest.raises(ConfigError, match=f"config.json has num_labels={WIDTH}"):
        keras_tx.from_checkpoint(changed(folder, num_labels=WIDTH, id2label=None))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras_tx.vit("B/16", classes=10), "'classes'. .*ClassifierHead\\(10\\)"),
        (lambda: keras_tx.BertConfig.variant("tiny", num_classes=4), "'num_classes'.*ClassifierHead\\(4\\)"),
        (lambda: keras_tx.bert("tiny", hidden_size=64), "'hidden_size'. Use 'width'"),
        (lambda: keras_tx.gpt("pico", block_size=64), "'block_size'. Use 'max_length'"),
        (lambda: keras_tx.vit("B/16", img_size=64), "'img_size'. Use 'image_size'"),
        (lambda: keras_tx.vit("B/16", vocab_size=64), "'vocab_size'. Known: "),  # a ViT has no such thing
        (lambda: keras_tx.vit("B/16", patchsize=8), "'patchsize'. Did you mean 'patch_size'"),
        (lambda: keras_tx.vit("B/61"), "variant='B/61' is unknown. Did you mean 'B/16'"),
        (
            lambda: keras_tx.vit("google/vit-base-patch16-224"),
            'from_checkpoint\\("hf://google/vit-base-patch16-224"\\)',
        ),
        (
            lambda: keras_tx.bert("bert-base-uncased"),
            'from_checkpoint\\("hf://google-bert/bert-base-uncased"\\)',
        ),
        (lambda: keras_tx.gpt("gpt2"), 'from_checkpoint\\("hf://openai-community/gpt2"\\)'),
        (lambda: keras_tx.gpt("hf://owner/name"), 'from_checkpoint\\("hf://owner/name"\\)'),
        (
            lambda: keras_tx.from_checkpoint("bert-base-uncased"),
            'does not exist; .*"hf://google-bert/bert-base-uncased"',
        ),
        (lambda: keras_tx.from_checkpoint("owner/name"), 'does not exist; .*"hf://owner/name"'),
        (lambda: keras_tx.from_checkpoint("nowhere"), "nowhere does not exist; .* of keras_tx.$"),
    ],
)
def test_names_of_other_libraries(make: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        make()

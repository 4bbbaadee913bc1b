"""Tokenizers of Qwen, Gemma and GPT-1: ids and texts equal those of transformers, in every folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.processing import TextTransform, train_byte_bpe
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx

transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')

CORPUS = ["The cat doesn't sit on 2025 mats, does it?", "Ada lives in London, and so do the cats.\n\n"] * 4
TEXTS = [
    "The CAT doesn't sit!",
    "in 2025, 31 cats\r\n\r\n  sat  ",
    "naïve cafe\u0301",  # the accent is a character of its own
    "東京 and 🙂",
    " I'LL  do",
]


def parts(tokenizer: Tokenizer | str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary and the merges of a BPE."""
    text = tokenizer if isinstance(tokenizer, str) else tokenizer.to_str()
    model = json.loads(text)["model"]
    merges = [tuple(x.split(" ") if isinstance(x, str) else x) for x in model["merges"]]
    return model["vocab"], merges  # type: ignore[return-value]


def qwen2() -> Any:
    vocabulary, merges = parts(train_byte_bpe(CORPUS, 320).tokenizer)
    return transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges)


def gemma() -> Any:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=[*special, *(f"<0x{n:02X}>" for n in range(256))], show_progress=False
    )
    tokenizer.train_from_iterator([text.replace(" ", "▁") for text in CORPUS], trainer)
    vocabulary, merges = parts(tokenizer)
    return transformers.GemmaTokenizer(vocab=vocabulary, merges=merges)


def gpt1() -> Any:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=120, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator([text.lower() for text in CORPUS], trainer)
    vocabulary, merges = parts(tokenizer)
    return transformers.OpenAIGPTTokenizer(vocab=vocabulary, merges=merges)


KINDS: dict[str, Callable[[], Any]] = {"qwen2": qwen2, "gemma": gemma, "gpt1": gpt1}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("llama-tiny", {"qkv_bias": True}),
    "gemma": ("llama-tiny", {"scale_embedding": True, "activation": "geglu"}),
    "gpt1": ("pico", {"norm_position": "post"}),
}


def saved(kind: str, folder: Path) -> tuple[Any, TextTransform]:
    theirs = KINDS[kind]()
    theirs.save_pretrained(folder)
    return theirs, TextTransform.load(folder, segments=False)


def assert_same(ours: TextTransform, theirs: Any) -> None:
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours(text)["input_ids"][0].tolist() == ids, text
        assert ours.decode(ids) == theirs.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


@pytest.mark.parametrize("kind", KINDS)
def test_ids_equal_transformers(kind: str, tmp_path):
    theirs, ours = saved(kind, tmp_path / "theirs")
    assert_same(ours, theirs)
    assert (ours.eos_token, ours.bos_token) == (theirs.eos_token, theirs.bos_token)
    if kind == "gpt1":
        assert ours("The CAT")["input_ids"].tolist() == ours("the cat")["input_ids"].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_folders_of_a_model_have_the_tokenizer(kind: str, tmp_path):
    theirs, transform = saved(kind, tmp_path / "theirs")
    variant, options = VARIANTS[kind]
    model = keras_tx.gpt(variant, processing=transform, vocabulary_size=len(theirs), **options)
    folder = keras_tx.save_checkpoint(model, tmp_path / "checkpoint")
    loaded = keras_tx.from_checkpoint(folder)
    # A padding id that also ends a text, as in Qwen, is not read: the default mask would exclude the end.
    assert loaded.config == dataclasses.replace(model.config, pad_id=0 if kind == "gemma" else None)
    assert_same(loaded.processing, theirs)
    assert_same(transform, transformers.AutoTokenizer.from_pretrained(folder))
    export_onnx(model, tmp_path / "poet")
    assert_same(transform, transformers.AutoTokenizer.from_pretrained(tmp_path / "poet"))
    with load(tmp_path / "poet") as poet:
        made = poet.generate("The cat", max_new_tokens=12, stop_tokens=[])
        assert "".join(poet.stream("The cat", max_new_tokens=12, stop_tokens=[])) == made.text
    ids = theirs("The cat")["input_ids"]
    assert keras_tx.generate(model, ids, max_new_tokens=12, stop_tokens=[]).ids == made.ids


@pytest.mark.parametrize("begins", [True, False])
def test_folders_say_whether_texts_begin_with_a_token(begins: bool, tmp_path):
    """transformers.js reads it in its text-generation pipeline."""
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    transform = train_byte_bpe(CORPUS, 330, **special)
    if begins:
        tokenizer = Tokenizer.from_str(transform.tokenizer)
        tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", transform.id_of("<s>"))]
        )
        transform = dataclasses.replace(transform, tokenizer=tokenizer.to_str())
    transform.save(tmp_path)
    config = json.loads((tmp_path / contract.TOKENIZER_CONFIG).read_text())
    assert config.get("add_bos_token", False) == begins
    assert_same(transform, transformers.AutoTokenizer.from_pretrained(tmp_path))


@pytest.mark.parametrize(("kind", "reason"), [("qwen2", "of 'Qwen2Tokenizer'"), ("gpt1", "with </w>")])
def test_vocabulary_files_of_another_bpe_raise(kind: str, reason: str, tmp_path):
    """Reading them as GPT-2's would return other ids."""
    vocabulary, merges = parts(KINDS[kind]().backend_tokenizer)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(pair) for pair in merges))
    name = {"qwen2": "Qwen2Tokenizer", "gpt1": "OpenAIGPTTokenizer"}[kind]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    with pytest.raises(ConfigError, match=rf"merges.txt is that of a BPE {reason}.*AutoTokenizer"):
        TextTransform.load(tmp_path)
    keras_tx.save_checkpoint(keras_tx.gpt("pico"), tmp_path / "model")
    for path in tmp_path.glob("*.*"):
        (tmp_path / "model" / path.name).write_bytes(path.read_bytes())
    with pytest.warns(UserWarning, match="vocab.json but no tokenizer.json"):
        assert keras_tx.from_checkpoint(tmp_path / "model").processing is None

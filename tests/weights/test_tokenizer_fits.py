"""A tokenizer that contradicts the checkpoint raises; a far smaller vocabulary than the table warns."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.processing import byte_bpe, characters, wordpiece
from keras_tx_onnx import export_onnx

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, *"abcdefghijklmnop"]


def bert(processing: Any, **options: Any) -> Any:
    return keras_tx.bert("tiny", depth=1, max_length=16, processing=processing, **options)


@pytest.mark.parametrize(
    ("rows", "warned"), [(21, False), (21 + 127, False), (21 + 128, True), (30522, True)], ids=str
)
def test_far_fewer_tokens_than_rows(rows: int, warned: bool, tmp_path: Path):
    def check(make: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = make()
        expected = [
            f"vocabulary of 21 tokens, but the model has {rows} vectors, of which {rows - 21} "
        ] * warned
        assert [e in str(x.message) for e, x in zip(expected, caught, strict=True)] == [True] * warned
        assert [Path(x.filename).name for x in caught] == [Path(__file__).name] * warned
        return made

    transform = wordpiece(WORDS)
    model = check(lambda: keras_tx.bert("tiny", depth=1, processing=transform, vocabulary_size=rows))
    folder = keras_tx.save_checkpoint(model, tmp_path / "folder")
    check(lambda: keras_tx.from_checkpoint(folder))
    check(lambda: keras_tx.bert("tiny", weights=folder, depth=1))
    bare = keras_tx.bert("tiny", depth=1, vocabulary_size=rows)
    check(lambda: export_onnx(bare, tmp_path / "bert", tokenizer=transform, verify=False))
    # Once is enough: the exported model was warned about when it was made.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export_onnx(model, tmp_path / "own", verify=False)
    letters = characters("abcdefghijklmnopqrstu")
    check(lambda: keras_tx.gpt("pico", processing=letters, vocabulary_size=rows))
    gpt = keras_tx.gpt("pico", vocabulary_size=rows)
    check(lambda: export_onnx(gpt, tmp_path / "gpt", tokenizer=letters, verify=False))


def test_two_percent_of_a_large_table():
    letters = characters([chr(0x4E00 + number) for number in range(9800)])
    keras_tx.gpt("pico", processing=letters, vocabulary_size=10000)
    with pytest.warns(UserWarning, match="9800 tokens, but the model has 10001 vectors, of which 201"):
        keras_tx.gpt("pico", processing=letters, vocabulary_size=10001)


def moved(words: list[str], one: int, other: int) -> list[str]:
    words = list(words)
    words[one], words[other] = words[other], words[one]
    return words


OTHERS: dict[str, tuple[Any, str]] = {
    "kind": (
        lambda: byte_bpe({"a": 0, "b": 1, "<|endoftext|>": 2}, []),
        "a BPE tokenizer, but the model's own is WordPiece",
    ),
    "special": (
        lambda: wordpiece(moved(WORDS, 2, 3)),
        r"cls_token='\[CLS\]' with id 3, but .* '\[CLS\]' with id 2",
    ),
    "name of a special token": (
        lambda: wordpiece([*moved(WORDS, 4, 20), "<mask>"], mask_token="<mask>"),
        r"mask_token='<mask>' with id 21, but .* '\[MASK\]' with id 4",
    ),
    "moved": (lambda: wordpiece(moved(WORDS, 6, 7)), "has id 6 for 'c', but the model's own tokenizer has 7"),
    "others": (
        lambda: wordpiece([*SPECIAL, *"ABCDEFGHIJKLMNOP"]),
        "different tokens .*16 of 21 ids.*'A' for 'a'",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_tokenizer_than_the_checkpoints_own(name: str, tmp_path: Path):
    make, says = OTHERS[name]
    other = make()
    model = bert(wordpiece(WORDS), vocabulary_size=64)
    folder = keras_tx.save_checkpoint(model, tmp_path / "folder")
    for source in (folder, model):
        with pytest.raises(ConfigError, match=f"processing .*{says}"):
            keras_tx.from_checkpoint(source, processing=other)
    with pytest.raises(ConfigError, match=f"processing .*{says}"):
        bert(other, weights=folder)
    if name != "kind":  # which lacks a BERT's special tokens, and is refused for that
        with pytest.raises(ConfigError, match=f"tokenizer .*{says}"):
            export_onnx(model, tmp_path / "exported", tokenizer=other)
    assert not (tmp_path / "exported").exists()


def test_a_tokenizer_of_the_same_vocabulary(tmp_path: Path):
    folder = keras_tx.save_checkpoint(bert(wordpiece(WORDS), vocabulary_size=64), tmp_path / "folder")
    for other in (
        wordpiece(WORDS, max_length=8, too_long="cut", lowercase=False),
        wordpiece([*WORDS, "more"]),
        wordpiece([*WORDS[:-1], "[NEW]"]),  # in the place of a token, as of [unused1]
    ):
        model = keras_tx.from_checkpoint(folder, processing=other)
        assert model.processing.vocabulary == other.vocabulary


def test_a_tokenizer_as_the_text_of_its_file(tmp_path: Path):
    transform = wordpiece(WORDS)
    bare = keras_tx.bert("tiny", depth=1, vocabulary_size=21, max_length=16)
    export_onnx(bare, tmp_path / "folder", tokenizer=transform.tokenizer, verify=False)
    stored = keras_tx.TextTransform.load(tmp_path / "folder")
    assert stored.vocabulary == transform.vocabulary
    with pytest.raises(ConfigError, match=r"tokenizer is .*tokenizer\.json"):
        keras_tx.TextTransform.of('{"version": 1}')
    for path in ("x" * 5000, "a\0b"):
        with pytest.raises(ConfigError, match="does not exist"):
            keras_tx.TextTransform.of(path)

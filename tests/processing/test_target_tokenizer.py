"""Transforms of encoder-decoders: sources and targets are split by two tokenizers with the same ids."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from keras_tx.errors import ConfigError
from keras_tx.processing import TextTransform

PIECES = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "▁a", "ab", "ba", "<extra_id_1>", "<extra_id_0>"]


def unigram(**scores: float) -> str:
    """A Unigram tokenizer in which pieces without a score are costly."""
    tokenizer = Tokenizer(models.Unigram([(piece, scores.get(piece, -50.0)) for piece in PIECES], 2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # type: ignore
    tokenizer.decoder = decoders.Metaspace()  # type: ignore
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    return tokenizer.to_str()


LEFT, RIGHT = unigram(ab=-1, a=-1), unigram(ba=-1)
TRANSFORM = TextTransform(LEFT, pad_token="<pad>", eos_token="</s>", segments=False, target_tokenizer=RIGHT)


def test_target_splits_texts_by_its_own_tokenizer():
    assert TRANSFORM("aba")["input_ids"].tolist() == [[3, 7, 4]]
    assert TRANSFORM.target("aba")["input_ids"].tolist() == [[6, 8]]
    assert TRANSFORM.target == TextTransform(RIGHT, pad_token="<pad>", eos_token="</s>", segments=False)
    assert TRANSFORM.target.target == TRANSFORM.target
    assert TRANSFORM.decode([6, 8]) == TRANSFORM.decode([3, 7, 4]) == "aba"


def test_save_and_load_keep_both_tokenizers(tmp_path):
    TRANSFORM.save(tmp_path)
    assert TextTransform.load(tmp_path) == TRANSFORM
    assert dataclasses.asdict(TextTransform.load(tmp_path)) == dataclasses.asdict(TRANSFORM)
    TRANSFORM.target.save(tmp_path / "other")
    assert TextTransform.load(tmp_path / "other") == TRANSFORM.target


def test_other_ids_of_the_target_raise():
    content = json.loads(RIGHT)
    content["model"]["vocab"].append(["c", -3.0])
    with pytest.raises(ConfigError, match="target_tokenizer .*11.*'c'.*None"):
        dataclasses.replace(TRANSFORM, target_tokenizer=json.dumps(content))
    with pytest.raises(ConfigError, match="target_tokenizer .*int"):
        dataclasses.replace(TRANSFORM, target_tokenizer=3)


@pytest.mark.parametrize("names", [["<extra_id_{}>"], ["▁<extra_id_{}>"]])
@pytest.mark.parametrize("step", [1, -1])
def test_sentinels_are_in_the_order_of_their_numbers(names, step):
    sentinels = [names[0].format(number) for number in range(12)][::step]
    pieces = [(piece, -1.0) for piece in ["<unk>", "a", *sentinels, "<extra_id_14>"]]
    transform = TextTransform(Tokenizer(models.Unigram(pieces, 0)).to_str(), segments=False)
    assert transform.sentinel_ids() == [*range(2, 14)][::step]
    assert TRANSFORM.sentinel_ids() == [10, 9]
    assert TextTransform(LEFT.replace("extra_id", "other")).sentinel_ids() == []

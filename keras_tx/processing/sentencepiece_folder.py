"""Tokenizers of Hugging Face folders with SentencePiece's files instead of a tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.processing import tokenizer_kinds as kinds
from keras_tx.processing.sentencepiece_file import read_model, remedy
from keras_tx.processing.sentencepiece_tokenizer import sentencepiece_tokenizer, shared_tokenizer

SOURCE, TARGET = "source.spm", "target.spm"  # of Marian, with a vocab.json
FILES = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
SUFFIXES = (".model", ".spm")
# By tokenizer_class without "Tokenizer", or by model_type: texts end with </s>, or are as add_bos_token and
# add_eos_token say. The tokenizers of other classes number or add tokens in ways of their own.
T5 = {"t5", "mt5", "umt5"}
LLAMA = {"llama", "gemma", "gemma2", "mistral"}
SENTINELS = 100


def is_marian(folder: Path) -> bool:
    """Whether the folder has Marian's files, which are exact where its tokenizer.json may not be."""
    return all((folder / name).is_file() for name in (SOURCE, TARGET, contract.VOCAB_JSON))


def sentencepiece_path(folder: Path) -> Path | None:
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def marian_fields(folder: Path, config: Mapping[str, Any], special: Mapping[str, str]) -> dict[str, Any]:
    """The tokenizers of sources and targets, and the special tokens."""
    if config.get("separate_vocabs"):
        raise ConfigError(
            f"{folder / contract.TOKENIZER_CONFIG}: separate_vocabs is true, but only a vocab.json that "
            "source and target share is supported."
        )
    ids = kinds.read_vocabulary(folder / contract.VOCAB_JSON)
    special = {
        **{name: kinds.ROBERTA_TOKENS[name] for name in ("pad_token", "unk_token", "eos_token")},
        **special,
    }
    kinds.check_special(ids, special)
    if sorted(ids.values()) != list(range(len(ids))):
        raise ConfigError(f"{folder / contract.VOCAB_JSON}: the ids are not consecutive from 0.")
    source, target = (
        shared_tokenizer(read_model(folder / name), ids, special).to_str() for name in (SOURCE, TARGET)
    )
    return {"tokenizer": source, "target_tokenizer": None if target == source else target, **special}


def folder_tokenizer(
    path: Path, config: Mapping[str, Any], model_type: str, special: Mapping[str, str]
) -> tuple[Tokenizer, dict[str, str]]:
    """The tokenizer of a folder with one model file, and its special tokens."""
    kind = str(config.get("tokenizer_class") or "").removesuffix("Fast").removesuffix("Tokenizer").lower()
    kind = kind or model_type
    model = read_model(path)
    additional = _added_tokens(path, config, len(model.pieces))
    special = {**model.special, **special}
    if kind in T5:
        after = [special["eos_token"]]
        if not additional and not any("<extra_id_" in piece for piece, _, _ in model.pieces):
            count = config.get("extra_ids", SENTINELS)
            additional = [f"<extra_id_{number}>" for number in reversed(range(count))]
        tokenizer = sentencepiece_tokenizer(model, additional=additional, after=after)
    elif kind in LLAMA:
        ends = {
            "bos_token": config.get("add_bos_token", True),
            "eos_token": config.get("add_eos_token", False),
        }
        before, after = ([special[name]] if ends[name] else [] for name in ends)
        tokenizer = sentencepiece_tokenizer(model, additional=additional, before=before, after=after)
    else:
        raise ConfigError(
            f"{path} is the tokenizer of {kind or 'an unknown class'!r}, which is supported only as "
            f"{contract.TOKENIZER}. {remedy(str(path))}"
        )
    kinds.check_special(tokenizer.get_vocab(), special)
    return tokenizer, dict(special)


def _added_tokens(path: Path, config: Mapping[str, Any], count: int) -> list[str]:
    """Tokens after those of the model: `added_tokens_decoder` of the config, in the order of their ids."""
    added = config.get("added_tokens_decoder", {})
    try:
        names = {int(number): token["content"] for number, token in added.items()}
    except (AttributeError, TypeError, KeyError, ValueError):
        raise ConfigError(
            f"{path.parent / contract.TOKENIZER_CONFIG}: added_tokens_decoder is {added!r:.80}, expected "
            "objects with a content by their ids."
        ) from None
    new = sorted(number for number in names if number >= count)
    if new != list(range(count, count + len(new))):
        raise ConfigError(
            f"{path.parent / contract.TOKENIZER_CONFIG}: added_tokens_decoder has the ids {new[:5]} ..., "
            f"expected them to follow the {count} pieces of {path.name}."
        )
    return [names[number] for number in new]

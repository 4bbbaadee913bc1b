"""Tokenizers of Hugging Face folders with SentencePiece's files instead of a tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    _check(folder, config, "sp_model_kwargs", [{}], "no options")
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
    if kind not in T5 | LLAMA:
        raise ConfigError(
            f"{path} is the tokenizer of {kind or 'an unknown class'!r}, which is supported only as "
            f"{contract.TOKENIZER}. {remedy(str(path))}"
        )
    folder = path.parent
    _check(folder, config, "sp_model_kwargs", [{}], "no options")
    model = read_model(path)
    pieces = [piece for piece, _, _ in model.pieces]
    additional = _added_tokens(path, config, len(pieces))
    special = {**model.special, **special}
    if kind in T5:
        if not additional and not any("<extra_id_" in piece for piece in pieces):
            additional = _sentinels(folder, config)
        ends = {"bos_token": False, "eos_token": True}
    else:
        ends = {
            "bos_token": config.get("add_bos_token", True),
            "eos_token": config.get("add_eos_token", False),
        }
        for name, value in ends.items():
            _check(folder, {f"add_{name}": value}, f"add_{name}", [True, False], "true or false")
        prefix = model.add_dummy_prefix
        _check(folder, config, "add_prefix_space", [prefix], f"{prefix}, as in {path.name}")
    needed = {name: special.get(name, "") for name, added in ends.items() if added}
    kinds.check_special(dict.fromkeys([*pieces, *additional], 0), {**special, **needed})
    before, after = ([special[name]] if added else [] for name, added in ends.items())
    return sentencepiece_tokenizer(model, additional=additional, before=before, after=after), dict(special)


def _check(
    folder: Path, config: Mapping[str, Any], key: str, supported: Sequence[Any], expected: str
) -> None:
    """Raises a ConfigError if tokenizer_config.json has a value that is not supported."""
    value = config.get(key)
    if value is not None and not any(value == x and type(value) is type(x) for x in supported):
        raise ConfigError(
            f"{folder / contract.TOKENIZER_CONFIG}: {key} is {value!r:.80}, expected {expected}."
        )


def _sentinels(folder: Path, config: Mapping[str, Any]) -> list[str]:
    count = config.get("extra_ids", SENTINELS)
    if type(count) is not int or count < 0:
        raise ConfigError(
            f"{folder / contract.TOKENIZER_CONFIG}: extra_ids is {count!r:.80}, expected a whole "
            "number, 0 or more."
        )
    return [f"<extra_id_{number}>" for number in reversed(range(count))]


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

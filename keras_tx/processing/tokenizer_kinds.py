"""Tokenizers from their vocabularies: WordPiece, byte-level BPE and characters."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from keras_tx.errors import ConfigError

Vocabulary = str | os.PathLike[str] | Sequence[str] | Mapping[str, int]

BERT_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
ROBERTA_TOKENS = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "mask_token": "<mask>",
}
GPT_TOKENS = {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}


def wordpiece_tokenizer(
    vocabulary: Mapping[str, int],
    special: Mapping[str, str],
    *,
    lowercase: bool,
    strip_accents: bool | None,
    split_chinese: bool,
) -> Tokenizer:
    """BERT's tokenizer: splits at spaces and punctuation, then each word into its longest tokens."""
    check_special(vocabulary, special)
    tokenizer = Tokenizer(models.WordPiece(dict(vocabulary), unk_token=special["unk_token"]))  # type: ignore
    tokenizer.normalizer = bert_normalizer(lowercase, strip_accents, split_chinese)  # type: ignore
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore
    cls, sep = special["cls_token"], special["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    tokenizer.decoder = decoders.WordPiece()  # type: ignore
    _add_special(tokenizer, special)
    return tokenizer


def bert_normalizer(lowercase: bool, strip_accents: bool | None, split_chinese: bool) -> Any:
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=split_chinese,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )


def byte_bpe_tokenizer(
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    special: Mapping[str, str],
    *,
    add_prefix_space: bool = False,
) -> Tokenizer:
    """GPT-2's tokenizer, or RoBERTa's if `special` has a cls_token."""
    check_special(vocabulary, special)
    tokenizer = Tokenizer(models.BPE(dict(vocabulary), list(merges)))  # type: ignore
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)  # type: ignore
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore
    if "cls_token" in special:
        sep, cls = ((special[name], vocabulary[special[name]]) for name in ("sep_token", "cls_token"))
        tokenizer.post_processor = processors.RobertaProcessing(  # type: ignore
            sep, cls, add_prefix_space=add_prefix_space
        )
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)  # type: ignore
    _add_special(tokenizer, special)
    return tokenizer


def character_tokenizer(vocabulary: Mapping[str, int], special: Mapping[str, str]) -> Tokenizer:
    """One token per character; unknown characters are the unk_token, or raise without one."""
    check_special(vocabulary, special)
    unknown = {"unk_token": special["unk_token"]} if "unk_token" in special else {}
    tokenizer = Tokenizer(models.WordLevel(dict(vocabulary), **unknown))  # type: ignore
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # type: ignore
    tokenizer.decoder = decoders.Fuse()  # type: ignore
    _add_special(tokenizer, special)
    return tokenizer


def with_tokens_around(
    text: str,
    special: Sequence[str],
    whole: Sequence[str],
    *,
    before: Sequence[str],
    after: Sequence[str],
    between: Sequence[str] | None,
) -> str:
    """The text of a tokenizer.json with special tokens, added tokens and other tokens around texts.

    Args:
        text: of the tokenizer.json; its tokens include all others.
        special: tokens that are removed when ids are decoded.
        whole: tokens that are not split, and are decoded.
        before, after: special tokens before and after a text.
        between: special tokens between the texts of a pair; by default those after one and before the other.
    """
    tokenizer = Tokenizer.from_str(text)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in whole])
    between = (*after, *before) if between is None else between
    if before or after:
        tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore
            single=[*before, "$A", *after],
            pair=[*before, "$A", *between, "$B", *after],
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in {*before, *between, *after}],
        )
    return tokenizer.to_str()


def _add_special(tokenizer: Tokenizer, special: Mapping[str, str]) -> None:
    names = {token: name for name, token in special.items()}
    # RoBERTa's mask includes the space before it, like the masked word.
    tokenizer.add_special_tokens(
        [AddedToken(token, lstrip=token == "<mask>", special=True) for token in sorted(names)]
    )


def check_special(vocabulary: Mapping[str, int], special: Mapping[str, str]) -> None:
    """Raises a ConfigError if the vocabulary has not all the special tokens."""
    missing = {name: token for name, token in special.items() if token not in vocabulary}
    if missing:
        names = ", ".join(f"{name} {token!r}" for name, token in missing.items())
        raise ConfigError(
            f"The vocabulary of {len(vocabulary)} tokens has no {names}. Add a line for each, or pass its "
            f"name in the vocabulary: {next(iter(missing))}='...'."
        )


def read_vocabulary(vocabulary: Vocabulary) -> dict[str, int]:
    """Returns the id of each token, from a vocab.txt, a vocab.json, a list in order of the ids, or a dict."""
    if isinstance(vocabulary, Mapping):
        return dict(vocabulary)
    name = "vocabulary"
    if isinstance(vocabulary, str | os.PathLike):
        path = Path(vocabulary)
        if not path.is_file():
            raise ConfigError(f"{path} is not a file, expected a vocabulary.")
        text, name = _read(path), str(path)
        if path.suffix == ".json":
            return _ids_of(text, name)
        lines = text.split("\n")  # splitlines would split at tokens that are line separators
        tokens = [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    else:
        tokens = list(vocabulary)
    ids: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if not isinstance(token, str) or not token:
            raise ConfigError(f"{name} has {token!r} as entry {index}, expected a non-empty string.")
        if token in ids:
            raise ConfigError(f"{name} has {token!r} twice, as entries {ids[token]} and {index}.")
        ids[token] = index
    return ids


def _ids_of(text: str, name: str) -> dict[str, int]:
    try:
        ids = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not JSON ({error}).") from None
    if not isinstance(ids, dict) or not all(type(i) is int for i in ids.values()):
        raise ConfigError(f"{name} is not a vocabulary, expected an object of tokens and their ids.")
    return ids


def read_merges(merges: str | os.PathLike[str] | Iterable[Any]) -> list[tuple[str, str]]:
    """Returns pairs of tokens from a merges.txt (one "a b" per line) or from pairs."""
    if isinstance(merges, str | os.PathLike):
        lines = _read(Path(merges)).split("\n")
        merges = [line for line in lines if line and not line.startswith("#version")]
    pairs = [tuple(item.split(" ")) if isinstance(item, str) else tuple(item) for item in merges]
    for index, pair in enumerate(pairs):
        if len(pair) != 2:
            raise ConfigError(f"merges has {' '.join(pair)!r} as entry {index}, expected two tokens.")
    return pairs  # type: ignore[return-value]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as UTF-8 text: {error}.") from error

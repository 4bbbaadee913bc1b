"""Tokenizers of Hugging Face folders with SentencePiece's files instead of a tokenizer.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.processing import tokenizer_kinds as kinds
from keras_tx.processing.sentencepiece_file import CONTROL, UNKNOWN, SentencePieceModel, read_model, remedy
from keras_tx.processing.sentencepiece_tokenizer import sentencepiece_tokenizer, shared_tokenizer

SOURCE, TARGET = "source.spm", "target.spm"  # of Marian, with a vocab.json
FILES = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "spm.model")
SUFFIXES = (".model", ".spm")
# By tokenizer_class without "Tokenizer", or by model_type: texts end with </s>, or are as add_bos_token and
# add_eos_token say, or are between [CLS] and [SEP], or ids are those of fairseq. The tokenizers of other
# classes number or add tokens in ways of their own.
T5 = {"t5", "mt5", "umt5"}
LLAMA = {"llama", "gemma", "gemma2", "mistral"}
XLM_ROBERTA = {"xlmroberta", "xlm-roberta"}
MBART = {"mbart"}
DEBERTA = {"debertav2", "deberta-v2"}
SENTINELS = 100
# The languages of mBART, whose tokens follow the pieces.
LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM "
    "ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
).split(" ")
LANGUAGE = "en_XX"  # the default language of mBART's sources
FAIRSEQ_FIRST = ("bos_token", "pad_token", "eos_token", "unk_token")


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


def folder_fields(
    path: Path, config: Mapping[str, Any], model_type: str, special: Mapping[str, str]
) -> dict[str, Any]:
    """The tokenizer of a folder with one model file, another one of targets, and the special tokens."""
    kind = str(config.get("tokenizer_class") or "").removesuffix("Fast").removesuffix("Tokenizer").lower()
    kind = kind or model_type
    if kind not in T5 | LLAMA | XLM_ROBERTA | MBART | DEBERTA:
        raise ConfigError(
            f"{path} is the tokenizer of {kind or 'an unknown class'!r}, which is supported only as "
            f"{contract.TOKENIZER}. {remedy(str(path))}"
        )
    _check(path.parent, config, "sp_model_kwargs", [{}], "no options")
    model = read_model(path)
    if kind in T5:
        return _t5_fields(path, config, model, special)
    prefix = model.add_dummy_prefix
    _check(path.parent, config, "add_prefix_space", [prefix], f"{prefix}, as in {path.name}")
    if kind in LLAMA:
        return _llama_fields(path, config, model, special)
    if kind in DEBERTA:
        return _deberta_fields(path, config, model, special)
    return _fairseq_fields(path, config, model, special, LANGUAGES if kind in MBART else [])


def _t5_fields(
    path: Path, config: Mapping[str, Any], model: SentencePieceModel, special: Mapping[str, str]
) -> dict[str, Any]:
    special = {**model.special, **special}
    additional = _added_tokens(path, config, len(model.pieces))
    if not additional and not any("<extra_id_" in piece for piece, _, _ in model.pieces):
        additional = _sentinels(path.parent, config)
    _check_tokens(model, additional, {**special, "eos_token": special.get("eos_token", "")})
    tokenizer = sentencepiece_tokenizer(model, additional=additional, after=[special["eos_token"]])
    return {"tokenizer": tokenizer.to_str(), **special}


def _llama_fields(
    path: Path, config: Mapping[str, Any], model: SentencePieceModel, special: Mapping[str, str]
) -> dict[str, Any]:
    special = {**model.special, **special}
    additional = _added_tokens(path, config, len(model.pieces))
    ends = {"bos_token": config.get("add_bos_token", True), "eos_token": config.get("add_eos_token", False)}
    for name, value in ends.items():
        _check(path.parent, {f"add_{name}": value}, f"add_{name}", [True, False], "true or false")
    needed = {name: special.get(name, "") for name, added in ends.items() if added}
    _check_tokens(model, additional, {**special, **needed})
    before, after = ([special[name]] if added else [] for name, added in ends.items())
    tokenizer = sentencepiece_tokenizer(model, additional=additional, before=before, after=after)
    return {"tokenizer": tokenizer.to_str(), **special}


def _deberta_fields(
    path: Path, config: Mapping[str, Any], model: SentencePieceModel, special: Mapping[str, str]
) -> dict[str, Any]:
    special = {**kinds.BERT_TOKENS, **special}
    for key in ("do_lower_case", "split_by_punct"):
        _check(path.parent, config, key, [False], "false")
    _check(path.parent, config, "vocab_type", ["spm"], "'spm'")
    additional = _added_tokens(path, config, len(model.pieces))
    mask = special["mask_token"]
    if mask not in additional and all(piece != mask for piece, _, _ in model.pieces):
        additional.append(mask)
    _check_tokens(model, additional, special)
    end = special["sep_token"]
    tokenizer = sentencepiece_tokenizer(
        model, additional=additional, before=[special["cls_token"]], after=[end], between=[end]
    )
    return {"tokenizer": tokenizer.to_str(), **special}


def _fairseq_fields(
    path: Path,
    config: Mapping[str, Any],
    model: SentencePieceModel,
    special: Mapping[str, str],
    languages: Sequence[str],
) -> dict[str, Any]:
    """The tokenizer of XLM-R or, with languages, those of mBART's sources and targets."""
    special = {**kinds.ROBERTA_TOKENS, **special}
    model = with_ids_of_fairseq(model, special, [*languages, special["mask_token"]])
    additional = _added_tokens(path, config, len(model.pieces))
    _check_tokens(model, additional, special)
    end = special["eos_token"]
    if not languages:
        tokenizer = sentencepiece_tokenizer(
            model, additional=additional, before=[special["bos_token"]], after=[end], between=[end, end]
        )
        return {"tokenizer": tokenizer.to_str(), **special}
    source = config.get("src_lang") or LANGUAGE
    target = config.get("tgt_lang") or source
    tokens = [piece for piece, _, kind in model.pieces if kind == CONTROL] + additional
    for name, language in (("src_lang", source), ("tgt_lang", target)):
        _check(path.parent, {name: language}, name, tokens, "the token of a language, such as 'en_XX'")
    tokenizers = {
        language: sentencepiece_tokenizer(
            model, additional=additional, after=[end, language], between=[]
        ).to_str()
        for language in (source, target)
    }
    return {
        "tokenizer": tokenizers[source],
        "target_tokenizer": None if target == source else tokenizers[target],
        **special,
    }


def with_ids_of_fairseq(
    model: SentencePieceModel, special: Mapping[str, str], after: Sequence[str]
) -> SentencePieceModel:
    """The model with four special tokens before the pieces, in place of three, and others after them."""
    first = [piece for piece, _, _ in model.pieces[:3]]
    if first != ["<unk>", "<s>", "</s>"]:
        raise ConfigError(
            f"{model.name} begins with the pieces {', '.join(first)}, expected <unk>, <s>, </s>. "
            f"{remedy(model.name)}"
        )
    before = [special[name] for name in FAIRSEQ_FIRST]
    for token in {*before, *after}.intersection(piece for piece, _, _ in model.pieces[3:]):
        raise ConfigError(
            f"{model.name} has the special token {token!r} as a piece, expected a model without it. "
            f"{remedy(model.name)}"
        )
    kinds_of = {special["unk_token"]: UNKNOWN}
    pieces = [
        *((token, 0.0, kinds_of.get(token, CONTROL)) for token in before),
        *model.pieces[3:],
        *((token, 0.0, CONTROL) for token in after),
    ]
    return dataclasses.replace(model, pieces=pieces)


def _check_tokens(model: SentencePieceModel, additional: Sequence[str], special: Mapping[str, str]) -> None:
    kinds.check_special(dict.fromkeys([*(piece for piece, _, _ in model.pieces), *additional], 0), special)


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

"""The tokenizer's files in a folder, as Hugging Face names them. tokenizer.json is the truth.

Written for the clients: what each needs was tried (tests/clients).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.processing import tokenizer_kinds as kinds

SPECIAL_TOKENS = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")
OURS = "keras_tx"  # our own key, which Hugging Face passes over
OPTIONS = ("too_long", "multiple")
UNLIMITED = 10**9  # above it, model_max_length says that there is no limit

# What begins, ends and pads a text, by the names that decoders usually have for it.
OF_DECODERS = {
    "bos_token": ("<|endoftext|>", "<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|bos|>"),
    "eos_token": ("<|endoftext|>", "</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|eos|>"),
    "pad_token": ("<pad>", "[PAD]", "<|pad|>"),
    "unk_token": ("<unk>", "[UNK]", "<|endoftext|>"),
}


def files_of(transform: Any) -> dict[str, str]:
    """The text of each file, by its name."""
    special = {name: getattr(transform, name) for name in SPECIAL_TOKENS if getattr(transform, name)}
    inputs = [contract.INPUT_IDS, contract.ATTENTION_MASK]
    if transform.segments:
        inputs.insert(1, contract.TOKEN_TYPE_IDS)
    ours = {name: getattr(transform, name) for name in OPTIONS}
    if transform.padding_side == "left" and "pad_token" not in special and "eos_token" in special:
        # A client that gets prompts of different lengths needs a token to pad with; nobody looks at it.
        special["pad_token"] = special["eos_token"]
        ours["pad_token"] = None
    config = {
        # The class that takes tokenizer.json as it is; others build their own.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": transform.max_length or 10**30,
        "model_input_names": inputs,
        "padding_side": transform.padding_side,
        "truncation_side": "right",
        "clean_up_tokenization_spaces": False,
        **special,
        OURS: ours,
    }
    if transform.segments and is_plain_wordpiece(transform.tokenizer, special):
        # transformers.js numbers the texts of a pair under this name, and under no general one;
        # transformers from 5 on then builds the tokenizer from the vocabulary and what is said here.
        normalizer = json.loads(transform.tokenizer)["normalizer"]
        config |= {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": normalizer["lowercase"],
            "strip_accents": normalizer["strip_accents"],
            "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
        }
    tokenizer = Tokenizer.from_str(transform.tokenizer)
    return {
        contract.TOKENIZER: tokenizer.to_str(pretty=True) + "\n",
        contract.TOKENIZER_CONFIG: _json(config),
        contract.SPECIAL_TOKENS: _json(special),
        **_vocabulary_files(tokenizer),
    }


def is_plain_wordpiece(tokenizer: str, special: Mapping[str, str]) -> bool:
    """Whether a tokenizer is what BertTokenizer builds of a vocabulary, so that the name alone says it."""
    content = json.loads(tokenizer)
    if content["model"]["type"] != "WordPiece" or not special.keys() >= kinds.BERT_TOKENS.keys():
        return False
    normalizer = content["normalizer"] or {}
    if normalizer.get("type") != "BertNormalizer":
        return False
    built = kinds.wordpiece_tokenizer(
        content["model"]["vocab"],
        {name: special[name] for name in kinds.BERT_TOKENS},
        lowercase=normalizer["lowercase"],
        strip_accents=normalizer["strip_accents"],
        split_chinese=normalizer["handle_chinese_chars"],
    )
    known, given = json.loads(built.to_str()), Tokenizer.from_str(tokenizer)
    framed = [
        [(x.ids, x.type_ids) for x in (each.encode("a"), each.encode("a", "b"))] for each in (built, given)
    ]
    parts = ("model", "normalizer", "pre_tokenizer")
    return framed[0] == framed[1] and all(content[part] == known[part] for part in parts)


def _vocabulary_files(tokenizer: Tokenizer) -> dict[str, str]:
    """The vocabulary in the form of its kind, where that form can hold it."""
    model = json.loads(tokenizer.to_str())["model"]
    ids = tokenizer.get_vocab(with_added_tokens=True)
    in_order = sorted(ids, key=ids.__getitem__)
    if model["type"] == "WordPiece":
        can_be_lines = sorted(ids.values()) == list(range(len(ids))) and not any("\n" in x for x in ids)
        return {contract.VOCAB: "".join(f"{token}\n" for token in in_order)} if can_be_lines else {}
    if model["type"] not in ("BPE", "WordLevel"):
        return {}
    files = {contract.VOCAB_JSON: _json({token: ids[token] for token in in_order})}
    if model["type"] == "BPE":
        pairs = [x if isinstance(x, str) else " ".join(x) for x in model["merges"]]
        files[contract.MERGES] = "\n".join(["#version: 0.2", *pairs, ""])
    return files


def fields_of(path: Path) -> dict[str, Any]:
    """The fields of a TextTransform from a folder, or from one tokenizer.json."""
    try:
        known = path.exists()
    except (OSError, ValueError):  # longer than a path can be, or with a null character
        known = False
    if not known:
        raise ConfigError(
            f"{path!s:.200} does not exist; expected a folder with {contract.TOKENIZER}, or such a file."
        )
    folder, file = (path, path / contract.TOKENIZER) if path.is_dir() else (path.parent, path)
    config = _read_json(folder / contract.TOKENIZER_CONFIG) if path.is_dir() else {}
    special = _special(folder / contract.SPECIAL_TOKENS) if path.is_dir() else {}
    special.update(_special(folder / contract.TOKENIZER_CONFIG) if path.is_dir() else {})
    if config.get("truncation_side", "right") != "right":
        raise ConfigError(
            f"{folder / contract.TOKENIZER_CONFIG}: truncation_side is not 'right', which is all we do."
        )
    if file.is_file():
        tokenizer = parse(file.read_text("utf-8"), str(file))
    else:
        tokenizer, special = _from_vocabulary(folder, config, special)
    kind = _kind(tokenizer)
    if not special:
        special = usual(tokenizer)
    longest = config.get("model_max_length")
    number = isinstance(longest, int | float) and not isinstance(longest, bool)
    if longest is not None and not (number and longest >= 1 and longest % 1 == 0):
        raise _wrong(folder, "model_max_length", longest, "a whole number of tokens, 1 or more")
    ours = config.get(OURS, {})
    if not isinstance(ours, dict):
        raise _wrong(folder, OURS, ours, "an object")
    if "pad_token" in ours:
        special.pop("pad_token", None)
    return {
        "tokenizer": tokenizer.to_str(),
        "max_length": int(longest) if longest and longest < UNLIMITED else None,
        "padding_side": config.get("padding_side", "right"),
        "segments": _has_segments(folder, config, kind),
        **special,
        **{name: ours[name] for name in OPTIONS if name in ours},
    }


def parse(text: str, name: str = "tokenizer") -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises nothing more precise
        raise ConfigError(f"{name} is not a tokenizer.json: {error}.") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _from_vocabulary(
    folder: Path, config: Mapping[str, Any], special: dict[str, str]
) -> tuple[Tokenizer, dict[str, str]]:
    if (folder / contract.VOCAB).is_file():
        special = {**kinds.BERT_TOKENS, **special}
        tokenizer = kinds.wordpiece_tokenizer(
            kinds.read_vocabulary(folder / contract.VOCAB),
            special,
            lowercase=_switch(folder, config, "do_lower_case", True),
            strip_accents=None
            if config.get("strip_accents") is None
            else _switch(folder, config, "strip_accents", True),
            split_chinese=_switch(folder, config, "tokenize_chinese_chars", True),
        )
        return tokenizer, special
    if (folder / contract.VOCAB_JSON).is_file() and (folder / contract.MERGES).is_file():
        vocabulary = kinds.read_vocabulary(folder / contract.VOCAB_JSON)
        if not special:
            special = kinds.ROBERTA_TOKENS if "<mask>" in vocabulary else kinds.GPT_TOKENS
        tokenizer = kinds.byte_bpe_tokenizer(
            vocabulary,
            kinds.read_merges(folder / contract.MERGES),
            special,
            add_prefix_space=_switch(folder, config, "add_prefix_space", False),
        )
        return tokenizer, dict(special)
    raise ConfigError(
        f"{folder} has no tokenizer: expected {contract.TOKENIZER}, or {contract.VOCAB}, or "
        f"{contract.VOCAB_JSON} with {contract.MERGES}."
    )


def _special(path: Path) -> dict[str, str]:
    """The special tokens that a file names: as strings, or as objects with a `content`."""
    tokens = {}
    for name, value in _read_json(path).items():
        if name not in SPECIAL_TOKENS or value is None:
            continue
        token = value.get("content") if isinstance(value, dict) else value
        if not isinstance(token, str):
            raise ConfigError(
                f"{path}: {name} is {value!r:.80}, expected a string, or an object with a string as content."
            )
        if token:
            tokens[name] = token
    return tokens


def _wrong(folder: Path, key: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(f"{folder / contract.TOKENIZER_CONFIG}: {key} is {value!r:.80}, expected {expected}.")


def _switch(folder: Path, config: Mapping[str, Any], key: str, default: bool) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise _wrong(folder, key, value, "true or false")
    return value


def fields_of_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """The fields of a TextTransform from a tokenizer by itself."""
    text = tokenizer.to_str()
    return {"tokenizer": text, "segments": _kind(tokenizer) == "WordPiece", **usual(parse(text))}


def usual(tokenizer: Tokenizer) -> dict[str, str]:
    """What the special tokens are where only tokenizer.json is there, which does not name them."""
    names = tokenizer.get_vocab()
    if "<mask>" in names:
        known = kinds.ROBERTA_TOKENS
    elif _kind(tokenizer) == "WordPiece" or "[CLS]" in names:
        known = kinds.BERT_TOKENS
    else:
        found = {use: [name for name in usually if name in names] for use, usually in OF_DECODERS.items()}
        return {use: several[0] for use, several in found.items() if several}
    return {name: token for name, token in known.items() if token in names}


def _kind(tokenizer: Tokenizer) -> str:
    return json.loads(tokenizer.to_str())["model"]["type"]


def _has_segments(folder: Path, config: Mapping[str, Any], kind: str) -> bool:
    if "model_input_names" in config:
        names = config["model_input_names"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _wrong(folder, "model_input_names", names, "a list of names")
        return contract.TOKEN_TYPE_IDS in names
    return kind == "WordPiece" and not str(config.get("tokenizer_class")).startswith("DistilBert")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}).") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not a JSON object.")
    return value

"""Hugging Face's files of a tokenizer. tokenizer.json defines it; some clients need the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.processing import sentencepiece_folder
from keras_tx.processing import tokenizer_kinds as kinds
from keras_tx.processing.sentencepiece_file import read_model, remedy
from keras_tx.processing.sentencepiece_tokenizer import sentencepiece_tokenizer
from keras_tx.processing.special_tokens import frame_of

SPECIAL_TOKENS = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")
OURS = "keras_tx"  # the key for our options, which Hugging Face ignores
CHAT_TEMPLATE = "chat_template.jinja"  # where transformers writes the template since version 4.50
OPTIONS = ("too_long", "multiple")
UNLIMITED = 10**9  # a larger model_max_length means that there is no limit

# The usual special tokens of decoders.
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
        # Clients need a token for padding, which the attention mask hides.
        special["pad_token"] = special["eos_token"]
        ours["pad_token"] = None
    config = {
        # The class that loads tokenizer.json unchanged.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": transform.max_length or 10**30,
        "model_input_names": inputs,
        "padding_side": transform.padding_side,
        "truncation_side": "right",
        "clean_up_tokenization_spaces": False,
        **special,
        **({"chat_template": transform.chat_template} if transform.chat_template else {}),
        OURS: ours,
    }
    if transform.segments and is_plain_wordpiece(transform.tokenizer, special):
        # Only under this name does transformers.js return token_type_ids for pairs. transformers 5 then
        # builds the tokenizer from the vocabulary and these options.
        normalizer = json.loads(transform.tokenizer)["normalizer"]
        config |= {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": normalizer["lowercase"],
            "strip_accents": normalizer["strip_accents"],
            "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
        }
    tokenizer = Tokenizer.from_str(transform.tokenizer)
    if _begins_texts(tokenizer, special.get("bos_token")):
        # Without it, the text-generation pipeline of transformers.js adds no special tokens.
        config["add_bos_token"] = True
    target = transform.target_tokenizer
    return {
        contract.TOKENIZER: _pretty(transform.tokenizer),
        **({contract.TARGET_TOKENIZER: _pretty(target)} if target else {}),
        contract.TOKENIZER_CONFIG: _json(config),
        contract.SPECIAL_TOKENS: _json(special),
        **_vocabulary_files(tokenizer),
    }


def _begins_texts(tokenizer: Tokenizer, token: str | None) -> bool:
    """Whether a tokenizer adds this token before each text, and no token behind it."""
    if token is None:
        return False
    before, after = frame_of(tokenizer, pair=False).special
    return before.tolist() == [tokenizer.token_to_id(token)] and not len(after)


def is_plain_wordpiece(tokenizer: str, special: Mapping[str, str]) -> bool:
    """Whether BertTokenizer builds the same tokenizer from the vocabulary and the options."""
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
    expected = json.loads(built.to_str())
    rows = [
        [(x.ids, x.type_ids) for x in (each.encode("a"), each.encode("a", "b"))]
        for each in (built, Tokenizer.from_str(tokenizer))
    ]
    parts = ("model", "normalizer", "pre_tokenizer")
    return rows[0] == rows[1] and all(content[part] == expected[part] for part in parts)


def _vocabulary_files(tokenizer: Tokenizer) -> dict[str, str]:
    """vocab.txt, or vocab.json and merges.txt, if they can represent the vocabulary."""
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    ids = tokenizer.get_vocab(with_added_tokens=True)
    in_order = sorted(ids, key=ids.__getitem__)
    if model["type"] == "WordPiece":
        can_be_lines = sorted(ids.values()) == list(range(len(ids))) and not any("\n" in x for x in ids)
        return {contract.VOCAB: "".join(f"{token}\n" for token in in_order)} if can_be_lines else {}
    byte_level = "ByteLevel" in json.dumps(content["pre_tokenizer"])
    if model["type"] != "WordLevel" and not (model["type"] == "BPE" and byte_level):
        return {}
    files = {contract.VOCAB_JSON: _json({token: ids[token] for token in in_order})}
    if model["type"] == "BPE":
        pairs = [x if isinstance(x, str) else " ".join(x) for x in model["merges"]]
        files[contract.MERGES] = "\n".join(["#version: 0.2", *pairs, ""])
    return files


def fields_of(path: Path) -> dict[str, Any]:
    """Returns the fields of a TextTransform from a folder, or from a tokenizer.json."""
    try:
        exists = path.exists()
    except (OSError, ValueError):  # too long for a path, or with a null character
        exists = False
    if not exists:
        raise ConfigError(
            f"{path!s:.200} does not exist, expected a {contract.TOKENIZER} or a folder with one."
        )
    folder, file = (path, path / contract.TOKENIZER) if path.is_dir() else (path.parent, path)
    config, special = _config_of(folder) if path.is_dir() else ({}, {})
    if path.is_dir() and sentencepiece_folder.is_marian(folder):
        fields = sentencepiece_folder.marian_fields(folder, config, special)
        side = config.get("padding_side", "right")
        return {**fields, "max_length": _max_length(folder, config), "padding_side": side, "segments": False}
    target = _target_tokenizer(folder) if path.is_dir() else None
    if not file.is_file():
        tokenizer, target, special = _from_vocabulary(folder, config, special)
    elif file.suffix in sentencepiece_folder.SUFFIXES:
        model = read_model(file)
        tokenizer, special = sentencepiece_tokenizer(model), model.special
    else:
        tokenizer = parse(file.read_text("utf-8"), str(file))
    special = special or usual(tokenizer)
    ours = config.get(OURS, {})
    if "pad_token" in ours:
        special.pop("pad_token", None)
    return {
        "tokenizer": tokenizer.to_str(),
        "target_tokenizer": target,
        "max_length": _max_length(folder, config),
        "padding_side": config.get("padding_side", "right"),
        "segments": _has_segments(folder, config, _kind(tokenizer)),
        "chat_template": _chat_template(folder, config) if path.is_dir() else None,
        **special,
        **{name: ours[name] for name in OPTIONS if name in ours},
    }


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template of a folder; of several, the one with the name "default"."""
    file = folder / CHAT_TEMPLATE
    if file.is_file():
        return file.read_text("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise _wrong(folder, "chat_template", template, "a template, or a list with one named 'default'")
    return template


def _target_tokenizer(folder: Path) -> str | None:
    path = folder / contract.TARGET_TOKENIZER
    return parse(path.read_text("utf-8"), str(path)).to_str() if path.is_file() else None


def _config_of(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The tokenizer_config.json of a folder, and the special tokens that the folder names."""
    path = folder / contract.TOKENIZER_CONFIG
    config = _read_json(path)
    if config.get("truncation_side", "right") != "right":
        raise _wrong(folder, "truncation_side", config["truncation_side"], "'right', the only supported side")
    if not isinstance(config.get(OURS, {}), dict):
        raise _wrong(folder, OURS, config[OURS], "an object")
    return config, {**_special(folder / contract.SPECIAL_TOKENS), **_special(path)}


def _max_length(folder: Path, config: Mapping[str, Any]) -> int | None:
    longest = config.get("model_max_length")
    if longest is None:
        return None
    number = isinstance(longest, int | float) and not isinstance(longest, bool)
    if not number or longest < 1 or longest % 1:
        raise _wrong(folder, "model_max_length", longest, "a whole number of tokens, 1 or more")
    return int(longest) if longest < UNLIMITED else None


def parse(text: str, name: str = "tokenizer") -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises no narrower class
        raise ConfigError(f"{name} is not a valid tokenizer.json: {error}.") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _from_vocabulary(
    folder: Path, config: Mapping[str, Any], special: dict[str, str]
) -> tuple[Tokenizer, str | None, dict[str, str]]:
    """The tokenizer of a folder without a tokenizer.json, another one of targets, and the special tokens."""
    if path := sentencepiece_folder.sentencepiece_path(folder):
        model_type = str(_read_json(folder / contract.CONFIG).get("model_type", ""))
        fields = sentencepiece_folder.folder_fields(path, config, model_type, special)
        return Tokenizer.from_str(fields.pop("tokenizer")), fields.pop("target_tokenizer", None), fields
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
        return tokenizer, None, special
    if (folder / contract.VOCAB_JSON).is_file() and (folder / contract.MERGES).is_file():
        vocabulary = kinds.read_vocabulary(folder / contract.VOCAB_JSON)
        _check_byte_level(folder, config, vocabulary)
        if not special:
            special = kinds.ROBERTA_TOKENS if "<mask>" in vocabulary else kinds.GPT_TOKENS
        tokenizer = kinds.byte_bpe_tokenizer(
            vocabulary,
            kinds.read_merges(folder / contract.MERGES),
            special,
            add_prefix_space=_switch(folder, config, "add_prefix_space", False),
        )
        return tokenizer, None, dict(special)
    raise ConfigError(
        f"{folder} has no tokenizer: expected {contract.TOKENIZER}, or {contract.VOCAB}, or "
        f"{contract.VOCAB_JSON} with {contract.MERGES}, or {' or '.join(sentencepiece_folder.FILES)}."
    )


def _check_byte_level(folder: Path, config: Mapping[str, Any], vocabulary: Mapping[str, int]) -> None:
    """Raises a ConfigError for the files of a BPE that splits texts in another way than GPT-2's."""
    kind = str(config.get("tokenizer_class") or _read_json(folder / contract.CONFIG).get("model_type", ""))
    if kind.lower().startswith("qwen"):
        reason = f"of {kind!r}"
    elif any(token.endswith("</w>") for token in vocabulary):
        reason = "with </w> at the end of words, as in GPT-1 and CLIP"
    else:
        return
    raise ConfigError(
        f"{folder / contract.MERGES} is that of a BPE {reason}, which is supported only as "
        f"{contract.TOKENIZER}. {remedy(str(folder / contract.MERGES))}"
    )


def _special(path: Path) -> dict[str, str]:
    """The special tokens in a file: strings, or objects with a `content`."""
    tokens = {}
    for name, value in _read_json(path).items():
        if name not in SPECIAL_TOKENS or value is None:
            continue
        token = value.get("content") if isinstance(value, dict) else value
        if not isinstance(token, str):
            raise ConfigError(
                f"{path}: {name} is {value!r:.80}, expected a string or an object with a string content."
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
    """Returns the fields of a TextTransform from a tokenizer without a config."""
    text = tokenizer.to_str()
    return {"tokenizer": text, "segments": _kind(tokenizer) == "WordPiece", **usual(parse(text))}


def usual(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the special tokens by their usual names, because tokenizer.json does not name them."""
    names = tokenizer.get_vocab()
    if "<mask>" in names:
        known = kinds.ROBERTA_TOKENS
    elif _kind(tokenizer) == "WordPiece" or "[CLS]" in names:
        known = kinds.BERT_TOKENS
    else:
        present = {use: [name for name in usual if name in names] for use, usual in OF_DECODERS.items()}
        return {use: tokens[0] for use, tokens in present.items() if tokens}
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


def _pretty(tokenizer: str) -> str:
    return Tokenizer.from_str(tokenizer).to_str(pretty=True) + "\n"


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

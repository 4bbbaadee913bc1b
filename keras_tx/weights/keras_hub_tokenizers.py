"""Converts keras-hub's tokenizers to text transforms, and back."""

from __future__ import annotations

import json
import warnings
from typing import Any

from keras_tx.errors import ConfigError
from keras_tx.processing import TextTransform, byte_bpe, sentencepiece, wordpiece
from keras_tx.processing.tokenizer_kinds import BERT_TOKENS, ROBERTA_TOKENS

# The tokens that the preprocessors of these tokenizers add, and T5's sentinels, which its model file lacks.
# Other tokenizers number or add tokens in ways of their own.
SENTENCEPIECE: dict[str, dict[str, Any]] = {
    "T5Tokenizer": {"add_eos": True, "sentinels": 100},
    "GemmaTokenizer": {"add_bos": True},
    "LlamaTokenizer": {"add_bos": True},
    "MistralTokenizer": {"add_bos": True},
    "SentencePieceTokenizer": {},
}


def text_transform(preprocessor: Any, where: str) -> TextTransform | None:
    """Converts a keras-hub tokenizer, or the tokenizer of a preprocessor.

    Returns:
        The transform; None without a tokenizer. If the tokenizer is not supported, also warns.
    """
    tokenizer = getattr(preprocessor, "tokenizer", preprocessor)
    if tokenizer is None:
        return None
    try:
        return converted(preprocessor)
    except ConfigError as error:
        warnings.warn(
            f"{where}: its tokenizer, {type(tokenizer).__name__}, is not supported: {error}. Pass "
            "processing=.",
            stacklevel=2,
        )
    return None


def converted(preprocessor: Any) -> TextTransform:
    """Converts a keras-hub tokenizer, or the tokenizer of a preprocessor.

    Raises:
        ConfigError: the tokenizer is not supported.
    """
    tokenizer = getattr(preprocessor, "tokenizer", preprocessor)
    names = {kind.__name__ for kind in type(tokenizer).__mro__}
    longest = getattr(preprocessor, "sequence_length", None)
    if "WordPieceTokenizer" in names:
        return _wordpiece(tokenizer, longest)
    if "BytePairTokenizer" in names:
        return _byte_pairs(tokenizer, longest)
    if type(tokenizer).__name__ in SENTENCEPIECE:
        return _sentencepiece(tokenizer, longest)
    raise ConfigError("it is none of WordPiece, byte-level BPE, T5's, Gemma's, Llama's and Mistral's")


def _wordpiece(tokenizer: Any, longest: int | None) -> TextTransform:
    config = tokenizer.get_config()
    supported = {"split": True, "suffix_indicator": "##", "oov_token": BERT_TOKENS["unk_token"]}
    for name, only in supported.items():
        if config[name] != only:
            raise ConfigError(f"only {name}={only!r} is supported, but it has {name}={config[name]!r}")
    return wordpiece(
        list(tokenizer.get_vocabulary()),
        lowercase=bool(config["lowercase"]),
        strip_accents=bool(config["strip_accents"]),
        split_chinese=bool(config.get("split_on_cjk", True)),
        max_length=longest,
    )


def _byte_pairs(tokenizer: Any, longest: int | None) -> TextTransform:
    vocabulary = dict(tokenizer.vocabulary)
    special = {name: token for name, token in ROBERTA_TOKENS.items() if token in vocabulary}
    if not {"cls_token", "sep_token"} <= set(special):
        special = {}  # byte_bpe detects the tokens of GPT-2
    return byte_bpe(
        vocabulary,
        list(tokenizer.merges),
        add_prefix_space=bool(tokenizer.add_prefix_space),
        max_length=longest,
        **special,
    )


def _sentencepiece(tokenizer: Any, longest: int | None) -> TextTransform:
    if not tokenizer.proto:
        raise ConfigError("it has no proto")
    options = dict(SENTENCEPIECE[type(tokenizer).__name__])
    if any("<extra_id_" in token for token in tokenizer.get_vocabulary()):
        options.pop("sentinels", None)
    names = {"start_token": "bos_token", "end_token": "eos_token", "pad_token": "pad_token"}
    special = {ours: token for name, ours in names.items() if (token := getattr(tokenizer, name, None))}
    if "add_eos" in options:
        special.pop("bos_token", None)  # T5's is its pad_token, which keras-hub does not add
    return sentencepiece(bytes(tokenizer.proto), **options, **special, max_length=longest)


def tokenizer_of(transform: TextTransform, name: str) -> Any:
    """Creates keras-hub's tokenizer of this class with the vocabulary of a transform.

    Raises:
        ConfigError: the class does not support the tokenizer of the transform.
    """
    import keras_hub

    content = json.loads(transform.tokenizer)
    model, normalizer = content["model"], content["normalizer"] or {}
    kind = getattr(keras_hub.models, name)
    if issubclass(kind, keras_hub.tokenizers.WordPieceTokenizer):
        parts = (model["type"], normalizer.get("type"), (content["pre_tokenizer"] or {}).get("type"))
        if parts != ("WordPiece", "BertNormalizer", "BertPreTokenizer"):
            raise ConfigError(f"its model, normalizer and pre-tokenizer are {parts}")
        _check_names(transform, BERT_TOKENS)
        lowercase, accents = normalizer["lowercase"], normalizer["strip_accents"]
        return kind(
            vocabulary=_in_order(transform),
            lowercase=lowercase,
            strip_accents=lowercase if accents is None else accents,
            split_on_cjk=normalizer["handle_chinese_chars"],
        )
    if model["type"] != "BPE" or (content["pre_tokenizer"] or {}).get("type") != "ByteLevel":
        raise ConfigError(f"its model is {model['type']}, expected byte-level BPE")
    _check_names(transform, {name: token for name, token in ROBERTA_TOKENS.items() if name != "unk_token"})
    merges = [x if isinstance(x, str) else " ".join(x) for x in model["merges"]]
    return kind(
        vocabulary=transform.vocabulary,
        merges=merges,
        add_prefix_space=content["pre_tokenizer"]["add_prefix_space"],
    )


def _check_names(transform: TextTransform, expected: dict[str, str]) -> None:
    for name, token in expected.items():
        if getattr(transform, name) != token:
            raise ConfigError(f"its {name} is {getattr(transform, name)!r}, expected {token!r}")


def _in_order(transform: TextTransform) -> list[str]:
    ids = transform.vocabulary
    tokens = sorted(ids, key=ids.__getitem__)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ConfigError("its ids are not consecutive from 0")
    return tokens

"""Converts keras-hub's tokenizers to text transforms, and back."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from keras_tx.errors import ConfigError
from keras_tx.processing import TextTransform, wordpiece
from keras_tx.processing.sentencepiece_file import SentencePieceModel, read_model
from keras_tx.processing.sentencepiece_folder import with_ids_of_fairseq
from keras_tx.processing.sentencepiece_tokenizer import sentencepiece_tokenizer
from keras_tx.processing.tokenizer_kinds import BERT_TOKENS, ROBERTA_TOKENS, with_tokens_around

# Special tokens by their names in keras-hub. A start token is also the class token of an encoder.
SPECIAL = {
    "start_token": "bos_token",
    "bos_token": "bos_token",
    "end_token": "eos_token",
    "pad_token": "pad_token",
    "cls_token": "cls_token",
    "sep_token": "sep_token",
    "mask_token": "mask_token",
}
SENTINELS = 100  # of T5, which are not in its model file
# The tokenizers whose ids are not those of their model file: the special tokens are numbered as in fairseq.
FAIRSEQ = {"XLMRobertaTokenizer": ("<mask>",), "MetaCLIP2Tokenizer": ()}
SHIFTED = ("_tokenize_spm", "_tokenize_tf")  # methods of SentencePieceTokenizer that they replace


@dataclasses.dataclass(frozen=True)
class Packing:
    """The special tokens that a preprocessor adds to a text or a pair of texts."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    between: tuple[str, ...] | None = None  # None: those after a text, then those before one


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

    The transform returns the ids of a call of the tokenizer. Inside tf.data, keras-hub splits texts for
    byte-level BPE in another way.

    Args:
        preprocessor: a tokenizer, or the preprocessor of a task with the tokens that it adds to texts: those
            of `generate_preprocess` for a causal language model, otherwise those of a call.

    Raises:
        ConfigError: the tokenizer is not supported.
    """
    tokenizer = getattr(preprocessor, "tokenizer", preprocessor)
    names = {kind.__name__ for kind in type(tokenizer).__mro__}
    longest = getattr(preprocessor, "sequence_length", None)
    if "WordPieceTokenizer" in names:
        return _wordpiece(tokenizer, longest)
    packing = None if preprocessor is tokenizer else _packing(preprocessor, tokenizer)
    if "BytePairTokenizer" in names:
        return _byte_pairs(tokenizer, packing or _default_packing(tokenizer), longest)
    if "SentencePieceTokenizer" in names:
        return _sentencepiece(tokenizer, names, packing, longest)
    raise ConfigError("it is none of WordPiece, byte-level BPE and SentencePiece")


def _packing(preprocessor: Any, tokenizer: Any) -> Packing | None:
    """The tokens of the packer of a preprocessor; None for a preprocessor without one."""
    if not hasattr(preprocessor, "packer"):
        return None
    if preprocessor.packer is None:
        preprocessor.build(None)
    packer: Any = preprocessor.packer
    before, after = _tokens(tokenizer, packer.start_value), _tokens(tokenizer, packer.end_value)
    if hasattr(preprocessor, "generate_preprocess"):
        return Packing(before)
    if not hasattr(packer, "sep_value"):
        return Packing(before, after)
    return Packing(before, after, _tokens(tokenizer, packer.sep_value))


def _tokens(tokenizer: Any, ids: Iterable[int] | int | None) -> tuple[str, ...]:
    if ids is None:
        return ()
    return tuple(tokenizer.id_to_token(int(number)) for number in ([ids] if isinstance(ids, int) else ids))


def _default_packing(tokenizer: Any) -> Packing:
    """The tokens of encoders, for a tokenizer without a preprocessor."""
    if getattr(tokenizer, "mask_token", None) is None:
        return Packing()
    end = (tokenizer.end_token,)
    return Packing((tokenizer.start_token,), end, end * 2)


def _special(tokenizer: Any, vocabulary: Iterable[str], packing: Packing) -> dict[str, Any]:
    """The special tokens by the names of TextTransform."""
    known = set(vocabulary)
    special: dict[str, Any] = {}
    for name, ours in SPECIAL.items():
        token = getattr(tokenizer, name, None)
        if isinstance(token, str) and token in known:
            special.setdefault(ours, token)
    if packing.before and packing.after:  # of an encoder
        special.setdefault("cls_token", packing.before[0])
        special.setdefault("sep_token", packing.after[-1])
    if ROBERTA_TOKENS["unk_token"] in known:
        special.setdefault("unk_token", ROBERTA_TOKENS["unk_token"])
    return special


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


def _byte_pairs(tokenizer: Any, packing: Packing, longest: int | None) -> TextTransform:
    if not tokenizer.vocabulary:
        raise ConfigError("it has no vocabulary")
    if not getattr(tokenizer, "_allow_python_workflow", False):
        raise ConfigError("it splits texts with TensorFlow (_allow_python_workflow=False)")
    special = set(tokenizer.special_tokens)
    whole = set(tokenizer.unsplittable_tokens or ())
    if special - whole:
        raise ConfigError(f"it splits its special token {min(special - whole)!r} (unsplittable_tokens)")
    tokenizer._maybe_initialized_tokenizers()
    built = with_tokens_around(
        tokenizer._tokenizer.to_str(),
        sorted(special),
        sorted(whole - special),
        before=packing.before,
        after=packing.after,
        between=packing.between,
    )
    named = _special(tokenizer, tokenizer.vocabulary, packing)
    return TextTransform(built, max_length=longest, segments=False, **named)


def _sentencepiece(
    tokenizer: Any, names: set[str], packing: Packing | None, longest: int | None
) -> TextTransform:
    if not tokenizer.proto:
        raise ConfigError("it has no proto")
    model, additional = _pieces(tokenizer, names)
    packing = _with_ends(tokenizer, model, packing or _sentencepiece_packing(tokenizer, names))
    built = sentencepiece_tokenizer(
        model,
        additional=additional,
        before=packing.before,
        after=packing.after,
        between=packing.between,
    )
    tokens = {*(piece for piece, _, _ in model.pieces), *additional}
    special: dict[str, Any] = {**model.special, **_special(tokenizer, tokens, packing)}
    if "XLMRobertaTokenizer" in names:
        special["mask_token"] = ROBERTA_TOKENS["mask_token"]
    if "T5Tokenizer" in names:
        special.pop("bos_token", None)  # T5's is its pad_token, which keras-hub does not add
    return TextTransform(built.to_str(), max_length=longest, segments=False, **special)


def _pieces(tokenizer: Any, names: set[str]) -> tuple[SentencePieceModel, list[str]]:
    """The model file with the ids of the tokenizer, and special tokens that follow its pieces."""
    model = read_model(bytes(tokenizer.proto))
    shifted = next((name for name in FAIRSEQ if name in names), None)
    if shifted is not None:
        return with_ids_of_fairseq(model, ROBERTA_TOKENS, FAIRSEQ[shifted]), []
    if any(_replaces(tokenizer, name) for name in SHIFTED):
        raise ConfigError("it has a tokenize method of its own")
    pieces = {piece for piece, _, _ in model.pieces}
    if "DebertaV3Tokenizer" in names and tokenizer.mask_token not in pieces:
        return model, [tokenizer.mask_token]
    if "T5Tokenizer" in names and not any("<extra_id_" in piece for piece in pieces):
        return model, [f"<extra_id_{number}>" for number in reversed(range(SENTINELS))]
    return model, []


def _replaces(tokenizer: Any, method: str) -> bool:
    """Whether a subclass of SentencePieceTokenizer has this method."""
    kinds = type(tokenizer).__mro__
    base = next(kind for kind in kinds if kind.__name__ == "SentencePieceTokenizer")
    return getattr(type(tokenizer), method, None) is not getattr(base, method, None)


def _sentencepiece_packing(tokenizer: Any, names: set[str]) -> Packing:
    """The tokens that the preprocessors of a tokenizer add."""
    start, end = (getattr(tokenizer, name, None) for name in ("start_token", "end_token"))
    if "T5Tokenizer" in names:
        return Packing(after=(end,))  # type: ignore[arg-type]
    if getattr(tokenizer, "mask_token", None) or names & set(FAIRSEQ):
        between = (end, end) if names & set(FAIRSEQ) else (end,)
        return Packing((start,), (end,), between)  # type: ignore[arg-type]
    return Packing() if start is None else Packing((start,))


def _with_ends(tokenizer: Any, model: SentencePieceModel, packing: Packing) -> Packing:
    """The tokens that the tokenizer itself adds, inside of those of the preprocessor."""
    added = {"bos_token": bool(tokenizer.add_bos), "eos_token": bool(tokenizer.add_eos)}
    first, last = (
        [model.special[name]] if add and name in model.special else [] for name, add in added.items()
    )
    if not first and not last:
        return packing
    if packing.between is not None:
        raise ConfigError("it has add_bos or add_eos, and its preprocessor adds tokens between texts")
    return Packing((*packing.before, *first), (*last, *packing.after))


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
    splits = _splits(content)
    if model["type"] != "BPE" or not splits or splits[-1]["type"] != "ByteLevel":
        raise ConfigError(f"its model is {model['type']}, expected byte-level BPE")
    _check_names(transform, {name: token for name, token in ROBERTA_TOKENS.items() if name != "unk_token"})
    merges = [x if isinstance(x, str) else " ".join(x) for x in model["merges"]]
    prefix = splits[-1]["add_prefix_space"]
    made = kind(vocabulary=transform.vocabulary, merges=merges, add_prefix_space=prefix)
    if len(splits) > 1 and _splits(json.loads(made._tokenizer.to_str())) != splits:
        raise ConfigError("it splits texts in another way than keras-hub")
    return made


def _splits(content: Mapping[str, Any]) -> list[Any]:
    """The pre-tokenizers of a tokenizer.json."""
    first = content["pre_tokenizer"] or {}
    return first["pretokenizers"] if first.get("type") == "Sequence" else [first] if first else []


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

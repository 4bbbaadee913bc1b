"""Tokenizers with the ids of SentencePiece models, for tokenizer.json."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from keras_tx.errors import ConfigError, user_stacklevel
from keras_tx.processing.sentencepiece_file import (
    BPE,
    BYTE,
    CONTROL,
    MODEL_TYPES,
    NORMAL,
    SPACE,
    UNIGRAM,
    UNKNOWN,
    USER_DEFINED,
    Charsmap,
    SentencePieceModel,
    remedy,
)

UNKNOWN_PENALTY = 10  # how much less than the lowest score an unknown character has
NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # do not occur in texts
START, END = r"(?<![\s\S])", r"(?![\s\S])"  # ^ and $ of Oniguruma are those of lines
ALL = 1 << 16  # more spaces than a text starts with
CODE_POINTS = 0x30000  # above, NFKC changes none


def sentencepiece_tokenizer(
    model: SentencePieceModel,
    *,
    additional: Sequence[str] = (),
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    between: Sequence[str] | None = None,
    characters: Sequence[Any] | None = None,
) -> Tokenizer:
    """The tokenizer of a model.

    Args:
        model: of type unigram or BPE.
        additional: special tokens whose ids follow those of the pieces.
        before: special tokens that are added before a text.
        after: special tokens that are added after a text.
        between: special tokens between the texts of a pair; by default those after one and before the other.
        characters: normalizers in place of the model's rules for characters.
    """
    if model.model_type not in (UNIGRAM, BPE):
        kind = MODEL_TYPES.get(model.model_type, model.model_type)
        raise ConfigError(f"{model.name} is a {kind} model, expected unigram or bpe. Train another model.")
    symbols = model.of_type(USER_DEFINED)
    added: list[Any] = []
    if model.model_type == UNIGRAM:
        scored = [*_scores(model), *((token, 0.0) for token in additional)]
        hidden = {piece for piece, _, kind in model.pieces if kind in (UNKNOWN, CONTROL, BYTE)}
        unknown = next(index for index, (_, _, kind) in enumerate(model.pieces) if kind == UNKNOWN)
        vocabulary = _below(model, scored, {*hidden, *additional})
        tokenizer = Tokenizer(models.Unigram(vocabulary, unknown, model.byte_fallback))  # type: ignore
    else:
        if symbols and (model.add_dummy_prefix or model.remove_extra_whitespaces):
            raise ConfigError(
                f"{model.name} is a bpe model with user-defined symbols such as {symbols[0]!r} and a dummy "
                f"prefix or stripped spaces, which is not supported. {remedy(model.name)}"
            )
        added = [AddedToken(symbol, normalized=True, special=False) for symbol in symbols]
        tokenizer = _bpe(model, additional)
    tokenizer.normalizer = _normalizer(model, characters)  # type: ignore
    _check_symbols(model, tokenizer.normalizer, symbols)
    _finish(tokenizer, model, before, after, between)
    special = [*(piece for piece, _, kind in model.pieces if kind in (CONTROL, UNKNOWN)), *additional]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens(added)
    return tokenizer


def shared_tokenizer(
    model: SentencePieceModel, ids: Mapping[str, int], special: Mapping[str, str]
) -> Tokenizer:
    """The tokenizer that splits texts by a Unigram model and has the ids of another, larger vocabulary.

    This is Marian's tokenizer: a vocabulary is shared by two models, of the source and of the target.
    A piece outside the vocabulary is unknown. A run of characters that the model does not have is one token,
    with the id of the whole run or of the unk_token.

    Args:
        model: splits texts.
        ids: the id of each token, consecutive from 0.
        special: the special tokens by their names; the eos_token is added after a text.
    """
    _check_shared(model, ids)
    tokens = sorted(ids, key=ids.__getitem__)
    letters = {piece for piece, _, kind in model.pieces if kind == NORMAL and len(piece) == 1}
    # Tokens of characters that the model does not have: each is the id of a whole run of them.
    runs = {token for token in tokens if letters.isdisjoint(token)}.difference(special.values())
    vocabulary = _shared_scores(model, tokens, runs)
    tokenizer = Tokenizer(models.Unigram(vocabulary, ids[special["unk_token"]]))  # type: ignore
    steps = [_normalizer(model), *_whole_runs(letters, runs, ids)]
    tokenizer.normalizer = normalizers.Sequence(steps)  # type: ignore
    _finish(tokenizer, model, (), (special["eos_token"],))
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in sorted(set(special.values()))]
    )
    languages = [token for token in tokens if token.startswith(">>") and token.endswith("<<")]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in languages])
    return tokenizer


def _check_shared(model: SentencePieceModel, ids: Mapping[str, int]) -> None:
    if model.model_type != UNIGRAM or model.byte_fallback or model.of_type(USER_DEFINED):
        raise ConfigError(
            f"{model.name} is not a plain unigram model, which Marian's shared vocabulary requires."
        )
    missing = [piece for piece in model.of_type(NORMAL) if piece not in ids]
    if missing:
        warnings.warn(
            f"The vocabulary lacks {len(missing)} of the pieces of {model.name}, such as {missing[0]!r}. "
            "Their texts are split into other pieces, where transformers has an unknown token.",
            stacklevel=user_stacklevel(),
        )


def _shared_scores(
    model: SentencePieceModel, tokens: Sequence[str], runs: set[str]
) -> list[tuple[str, float]]:
    """The scores of a shared vocabulary: tokens of the other model are never part of a split."""
    scores = {piece: score for piece, score, kind in model.pieces if kind == NORMAL}
    scores = {**dict.fromkeys(runs, min(scores.values()) - UNKNOWN_PENALTY), **scores}
    return _below(model, [(token, scores.get(token, 0.0)) for token in tokens], set(tokens) - scores.keys())


def _whole_runs(letters: set[str], runs: set[str], ids: Mapping[str, int]) -> list[Any]:
    """Replaces runs of several unknown characters, which are one unknown token, by one such character."""
    if not runs:
        return []
    known = _character_class({*letters, SPACE})
    whole = "|".join(_escaped(run) for run in sorted(runs) if len(run) > 1)
    lookahead = f"(?!(?:{whole})(?![^{known}]))" if whole else ""
    unknown = next(character for character in NONCHARACTERS if character not in ids)
    return [normalizers.Replace(Regex(f"(?<![^{known}]){lookahead}[^{known}]{{2,}}"), unknown)]


def _character_class(characters: set[str]) -> str:
    """The inside of a class of a regular expression, as ranges."""
    codes = {ord(character) for character in characters}
    starts = sorted(code for code in codes if code - 1 not in codes)
    ends = sorted(code for code in codes if code + 1 not in codes)
    return "".join(
        _escaped(chr(start)) if start == end else f"{_escaped(chr(start))}-{_escaped(chr(end))}"
        for start, end in zip(starts, ends, strict=True)
    )


def _escaped(text: str) -> str:
    """A text in a regular expression of Oniguruma and of JavaScript, also in a class."""
    return "".join(f"\\{character}" if character in r"\^$.*+?()[]{}|/-" else character for character in text)


def _scores(model: SentencePieceModel) -> list[tuple[str, float]]:
    """The score of each piece. A user-defined symbol wins over the same text in other pieces."""
    highest = max(score for _, score, kind in model.pieces if kind == NORMAL)
    return [
        (piece, len(piece.encode("utf-8")) * highest - 0.1 if kind == USER_DEFINED else score)
        for piece, score, kind in model.pieces
    ]


def _below(
    model: SentencePieceModel, scored: Sequence[tuple[str, float]], hidden: set[str]
) -> list[tuple[str, float]]:
    """The scores, where those of hidden pieces are so low that their text is split into other pieces.

    An unknown character has a score below all others. This does not change how texts are split if each
    character of a piece is a piece too; otherwise hidden pieces have the lowest score of the others.
    """
    lowest = min((score for piece, score in scored if piece not in hidden), default=0.0)
    if not _stray_characters(model):
        lowest = (min(lowest, 0.0) - 1) * (max(map(len, hidden), default=0) + 1)
    return [(piece, lowest if piece in hidden else score) for piece, score in scored]


def _stray_characters(model: SentencePieceModel) -> set[str]:
    """Characters that are part of pieces, but not pieces."""
    of_texts = [piece for piece, _, kind in model.pieces if kind == NORMAL]
    single = {piece for piece, _, kind in model.pieces if kind in (NORMAL, USER_DEFINED) and len(piece) == 1}
    return {character for piece in of_texts if len(piece) > 1 for character in piece} - single


def _bpe(model: SentencePieceModel, additional: Sequence[str]) -> Tokenizer:
    """Byte-pair encoding: two pieces are merged if their text is a piece, the highest score first."""
    if stray := _stray_characters(model):
        raise ConfigError(
            f"{model.name} is a bpe model without the character {min(stray)!r}, which is part of its pieces. "
            f"Train another model."
        )
    ids = {piece: index for index, (piece, _, _) in enumerate(model.pieces)}
    ids |= {token: len(ids) + index for index, token in enumerate(additional)}
    kinds = {piece: kind for piece, _, kind in model.pieces}
    parts = (NORMAL, USER_DEFINED)
    merges = [
        (piece[:place], piece[place:])
        for piece, _, kind in sorted(model.pieces, key=lambda entry: -entry[1])
        if kind == NORMAL
        for place in range(len(piece) - 1, 0, -1)  # of equal merges SentencePiece applies the leftmost
        if kinds.get(piece[:place]) in parts and kinds.get(piece[place:]) in parts
    ]
    unknown = next(piece for piece, _, kind in model.pieces if kind == UNKNOWN)
    return Tokenizer(
        models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=model.byte_fallback)  # type: ignore
    )


def _normalizer(model: SentencePieceModel, characters: Sequence[Any] | None = None) -> Any:
    """The normalizer: rules for characters, then spaces, which become parts of the pieces."""
    steps = _character_steps(model) if characters is None else list(characters)
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(f"{START} +"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    steps.append(normalizers.Replace(" ", SPACE))
    if model.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(f"{SPACE}+{END}"), ""))
    if model.add_dummy_prefix:  # which the pre-tokenizer adds to texts that do not start with a space
        steps.append(normalizers.Replace(Regex(f"{START}{SPACE}"), 2 * SPACE))
    return normalizers.Sequence(steps)


def _character_steps(model: SentencePieceModel) -> list[Any]:
    """The charsmap after NFKC: alone, `tokenizers` applies it wrongly to sequences of characters.

    A charsmap whose rules are not those of NFKC (nmt_nfkc, nfkc, and with _cf for lowercase) is refused.
    """
    if not model.charsmap:
        return []
    charsmap = Charsmap(model.charsmap, model.name)
    rules = charsmap.characters()
    lowercase = [normalizers.Lowercase()] if rules.get("A") == "a" else []
    change = normalizers.Sequence([normalizers.NFKC(), *lowercase, normalizers.Precompiled(model.charsmap)])
    exempt = [character for character in _nfkc_changes(rules) if change.normalize_str(character) != character]
    protected = list(zip(exempt, NONCHARACTERS, strict=False))
    steps: list[Any] = [normalizers.Replace(character, other) for character, other in protected]
    if rules.get("\r") == " ":
        steps.append(
            normalizers.Replace("\r\n", "  ")
        )  # one grapheme, which the charsmap would make one space
    steps += [change, *(normalizers.Replace(other, character) for character, other in protected)]
    together = normalizers.Sequence(steps)
    differs = [x for x, text in rules.items() if together.normalize_str(x) != text]
    differs += [text for text in ("e\u0301", "\u1100\u1161") if charsmap.get(text) is None]
    differs += exempt[len(NONCHARACTERS) :]
    if differs:
        raise ConfigError(
            f"{model.name} has rules for characters other than NFKC's, such as those of {differs[0]!r}, "
            f"which are not supported. {remedy(model.name)}"
        )
    return steps


def _nfkc_changes(rules: Mapping[str, str]) -> Iterator[str]:
    """Characters that NFKC or lowercase changes, but no rule."""
    for character in (chr(code) for code in range(CODE_POINTS) if not 0xD800 <= code < 0xE000):
        if character not in rules and unicodedata.normalize("NFKC", character).lower() != character:
            yield character


def _check_symbols(model: SentencePieceModel, normalizer: Any, symbols: Sequence[str]) -> None:
    for symbol in symbols:
        text = normalizer.normalize_str(symbol)
        if text.lstrip(SPACE) != symbol.replace(" ", SPACE).lstrip(SPACE):
            raise ConfigError(
                f"{model.name} has the user-defined symbol {symbol!r}, which its rules for characters change "
                f"to {text!r}. This is not supported. {remedy(model.name)}"
            )


def _finish(
    tokenizer: Tokenizer,
    model: SentencePieceModel,
    before: Sequence[str],
    after: Sequence[str],
    between: Sequence[str] | None = None,
) -> None:
    """Sets the splits at spaces, the decoder, and the special tokens around texts."""
    pieces = {piece for piece, _, kind in model.pieces if kind in (NORMAL, USER_DEFINED)}
    split = SPACE in pieces and not any(SPACE in piece[1:] for piece in pieces)
    prefix = "always" if model.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prefix, split=split)  # type: ignore
    steps: list[Any] = [decoders.Replace(SPACE, " ")]
    steps += [decoders.ByteFallback()] if model.byte_fallback else []
    steps.append(decoders.Fuse())
    spaces = ALL if model.remove_extra_whitespaces else 1 if model.add_dummy_prefix else 0
    steps += [decoders.Strip(" ", spaces, 0)] if spaces else []
    tokenizer.decoder = decoders.Sequence(steps)  # type: ignore
    if before or after:
        tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore
            single=[*before, "$A", *after],
            pair=[*before, "$A", *([*after, *before] if between is None else between), "$B", *after],
            special_tokens=[
                (token, tokenizer.token_to_id(token)) for token in {*before, *(between or ()), *after}
            ],
        )

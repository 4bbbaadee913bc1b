"""Text transforms from vocabularies, and training of vocabularies on texts."""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from keras_tx.errors import ConfigError, TextError, whole_number
from keras_tx.processing import tokenizer_kinds as kinds
from keras_tx.processing.sentencepiece_file import (
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    SentencePieceModel,
    read_model,
)
from keras_tx.processing.sentencepiece_tokenizer import sentencepiece_tokenizer
from keras_tx.processing.text import TextTransform

NEXT, FIRST = 0x100000, 0xF0000  # private characters: a letter inside a word, and at its start


def wordpiece(
    vocabulary: kinds.Vocabulary,
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    split_chinese: bool = True,
    **options: Any,
) -> TextTransform:
    """Creates BERT's tokenizer from a vocabulary.

    >>> transform = wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "##ness", "!"])
    >>> transform("Goodness!")["input_ids"]
    array([[2, 5, 6, 7, 3]])

    Args:
        vocabulary: the path of a vocab.txt or vocab.json, or the tokens in order of their ids.
        lowercase: whether the vocabulary is uncased.
        strip_accents: whether accents are removed; by default for uncased vocabularies.
        split_chinese: whether each Chinese character is a separate word.
        options: fields of TextTransform: `max_length=128`, `mask_token="<mask>"` ...
    """
    special = {name: options.pop(name, token) for name, token in kinds.BERT_TOKENS.items()}
    tokenizer = kinds.wordpiece_tokenizer(
        kinds.read_vocabulary(vocabulary),
        special,
        lowercase=lowercase,
        strip_accents=strip_accents,
        split_chinese=split_chinese,
    )
    return TextTransform(tokenizer.to_str(), **special, **options)


def byte_bpe(
    vocabulary: str | os.PathLike[str] | Mapping[str, int],
    merges: str | os.PathLike[str] | Iterable[Any],
    *,
    add_prefix_space: bool = False,
    **options: Any,
) -> TextTransform:
    """Creates GPT-2's tokenizer, or RoBERTa's if the vocabulary has a <mask>.

    Args:
        vocabulary: the path of a vocab.json, or the id of each token.
        merges: the path of a merges.txt, or pairs of tokens.
        add_prefix_space: whether a space is added before the first word.
        options: fields of TextTransform; special tokens among them replace the default ones.
    """
    ids = kinds.read_vocabulary(vocabulary)
    special = {name: options.pop(name) for name in list(options) if name.endswith("_token")}
    if not special:
        special = kinds.ROBERTA_TOKENS if "<mask>" in ids else kinds.GPT_TOKENS
    pairs = kinds.read_merges(merges)
    tokenizer = kinds.byte_bpe_tokenizer(ids, pairs, special, add_prefix_space=add_prefix_space)
    return TextTransform(tokenizer.to_str(), **{"segments": False, **special, **options})


def sentencepiece(
    model: str | os.PathLike[str] | bytes,
    *,
    sentinels: int = 0,
    add_bos: bool = False,
    add_eos: bool = False,
    **options: Any,
) -> TextTransform:
    """Creates a tokenizer with the ids of a SentencePiece model, of type unigram or BPE.

    Args:
        model: the path of a spiece.model, tokenizer.model or source.spm, or its bytes.
        sentinels: number of T5's tokens `<extra_id_0>` ..., whose ids follow the pieces in descending order.
        add_bos: whether the model's first token is added before texts.
        add_eos: whether the model's end token is added after texts, as in T5.
        options: fields of TextTransform; special tokens among them replace those of the model.
    """
    read = read_model(model)
    special = {
        **read.special,
        **{name: options.pop(name) for name in list(options) if name.endswith("_token")},
    }
    added = {"bos_token": add_bos, "eos_token": add_eos}
    for name in (name for name, add in added.items() if add and name not in special):
        raise ConfigError(f"{read.name} has no {name}. Pass {name}=, or add_{name[:3]}=False.")
    before, after = ([special[name]] if add else [] for name, add in added.items())
    tokenizer = sentencepiece_tokenizer(read, additional=_sentinels(sentinels), before=before, after=after)
    return TextTransform(tokenizer.to_str(), **{"segments": False, **special, **options})


def _sentinels(count: int) -> list[str]:
    if type(count) is not int or count < 0:
        raise ConfigError(f"sentinels is {count!r}, expected a whole number, 0 or more.")
    return [f"<extra_id_{number}>" for number in reversed(range(count))]


def characters(alphabet: str | Sequence[str], **options: Any) -> TextTransform:
    """Creates a tokenizer with one token per character, with ids in order of the alphabet.

    Special tokens that are not in the alphabet have the ids after it. A character outside the alphabet raises
    a TextError, unless there is an `unk_token`.

    >>> transform = characters("abc")
    >>> transform(["cab", "b"])["input_ids"].tolist(), transform.decode([2, 0, 1])
    ([[2, 0, 1], [1, 0, 0]], 'cab')
    """
    tokens = list(alphabet)
    special = {name: options.pop(name) for name in list(options) if name.endswith("_token")}
    tokens += [token for token in dict.fromkeys(special.values()) if token not in tokens]
    tokenizer = kinds.character_tokenizer(kinds.read_vocabulary(tokens), special)
    return TextTransform(tokenizer.to_str(), **{"segments": False, **special, **options})


def character_vocabulary(texts: Iterable[str], **options: Any) -> TextTransform:
    """Creates a character tokenizer from the sorted characters of texts.

    >>> character_vocabulary(["hello"])("hole")["input_ids"]
    array([[1, 3, 2, 0]])
    """
    alphabet: set[str] = set()
    for text in _checked(texts):
        alphabet.update(text)
    return characters(sorted(alphabet), **options)


def train_byte_bpe(
    texts: Iterable[str],
    size: int,
    *,
    min_count: int = 2,
    add_prefix_space: bool = False,
    **options: Any,
) -> TextTransform:
    """Trains a byte-level BPE tokenizer; equal texts result in equal vocabularies.

    Args:
        texts: any number of texts.
        size: the largest number of tokens, including the 256 bytes.
        min_count: how often a pair must occur to be merged.
        add_prefix_space: as for `byte_bpe`.
        options: fields of TextTransform. Special tokens, by default GPT-2's <|endoftext|>, come first.
    """
    special = {name: options.pop(name) for name in list(options) if name.endswith("_token")}
    special = special or dict(kinds.GPT_TOKENS)
    tokens = list(dict.fromkeys(special.values()))
    _check_size(size, len(tokens) + 256, "256 bytes and the special tokens")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)  # type: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_count,
        special_tokens=tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_checked(texts), trainer)
    vocabulary, merges = _learned(tokenizer)
    return byte_bpe(vocabulary, merges, add_prefix_space=add_prefix_space, **special, **options)


def train_unigram(texts: Iterable[str], size: int, *, sentinels: int = 100, **options: Any) -> TextTransform:
    """Trains a Unigram tokenizer like T5's; equal texts result in equal vocabularies.

    Texts are normalized to NFKC, and white space to single spaces. The ids of `<pad>`, `</s>` and `<unk>` are
    0, 1 and 2, and the sentinels have the last ones. Each text ends with `</s>`.

    Args:
        texts: any number of texts; for translation, of both languages.
        size: the largest number of tokens, including the special tokens and the sentinels.
        sentinels: number of tokens `<extra_id_0>` ... for span corruption.
        options: fields of TextTransform.
    """
    special = {name: kinds.ROBERTA_TOKENS[name] for name in ("pad_token", "eos_token", "unk_token")}
    special |= {name: options.pop(name) for name in list(options) if name.endswith("_token")}
    last = _sentinels(sentinels)
    room = whole_number("size", size) - len(special) - len(last)
    _check_size(size, len(special) + sentinels + 1, f"the special tokens and {sentinels} sentinels")
    rules = [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([*rules, normalizers.Strip()])  # type: ignore
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # type: ignore
    trainer = trainers.UnigramTrainer(vocab_size=room, unk_token=None, show_progress=False)
    try:
        tokenizer.train_from_iterator(_checked(texts), trainer)
    except Exception as error:  # tokenizers raises no narrower class
        if "not large enough" not in str(error):
            raise
        raise ConfigError(
            f"size={size} is too small for the characters of the texts and {sentinels} sentinels. "
            "Increase it."
        ) from None
    others = {*special.values(), *last}
    pieces = [entry for entry in json.loads(tokenizer.to_str())["model"]["vocab"] if entry[0] not in others]
    if not pieces:
        raise TextError("The texts have no characters.")
    learned = _in_order(pieces)
    kind = {special["unk_token"]: UNKNOWN}
    model = SentencePieceModel(
        name="The trained vocabulary",
        pieces=[
            *((token, 0.0, kind.get(token, CONTROL)) for token in dict.fromkeys(special.values())),
            *((piece, score, NORMAL) for piece, score in learned),
        ],
        model_type=UNIGRAM,
        byte_fallback=False,
        special=special,
        add_dummy_prefix=True,
        remove_extra_whitespaces=True,
        charsmap=b"",
    )
    built = sentencepiece_tokenizer(model, additional=last, after=[special["eos_token"]], characters=rules)
    return TextTransform(built.to_str(), **{"segments": False, **special, **options})


def _in_order(pieces: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """The pieces by their scores, without what depends on the order of threads.

    The trainer sums in any order, and characters that it adds at the end have the lowest score plus 0.0001,
    0.0002 ..., in any order.
    """
    lowest = min(score for _, score in pieces)
    late = lowest + 1e-4 * sum(len(piece) == 1 for piece, _ in pieces)
    scores = {
        piece: round(lowest if len(piece) == 1 and score < late else score, 6) for piece, score in pieces
    }
    return sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))


def train_wordpiece(
    texts: Iterable[str],
    size: int,
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    split_chinese: bool = True,
    min_count: int = 2,
    max_characters: int = 1000,
    **options: Any,
) -> TextTransform:
    """Trains a WordPiece tokenizer; equal texts result in equal vocabularies.

    The trainer of `tokenizers` is not deterministic: the order of letters and of equal counts varies.

    Args:
        texts: any number of texts.
        size: the largest number of tokens, including the special tokens.
        min_count: how often a pair must occur to be merged.
        max_characters: how many characters are kept, the most frequent ones; words with others are unknown.
        lowercase, strip_accents, split_chinese, options: as for `wordpiece`.
    """
    tokens = [options.get(name, token) for name, token in kinds.BERT_TOKENS.items()]
    normalizer = kinds.bert_normalizer(lowercase, strip_accents, split_chinese)
    split = pre_tokenizers.BertPreTokenizer()
    words: collections.Counter[str] = collections.Counter()
    for text in _checked(texts):
        words.update(word for word, _ in split.pre_tokenize_str(normalizer.normalize_str(text)))
    characters = _most_frequent(words, whole_number("max_characters", max_characters))
    # Letters inside words have separate characters, so that BPE learns "##" tokens.
    first = {ord(c): chr(FIRST + i) for i, c in enumerate(characters)}
    inside = {ord(c): chr(NEXT + i) for i, c in enumerate(characters)}
    alphabet = {chr(FIRST + i): c for i, c in enumerate(characters)} | {
        chr(NEXT + i): c for i, c in enumerate(characters)
    }
    letters = set(characters)
    coded = {
        word[0].translate(first) + word[1:].translate(inside): count
        for word, count in sorted(words.items())
        if letters.issuperset(word)
    }
    single = sorted({letter for word in coded for letter in word})
    _check_size(size, len(tokens) + len(single), f"the special tokens and {len(single)} letters")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore
    trainer = trainers.BpeTrainer(vocab_size=size - len(tokens), min_frequency=min_count, show_progress=False)
    tokenizer.train_from_iterator(_repeated(coded), trainer)
    ids = tokenizer.get_vocab()

    def spelled(token: str) -> str:
        return ("##" if token[0] >= chr(NEXT) else "") + "".join(alphabet[letter] for letter in token)

    learned = [spelled(token) for token in sorted(ids, key=ids.__getitem__)]
    vocabulary = [*tokens, *(token for token in learned if token not in tokens)]
    return wordpiece(
        vocabulary, lowercase=lowercase, strip_accents=strip_accents, split_chinese=split_chinese, **options
    )


def _most_frequent(words: Mapping[str, int], most: int) -> list[str]:
    counts: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    frequent = sorted(counts, key=lambda character: (-counts[character], character))[:most]
    return sorted(frequent)


def _repeated(words: Mapping[str, int], longest: int = 10_000) -> Iterator[str]:
    """Texts that contain each word as often as it was counted."""
    for word, count in words.items():
        for done in range(0, count, longest):
            yield " ".join([word] * min(longest, count - done))


def _learned(tokenizer: Tokenizer) -> tuple[dict[str, int], list[Any]]:
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], model["merges"]


def _checked(texts: Iterable[str]) -> Iterator[str]:
    if isinstance(texts, str):
        raise TextError("texts is one text, expected a list of texts. Pass [text].")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TextError(f"texts[{index}] is {text!r:.60} ({type(text).__name__}), expected a text.")
        yield text


def _check_size(size: int, least: int, holds: str) -> None:
    if whole_number("size", size) < least:
        raise ConfigError(f"size={size} is too small, expected at least {least} for {holds}.")

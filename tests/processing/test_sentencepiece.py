"""Tokenizers of SentencePiece models: their ids equal those of the sentencepiece package."""

# ruff: noqa: RUF001 (characters that look like others)
from __future__ import annotations

import contextlib
import io
import itertools
import random
import unicodedata
from typing import Any

import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.processing import TextTransform, sentencepiece
from keras_tx.processing.sentencepiece_file import NORMAL, Charsmap, SentencePieceModel, read_model

spm = pytest.importorskip("sentencepiece", reason='pip install "keras-tx[parity]"')

CORPUS = [
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "A quick answer to the question: the dogs are jumping, too!!",
    "In 1999 prices rose by 3.5 %, and in 2024 by 17 %...",
    "Über den Wolken, élan vital, naïve café. Ça va? ¡Qué niño!",
    "東京と大阪は日本の都市です。ガギグゲゴ ", 
    "Привет, мир! Как дела?",
    "한국어 문장입니다. नमस्ते दुनिया",
    "1 2 3 abc ABC fi ffi <sep> haha hahaha aaaa ----",
] * 5  # fmt: skip
WORDS = [
    *" ".join(CORPUS[:8]).split(" "),
    *("ﬁn", "½", "①", "Ｈｅｌｌｏ", "ｶﾞｷﾞ", "À", "\u212b", "\u1112\u1161\u11ab", "e\u0301", "e\u0302\u0301"),
    *("①\u0301", "ж\u0301", "ﬀ\u0323", "q\u0303", "ſ\u0307", "ß", "\u0130", "🙂", "👍🏽", "~", "～"),
    *("<sep>", "a<sep>b", "foo bar", "▁", "▁▁", "\u00a0", "\u3000", "\u200b", "\t", "\n", "\r\n", "\u0085"),
    *("", "  ", "   ", "aaaaa", "-----", "a\x07b"),
]  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "t5": {"model_type": "unigram", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "unigram with bytes": {
        "byte_fallback": True, "user_defined_symbols": ["<sep>", "foo bar"], "vocab_size": 460,
    },
    "unigram that keeps spaces": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "unigram with raw spaces": {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": False},
    "unigram without prefix": {"normalization_rule_name": "nfkc", "add_dummy_prefix": False},
    "lowercase unigram": {"normalization_rule_name": "nmt_nfkc_cf"},
    "unigram across words": {"split_by_whitespace": False, "max_sentencepiece_length": 12},
    "bpe": {"model_type": "bpe"},
    "llama": {
        "model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "vocab_size": 480,
        "remove_extra_whitespaces": False, "split_digits": True, "allow_whitespace_only_pieces": True,
    },
    "gemma": {
        "model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "vocab_size": 480,
        "remove_extra_whitespaces": False, "add_dummy_prefix": False, "pad_id": 0, "eos_id": 1, "bos_id": 2,
        "unk_id": 3, "user_defined_symbols": ["<sep>", "▁▁", "▁▁▁", "\n", "\n\n"],
    },
}  # fmt: skip


def train(**options: Any) -> bytes:
    """A model of the corpus."""
    content = io.BytesIO()
    defaults = {"sentence_iterator": iter(CORPUS), "character_coverage": 0.98, "vocab_size": 220}
    spm.SentencePieceTrainer.train(
        model_writer=content,
        minloglevel=3,
        num_threads=1,
        hard_vocab_limit=False,
        **{**defaults, **options},
    )
    return content.getvalue()


@pytest.fixture(scope="module")
def proto() -> bytes:
    return train(**MODELS["t5"])


def texts(count: int, seed: int) -> list[str]:
    """Random words, with the marks of a letter in Unicode's canonical order, as editors write them."""
    chosen = random.Random(seed)
    rows = [
        "".join(chosen.choice(WORDS) + chosen.choice(["", " "]) for _ in range(chosen.randrange(10)))
        for _ in range(count)
    ]
    return ["", " ", *(row for row in rows if _in_canonical_order(row))]


def _in_canonical_order(text: str) -> bool:
    classes = [unicodedata.combining(character) for character in unicodedata.normalize("NFKC", text)]
    apart = [unicodedata.combining(character) for x in text for character in unicodedata.normalize("NFKD", x)]
    return not any(a and b for row in (classes, apart) for a, b in itertools.pairwise(row)) or (
        unicodedata.normalize("NFKC", text) == "".join(unicodedata.normalize("NFKC", x) for x in text)
    )


def check(content: bytes, rows: list[str]) -> None:
    """Compares ids and texts. Both packages choose any of two splits with equal sums of scores."""
    theirs = spm.SentencePieceProcessor(model_proto=content)
    ours = sentencepiece(content)
    scores = [theirs.get_score(number) for number in range(theirs.get_piece_size())]
    ids = [piece.ids.tolist() if row else [] for row, piece in zip(rows, encode(ours, rows), strict=True)]
    ties = 0
    for row, mine, expected in zip(rows, ids, theirs.encode(rows), strict=True):
        if mine != expected:
            assert theirs.decode(mine) == theirs.decode(expected), row
            assert sum(scores[i] for i in mine) == pytest.approx(
                sum(scores[i] for i in expected), abs=1e-3
            ), row
            assert read_model(content).model_type == 1, row
            ties += 1
        if theirs.unk_id() not in expected:
            assert ours.decode(expected) == theirs.decode(expected), row
    assert ties <= len(rows) / 30


def encode(transform: TextTransform, rows: list[str]) -> list[Any]:
    return transform._pieces(rows, None, False, empty=True)[0]


@pytest.mark.parametrize("kind", MODELS)
def test_ids_equal_sentencepiece(kind):
    check(train(**MODELS[kind]), [*CORPUS[:8], *texts(1000, seed=0)])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", MODELS)
def test_ids_of_many_texts_equal_sentencepiece(kind):
    check(train(**MODELS[kind]), texts(10_000, seed=1))


def test_options_add_tokens_around_a_text(proto):
    transform = sentencepiece(proto, sentinels=3, add_eos=True, max_length=9)
    size = len(read_model(proto).pieces)
    assert (transform.pad_id, transform.eos_token, transform.unk_token) == (0, "</s>", "<unk>")
    assert transform.sentinel_ids() == [size + 2, size + 1, size]
    assert transform.vocabulary_size == size + 3
    (row,) = transform("<extra_id_0> dog")["input_ids"].tolist()
    assert row[0] == size + 2 and row[-1] == 1
    assert transform.decode(row) == "dog"
    assert transform([""])["input_ids"].tolist() == [[1]]
    with pytest.raises(ConfigError, match="no bos_token"):
        sentencepiece(proto, add_bos=True)
    assert sentencepiece(train(), add_bos=True)("dog")["input_ids"][0, 0] == 1


def test_literal_control_tokens_are_text_where_documents_are_read(proto):
    """Documents are encoded with `encode_special_tokens`, as `write_tokens` does."""
    from keras_tx.processing.corpus import _plain

    content = train(user_defined_symbols=["<", ">", "/"], byte_fallback=True, vocab_size=460)
    expected = spm.SentencePieceProcessor(model_proto=content).encode("a </s> <unk> <0x41> b")
    assert _plain(sentencepiece(content)).encode("a </s> <unk> <0x41> b").ids == expected


def test_file_and_bytes_have_the_same_tokenizer(proto, tmp_path):
    (tmp_path / "source.spm").write_bytes(proto)
    assert TextTransform.load(tmp_path / "source.spm") == sentencepiece(proto)
    assert sentencepiece(tmp_path / "source.spm") == sentencepiece(proto)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "word", "vocab_size": 60}, "word model, expected unigram or bpe"),
        ({"model_type": "char"}, "char model"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix.*AutoTokenizer"),
        ({"model_type": "bpe", "user_defined_symbols": ["<sep>"]}, "bpe model with .*'<sep>'"),
        ({"user_defined_symbols": ["½x"]}, "user-defined symbol '½x'.*'▁?1⁄2x'"),
    ],
)
def test_unsupported_models_raise(options, message):
    with pytest.raises(ConfigError, match=message):
        sentencepiece(train(**options))


def test_own_rules_for_characters_raise(tmp_path):
    rules = tmp_path / "rules.tsv"
    rules.write_text("61\t62\n")  # a becomes b
    with pytest.raises(ConfigError, match="rules for characters other than NFKC's"):
        sentencepiece(train(normalization_rule_tsv=str(rules)))


def test_damaged_model_raises(proto, tmp_path):
    for end in (1, 5, 100, 2000, len(proto) // 2, len(proto) - 1):
        with pytest.raises(ConfigError, match="damaged|not supported"):
            sentencepiece(proto[:end])
    with pytest.raises(ConfigError, match="damaged"):
        sentencepiece(b"")
    with pytest.raises(ConfigError, match="missing.model cannot be read"):
        sentencepiece(tmp_path / "missing.model")
    changed = np.random.default_rng(0)
    for _ in range(30):
        content = bytearray(proto)
        content[changed.integers(0, content.index(read_model(proto).charsmap))] = changed.integers(0, 256)
        with contextlib.suppress(ConfigError):
            sentencepiece(bytes(content))


def test_charsmap_has_the_rules_of_sentencepiece(proto):
    charsmap = Charsmap(read_model(proto).charsmap, "model")
    rules = charsmap.characters()
    expected = {"½": "1⁄2", "ﬁ": "fi", "\t": " ", "\x07": "", "\u212b": "Å"}
    assert {character: rules[character] for character in expected} == expected
    assert "a" not in rules and charsmap.get("a") is None
    assert charsmap.get("e\u0302\u0301") == "ế"
    spaces = dict.fromkeys(("add_dummy_prefix", "escape_whitespaces", "remove_extra_whitespaces"), False)
    normalizer = spm.SentencePieceNormalizer(rule_name="nmt_nfkc", **spaces)
    sample = sorted(rules)[::37]
    assert [rules[x] for x in sample] == [normalizer.normalize(x) for x in sample]


def test_pieces_equal_those_of_the_package(proto):
    theirs = spm.SentencePieceProcessor(model_proto=proto)
    model = read_model(proto)
    assert isinstance(model, SentencePieceModel)
    assert [piece for piece, _, _ in model.pieces] == [theirs.id_to_piece(i) for i in range(len(theirs))]
    assert [score for _, score, _ in model.pieces] == [theirs.get_score(i) for i in range(len(theirs))]
    assert [kind == NORMAL for _, _, kind in model.pieces][:4] == [False, False, False, True]

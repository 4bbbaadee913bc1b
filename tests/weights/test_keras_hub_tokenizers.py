"""keras-hub's tokenizers as text transforms: the ids and texts equal those of keras-hub."""

from __future__ import annotations

import dataclasses
import json
import pydoc_data.topics
from typing import Any

import pytest

from keras_tx.errors import ConfigError
from keras_tx.processing import TextTransform, train_byte_bpe
from tests.drawing import as_numpy
from tests.processing.test_sentencepiece import CORPUS, MODELS, texts, train
from tests.wordpiece import VOCABULARY

keras_hub = pytest.importorskip("keras_hub", reason='pip install "keras-tx[parity]"')
from keras_tx.weights.keras_hub_tokenizers import converted  # noqa: E402

TEXTS = [text for text in CORPUS[:8] if "aaa" not in text]  # which is split in two ways with equal scores
PROSE = [line for topic in pydoc_data.topics.topics.values() for line in topic.split("\n") if line.strip()]
MANY = [*texts(6000, seed=1), *PROSE[:: len(PROSE) // 4500]]
# The special tokens of each tokenizer, which are in its vocabulary.
BYTE_PAIRS: dict[str, tuple[str, ...]] = {
    "GPT2Tokenizer": ("<|endoftext|>",),
    "OPTTokenizer": ("</s>", "<pad>"),
    "BloomTokenizer": ("<s>", "</s>", "<pad>"),
    "GPTNeoXTokenizer": ("<|endoftext|>",),
    "FalconTokenizer": ("<|endoftext|>",),
    "Llama3Tokenizer": (
        "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
    ),
    "QwenTokenizer": ("<|endoftext|>",),
    "Qwen3Tokenizer": ("<|im_end|>", "<|endoftext|>"),
    "QwenMoeTokenizer": ("<|endoftext|>",),
    "Qwen3MoeTokenizer": ("<|im_end|>", "<|endoftext|>"),
    "SmolLM3Tokenizer": ("<|end_of_text|>", "<|begin_of_text|>", "<think>", "</think>"),
    "GptOssTokenizer": ("<|endoftext|>",),
    "BartTokenizer": ("<s>", "</s>", "<pad>"),
    "RobertaTokenizer": ("<s>", "</s>", "<pad>", "<mask>"),
    "MistralTekkenTokenizer": ("<s>", "</s>"),
}  # fmt: skip
LEARNED = train_byte_bpe([*PROSE[:3000], *CORPUS], 1500)
GEMMA = {**MODELS["gemma"], "bos_piece": "<bos>", "eos_piece": "<eos>"}
BERT_PIECES = {
    "pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "pad_piece": "<pad>", "bos_piece": "[CLS]",
    "eos_piece": "[SEP]", "control_symbols": ["[MASK]"],
}  # fmt: skip
SENTENCEPIECE: dict[str, dict[str, Any]] = {
    "T5Tokenizer": MODELS["t5"],
    "LlamaTokenizer": MODELS["llama"],
    "MistralTokenizer": MODELS["llama"],
    "MixtralTokenizer": MODELS["llama"],
    "Phi3Tokenizer": {**MODELS["llama"], "control_symbols": ["<|endoftext|>"]},
    "GemmaTokenizer": GEMMA,
    "PaliGemmaTokenizer": GEMMA,
    "Gemma3Tokenizer": {
        **GEMMA, "vocab_size": 483,
        "user_defined_symbols": [
            "<sep>", "▁▁", "▁▁▁", "\n", "\n\n", "<img>", "<start_of_image>", "<end_of_image>",
        ],
    },
    "T5GemmaTokenizer": GEMMA,
    "AlbertTokenizer": BERT_PIECES,
    "FNetTokenizer": BERT_PIECES,
    "DebertaV3Tokenizer": {
        **BERT_PIECES, "pad_piece": "[PAD]", "unk_piece": "[UNK]", "control_symbols": [],
    },
    "XLMRobertaTokenizer": {},
    "MetaCLIP2Tokenizer": {},
    "SigLIPTokenizer": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
}  # fmt: skip


def byte_pairs(name: str, **options: Any) -> Any:
    tokens = sorted(LEARNED.vocabulary, key=LEARNED.vocabulary.__getitem__)[1:]
    first, *others = BYTE_PAIRS[name]
    vocabulary = {token: number for number, token in enumerate([first, *tokens, *others])}
    if name == "MistralTekkenTokenizer":
        options["split_pattern"] = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
    return getattr(keras_hub.tokenizers, name)(vocabulary=vocabulary, merges=merges(), **options)


def merges() -> list[str]:
    return [
        x if isinstance(x, str) else " ".join(x) for x in json.loads(LEARNED.tokenizer)["model"]["merges"]
    ]


def sentence_pieces(name: str) -> Any:
    return getattr(keras_hub.tokenizers, name)(proto=train(**SENTENCEPIECE[name]))


def ids_of(transform: TextTransform, rows: list[str]) -> list[list[int]]:
    """The ids without special tokens around texts."""
    return [piece.ids.tolist() for piece in transform._pieces(rows, None, False, empty=True)[0]]


def compare(theirs: Any, transform: TextTransform, rows: list[str], ties: float = 0.0) -> None:
    """Compares ids and texts. Of two splits with equal sums of scores, Unigram tokenizers choose any."""
    expected = [[int(number) for number in row] for row in theirs(rows)]
    got = ids_of(transform, rows)
    differing = [index for index, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b]
    if ties:
        both = [theirs.detokenize([part[index] for index in differing]) for part in (expected, got)]
        assert both[0] == both[1]
    assert len(differing) <= ties * len(rows), [rows[index] for index in differing[:3]]
    unknown = getattr(theirs, "unk_token_id", getattr(theirs, "_unk_token_id", None))
    known = [row for row in expected if row and unknown not in row]
    decoded = [transform.decode(row) for row in known]
    assert decoded == list(theirs.detokenize(known))


@pytest.mark.parametrize("name", BYTE_PAIRS)
def test_byte_level_bpe(name: str):
    theirs = byte_pairs(name)
    transform = converted(theirs)
    compare(theirs, transform, MANY if name == "GPT2Tokenizer" else MANY[::20])
    assert len(MANY) > 10_000
    with_special = [f"a {token}b" for token in BYTE_PAIRS[name]]
    assert ids_of(transform, with_special) == [list(map(int, row)) for row in theirs(with_special)]
    assert transform.special_ids() == {theirs.token_to_id(token) for token in theirs.special_tokens}
    end = getattr(theirs, "end_token", None)
    assert transform.eos_token == end and transform.vocabulary_size == theirs.vocabulary_size()


def test_a_space_before_the_first_word():
    theirs = byte_pairs("GPT2Tokenizer", add_prefix_space=True)
    compare(theirs, converted(theirs), MANY[::50])


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_sentencepiece(name: str):
    theirs = sentence_pieces(name)
    unigram = SENTENCEPIECE[name].get("model_type", "unigram") == "unigram"
    rows = MANY if name in ("LlamaTokenizer", "AlbertTokenizer") else MANY[::20]
    compare(theirs, converted(theirs), rows, ties=1 / 30 if unigram else 0.0)


def test_wordpiece():
    theirs = keras_hub.models.BertTokenizer(vocabulary=list(VOCABULARY), lowercase=True)
    rows = [row for row in MANY if row.isascii() and row.replace("\n", "").isprintable()]
    compare_ids = ids_of(converted(theirs), rows)
    assert compare_ids == [[int(number) for number in row] for row in theirs(rows)]


@pytest.mark.parametrize(
    ("name", "tokenizer"),
    [
        *((name, name) for name in ("GPT2", "OPT", "Bloom", "GPTNeoX", "Falcon", "Llama3", "Qwen", "Qwen3")),
        ("QwenMoe", "QwenMoe"),
        ("SmolLM3", "SmolLM3"),
        *((name, name) for name in ("Llama", "Mistral", "Mixtral", "Phi3", "Gemma")),
    ],
)
def test_the_tokens_of_prompts(name: str, tokenizer: str):
    """Those of generate_preprocess: a start token if the family has one, and no end token."""
    tokenizer = f"{tokenizer}Tokenizer"
    theirs = byte_pairs(tokenizer) if tokenizer in BYTE_PAIRS else sentence_pieces(tokenizer)
    preprocessor = getattr(keras_hub.models, f"{name}CausalLMPreprocessor")(theirs, sequence_length=40)
    transform = converted(preprocessor)
    batch = preprocessor.generate_preprocess(TEXTS)
    ids, masks = (as_numpy(batch[key]) for key in ("token_ids", "padding_mask"))
    expected = [row[mask.astype(bool)].tolist() for row, mask in zip(ids, masks, strict=True)]
    rows = dataclasses.replace(transform, too_long="cut").encode(TEXTS)
    assert [row.ids.tolist() for row in rows] == expected
    first = theirs.start_token_id
    assert all(row[0] == first for row in expected) or first is None
    assert transform.pad_id == theirs.pad_token_id


@pytest.mark.parametrize("name", ["Albert", "DebertaV3", "XLMRoberta", "Roberta"])
def test_the_tokens_of_pairs(name: str):
    tokenizer = f"{name}Tokenizer"
    theirs = byte_pairs(tokenizer) if tokenizer in BYTE_PAIRS else sentence_pieces(tokenizer)
    kind = getattr(keras_hub.models, f"{name}TextClassifierPreprocessor")
    preprocessor = kind(theirs, sequence_length=120)
    transform = converted(preprocessor)
    first, second = TEXTS[:3], TEXTS[3:6]
    for inputs, rows in (
        (first, transform.encode(first)),
        ((first, second), transform.encode(first, second)),
    ):
        batch = preprocessor(x=inputs)
        ids, masks = (as_numpy(batch[key]) for key in ("token_ids", "padding_mask"))
        expected = [row[mask.astype(bool)].tolist() for row, mask in zip(ids, masks, strict=True)]
        assert [row.ids.tolist() for row in rows] == expected


def test_t5_equals_keras_hub():
    theirs = keras_hub.models.T5Tokenizer(proto=train(**MODELS["t5"]))
    transform = converted(keras_hub.models.T5Preprocessor(theirs, sequence_length=90))
    assert [row.ids.tolist() for row in transform.encode(TEXTS)] == [[*map(int, x), 1] for x in theirs(TEXTS)]
    assert transform.max_length == 90 and transform.eos_token == "</s>" and transform.pad_id == 0
    size = theirs.vocabulary_size()
    assert transform.sentinel_ids() == [*range(size + 99, size - 1, -1)]
    own = {**MODELS["t5"], "user_defined_symbols": ["<extra_id_1>", "<extra_id_0>"]}
    transform = converted(keras_hub.models.T5Tokenizer(proto=train(**own)))
    assert transform.sentinel_ids() == [4, 3]


@pytest.mark.parametrize("name", ["LlamaTokenizer", "MistralTokenizer", "GemmaTokenizer"])
def test_decoders_without_a_preprocessor(name: str):
    theirs = sentence_pieces(name)
    transform = converted(theirs)
    first = theirs.start_token_id
    assert [row.ids.tolist() for row in transform.encode(TEXTS)] == [
        [first, *map(int, row)] for row in theirs(TEXTS)
    ]
    assert transform.id_of(transform.eos_token) == theirs.end_token_id


def test_the_mask_of_deberta_follows_the_pieces():
    theirs = sentence_pieces("DebertaV3Tokenizer")
    transform = converted(theirs)
    assert transform.id_of("[MASK]") == theirs.mask_token_id == theirs.vocabulary_size() - 1
    theirs = sentence_pieces("XLMRobertaTokenizer")
    assert converted(theirs).id_of("<mask>") == theirs.mask_token_id


class Upper(keras_hub.models.LlamaTokenizer):
    def _tokenize_spm(self, inputs):
        return super()._tokenize_spm([text.upper() for text in inputs])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras_hub.tokenizers.ByteTokenizer(), "none of WordPiece, byte-level BPE and SentencePiece"),
        (lambda: keras_hub.tokenizers.SentencePieceTokenizer(), "has no proto"),
        (lambda: keras_hub.tokenizers.BytePairTokenizer(), "has no vocabulary"),
        (lambda: Upper(proto=train(**MODELS["llama"])), "tokenize method of its own"),
        (lambda: byte_pairs("GPT2Tokenizer", _allow_python_workflow=False), "with TensorFlow"),
        (
            lambda: byte_pairs("GPT2Tokenizer", unsplittable_tokens=[]),
            "splits its special token '<|endoftext|>'",
        ),
        (
            lambda: keras_hub.models.LlamaTokenizer(proto=train(model_type="word", vocab_size=80)),
            "word model",
        ),
    ],
)
def test_other_tokenizers_raise(make, message: str):
    with pytest.raises(ConfigError, match=message.replace("|", r"\|")):
        converted(make())

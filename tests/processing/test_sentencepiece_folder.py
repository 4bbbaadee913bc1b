"""Folders with SentencePiece's files only: T5, Marian, Llama, XLM-R ..., compared with transformers."""

from __future__ import annotations

import dataclasses
import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

from keras_tx.errors import ConfigError
from keras_tx.processing import TextTransform
from tests.processing.test_sentencepiece import CORPUS, MODELS, WORDS, train

transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')

SPECIAL = ["</s>", "</s> ", " <pad> ", "<unk>", "x</s>y"]
# transformers drops U+0085, which SentencePiece keeps, and composes these sequences of marks otherwise.
DIFFERENT = "\u0085,①\u0301,e\u0302\u0301,\u1112\u1161\u11ab,ﬀ\u0323,\u017f\u0307,ｶﾞｷﾞ,▁,▁▁".split(",")


def sentences(extra: list[str], count: int = 300) -> list[str]:
    """Texts on whose ids SentencePiece and transformers agree."""
    chosen = random.Random(0)
    ties = "aaa", "...", "---", "99"  # which are split in two ways with equal scores
    words = [word for word in [*WORDS, *extra] if word not in DIFFERENT and not any(x in word for x in ties)]
    rows = [" ".join(chosen.choice(words) for _ in range(chosen.randrange(9))) for _ in range(count)]
    return ["", " ", *(word for word in words if word), *rows]


def write(folder: Path, name: str, content: bytes, **config: Any) -> Path:
    (folder / name).write_bytes(content)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def theirs_of(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sacremoses, which is not used
        return transformers.AutoTokenizer.from_pretrained(folder)


def ids_of(transform: TextTransform, texts: list[str]) -> list[list[int]]:
    return [row.ids.tolist() for row in transform.encode(texts)]


def check_saved(transform: TextTransform, folder: Path, texts: list[str], model_type: str) -> None:
    """transformers reads the saved files, and returns the same ids and texts."""
    transform.save(folder)
    assert TextTransform.load(folder) == transform
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs = theirs_of(folder)
    ids = ids_of(transform, texts)
    assert theirs(texts)["input_ids"] == ids
    assert [theirs.decode(row, skip_special_tokens=True) for row in ids] == [transform.decode(x) for x in ids]
    special = ("pad_token", "eos_token", "unk_token")
    assert [getattr(theirs, name) for name in special] == [getattr(transform, name) for name in special]


def test_t5_equals_transformers(tmp_path):
    folder = write(tmp_path, "spiece.model", train(**MODELS["t5"]), tokenizer_class="T5Tokenizer")
    transform, theirs = TextTransform.load(folder), theirs_of(folder)
    texts = sentences(
        [*SPECIAL, "<extra_id_0>", "x<extra_id_99>y", "<extra_id_1> <extra_id_2>", "<extra_id_100>"]
    )
    ids = ids_of(transform, texts)
    assert ids == theirs(texts)["input_ids"]
    decoded = theirs.batch_decode(ids, skip_special_tokens=True)
    assert [transform.decode(row) for row in ids] == [text.lstrip(" ") for text in decoded]
    assert transform.sentinel_ids() == [theirs.convert_tokens_to_ids(f"<extra_id_{i}>") for i in range(100)]
    batch = transform(["dog", "the dog"])
    assert batch["attention_mask"].tolist()[0][-1] == 0 and batch["input_ids"][0, -1] == transform.pad_id == 0
    check_saved(transform, tmp_path / "saved", texts, "t5")


def test_t5_reads_extra_ids_and_added_tokens(tmp_path):
    content = train(**MODELS["t5"])
    folder = write(tmp_path, "spiece.model", content, tokenizer_class="T5TokenizerFast", extra_ids=3)
    size = TextTransform.load(folder / "spiece.model").vocabulary_size
    assert TextTransform.load(folder).sentinel_ids() == [size + 2, size + 1, size]
    added = {str(size + i): {"content": f"<extra_id_{i}>", "special": True} for i in range(4)}
    write(folder, "spiece.model", content, tokenizer_class="T5Tokenizer", added_tokens_decoder=added)
    assert TextTransform.load(folder).sentinel_ids() == [*range(size, size + 4)]
    own = train(**{**MODELS["t5"], "user_defined_symbols": ["▁<extra_id_1>", "▁<extra_id_0>"]})
    write(folder, "spiece.model", own, tokenizer_class="MT5Tokenizer")
    assert TextTransform.load(folder).sentinel_ids() == [4, 3]
    write(
        folder,
        "spiece.model",
        content,
        tokenizer_class="T5Tokenizer",
        added_tokens_decoder={"999": {"content": "x"}},
    )
    with pytest.raises(ConfigError, match=r"added_tokens_decoder has the ids \[999\]"):
        TextTransform.load(folder)


@pytest.fixture(scope="module")
def marian(tmp_path_factory) -> Path:
    """A folder of two models: the target has letters and words that the source does not have."""
    spm = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("marian")
    target = [text.upper().replace("A", "Ä").replace("O", "日本").replace("E", "λ") for text in CORPUS]
    source = [text for text in CORPUS if text.isascii()]
    pieces = []
    for name, texts in (("source.spm", source), ("target.spm", target)):
        (folder / name).write_bytes(train(sentence_iterator=iter(texts), character_coverage=1.0))
        model = spm.SentencePieceProcessor(model_file=str(folder / name))
        pieces += [model.id_to_piece(number) for number in range(3, len(model))]
    tokens = ["</s>", "<unk>", ">>fra<<", *dict.fromkeys(pieces), "日日", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer"}))
    return folder


def test_marian_equals_transformers(marian, tmp_path):
    transform, theirs = TextTransform.load(marian), theirs_of(marian)
    unknown = "日,日日,日本,本日,ä日,λÄÖ,Ж,ЖÄ,Äa,aÄ,日日日,x日日y,日本日".split(",")
    texts = sentences([*SPECIAL, *unknown, *" ".join(CORPUS).upper().split(" ")])
    texts += [f">>fra<<{space}{text}" for text in texts[:100] for space in ("", " ")]
    for ours, expected in (
        (ids_of(transform, texts), theirs(texts)["input_ids"]),
        (ids_of(transform.target, texts), theirs(text_target=texts)["input_ids"]),
    ):
        differences = [text for text, a, b in zip(texts, ours, expected, strict=True) if a != b]
        assert not differences
        assert [transform.decode(row).rstrip() for row in expected] == theirs.batch_decode(
            expected, skip_special_tokens=True
        )
    assert ids_of(transform, texts) != ids_of(transform.target, texts)
    assert transform.pad_id == transform.vocabulary_size - 1
    check_saved(transform, tmp_path / "saved", texts, "marian")


def test_equal_models_of_marian_have_one_tokenizer(marian, tmp_path):
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes((marian / "source.spm").read_bytes())
    (tmp_path / "vocab.json").write_bytes((marian / "vocab.json").read_bytes())
    transform = TextTransform.load(tmp_path)
    assert transform.target_tokenizer is None and transform.target is transform
    assert TextTransform.load(tmp_path, max_length=7).target.max_length == 7
    assert dataclasses.replace(TextTransform.load(marian), max_length=7).target.max_length == 7


def test_unsupported_marian_raises(marian, tmp_path):
    for path in marian.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"separate_vocabs": true}')
    with pytest.raises(ConfigError, match="separate_vocabs"):
        TextTransform.load(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    ids = json.loads((tmp_path / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps({token: i + 1 for token, i in ids.items()}))
    with pytest.raises(ConfigError, match="not consecutive"):
        TextTransform.load(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "</s>": 1, "<unk>": 2}))
    with pytest.raises(ConfigError, match="pad_token '<pad>'"):
        TextTransform.load(tmp_path)
    (tmp_path / "vocab.json").write_bytes((marian / "vocab.json").read_bytes())
    (tmp_path / "source.spm").write_bytes(train(**MODELS["llama"]))
    with pytest.raises(ConfigError, match=r"source.spm is not a plain unigram model"):
        TextTransform.load(tmp_path)


def test_missing_pieces_of_marian_warn(marian, tmp_path):
    for path in marian.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    ids = json.loads((marian / "vocab.json").read_text())
    lost = next(token for token in ids if len(token) > 2 and token.startswith("▁"))
    tokens = [token for token in ids if token != lost]
    (tmp_path / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    with pytest.warns(UserWarning, match=f"vocabulary lacks 1 of the .*{lost}"):
        TextTransform.load(tmp_path)


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_llama_and_gemma_equal_transformers(kind, tmp_path):
    name = {"llama": "LlamaTokenizer", "gemma": "GemmaTokenizer"}[kind]
    folder = write(tmp_path, "tokenizer.model", train(**MODELS[kind]), tokenizer_class=name)
    transform = TextTransform.load(folder)
    assert transform("dog")["input_ids"][0, 0] == transform.id_of("<s>")
    check_saved(transform, tmp_path / "saved", sentences([]), kind)


@pytest.mark.parametrize("name", ["XLMRobertaTokenizer", "XLMRobertaTokenizerFast", None])
def test_xlm_r_equals_transformers(name, tmp_path):
    config = {} if name is None else {"tokenizer_class": name}
    folder = write(tmp_path, "sentencepiece.bpe.model", train(), model_max_length=512, **config)
    (folder / "config.json").write_text('{"model_type": "xlm-roberta"}')
    transform, theirs = TextTransform.load(folder), theirs_of(folder)
    texts = sentences([*SPECIAL, "<mask>", " <mask> ", "x<mask>y", "<mask> <mask>"], 2000)
    assert ids_of(transform, texts) == theirs(texts)["input_ids"]
    pairs = transform.encode(texts[:200], texts[-200:])
    assert [row.ids.tolist() for row in pairs] == theirs(texts[:200], texts[-200:])["input_ids"]
    special = [transform.id_of(token) for token in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
    assert special == [0, 1, 2, 3, transform.vocabulary_size - 1]
    assert (transform.pad_id, transform.mask_token, transform.max_length) == (1, "<mask>", 512)
    check_saved(transform, tmp_path / "saved", texts, "xlm-roberta")
    theirs.save_pretrained(tmp_path / "json")  # with a tokenizer.json
    assert ids_of(TextTransform.load(tmp_path / "json"), texts) == ids_of(transform, texts)


def test_mbart_equals_transformers(tmp_path):
    languages = {"src_lang": "de_DE", "tgt_lang": "ro_RO"}
    folder = write(
        tmp_path, "sentencepiece.bpe.model", train(), tokenizer_class="MBartTokenizer", **languages
    )
    transform, theirs = TextTransform.load(folder), theirs_of(folder)
    # Without the model's rules for characters, which transformers 5 drops here, and SentencePiece has.
    texts = [text for text in sentences(SPECIAL) if text.isascii() and text.isprintable()]
    assert len(texts) > 50
    assert ids_of(transform, texts) == theirs(texts)["input_ids"]
    assert ids_of(transform.target, texts) == theirs(text_target=texts)["input_ids"]
    plain = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=train())
    unknown, text = plain.unk_id(), "ﬁne Über den Wolken ½"
    expected = [3 if number == unknown else number + 1 for number in plain.encode(text)]
    end, language = 2, transform.id_of("de_DE")
    assert transform(text)["input_ids"].tolist() == [[*expected, end, language]]
    assert transform.vocabulary_size == len(theirs) and transform.id_of("<mask>") == len(theirs) - 1
    transform.save(tmp_path / "saved")
    assert TextTransform.load(tmp_path / "saved") == transform
    write(folder, "sentencepiece.bpe.model", train(), tokenizer_class="MBartTokenizer")
    transform, theirs = TextTransform.load(folder), theirs_of(folder)
    assert transform.target is transform
    assert ids_of(transform, texts) == theirs(texts)["input_ids"]


DEBERTA = {
    **{"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},
    **{"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
}


@pytest.mark.parametrize("config", [{"tokenizer_class": "DebertaV2Tokenizer"}, {"vocab_type": "spm"}])
def test_deberta_equals_transformers_and_sentencepiece(config, tmp_path):
    content = train(**DEBERTA)
    folder = write(tmp_path, "spm.model", content, do_lower_case=False, model_max_length=512, **config)
    (folder / "config.json").write_text('{"model_type": "deberta-v2"}')
    transform, theirs = TextTransform.load(folder), theirs_of(folder)
    # Without the model's rules for characters, which transformers 5 drops, and SentencePiece has.
    special = ["[MASK]", " [MASK] ", "x[MASK]y", "[SEP]", "[PAD] [UNK]"]
    texts = [text for text in sentences(special, 2000) if text.isascii() and text.isprintable()]
    assert len(texts) > 200
    assert ids_of(transform, texts) == theirs(texts)["input_ids"]
    pairs = transform.encode(texts[:100], texts[-100:])
    assert [row.ids.tolist() for row in pairs] == theirs(texts[:100], texts[-100:])["input_ids"]
    plain = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=content)
    texts = sentences([])
    assert ids_of(transform, texts) == [[1, *row, 2] for row in plain.encode(texts)]
    ids = [transform.id_of(token) for token in ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")]
    assert ids == [0, 1, 2, 3, len(plain)] and transform.vocabulary_size == len(theirs) == len(plain) + 1
    assert (transform.pad_token, transform.max_length) == ("[PAD]", 512)
    assert sorted(transform(["a"])) == ["attention_mask", "input_ids"]
    transform.save(tmp_path / "saved")
    assert TextTransform.load(tmp_path / "saved") == transform
    added = {str(len(plain)): {"content": "[MASK]"}, str(len(plain) + 1): {"content": "[X]"}}
    write(folder, "spm.model", content, **config, added_tokens_decoder=added)
    assert TextTransform.load(folder).id_of("[MASK]") == len(plain)
    assert TextTransform.load(folder).id_of("[X]") == len(plain) + 1


@pytest.mark.parametrize("name", ["XLNetTokenizer", "CamembertTokenizer", None])
def test_other_classes_raise_with_the_line_that_converts_them(name, tmp_path):
    folder = write(tmp_path, "spiece.model", train(**MODELS["t5"]), tokenizer_class=name)
    with pytest.raises(ConfigError, match=r"AutoTokenizer.from_pretrained\(folder\).save_pretrained"):
        TextTransform.load(folder)


@pytest.mark.parametrize(
    ("name", "kind", "config"),
    [
        ("T5", "t5", {"extra_ids": -1}),
        ("T5", "t5", {"sp_model_kwargs": {"enable_sampling": True}}),
        ("Llama", "llama", {"add_bos_token": "yes"}),
        ("Llama", "llama", {"add_prefix_space": False}),
        ("T5", "t5", {"added_tokens_decoder": ["x"]}),
        ("XLMRoberta", "unigram", {"add_prefix_space": False}),
        ("MBart", "unigram", {"src_lang": "en"}),
        ("DebertaV2", "deberta", {"do_lower_case": True}),
        ("DebertaV2", "deberta", {"split_by_punct": True}),
        ("DebertaV2", "deberta", {"vocab_type": "gpt2"}),
        ("DebertaV2", "deberta", {"add_prefix_space": False}),
    ],
)
def test_unsupported_options_raise(name, kind, config, tmp_path):
    files = {"T5": "spiece.model", "Llama": "tokenizer.model", "DebertaV2": "spm.model"}
    content = train(**{**MODELS, "deberta": DEBERTA}.get(kind, {}))
    file = files.get(name, "sentencepiece.bpe.model")
    folder = write(tmp_path, file, content, tokenizer_class=f"{name}Tokenizer", **config)
    with pytest.raises(ConfigError, match=f"tokenizer_config.json: {next(iter(config))} is"):
        TextTransform.load(folder)


def test_special_tokens_outside_the_pieces_raise(tmp_path):
    content = train(**MODELS["t5"])
    folder = write(tmp_path, "spiece.model", content, tokenizer_class="T5Tokenizer", eos_token="<end>")
    with pytest.raises(ConfigError, match="eos_token '<end>'"):
        TextTransform.load(folder)
    write(tmp_path, "spiece.model", train(eos_id=-1), tokenizer_class="T5Tokenizer")
    with pytest.raises(ConfigError, match="eos_token ''"):
        TextTransform.load(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (MODELS["t5"], "begins with the pieces <pad>, </s>, <unk>, expected <unk>"),
        ({"user_defined_symbols": ["<mask>"]}, "has the special token '<mask>' as a piece"),
    ],
)
def test_pieces_without_the_ids_of_fairseq_raise(options, message, tmp_path):
    content = train(**options)
    write(tmp_path, "sentencepiece.bpe.model", content, tokenizer_class="XLMRobertaTokenizer")
    with pytest.raises(ConfigError, match=message):
        TextTransform.load(tmp_path)


def test_padding_side_of_marian_is_read(marian, tmp_path):
    for path in marian.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"padding_side": "left", "model_max_length": 20}')
    transform = TextTransform.load(tmp_path)
    assert (transform.padding_side, transform.max_length) == ("left", 20)

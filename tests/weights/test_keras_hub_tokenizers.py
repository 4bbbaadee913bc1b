"""keras-hub's SentencePiece tokenizers as text transforms."""

from __future__ import annotations

import pytest

from keras_tx.errors import ConfigError
from tests.processing.test_sentencepiece import CORPUS, MODELS, train

keras_hub = pytest.importorskip("keras_hub", reason='pip install "keras-tx[parity]"')
from keras_tx.weights.keras_hub_tokenizers import converted  # noqa: E402

TEXTS = [text for text in CORPUS[:8] if "aaa" not in text]  # which is split in two ways with equal scores


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


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("LlamaTokenizer", MODELS["llama"]),
        ("MistralTokenizer", MODELS["llama"]),
        ("GemmaTokenizer", {**MODELS["gemma"], "bos_piece": "<bos>", "eos_piece": "<eos>"}),
    ],
)
def test_decoders_equal_keras_hub(name, options):
    theirs = getattr(keras_hub.models, name)(proto=train(**options))
    transform = converted(theirs)
    first = theirs.start_token_id
    assert [row.ids.tolist() for row in transform.encode(TEXTS)] == [
        [first, *map(int, row)] for row in theirs(TEXTS)
    ]
    assert transform.id_of(transform.eos_token) == theirs.end_token_id


def test_other_tokenizers_raise():
    pieces = {
        "pad_piece": "<pad>",
        "bos_piece": "[CLS]",
        "eos_piece": "[SEP]",
        "user_defined_symbols": ["[MASK]"],
    }
    proto = train(pad_id=0, unk_id=1, bos_id=2, eos_id=3, **pieces)
    with pytest.raises(ConfigError, match="WordPiece, byte-level BPE, T5"):
        converted(keras_hub.models.AlbertTokenizer(proto=proto))
    with pytest.raises(ConfigError, match="has no proto"):
        converted(keras_hub.tokenizers.SentencePieceTokenizer())

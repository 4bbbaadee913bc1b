"""Tokenizing inside tf.data, with the ids that the exported folder will give.

`tokenizing` calls the transform itself from the pipeline: equal on every text, and not slow, since a batch
is tokenized outside of Python. `keras_hub_tokenizer` is the tokenizer of keras-hub (keras-nlp) on the same
vocabulary, in TensorFlow operations only. It is not equal everywhere. For uncased vocabularies it writes
compatibility characters out, so that an ellipsis is three dots and the sharp s two letters; control
characters and the zero-width space separate words there and vanish here; a word is too long from 100 bytes
on, not 100 characters. A byte-level BPE it cuts otherwise at two line breaks in a row, where the
vocabulary has a token for both. So it is given only for a corpus on which it was compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, TextError
from keras_tx.processing import TextTransform

COMPARED_AT_ONCE = 1000


def tokenizing(transform: TextTransform) -> Callable[..., dict[str, Any]]:
    """A function for `Dataset.map` on batches: texts (batch,), or two such, to what `transform` gives.

        texts.batch(32).map(lambda x, y: (tokenize(x), y), num_parallel_calls=tf.data.AUTOTUNE)

    It runs Python, so the pipeline cannot be serialized.
    """
    import tensorflow as tf

    names = [contract.INPUT_IDS, contract.ATTENTION_MASK]
    if transform.segments:
        names.append(contract.TOKEN_TYPE_IDS)

    def encode(*columns: np.ndarray) -> list[np.ndarray]:
        batch = transform(*([text.decode("utf-8") for text in column] for column in columns))
        return [batch[name] for name in names]

    def tokenize(texts: Any, pairs: Any = None) -> dict[str, Any]:
        columns = [texts] if pairs is None else [texts, pairs]
        arrays = tf.numpy_function(encode, columns, [tf.int64] * len(names), stateful=False)
        for array in arrays:
            array.set_shape((texts.shape[0], None))
        return dict(zip(names, arrays, strict=True))

    return tokenize


def keras_hub_tokenizer(transform: TextTransform, corpus: Sequence[str]) -> Any:
    """keras_hub's tokenizer with the vocabulary of a WordPiece or byte-level BPE, if both agree on a corpus.

    It gives the ids of a text without the special tokens around it. A text of the corpus that it cuts
    otherwise is an error that names the row: use `tokenizing`, or leave the text out.
    """
    parts = json.loads(transform.tokenizer)
    kinds = {"WordPiece": ("normalizer", "BertNormalizer"), "BPE": ("pre_tokenizer", "ByteLevel")}
    part, expected = kinds.get(parts["model"]["type"], ("", ""))
    if not part or (parts[part] or {}).get("type") != expected:
        raise ConfigError(
            "The transform is not BERT's WordPiece and no byte-level BPE, which are what keras_hub has. Use "
            "`tokenizing`."
        )
    tokenizer = _word_pieces(transform, parts) if part == "normalizer" else _byte_pairs(transform, parts)
    for first in range(0, len(corpus), COMPARED_AT_ONCE):
        texts = list(corpus[first : first + COMPARED_AT_ONCE])
        rows = zip(texts, transform.pieces(texts), tokenizer(texts), strict=True)
        for index, (text, ours, theirs) in enumerate(rows, first):
            if ours.ids.tolist() != np.asarray(theirs).tolist():
                raise TextError(
                    f"corpus[{index}], {text!r:.60}, has {len(ours)} tokens, but other ids from keras_hub's "
                    "tokenizer. Use `tokenizing`, which is equal on every text, or leave this one out."
                )
    return tokenizer


def _word_pieces(transform: TextTransform, parts: dict[str, Any]) -> Any:
    from keras_hub.tokenizers import WordPieceTokenizer

    ids = transform.vocabulary
    if sorted(ids.values()) != list(range(len(ids))):
        raise ConfigError(
            "The vocabulary has gaps in its ids, which keras_hub cannot have. Use `tokenizing`."
        )
    normalizer, special = parts["normalizer"], transform.special_ids()
    lowercase, strip = normalizer["lowercase"], normalizer["strip_accents"]
    return WordPieceTokenizer(
        sorted(ids, key=ids.__getitem__),
        lowercase=lowercase,
        strip_accents=lowercase if strip is None else strip,
        split_on_cjk=normalizer["handle_chinese_chars"],
        suffix_indicator=parts["model"]["continuing_subword_prefix"],
        oov_token=transform.unk_token,
        special_tokens=[token for token, number in ids.items() if number in special],
        special_tokens_in_strings=True,
    )


def _byte_pairs(transform: TextTransform, parts: dict[str, Any]) -> Any:
    from keras_hub.tokenizers import BytePairTokenizer

    ids, special = transform.vocabulary, transform.special_ids()
    return BytePairTokenizer(
        vocabulary=ids,
        merges=[pair if isinstance(pair, str) else " ".join(pair) for pair in parts["model"]["merges"]],
        add_prefix_space=parts["pre_tokenizer"]["add_prefix_space"],
        unsplittable_tokens=[token for token, number in ids.items() if number in special],
    )

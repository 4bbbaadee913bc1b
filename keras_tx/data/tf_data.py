"""Tokenization inside a tf.data pipeline.

`tf_data_tokenizer` calls the transform from the pipeline, so its ids equal the transform's for every text.
`keras_hub_tokenizer` is keras-hub's tokenizer with the same vocabulary, in TensorFlow operations only. The
two differ on some texts, so they are compared on a corpus first:

- For uncased vocabularies keras-hub decomposes compatibility characters: an ellipsis becomes three dots.
- Control characters and the zero-width space separate words in keras-hub; the transform removes them.
- keras-hub's limit for a word is 100 bytes, not 100 characters.
- Byte-level BPE differs at two consecutive line breaks, if the vocabulary has a token for both, at the
  signs of multiplication and division, and where an emoji stands beside a Chinese letter.
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


def tf_data_tokenizer(transform: TextTransform) -> Callable[..., dict[str, Any]]:
    """Returns a function that tokenizes batches of texts in `Dataset.map`.

        tokenize = tf_data_tokenizer(transform)
        texts.batch(32).map(lambda x, y: (tokenize(x), y), num_parallel_calls=tf.data.AUTOTUNE)

    The function runs Python code, so the pipeline cannot be serialized.

    Args:
        transform: the tokenizer.

    Returns:
        A function of one or two string tensors (batch,) that returns the dict of the transform.
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
    """Returns keras-hub's tokenizer with the vocabulary of a transform, if both agree on a corpus.

    The ids do not include the special tokens around a text.

    Args:
        transform: a WordPiece or byte-level BPE tokenizer.
        corpus: the texts on which both tokenizers are compared.

    Raises:
        ConfigError: keras-hub has no such tokenizer.
        TextError: the tokenizers differ on a text of the corpus; the message contains its index.
    """
    parts = json.loads(transform.tokenizer)
    kinds = {"WordPiece": ("normalizer", "BertNormalizer"), "BPE": ("pre_tokenizer", "ByteLevel")}
    part, expected = kinds.get(parts["model"]["type"], ("", ""))
    if not part or (parts[part] or {}).get("type") != expected:
        raise ConfigError(
            f"The tokenizer's model is {parts['model']['type']!r}, expected BERT's WordPiece or byte-level "
            "BPE. Use tf_data_tokenizer instead."
        )
    tokenizer = _word_pieces(transform, parts) if part == "normalizer" else _byte_pairs(transform, parts)
    for first in range(0, len(corpus), COMPARED_AT_ONCE):
        texts = list(corpus[first : first + COMPARED_AT_ONCE])
        rows = zip(texts, transform.pieces(texts), tokenizer(texts), strict=True)
        for index, (text, ours, theirs) in enumerate(rows, first):
            if ours.ids.tolist() != np.asarray(theirs).tolist():
                raise TextError(
                    f"corpus[{index}]={text!r:.60} has other ids with keras-hub's tokenizer. Use "
                    "tf_data_tokenizer, which agrees on every text, or remove this text."
                )
    return tokenizer


def _word_pieces(transform: TextTransform, parts: dict[str, Any]) -> Any:
    from keras_hub.tokenizers import WordPieceTokenizer

    ids = transform.vocabulary
    if sorted(ids.values()) != list(range(len(ids))):
        raise ConfigError(
            "The ids of the vocabulary are not consecutive, which keras-hub requires. Use tf_data_tokenizer "
            "instead."
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

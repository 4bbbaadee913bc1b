"""The most probable next tokens of a text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from keras_tx.errors import ConfigError, whole_number
from keras_tx.generation.decoding_loop import Decoder, prefill
from keras_tx.generation.logits import log_softmax, nan_error, top_k_ids
from keras_tx.processing.detokenizer import Detokenizer


@dataclasses.dataclass(frozen=True)
class NextToken:
    """A token that may follow a text.

    Attributes:
        id: the token id.
        text: the characters that the token adds to the text, or the name of a special token; None if there is
            no tokenizer, or the id is not in its vocabulary.
        probability: of the model, before temperature, penalty and constraints.
        log_probability: its natural logarithm.
    """

    id: int
    text: str | None
    probability: float
    log_probability: float


class NextTokens(list[NextToken]):
    """A list of NextToken, most probable first, that prints as a table.

    >>> NextTokens([NextToken(640, " time", 0.75, -0.2877), NextToken(257, " a", 0.25, -1.3863)])
        id  token    probability  log probability
       640  ' time'       0.7500          -0.2877
       257  ' a'          0.2500          -1.3863
    """

    def __repr__(self) -> str:
        texts = ["" if token.text is None else repr(token.text) for token in self]
        width = max(5, *map(len, texts))
        rows = [f"{'id':>6}  {'token':{width}}  probability  log probability"]
        for token, text in zip(self, texts, strict=True):
            probability = (
                f"{token.probability:11.4f}" if token.probability >= 5e-5 else (f"{token.probability:11.1e}")
            )
            rows.append(f"{token.id:6}  {text:{width}}  {probability}  {token.log_probability:15.4f}")
        return "\n".join(rows)


def check_top_k(top_k: Any, vocabulary_size: int) -> int:
    """Returns `top_k` if it is a number of tokens that the vocabulary has."""
    number = whole_number("top_k", top_k)
    if number > vocabulary_size:
        raise ConfigError(
            f"top_k={number} is above vocabulary_size={vocabulary_size}. Pass at most {vocabulary_size}."
        )
    return number


def next_tokens(decoder: Decoder, ids: list[int], tokenizer: Any, top_k: int) -> NextTokens:
    """The `top_k` most probable tokens after a text; of equal probabilities the first ids."""
    logits = prefill(decoder, [ids], 1)[0][0]
    if not math.isfinite(logits.max()):
        raise nan_error()
    log_probabilities = log_softmax(logits)
    ranked = sorted(top_k_ids(logits, top_k).tolist(), key=lambda token: -log_probabilities[token])
    return NextTokens(
        NextToken(
            token,
            None if tokenizer is None else token_text(tokenizer, ids, token),
            math.exp(log_probabilities[token]),
            float(log_probabilities[token]),
        )
        for token in ranked
    )


def token_text(tokenizer: Any, before: Sequence[int], token: int) -> str | None:
    """The characters that a token adds after others; the name of a special token; None if it is unknown."""
    name = tokenizer.id_to_token(token)
    if name is None:
        return None
    added = tokenizer.get_added_tokens_decoder().get(token)
    if added is not None and added.special:
        return name
    detokenizer = Detokenizer(tokenizer.decode, (), before)
    return detokenizer.add(token) + detokenizer.end()

"""The bytes that each token adds to a text."""

from __future__ import annotations

import json
import re
from typing import Any

from keras_tx.errors import InputError

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
SPACE_DECODERS = {"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}


def token_bytes(tokenizer: Any, vocabulary_size: int) -> list[bytes | None]:
    """Returns the bytes of each id; None for special tokens and ids that the tokenizer does not have.

    The bytes of a text are those of its tokens, except for a space that the tokenizer omits at its beginning.

    Args:
        tokenizer: a tokenizers.Tokenizer: byte-level, or one of SentencePiece.
        vocabulary_size: number of ids of the model.

    Raises:
        InputError: if the bytes of a token depend on the tokens around it, as those of WordPiece.
    """
    content = json.loads(tokenizer.to_str())
    decoders = _decoders(content["decoder"])
    kinds = [decoder["type"] for decoder in decoders]
    if kinds == ["ByteLevel"]:
        letters = _letters()

        def decoded(token: str) -> bytes:
            if all(letter in letters for letter in token):
                return bytes(letters[letter] for letter in token)
            return token.encode()

    elif kinds and SPACE_DECODERS.issuperset(kinds) and all(map(_replaces_string, decoders)):
        replaced = [(x["pattern"]["String"], x["content"]) for x in decoders if x["type"] == "Replace"]
        replaced += [(x["replacement"], " ") for x in decoders if x["type"] == "Metaspace"]
        fallback = "ByteFallback" in kinds

        def decoded(token: str) -> bytes:
            byte = BYTE.fullmatch(token) if fallback else None
            if byte:
                return bytes([int(byte[1], 16)])
            for pattern, content in replaced:
                token = token.replace(pattern, content)
            return token.encode()

    else:
        raise InputError(
            f"The tokenizer has the model {content['model']['type']} and the decoders {kinds}, with which a "
            "token has no bytes of its own. Constrained output requires a byte-level or SentencePiece "
            "tokenizer."
        )
    added = tokenizer.get_added_tokens_decoder()
    table: list[bytes | None] = [None] * vocabulary_size
    for token, index in tokenizer.get_vocab(with_added_tokens=True).items():
        if index not in added or not added[index].special:
            table[index] = decoded(token)
    return table


def _decoders(decoder: Any) -> list[dict[str, Any]]:
    """A decoder as a list of the ones that it applies."""
    if decoder is None:
        return []
    if decoder["type"] != "Sequence":
        return [decoder]
    return [one for part in decoder["decoders"] for one in _decoders(part)]


def _replaces_string(decoder: dict[str, Any]) -> bool:
    """Whether a decoder replaces no regular expression."""
    return decoder["type"] != "Replace" or "String" in decoder["pattern"]


def _letters() -> dict[str, int]:
    """The byte of each letter in the tokens of a byte-level tokenizer: that of GPT-2's table."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(b): b for b in printable}, **{chr(256 + n): b for n, b in enumerate(others)}}

"""Keys of clients: from a file or the environment, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from keras_tx.errors import ConfigError
from keras_tx.serving.http.request_errors import UnauthorizedError

VARIABLE = "KERAS_TX_KEYS"


class ApiKeys:
    """Keys, of which a client sends one as `Authorization: Bearer KEY`. Only their hashes are kept.

    Args:
        keys: the keys; without any, every request is accepted.

    Raises:
        ConfigError: if a key is empty or has characters that a header cannot have.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        keys = list(keys)
        for number, key in enumerate(keys, 1):
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise ConfigError(
                    f"Key {number} is empty or has a space or a character that is not printable ASCII. Use "
                    "letters and digits."
                )
        self._digests = [_digest(key) for key in keys]

    @classmethod
    def read(cls, path: str | os.PathLike[str] | None, environment: Mapping[str, str]) -> ApiKeys:
        """Reads keys from a file, one per line, or from the variable KERAS_TX_KEYS, separated by commas.

        Raises:
            ConfigError: if the file cannot be read, or there is no key in the file or the variable.
        """
        if path is None and VARIABLE not in environment:
            return cls()
        if path is None:
            place, keys = VARIABLE, environment[VARIABLE].split(",")
        else:
            place = os.fspath(path)
            try:
                lines = Path(path).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"keys: {place} cannot be read ({error}).") from error
            keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not any(keys):
            raise ConfigError(f"{place} has no key. Write one per line, or omit it to accept every client.")
        return cls(keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, authorization: str | None) -> None:
        """Raises an UnauthorizedError if there are keys, and the header does not have one of them."""
        if not self._digests:
            return
        scheme, _, key = (authorization or "").partition(" ")
        digest = _digest(key.strip() if scheme.lower() == "bearer" else "")
        equal = [hmac.compare_digest(digest, one) for one in self._digests]  # all of them, in constant time
        if not any(equal):
            raise UnauthorizedError("The key is missing or wrong. Send the header Authorization: Bearer KEY.")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

"""Limits of what a client may send, and of the work that is accepted."""

from __future__ import annotations

import dataclasses

from keras_tx.errors import whole_number


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of an application.

    Args:
        max_body: bytes of a request's body.
        max_texts: texts or images of a request.
        max_characters: characters of a text or a chat, and ids of a prompt.
        max_pixels: pixels of an image, by its header; it is not decoded above that.
        max_new_tokens: new tokens of a generated text.
        max_concurrent: requests that run at the same time.
        max_queue: requests that wait for others; above that, requests are refused with status 429.
        body_seconds: time within which a body must arrive.

    Raises:
        ConfigError: if a value is not a whole number, 1 or more.
    """

    max_body: int = 32 * 2**20
    max_texts: int = 256
    max_characters: int = 200_000
    max_pixels: int = 50_000_000
    max_new_tokens: int = 4096
    max_concurrent: int = 64
    max_queue: int = 256
    body_seconds: int = 60

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            whole_number(field.name, getattr(self, field.name))

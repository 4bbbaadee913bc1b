"""A continuation printed while a GPT trains: the quickest way to see what it has learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from tokenizers import Tokenizer

from keras_tx.errors import ConfigError, whole_number
from keras_tx.models.generation import generate
from keras_tx.processing import TextTransform


class SampleText(keras.callbacks.Callback):
    r"""Prints how the model continues a prompt, at the end of each epoch or every so many steps.

    The draws have a seed of their own and are the same each time, so that what changes is the model;
    training is not touched.

    >>> import numpy as np, keras_tx
    >>> from keras_tx.processing import characters
    >>> keras.utils.set_random_seed(0)
    >>> model = keras_tx.gpt("pico", processing=characters("abcdefgh "))
    >>> model.compile()
    >>> sample = SampleText("a bad ", max_new_tokens=8)
    >>> ids = np.zeros((2, 4), int)
    >>> _ = model.fit(ids, ids, verbose=0, callbacks=[sample])  # doctest: +ELLIPSIS
    <BLANKLINE>
    epoch 1, loss ...
    a bad ...

    Args:
        prompt: the text to continue; "" starts from the end-of-text token.
        transform: of the text; by default the model's own `processing`.
        every: steps from one print to the next; by default the end of each epoch.
        samples: continuations at a time.
        show: what prints; it is called with the whole text.
        options: of keras_tx.generate; by default 100 tokens at temperature 0.8, seed 0.
    """

    def __init__(
        self,
        prompt: str = "",
        *,
        transform: TextTransform | None = None,
        every: int | None = None,
        samples: int = 1,
        show: Callable[[str], Any] = print,
        **options: Any,
    ) -> None:
        super().__init__()
        self.prompt, self.transform, self.show = prompt, transform, show
        self.every = None if every is None else whole_number("every", every)
        self.samples = whole_number("samples", samples)
        self.options = {"max_new_tokens": 100, "temperature": 0.8, "seed": 0, **options}
        self._epoch, self._last = 0, 0
        self._due: tuple[str, Any] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        transform = self.transform or getattr(self.model, "processing", None)
        if transform is None:
            raise ConfigError(
                f"Model {self.model.name!r} has no processing, so there is no text. Make it with "
                "processing=, or give SampleText a transform."
            )
        self._tokenizer = Tokenizer.from_str(transform.tokenizer)
        self._stop = self.model.stops(transform)
        if self.prompt:
            transform.pieces([self.prompt])  # which names a character that the vocabulary lacks
        self.text(max_new_tokens=1)  # what is wrong with prompt or options shows now, and not after an epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._last = epoch, 0
        self._print_due()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.every is not None and (batch + 1) // self.every > self._last // self.every:
            self._last = batch + 1
            self._print(f"epoch {self._epoch + 1}, step {batch + 1}", logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.every is None:  # printed a moment later, when the progress bar has finished its line
            self._due = f"epoch {epoch + 1}", logs

    def on_train_end(self, logs: Any = None) -> None:
        self._print_due()

    def text(self, **options: Any) -> str:
        """Prompt and continuation, as it is printed."""
        made = generate(
            self.model,
            self.prompt,
            tokenizer=self._tokenizer,
            stop_tokens=self._stop,
            samples=self.samples,
            **{**self.options, **options},
        )
        return "\n---\n".join(_visible(f"{self.prompt}{one.text}") for one in made)

    def _print_due(self) -> None:
        if self._due is not None:
            self._print(*self._due)
            self._due = None

    def _print(self, when: str, logs: Any) -> None:
        losses = (f"{name} {float(logs[name]):.4f}" for name in ("loss", "val_loss") if name in (logs or {}))
        self.show("\n" + ", ".join([when, *losses]) + "\n" + self.text())


def _visible(text: str) -> str:
    """What a model makes up shall not steer the terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)

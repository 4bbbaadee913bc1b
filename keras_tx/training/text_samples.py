"""A callback that prints generated text during the training of a GPT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from tokenizers import Tokenizer

from keras_tx.errors import ConfigError, whole_number
from keras_tx.models.generation import generate
from keras_tx.processing import TextTransform


class SampleText(keras.callbacks.Callback):
    r"""Prints continuations of a prompt at the end of each epoch, or every `every` steps.

    Sampling uses the same seed each time, and does not affect the random numbers of the training.

    Args:
        prompt: the text to continue; "" starts from the end-of-text token.
        transform: the text transform; by default the `processing` of the model.
        every: number of steps between two prints; by default once per epoch.
        samples: number of continuations per print.
        show: function that is called with the text.
        options: options of keras_tx.generate; by default 100 tokens at temperature 0.8 with seed 0.

    Raises:
        ConfigError: at the start of the training, if the model has no `processing` and `transform` is None,
            or if an option is not valid.

    Example:

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
                f"Model {self.model.name!r} has no processing. Create the model with processing=, or pass "
                "transform= to SampleText."
            )
        self._tokenizer = Tokenizer.from_str(transform.tokenizer)
        self._stop = self.model.stops(transform)
        if self.prompt:
            transform.pieces([self.prompt])  # raises for a character that the vocabulary does not contain
        self.text(max_new_tokens=1)  # raises for an invalid prompt or option before the first step

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._last = epoch, 0
        self._print_due()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.every is not None and (batch + 1) // self.every > self._last // self.every:
            self._last = batch + 1
            self._print(f"epoch {self._epoch + 1}, step {batch + 1}", logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.every is None:  # printed later, after the line of the progress bar
            self._due = f"epoch {epoch + 1}", logs

    def on_train_end(self, logs: Any = None) -> None:
        self._print_due()

    def text(self, **options: Any) -> str:
        """Returns the prompt and its continuations as they are printed."""
        generated = generate(
            self.model,
            self.prompt,
            tokenizer=self._tokenizer,
            stop_tokens=self._stop,
            samples=self.samples,
            **{**self.options, **options},
        )
        return "\n---\n".join(_escaped(f"{self.prompt}{one.text}") for one in generated)

    def _print_due(self) -> None:
        if self._due is not None:
            self._print(*self._due)
            self._due = None

    def _print(self, when: str, logs: Any) -> None:
        losses = (f"{name} {float(logs[name]):.4f}" for name in ("loss", "val_loss") if name in (logs or {}))
        self.show("\n" + ", ".join([when, *losses]) + "\n" + self.text())


def _escaped(text: str) -> str:
    """Escapes control characters, which would change the terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)

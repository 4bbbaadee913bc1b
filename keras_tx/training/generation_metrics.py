"""A callback that generates texts for held-out pairs and logs exact match, BLEU and chrF."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import keras

from keras_tx.errors import ConfigError, nearest, whole_number
from keras_tx.metrics import texts
from keras_tx.models.generation import generate
from keras_tx.progress_bar import ProgressBar

METRICS = {"exact_match": texts.exact_match, "bleu": texts.bleu, "chrf": texts.chrf}


class GenerationMetrics(keras.callbacks.Callback):
    """Generates a text for each source at the end of each epoch, and logs metrics of the texts.

    The History has `val_exact_match` (0 to 1), `val_bleu` and `val_chrf` (0 to 100). Callbacks that monitor
    them come after this one in the list. Generation does not affect the random numbers of the training.

    Args:
        sources: held-out texts, such as sentences to translate; for a GPT, prompts.
        targets: for each of them, the expected text, or a list of several.
        metrics: names of the metrics; "bleu" and "chrf" require `pip install "keras-tx[metrics]"`.
        batch_size: sources per call of keras_tx.generate.
        options: options of keras_tx.generate, such as max_new_tokens and num_beams. Greedy by default.

    Attributes:
        texts: the texts of the last epoch.

    Raises:
        ConfigError: a metric is unknown; at the start of the training, if the model has no `processing`
            or an option is not valid.
        ModuleNotFoundError: sacrebleu is not installed.

    Example:

    >>> import numpy as np, keras_tx
    >>> from keras_tx.processing import characters
    >>> model = keras_tx.gpt("pico", processing=characters("abcdefgh "))
    >>> model.compile()
    >>> metrics = GenerationMetrics(["a ", "b "], ["abc", "bcd"], max_new_tokens=3)
    >>> ids = np.zeros((2, 4), int)
    >>> history = model.fit(ids, ids, verbose=0, callbacks=[metrics]).history
    >>> sorted(name for name in history if name.startswith("val_"))
    ['val_bleu', 'val_chrf', 'val_exact_match']
    """

    def __init__(
        self,
        sources: Sequence[str],
        targets: Sequence[texts.Reference],
        *,
        metrics: Sequence[str] = tuple(METRICS),
        batch_size: int = 32,
        **options: Any,
    ) -> None:
        super().__init__()
        texts.exact_match(sources, targets)  # raises for lists that do not fit together
        for name in metrics:
            if name not in METRICS:
                raise ConfigError(f"metrics has {name!r}. {nearest(str(name), METRICS)}")
            if name != "exact_match":
                texts.import_sacrebleu()
        if "samples" in options:
            raise ConfigError(f"samples={options['samples']!r} is not supported: each source has one text.")
        self.sources, self.targets, self.metrics = list(sources), list(targets), tuple(metrics)
        self.options, self.batch_size = options, whole_number("batch_size", batch_size)
        self.texts: list[str] = []

    def on_train_begin(self, logs: Any = None) -> None:
        transform = getattr(self.model, "processing", None)
        if transform is None:
            raise ConfigError(
                f"Model {self.model.name!r} has no processing. Create the model with processing=."
            )
        # These raise for an invalid source or option before the first step.
        tokens = [len(transform.pieces([text])[0]) if text else 0 for text in self.sources]
        self._generate([self.sources[tokens.index(max(tokens))]], max_new_tokens=1)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        shown = (self.params or {}).get("verbose", 1) != 0
        generated: list[str] = []
        if shown:
            print(file=sys.stderr)  # keeps the line of Keras's progress bar
        with ProgressBar(len(self.sources), "texts", shown=shown) as bar:
            for first in range(0, len(self.sources), self.batch_size):
                generated += self._generate(self.sources[first : first + self.batch_size])
                bar.update(len(generated))
        self.texts = generated
        for name in self.metrics:
            if logs is not None:
                logs[f"val_{name}"] = METRICS[name](generated, self.targets)

    def _generate(self, sources: list[str], **options: Any) -> list[str]:
        return [one.text for one in generate(self.model, sources, **{**self.options, **options})]

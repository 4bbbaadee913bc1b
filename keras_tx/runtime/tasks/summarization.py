"""Summarization with an exported encoder-decoder."""

from __future__ import annotations

from typing import Any

from keras_tx import contract
from keras_tx.runtime.tasks.base import Task, per_adapter
from keras_tx.runtime.tasks.text2text_generation import TextToTextGenerator, answer_with, render
from keras_tx.runtime.tasks.text_generation import run_example


class Summarizer(TextToTextGenerator):
    """Summarizes texts.

    >>> model = load("headlines")  # doctest: +SKIP
    >>> model.summarize(article, num_beams=4)  # doctest: +SKIP
    'Rain stops the race'
    """

    @per_adapter
    def summarize(self, texts: Any, **options: Any) -> Any:
        """Summarizes texts, with the prefix and options of "summarization" in config.json, if it has them.

        Args:
            texts: a text, or a list of texts.
            options: those of `generate`: num_beams, max_new_tokens, batch_size ...

        Returns:
            The summary as a string; for a list of texts, a list.

        Raises:
            InputError: if a text is empty or longer than the context, or the folder has no tokenizer.
            ConfigError: if an option is unknown or out of range.
        """
        return self.texts(texts, options)

    def __call__(self, texts: Any, **options: Any) -> Any:
        """Calls `summarize`."""
        return self.summarize(texts, **options)


TASK = Task(
    contract.SUMMARIZATION,
    Summarizer,
    "text",
    accepts_ids=True,
    options=("generation",),
    metric="-log(perplexity)",
    answer=answer_with("summary_text"),
    render=render,
    run_example=run_example,
)

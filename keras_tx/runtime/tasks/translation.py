"""Translation with an exported encoder-decoder."""

from __future__ import annotations

from typing import Any

from keras_tx import contract
from keras_tx.runtime.tasks.base import Task, per_adapter
from keras_tx.runtime.tasks.text2text_generation import TextToTextGenerator, answer_with, render
from keras_tx.runtime.tasks.text_generation import run_example


class Translator(TextToTextGenerator):
    """Translates texts.

    >>> model = load("italian-english")  # doctest: +SKIP
    >>> model.translate("Io la sto mangiando")  # doctest: +SKIP
    'I am eating it'
    """

    @per_adapter
    def translate(self, texts: Any, *, task: str | None = None, **options: Any) -> Any:
        """Translates texts.

        Args:
            texts: a text, or a list of texts. A text for a model of several languages begins with the tag of
                its target, such as ">>fra<<".
            task: an entry of task_specific_params in config.json, such as "translation_en_to_de", with the
                prefix of the texts and default options. By default "translation", if the model has it.
            options: those of `generate`: num_beams, max_new_tokens, batch_size ...

        Returns:
            The translation as a string; for a list of texts, a list.

        Raises:
            InputError: if a text is empty, longer than the context, or begins with a tag that the vocabulary
                does not have, or if the folder has no tokenizer.
            ConfigError: if an option or a task is unknown, or an option out of range.
        """
        return self.texts(texts, options, task)

    def __call__(self, texts: Any, **options: Any) -> Any:
        """Calls `translate`."""
        return self.translate(texts, **options)


TASK = Task(
    contract.TRANSLATION,
    Translator,
    "text",
    accepts_ids=True,
    options=("generation",),
    metric="-log(perplexity)",
    answer=answer_with("translation_text"),
    render=render,
    run_example=run_example,
)

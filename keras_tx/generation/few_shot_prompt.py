"""Prompts with solved examples, for in-context learning."""

from __future__ import annotations

from collections.abc import Sequence
from string import Formatter

from keras_tx.errors import ConfigError, InputError

FIELDS = ["query", "answer"]


def few_shot(
    examples: Sequence[tuple[str, str]],
    query: str,
    *,
    answer: str | None = None,
    template: str = "{query} -> {answer}",
    separator: str = "\n",
    instruction: str = "",
) -> str:
    """Returns a prompt of solved examples and a query, for a model that continues texts.

    Args:
        examples: pairs of query and answer; none for a zero-shot prompt.
        query: the query to be answered.
        answer: a candidate answer, whose probability `score` computes; None if the model generates it. The
            prompt then ends before the answer, without white space, which belongs to the next token.
        template: format of an example, with the fields {query} and {answer}, in this order.
        separator: between the examples, and after the instruction.
        instruction: the beginning of the prompt.

    Returns:
        The prompt.

    Raises:
        ConfigError: if the template does not have each field once, the answer last.
        InputError: if an example is not a pair of texts.

    Example:

    >>> from keras_tx.generation import few_shot
    >>> print(few_shot([("cold", "hot"), ("dark", "light")], "tall"))
    cold -> hot
    dark -> light
    tall ->
    >>> few_shot([], "tall", answer="short", template="{query}: {answer}", instruction="Antonyms:")
    'Antonyms:\\ntall: short'
    """
    before, between = _parts(template)
    for index, pair in enumerate(examples):
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise InputError(
                f"examples[{index}]={pair!r}, expected a pair of texts: the query and its answer."
            )
    lines = [template.format(query=question, answer=reply) for question, reply in examples]
    if answer is None:
        lines.append(f"{before}{query}{between}".rstrip())
    else:
        lines.append(template.format(query=query, answer=answer))
    return separator.join([instruction] * bool(instruction) + lines)


def _parts(template: str) -> tuple[str, str]:
    """The text before the query, and that between query and answer."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(
            f"template={template!r} is not a format: {error}. Write {{{{ and }}}} for braces."
        ) from None
    fields = [
        name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
        for _, name, spec, conversion in parts
        if name is not None
    ]
    if fields != FIELDS:
        raise ConfigError(f"template={template!r} has the fields {fields}, expected {FIELDS}.")
    places = [index for index, part in enumerate(parts) if part[1] is not None]
    texts = [part[0] for part in parts]
    return "".join(texts[: places[0] + 1]), "".join(texts[places[0] + 1 : places[1] + 1])

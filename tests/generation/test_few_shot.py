"""few_shot: prompts of examples and a query."""

from __future__ import annotations

import pytest

from keras_tx.errors import ConfigError, InputError
from keras_tx.generation import few_shot

EXAMPLES = [("2 + 2", "4"), ("{query}", "{answer}")]


def test_prompt_ends_before_the_answer():
    assert few_shot(EXAMPLES, "1 + 1") == "2 + 2 -> 4\n{query} -> {answer}\n1 + 1 ->"


def test_answer_completes_the_prompt():
    prompt = few_shot(EXAMPLES, "1 + 1")
    assert few_shot(EXAMPLES, "1 + 1", answer="2") == f"{prompt} 2"


def test_zero_shot_prompt_with_instruction():
    options = {"template": "Q: {query}\nA: {answer}", "separator": "\n\n", "instruction": "Add."}
    assert few_shot([], "1 + 1", **options) == "Add.\n\nQ: 1 + 1\nA:"
    assert few_shot(EXAMPLES[:1], "1 + 1", **options) == "Add.\n\nQ: 2 + 2\nA: 4\n\nQ: 1 + 1\nA:"


def test_braces_of_a_template_are_text():
    template = "{{answer}} {query} -> {answer}"
    assert few_shot([], "1 + 1", template=template) == "{answer} 1 + 1 ->"
    assert few_shot([], "1 + 1", answer="2", template=template) == "{answer} 1 + 1 -> 2"


@pytest.mark.parametrize(
    "template",
    [
        "{answer} {query}",
        "{query}",
        "{query} {answer} {answer}",
        "{} {}",
        "{query} {answer!r}",
        "{query:>5} {answer}",
        "{query {answer}",
    ],
)
def test_template_without_its_fields_is_refused(template):
    with pytest.raises(ConfigError, match="template=") as error:
        few_shot([], "1 + 1", template=template)
    assert repr(template) in str(error.value)


@pytest.mark.parametrize("pair", ["ab", ("1",), ("1", 2), ("1", "2", "3")])
def test_example_that_is_no_pair_of_texts_is_refused(pair):
    with pytest.raises(InputError, match=r"examples\[1\]="):
        few_shot([("1", "1"), pair], "2")

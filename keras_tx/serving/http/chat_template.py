"""Chat templates: messages to the text that a model continues, by the Jinja template of its tokenizer."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from keras_tx import contract
from keras_tx.errors import InputError
from keras_tx.runtime import Folder
from keras_tx.runtime.folder import read_json


class ChatTemplate:
    """The template of a folder, which runs in Jinja's sandbox.

    Args:
        source: the template.
        special: the special tokens by name, such as `bos_token`.

    Raises:
        InputError: if the template is not valid.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        import jinja2
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
        self._special = special
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise InputError(f"The chat template is not valid ({error}).") from error

    @classmethod
    def of(cls, folder: Folder) -> ChatTemplate | None:
        """The template of tokenizer_config.json; None if it has none."""
        if contract.TOKENIZER_CONFIG not in folder.manifest.files:
            return None
        config = read_json(folder.path, contract.TOKENIZER_CONFIG, folder.manifest)
        source = config.get("chat_template")
        if not isinstance(source, str):
            return None
        special = {name: value for name, value in config.items() if name.endswith("_token")}
        return cls(source, {name: value for name, value in special.items() if isinstance(value, str)})

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of messages, up to the answer of the assistant.

        Raises:
            InputError: if the template refuses the messages.
        """
        import jinja2

        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self._special
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise InputError(f"The chat template of the model refuses the messages: {error}.") from error


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)  # Jinja's own filter escapes HTML


def _raise(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _now(layout: str) -> str:
    return datetime.datetime.now().strftime(layout)

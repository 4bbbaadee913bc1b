"""Constrained output: texts that match a regular expression or a JSON schema, with llguidance."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, InputError, KerasTxError, install_remedy
from keras_tx.processing.detokenizer import Detokenizer
from keras_tx.processing.token_bytes import token_bytes

WHITESPACE = " "  # at most one space where JSON permits whitespace: a text cannot consist of line breaks
CACHED = 32  # grammars that are kept: compiling one may take longer than a token
# Where only one text is possible, any of its tokens are permitted, not only those of llguidance's choice.
OPTIONS = '%llguidance {"no_forcing": true}\n'
EXCERPT = "\n   1 |"  # ends llguidance's message: lines of the grammar made here
NO_TOKEN = "NoExtensionBias"  # llguidance's error where it permits no token of the model
SILENT = 0  # the log level of llguidance, whose errors are raised here


class TextGrammar:
    """The tokens that may follow one text. `GrammarCompiler.start` returns it.

    Attributes:
        complete: whether the text matches, and nothing may follow.
    """

    def __init__(self, matcher: Any, size: int, stop_ids: frozenset[int], spaces: _Spaces | None) -> None:
        """`spaces` if the text's tokens begin with a space that the text does not have."""
        self.complete = False
        self._matcher = matcher
        self._size = size
        self._stop_ids = list(stop_ids)
        self._spaces = spaces
        self._excluded = [] if spaces is None else spaces.several

    def restrict(self, scores: np.ndarray) -> np.ndarray:
        """Scores (vocabulary,) of the next token with -inf for tokens that the grammar excludes.

        A stop token is permitted where the text matches.
        """
        with _panics(InputError, "The grammar cannot be applied"):
            mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            reason = _reason(self._matcher.get_error())
            if reason == NO_TOKEN:
                return np.full_like(scores, -np.inf)
            raise InputError(f"The grammar cannot be applied: {reason}")
        bits = np.frombuffer(mask, "uint8")
        permitted = np.unpackbits(bits, count=self._size, bitorder="little").view(bool)
        result = np.where(permitted, scores, np.array(-np.inf, scores.dtype))
        result[self._excluded] = -np.inf
        if self._stop_ids:
            result[self._stop_ids] = scores[self._stop_ids] if self._matcher.is_accepting() else -np.inf
        return result

    def accept(self, token: int) -> None:
        """Appends a token of those that `restrict` permits."""
        if self._spaces is not None:
            only_space = token in self._spaces.single
            self._excluded = self._spaces.leading if only_space else []
            self._spaces = self._spaces if only_space else None
        if token in self._stop_ids:
            self.complete = True
            return
        with _panics(InputError, f"Token {token} breaks the grammar"):
            accepted = self._matcher.consume_token(token)
        if not accepted:
            raise InputError(f"Token {token} breaks the grammar: {_reason(self._matcher.get_error())}")
        self.complete = self._matcher.is_stopped()


@dataclasses.dataclass(frozen=True)
class Grammar:
    """What a text must match as a whole: a regular expression, or the JSON of a schema.

    Args:
        regex: in the syntax of Rust's regex crate, which is that of Python without lookaround,
            backreferences, word boundaries and inner anchors.
        json_schema: a JSON schema, as a dict or a JSON string. Properties are generated in its order.

    Raises:
        ConfigError: if both or none of them is passed, or it is not a string or a schema.
    """

    regex: str | None = None
    json_schema: Any = None

    def __post_init__(self) -> None:
        if (self.regex is None) == (self.json_schema is None):
            raise ConfigError("Pass one of regex and json_schema.")
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", _checked_schema(self.json_schema))
        elif not isinstance(self.regex, str) or not self.regex:
            raise ConfigError(f"regex is {self.regex!r:.80}, expected a regular expression as a string.")
        elif not _is_unicode(self.regex):
            raise ConfigError(f"regex is {self.regex!r:.80}, which is not valid Unicode.")

    def __str__(self) -> str:
        name = "json_schema" if self.regex is None else "regex"
        return f"{name}={getattr(self, name)!r:.80}"


@dataclasses.dataclass(frozen=True)
class _Spaces:
    """Tokens with spaces, of which a tokenizer may omit one or all at the beginning of a text."""

    single: frozenset[int]  # one space
    leading: list[int]  # begin with a space
    several: list[int]  # begin with a space and have others


class GrammarCompiler:
    """Compiles grammars for the tokens of a model. The extra `constrained` has the package that it needs.

    Args:
        tokenizer: the tokenizers.Tokenizer that decodes the model's tokens.
        vocabulary_size: number of ids of the model.

    Raises:
        ModuleNotFoundError: if llguidance is not installed.
        InputError: if there is no tokenizer, or one whose tokens have no bytes of their own.
    """

    def __init__(self, tokenizer: Any, vocabulary_size: int) -> None:
        if tokenizer is None:
            raise InputError("regex and json_schema need a tokenizer. Export with tokenizer=.")
        self._tokenizer = tokenizer
        self._size = vocabulary_size
        self._bytes = token_bytes(tokenizer, vocabulary_size)
        self._library = _llguidance()
        self._tokens = self._library.LLTokenizer(self._library.TokenizerWrapper(self._wrapped()))
        self._compiled = functools.lru_cache(CACHED)(self._compile)
        spaced = {id: text for id, text in enumerate(self._bytes) if text and text.startswith(b" ")}
        self._spaces = _Spaces(
            frozenset(id for id, text in spaced.items() if text == b" "),
            list(spaced),
            [id for id, text in spaced.items() if text.count(b" ") > 1],
        )
        words = (id for id, text in spaced.items() if len(text) > 1 and text.count(b" ") == 1)
        self._probe = next(words, None)

    def check(self, grammar: Grammar) -> None:
        """Raises a ConfigError for a grammar that is not valid or not supported."""
        self._compiled(grammar, False)

    def start(self, grammar: Grammar, prompt: Sequence[int], stop_ids: frozenset[int]) -> TextGrammar:
        """The grammar of a text that begins after a prompt.

        Args:
            grammar: what the text must match.
            prompt: the tokens before it.
            stop_ids: the tokens that end it.
        """
        omitted = self._omits_space(prompt)
        matcher = self._compiled(grammar, omitted).deep_copy()
        return TextGrammar(matcher, self._size, stop_ids, self._spaces if omitted else None)

    def _omits_space(self, prompt: Sequence[int]) -> bool:
        """Whether the space at the beginning of the first token is omitted from the text."""
        if self._probe is None:
            return False
        detokenizer = Detokenizer(self._tokenizer.decode, (), prompt)
        text = (detokenizer.add(self._probe) + detokenizer.end()).encode()
        return text == (self._bytes[self._probe] or b"")[1:]

    def _compile(self, grammar: Grammar, omitted: bool) -> Any:
        """The matcher of a text; with `omitted`, of one whose first token begins with a space."""
        matcher = self._library.LLMatcher
        if grammar.regex is not None:
            source = json.loads(matcher.grammar_from_regex(grammar.regex))
            text = source["grammars"][0]["lark_grammar"].removeprefix("start:")
        else:
            schema = json.loads(grammar.json_schema)
            schema["x-guidance"] = {"whitespace_pattern": WHITESPACE, **(schema.get("x-guidance") or {})}
            text = f" %json {json.dumps(schema)}"
        start = '" " text' if omitted else "text"
        source = matcher.grammar_from_lark(f"{OPTIONS}start: {start}\ntext:{text}")
        with _panics(ConfigError, f"{grammar} is not supported"):
            _, messages = matcher.validate_grammar_with_warnings(source, self._tokens)
            compiled = matcher(self._tokens, source, log_level=SILENT)
        if messages or compiled.is_error():
            reason = _reason(messages[0] if messages else compiled.get_error())
            raise ConfigError(f"{grammar} is not supported: {reason}")
        return compiled

    def _wrapped(self) -> Any:
        """The tokens as llguidance reads them, with an end token that no model has."""
        special = [id for id, text in enumerate(self._bytes) if text is None]
        tokens = [f"<{id}>".encode() if text is None else text for id, text in enumerate(self._bytes)]
        return _Tokens([*tokens, b"<end>"], [*special, len(tokens)])


class _Tokens:
    """What llguidance reads of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special: list[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = special[-1]
        self._ids = {token: id for id, token in enumerate(tokens) if id not in {*special}}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes) -> list[int]:
        """The longest token at each place."""
        ids = []
        while text:
            lengths = range(min(self._longest, len(text)), 0, -1)
            length = next((n for n in lengths if text[:n] in self._ids), None)
            if length is None:
                break
            ids.append(self._ids[text[:length]])
            text = text[length:]
        return ids


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


@contextlib.contextmanager
def _panics(kind: type[KerasTxError], problem: str) -> Iterator[None]:
    """Raises an error for a panic of llguidance, which is not an Exception and would end a thread."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise kind(f"{problem}: {_reason(str(error))}") from error


def _reason(message: str) -> str:
    """A message of llguidance without its excerpt of the grammar and its state."""
    return " ".join(message.partition(EXCERPT)[0].partition("<state>")[0].split())


def _checked_schema(value: Any) -> str:
    """The JSON of a schema, as a dict or a string."""
    try:
        schema = json.loads(value) if isinstance(value, str) else value
        text = json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"json_schema is not JSON ({error}).") from error
    if not isinstance(schema, dict):
        raise ConfigError(f"json_schema is {value!r:.80}, expected a dict, or the JSON of an object.")
    options = schema.get("x-guidance")
    if options is not None and not isinstance(options, dict):
        raise ConfigError(f"x-guidance of json_schema is {options!r:.80}, expected an object.")
    return text


def _llguidance() -> Any:
    try:
        import llguidance
    except ModuleNotFoundError as error:
        message = f"regex and json_schema need llguidance, which is not installed. {install_remedy(error)}"
        raise ModuleNotFoundError(message, name=error.name) from error
    return llguidance

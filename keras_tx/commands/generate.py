"""keras-tx generate: generates text with an exported model. Needs onnxruntime, not Keras."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_tx.commands.arguments import add_adapter, add_session, loaded, whole
from keras_tx.commands.terminal import printable
from keras_tx.errors import InputError

if TYPE_CHECKING:
    from keras_tx.runtime import TextGenerator, TextToTextGenerator

SUMMARY = "generate text with an exported GPT, T5 or Transformer, streaming"
DESCRIPTION = """\
Loads an exported decoder with onnxruntime and generates the continuation of a prompt, which is printed as it
is generated. With an encoder-decoder, PROMPT is the source text, and its translation, summary or answer is
generated. Needs neither Keras nor TensorFlow, only pip install "keras-tx[runtime]". Generation is greedy
by default, with the same text each time; with --temperature, --top-k, --top-p, --min-p or --seed tokens are
drawn at random, and the same seed generates the same text. It ends at the end-of-text token, at
--max-new-tokens or at the end of the model's context, whichever comes first; Ctrl-C ends it at any time.
--num-beams searches for the most probable text, which is printed when it is complete. A prompt longer than
the context is an error; with --slide its last half context is used.
"""
EPILOG = """\
examples:
  keras-tx generate poet "To be"
  keras-tx generate poet "To be" --temperature 0.8 --top-k 40 --seed 1
  keras-tx generate poet "To be" --stop "." --prompt     up to the first full stop, after the prompt
  keras-tx generate poet "To be" --samples 3 --seed 0    three texts for one prompt
  keras-tx generate poet "To be" --num-beams 4           beam search
  keras-tx generate poet "A year: " --regex "[0-9]{4}"   text that matches a regular expression
  keras-tx generate poet - < letter.txt                  the prompt from standard input
  keras-tx generate poet ""                              start from the end-of-text token
  keras-tx generate poet "To be" --slide --interactive   line by line, with one cache
  keras-tx generate poet "5 17 99" --ids                 a folder without a tokenizer
  keras-tx generate poet "To be" --json                  text, ids, finish, log_probabilities, score as JSON
  keras-tx generate poet "To be" --stats                 with the speed
  keras-tx generate t5 "translate English to German: Good morning" --num-beams 4
  keras-tx generate t5 - --no-repeat-ngram-size 3 --min-new-tokens 20 < article.txt
  keras-tx generate italian-english "Buongiorno" --interactive    each line is translated

exit codes: 0 done; 2 an error; 130 interrupted by Ctrl-C.
"""
BEAMS = ("num_beams", "length_penalty", "early_stopping")
GRAMMARS = ("regex", "json_schema")
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
CONSTRAINTS = ("min_new_tokens", "no_repeat_ngram_size", "forced_bos_token_id")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="an exported folder")
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        help="the text to continue, or the source of an encoder-decoder; - for standard input",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=whole,
        default=128,
        metavar="N",
        help="maximum number of tokens (default: 128)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="values below 1 make likely tokens likelier; 0 is greedy",
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the likeliest tokens whose probabilities sum to P"
    )
    parser.add_argument(
        "--min-p",
        type=float,
        metavar="P",
        help="draw from tokens at least P times as likely as the likeliest",
    )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="values above 1 make tokens of the text less likely",
    )
    parser.add_argument(
        "--no-repeat-ngram-size",
        type=whole,
        metavar="N",
        help="no sequence of N tokens occurs twice",
    )
    parser.add_argument(
        "--min-new-tokens", type=whole, metavar="N", help="number of tokens before the text may end"
    )
    parser.add_argument(
        "--forced-bos-token-id",
        type=int,
        metavar="ID",
        help="the first token of an encoder-decoder, such as the target language of a multilingual model",
    )
    parser.add_argument("--regex", metavar="REGEX", help="a regular expression that the whole text matches")
    parser.add_argument("--json-schema", metavar="FILE", help="a JSON schema to which the text conforms")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the random numbers")
    parser.add_argument("--samples", type=whole, metavar="N", help="number of texts")
    parser.add_argument("--num-beams", type=whole, metavar="N", help="number of beams of a beam search")
    parser.add_argument(
        "--length-penalty",
        type=float,
        metavar="X",
        help="of beam search: values above 0 favour long texts (default: 1), below 0 short ones",
    )
    parser.add_argument(
        "--early-stopping",
        action="store_true",
        default=None,
        help="of beam search: end when as many texts as beams have ended",
    )
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="a string that ends the text; may be repeated",
    )
    parser.add_argument(
        "--slide", action="store_true", help="continue beyond the model's context with its last half"
    )
    parser.add_argument("--deadline", type=float, metavar="S", help="start no token after S seconds")
    parser.add_argument("--prompt", action="store_true", dest="echo", help="print the prompt before the text")
    parser.add_argument("--ids", action="store_true", help="PROMPT and the output are token ids")
    parser.add_argument(
        "--interactive",
        action="store_true",
        help="answer each line that is typed, a decoder by continuing the whole text; Ctrl-D quits, Ctrl-C "
        "ends a text",
    )
    parser.add_argument("--stats", action="store_true", help="print the speed on standard error")
    add_adapter(parser)
    add_session(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per text")


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.runtime import TextGenerator, TextToTextGenerator

    with loaded(arguments) as model:
        if not isinstance(model, TextGenerator | TextToTextGenerator):
            raise InputError(
                f"{arguments.folder} has the task {model.task.name!r}, which does not support text "
                "generation. Use keras-tx run."
            )
        text = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
        prompt = _ids(text) if arguments.ids else text
        beams = _passed(arguments, BEAMS)
        options = {
            **_passed(arguments, (*SAMPLING, *CONSTRAINTS)),
            **_grammar(arguments),
            "max_new_tokens": arguments.max_new_tokens,
            "stop": arguments.stop,
            "deadline": arguments.deadline,
            "at_context": "slide" if arguments.slide else "stop",
        }
        if arguments.interactive:
            _check_interactive(arguments, beams)
            _converse(model, prompt, options, arguments.ids or model.tokenizer is None)
        elif arguments.json or arguments.samples or beams or model.defaults.get("num_beams", 1) > 1:
            _generate(model, text, prompt, {**options, **beams}, arguments)
        else:
            _stream(model, text, prompt, options, arguments)
    return 0


def _passed(arguments: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """The options with a value."""
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def _grammar(arguments: argparse.Namespace) -> dict[str, str]:
    """The regular expression or the JSON schema that the text must match."""
    options = _passed(arguments, GRAMMARS)
    if "json_schema" in options:
        options["json_schema"] = Path(options["json_schema"]).read_text("utf-8")
    return options


def _check_interactive(arguments: argparse.Namespace, beams: dict[str, Any]) -> None:
    samples = arguments.samples is not None
    if beams or samples or arguments.json or arguments.echo or arguments.stats:
        raise InputError(
            "--interactive does not support --json, --samples, --prompt, --stats and the options of beam "
            "search. Omit them."
        )
    if arguments.prompt == "-":
        raise InputError("PROMPT is -, but --interactive reads lines from standard input. Pass a text.")


def _converse(
    model: TextGenerator | TextToTextGenerator, prompt: Any, options: dict[str, Any], as_ids: bool
) -> None:
    """Generates, and answers each line; a decoder continues the whole text, with one cache."""
    from keras_tx.generation import PromptCache

    cache = PromptCache() if model.caches_prompts else None
    while True:
        try:
            for piece in model.stream(prompt, as_ids=as_ids, prompt_cache=cache, **options):
                print(_safe(f"{piece} " if as_ids else piece), end="", flush=True)
        except KeyboardInterrupt:  # ends this text only
            pass
        print(flush=True)
        line = _read_line()
        if line is None:
            return
        if cache is None:
            prompt = _ids(line) if as_ids else line
            continue
        ids = list(cache.ids)
        while len(ids) > 1 and ids[-1] in model.stop_ids:
            ids.pop()
        prompt = ids + (_ids(line).tolist() if as_ids else model.tokenizer.encode(f"\n{line}\n").ids)


def _read_line() -> str | None:
    """The next line that is not empty; None at the end of standard input."""
    try:
        while not (line := input("> " if sys.stdin.isatty() else "")):
            pass
    except EOFError:
        return None
    return line


def _ids(text: str) -> Any:
    import numpy as np

    try:
        return np.array([int(word) for word in text.split()], "int64")
    except (ValueError, OverflowError):
        raise InputError(f"PROMPT is {text!r} with --ids, expected whole numbers, as in '5 17 99'.") from None


def _stream(
    model: TextGenerator | TextToTextGenerator,
    text: str,
    prompt: Any,
    options: dict[str, Any],
    arguments: argparse.Namespace,
) -> None:
    as_ids = arguments.ids or model.tokenizer is None
    shown = f"{text} " if as_ids else text
    first = 0.0
    count = 0
    start = time.perf_counter()

    def pieces() -> Iterator[Any]:
        nonlocal first, count
        for piece in model.stream(prompt, as_ids=as_ids, **options):
            first = first or time.perf_counter() - start
            count += 1
            yield f"{piece} " if as_ids else piece

    written = False
    try:
        for piece in pieces():
            if arguments.echo and not written:
                print(_safe(shown), end="")
            written = True
            print(_safe(piece), end="", flush=True)
    finally:
        if written:
            print(flush=True)
    if arguments.stats:
        rest = time.perf_counter() - start - first
        unit = "tokens" if as_ids else "pieces"
        rate = f", then {(count - 1) / rest:.0f} {unit} per second" if count > 1 and rest > 0 else ""
        print(f"first after {first * 1000:.0f} ms{rate}, {count} in total", file=sys.stderr)


def _generate(
    model: TextGenerator | TextToTextGenerator,
    text: str,
    prompt: Any,
    options: dict[str, Any],
    arguments: argparse.Namespace,
) -> None:
    start = time.perf_counter()
    texts = model.generate(
        prompt, samples=arguments.samples or 1, log_probabilities=arguments.json, **options
    )
    seconds = time.perf_counter() - start
    for index, one in enumerate(texts):
        if arguments.json:
            answer = {
                "prompt": text,
                "text": one.text,
                "ids": list(one.ids),
                "finish": one.finish,
                "log_probabilities": list(one.log_probabilities),
                "score": one.score,
            }
            print(json.dumps(answer, ensure_ascii=False))
            continue
        if index:
            print("---")
        as_ids = arguments.ids or one.text is None
        shown = " ".join(map(str, one.ids)) if as_ids else str(one)
        between = " " if as_ids else ""
        print(_safe(f"{text}{between}{shown}" if arguments.echo else shown))
    if arguments.stats:
        count = sum(len(one.ids) for one in texts)
        print(f"{count} tokens in {seconds:.2f} s, {count / seconds:.0f} per second", file=sys.stderr)


def _safe(text: str) -> str:
    """Text without control characters, except newlines and tabs."""
    return "".join(c if c in "\n\t" else printable(c) for c in text)

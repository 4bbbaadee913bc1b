"""keras-tx generate: an exported decoder continues a text in the terminal. Needs onnxruntime, not Keras."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from keras_tx.commands.arguments import add_session, session_options, whole
from keras_tx.commands.terminal import printable
from keras_tx.errors import InputError

if TYPE_CHECKING:
    from keras_tx.runtime import TextGenerator

SUMMARY = "continue a text with an exported GPT, streaming"
DESCRIPTION = """\
Loads an exported decoder with onnxruntime and continues a prompt, each character as soon as it is whole.
Needs neither Keras nor TensorFlow, only pip install "keras-tx[runtime]". Without further arguments it takes
the best token each time (greedy) and gives the same text each time; --temperature, --top-k, --top-p, --min-p
or --seed draw tokens instead, and the same seed gives the same text. It stops at the end-of-text token, at
--max-new-tokens, or when the model's context is full, whatever comes first; Ctrl-C stops it at any time.
--num-beams looks for the likeliest text as a whole instead of the likeliest next token, and so shows it only
when it is complete. A prompt longer than the context is refused; with --slide its last half of it is read.
"""
EPILOG = """\
examples:
  keras-tx generate poet "To be"
  keras-tx generate poet "To be" --temperature 0.8 --top-k 40 --seed 1
  keras-tx generate poet "To be" --stop "." --prompt     up to the first full stop, the prompt in front
  keras-tx generate poet "To be" --samples 3 --seed 0    three continuations of one prompt
  keras-tx generate poet "To be" --num-beams 4           the best of four that grow side by side
  keras-tx generate poet - < letter.txt                  the prompt from standard input
  keras-tx generate poet ""                              from nothing: the end-of-text token
  keras-tx generate poet "To be" --slide --interactive   line by line; what was read stays in the cache
  keras-tx generate poet "5 17 99" --ids                 a folder without a tokenizer
  keras-tx generate poet "To be" --json                  text, ids, finish, log_probabilities, score as JSON
  keras-tx generate poet "To be" --stats                 how fast it was

exit codes: 0 done; 2 an error, told in one line; 130 interrupted by Ctrl-C.
"""
BEAMS = ("num_beams", "length_penalty", "early_stopping")
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="what export wrote")
    parser.add_argument("prompt", metavar="PROMPT", help="what to continue; - reads standard input")
    parser.add_argument(
        "--max-new-tokens", type=whole, default=128, metavar="N", help="at most so many (default: 128)"
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="below 1 likely tokens become likelier; 0 is greedy"
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="only the K likeliest tokens")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="only the likeliest tokens that reach probability P together"
    )
    parser.add_argument(
        "--min-p", type=float, metavar="P", help="only tokens at least P times as likely as the likeliest"
    )
    parser.add_argument(
        "--repetition-penalty", type=float, metavar="X", help="above 1 tokens become less likely once used"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    parser.add_argument("--samples", type=whole, metavar="N", help="so many continuations, one after another")
    parser.add_argument(
        "--num-beams", type=whole, metavar="N", help="search with so many beams; by default with none"
    )
    parser.add_argument(
        "--length-penalty",
        type=float,
        metavar="X",
        help="of beams: above 0 long texts score better (default: 1), below 0 short ones",
    )
    parser.add_argument(
        "--early-stopping",
        action="store_true",
        default=None,
        help="of beams: end when as many texts as there are beams have ended",
    )
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="ends at this text; may be given again"
    )
    parser.add_argument(
        "--slide", action="store_true", help="go on beyond the model's context with the last half of it"
    )
    parser.add_argument("--deadline", type=float, metavar="S", help="begin no token after S seconds")
    parser.add_argument("--prompt", action="store_true", dest="echo", help="print the prompt in front")
    parser.add_argument("--ids", action="store_true", help="PROMPT and the answer are token ids")
    parser.add_argument(
        "--interactive",
        action="store_true",
        help="then take a line, continue behind it, and so on, until Ctrl-D; Ctrl-C ends an answer",
    )
    parser.add_argument("--stats", action="store_true", help="tokens a second, on standard error")
    add_session(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line for each continuation")


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.runtime import TextGenerator, load

    with load(arguments.folder, **session_options(arguments)) as model:
        if not isinstance(model, TextGenerator):
            raise InputError(
                f"{arguments.folder} is a folder for {model.folder.manifest.task or 'no known task'}, which "
                "continues no text. Give one that export wrote of a GPT; keras-tx run is for all others."
            )
        text = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
        prompt = _ids(text) if arguments.ids else text
        options = {name: getattr(arguments, name) for name in SAMPLING}
        options = {name: value for name, value in options.items() if value is not None}
        options |= {
            "max_new_tokens": arguments.max_new_tokens,
            "stop": arguments.stop,
            "deadline": arguments.deadline,
            "at_context": "slide" if arguments.slide else "stop",
        }
        beams = {name: getattr(arguments, name) for name in BEAMS}
        beams = {name: x for name, x in beams.items() if x is not None}
        if arguments.interactive:
            _talk(model, prompt, options, arguments, beams)
        elif arguments.json or arguments.samples is not None or beams:
            options |= beams
            _whole_texts(model, text, prompt, options, arguments)
        else:
            _stream(model, text, prompt, options, arguments)
    return 0


def _talk(
    model: TextGenerator,
    prompt: Any,
    options: dict[str, Any],
    arguments: argparse.Namespace,
    beams: dict[str, Any],
) -> None:
    """Continues, takes a line, continues behind it, and so on; with the cache kept, nothing is read twice."""
    from keras_tx.generation import Memory

    if beams or arguments.json or arguments.samples is not None or arguments.echo or arguments.stats:
        raise InputError(
            "--interactive shows one text as it grows. Leave --json, --samples, --prompt, --stats and those "
            "of beams out."
        )
    if arguments.prompt == "-":
        raise InputError(
            "With --interactive standard input is the conversation. Give the first prompt itself."
        )
    as_ids = arguments.ids or model.tokenizer is None
    memory = Memory()
    while True:
        try:
            for piece in model.stream(prompt, as_ids=as_ids, memory=memory, **options):
                print(_safe(f"{piece} " if as_ids else piece), end="", flush=True)
        except KeyboardInterrupt:  # enough of this answer
            pass
        print(flush=True)
        line = None
        while not line:  # an empty line adds nothing to go on from
            try:
                line = input("> " if sys.stdin.isatty() else "")
            except EOFError:
                return
        text = list(memory.ids)
        while len(text) > 1 and text[-1] in model.stop_ids:
            text.pop()
        if as_ids or model.tokenizer is None:
            prompt = text + _ids(line).tolist()
        else:
            prompt = text + model.tokenizer.encode(f"\n{line}\n").ids


def _ids(text: str) -> Any:
    import numpy as np

    try:
        return np.array([int(word) for word in text.split()], "int64")
    except (ValueError, OverflowError):
        raise InputError(
            f"With --ids the prompt is {text!r}, expected whole numbers, as in '5 17 99'."
        ) from None


def _stream(
    model: TextGenerator, text: str, prompt: Any, options: dict[str, Any], arguments: argparse.Namespace
) -> None:
    as_ids = arguments.ids or model.tokenizer is None
    shown = f"{text} " if as_ids else text
    first = 0.0
    count = 0
    start = time.perf_counter()

    def pieces() -> Iterator[Any]:
        nonlocal first, count
        found = model.stream(prompt, as_ids=as_ids, **options)
        for piece in found:
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
        rate = f", then {(count - 1) / rest:.0f} {unit} a second" if count > 1 and rest > 0 else ""
        print(f"first after {first * 1000:.0f} ms{rate}, {count} in all", file=sys.stderr)


def _whole_texts(
    model: TextGenerator, text: str, prompt: Any, options: dict[str, Any], arguments: argparse.Namespace
) -> None:
    start = time.perf_counter()
    made = model.generate(prompt, samples=arguments.samples or 1, log_probabilities=arguments.json, **options)
    seconds = time.perf_counter() - start
    for index, one in enumerate(made):
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
        count = sum(len(one.ids) for one in made)
        print(f"{count} tokens in {seconds:.2f} s, {count / seconds:.0f} a second", file=sys.stderr)


def _safe(text: str) -> str:
    """What a model makes up shall not steer the terminal; lines and tabs stay."""
    return "".join(c if c in "\n\t" else printable(c) for c in text)

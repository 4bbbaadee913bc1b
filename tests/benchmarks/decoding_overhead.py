"""The time of a token outside the graph: sampling and the decoding loop.

python -m tests.benchmarks.decoding_overhead               sampling and the loop, at GPT-2's vocabulary
python -m tests.benchmarks.decoding_overhead FOLDER ...    also whole steps of exported folders
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

VOCABULARY = 50257
LENGTHS = (16, 512, 768)
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature 0.8": {"temperature": 0.8},
    "top-k 40": {"top_k": 40},
    "top-p 0.9": {"top_p": 0.9},
    "top-p 0.5": {"top_p": 0.5},
    "min-p 0.05": {"min_p": 0.05},
    "repetition penalty 1.2": {"repetition_penalty": 1.2},
    "all of these": {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.2,
    },
    "top-p 0.9, log probabilities": {"top_p": 0.9, "log_probabilities": True},
}


class Prepared:
    """A decoder with constant logits: the rest is overhead."""

    vocabulary_size, context = VOCABULARY, 1024

    def __init__(self, logits: np.ndarray) -> None:
        self._logits = logits[None, None]

    def run(
        self,
        ids: np.ndarray,
        mask: np.ndarray,
        positions: np.ndarray,
        past: Any,
        all_logits: bool,
        room: int = 0,
    ) -> tuple[np.ndarray, Any]:
        return self._logits, ()

    def select(self, past: Any, rows: Sequence[int], first: int = 0) -> Any:
        return past


def kinds_of_logits() -> dict[str, np.ndarray]:
    """Logits by Zipf's law with noise, as in text, and nearly equal ones, as before training."""
    import numpy as np

    random = np.random.default_rng(0)
    noise = random.standard_normal(VOCABULARY)
    zipf = -1.1 * np.log(np.arange(1, VOCABULARY + 1)) + noise
    return {"Zipf": random.permutation(zipf).astype("float32"), "flat": (noise * 0.02).astype("float32")}


def choice(tokens: int = 300, runs: int = 5) -> str:
    """A table of milliseconds per token, the best of some runs."""
    from keras_tx.generation import Generator

    kinds = kinds_of_logits()
    lines = [f"| ms a token | {' | '.join(kinds)} |", f"| --- |{' --- |' * len(kinds)}"]
    for name, options in OPTIONS.items():
        row = []
        for logits in kinds.values():
            generator = Generator(Prepared(logits), frozenset(), "prepared", None)
            best = float("inf")
            for seed in range(runs):
                drawn: dict[str, Any] = {} if options.keys() <= {"repetition_penalty"} else {"seed": seed}
                start = time.perf_counter()
                generator.generate([1] * 64, max_new_tokens=tokens, **options, **drawn)
                best = min(best, (time.perf_counter() - start) / tokens)
            row.append(f"{best * 1000:.3f}")
        lines.append(f"| {name} | {' | '.join(row)} |")
    return "\n".join(lines)


class TimedSession:
    """An onnxruntime session that sums the time of its runs."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        start = time.perf_counter()
        self._session.run_with_iobinding(binding, options)
        self.seconds += time.perf_counter() - start


def steps(folder: str, tokens: int = 48) -> str:
    """A table of milliseconds per step by the length of the prompt, and the overhead."""
    import numpy as np

    from keras_tx.runtime import TextGenerator, load

    with load(folder, provider="cpu") as model:
        assert isinstance(model, TextGenerator)
        watched: Any = TimedSession(model.session._session)
        model.session._session = watched
        random = np.random.default_rng(0)
        lines = [
            f"{folder}, {type(model.decoder).__name__}",
            "",
            "| context | prompt, ms | step, ms | tokens a second | overhead, ms a step |",
            "| --- | --- | --- | --- | --- |",
        ]
        for length in LENGTHS:
            if length + tokens > model.context:
                continue
            prompt = random.integers(0, model.decoder.vocabulary_size, length)
            list(model.stream(prompt, max_new_tokens=4, as_ids=True))
            made, inside = [time.perf_counter()], [0.0]
            watched.seconds = 0.0
            for _ in model.stream(prompt, max_new_tokens=tokens, stop_tokens=[], as_ids=True):
                made.append(time.perf_counter())
                inside.append(watched.seconds)
            whole, theirs = np.diff(made), np.diff(inside)
            step, ours = np.median(whole[1:]) * 1000, np.median(whole[1:] - theirs[1:]) * 1000
            lines.append(
                f"| {length} | {whole[0] * 1000:.0f} | {step:.2f} | {1000 / step:.0f} | {ours:.3f} |"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="*", help="exported decoders")
    options = parser.parse_args(arguments)
    print(choice())
    for folder in options.folders:
        print(f"\n{steps(folder)}")


if __name__ == "__main__":
    main()

"""The time of a decode step, and its share outside the graph: sampling and the decoding loop.

python -m tests.benchmarks.decoding_overhead FOLDER ...
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

LENGTHS = (16, 512, 768)


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
    parser.add_argument("folders", nargs="+", help="exported decoders")
    options = parser.parse_args(arguments)
    for folder in options.folders:
        print(f"{steps(folder)}\n")


if __name__ == "__main__":
    main()

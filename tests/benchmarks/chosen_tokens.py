"""Judges the tokens of streams by the logits of the fp32 graph.

    python -m tests.benchmarks.chosen_tokens PLACE < TOKENS

Rounding changes a token where two logits are close, and all tokens after it, so that equal ids are no
criterion for 8 and 4 bits. Instead the fp32 graph computes the logits of each text that a contender
generated. The gap of a token is how far its logit is below the largest one, in standard deviations of the
logits: 0 for the token that fp32 would choose, about 4 for a random one. TOKENS and the result are JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.adapters import WRONG_NOTE
from tests.benchmarks.cases import STREAM_CASES, Case, prompts_of
from tests.benchmarks.comparisons import Comparison
from tests.benchmarks.results import Outcome
from tests.benchmarks.worker import environment

# The largest gap of a token, by the least bits of a weight.
LIMITS = ((32, 0.005), (16, 0.25), (8, 0.5), (0, 2.0))
Tokens = dict[str, dict[str, list[list[int]]]]  # by contender and case, of each stream


def judge(comparison: Comparison, outcome: Outcome, place: Path) -> None:
    """Replaces the tokens of each result by their largest gap, and notes contenders beyond the limit."""
    tokens = {
        result.name: {case: result.checks.pop(case) for case in outcome.cases if case in result.checks}
        for result in outcome.results
    }
    bits = {contender.name: contender.bits for contender in comparison.contenders}
    for name, gaps in _gaps_in_a_process(tokens, place).items():
        result = outcome.of(name)
        assert result is not None
        worst = max(gaps.values(), default=0.0)
        result.add(gap=worst)
        limit = next(most for least, most in LIMITS if bits[name] >= least)
        if not worst <= limit:  # also for NaN
            result.note = f"{WRONG_NOTE}TOKENS: {worst:.3g} below the likeliest, {limit:g} allowed"


def _gaps_in_a_process(tokens: Any, place: Path) -> dict[str, dict[str, float]]:
    command = [sys.executable, "-m", "tests.benchmarks.chosen_tokens", str(place)]
    done = subprocess.run(
        command, input=json.dumps(tokens), capture_output=True, text=True, env=environment()
    )
    if done.returncode:
        raise RuntimeError(f"The tokens could not be judged: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def gaps(tokens: Tokens, folder: Path) -> dict[str, dict[str, float]]:
    """The largest gap of a token, by contender and case."""
    from keras_tx.runtime import TextGenerator, load

    known: dict[tuple[int, ...], float] = {}
    with load(folder, provider="cpu", precision="fp32") as model:
        assert isinstance(model, TextGenerator)

        def gap(prompt: np.ndarray, made: list[int]) -> float:
            text = (*prompt.tolist(), *made)
            if text not in known:
                known[text] = _largest_gap(model.decoder, text, len(prompt))
            return known[text]

        def largest(case: Case, streams: list[list[int]]) -> float:
            prompts = prompts_of(case, model.decoder.vocabulary_size)
            return max(gap(prompt, made) for prompt, made in zip(prompts, streams, strict=True))

        cases = {case.name: case for case in STREAM_CASES}
        return {
            name: {case: largest(cases[case], streams) for case, streams in by_case.items()}
            for name, by_case in tokens.items()
        }


def _largest_gap(decoder: Any, text: tuple[int, ...], prompt_length: int) -> float:
    ids = np.array([text[:-1]])
    logits, _ = decoder.run(ids, np.ones_like(ids), np.arange(ids.shape[1])[None], None, all_logits=True)
    rows = logits[0, prompt_length - 1 :]
    chosen = rows[np.arange(len(rows)), text[prompt_length:]]
    return float(((rows.max(axis=1) - chosen) / rows.std(axis=1)).max())


def main(place: Path) -> None:
    print(json.dumps(gaps(json.load(sys.stdin), place / "keras_tx")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

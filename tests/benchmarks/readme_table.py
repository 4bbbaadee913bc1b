"""The README's short table of what `keras-tx bench` measured: one case of each family's, every contender.

python -m tests.benchmarks.readme_table RESULTS/bench.json README.md
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from keras_tx.errors import ConfigError
from tests.benchmarks.comparisons import MODELS

BEGIN, END = "<!-- peers:begin -->", "<!-- peers:end -->"
COLUMNS = {  # heading: subject and case, as bench.json names them
    "ViT-B/16, one image": ("vit-b16", "batch 1"),
    "BERT-base, 8 texts of 16 to 128 tokens": ("bert-base", "batch 8, lengths 16-128"),
    "GPT-2, prefill of 128": ("gpt2-124m", "prefill of 128"),
    "GPT-2, one token": ("gpt2-124m", "decode at 16"),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write what was measured into the README.")
    parser.add_argument("results", type=Path, help="bench.json")
    parser.add_argument("page", type=Path, help="the file with the markers")
    options = parser.parse_args(arguments)
    text = options.page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ConfigError(f"{options.page} lacks the markers {BEGIN} and {END}: the table goes between them.")
    table = table_of(json.loads(options.results.read_text(encoding="utf-8")))
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    options.page.write_text(f"{before}\n{table}\n{after}", encoding="utf-8")


def table_of(results: dict[str, Any]) -> str:
    """Medians in milliseconds, a row for each contender of any column, ours first."""
    columns = [_medians(results["outcomes"], *wanted) for wanted in COLUMNS.values()]
    found = dict.fromkeys(name for column in columns for name in column)
    names = sorted(found, key=lambda name: not name.startswith("keras-tx "))
    machine = results["machine"]
    lines = [
        f"Milliseconds, less is better; medians on {machine['cores']} cores of {machine['processor']}, "
        f"{results['date']}:",
        "",
        f"| | {' | '.join(COLUMNS)} |",
        f"| --- |{' ---: |' * len(COLUMNS)}",
    ]
    for name in names:
        cells = [f"{column[name] * 1e3:.1f}" if name in column else "" for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if any(name.endswith((" int4", " q4_0")) for name in names):
        lines += ["", "(With random weights, 4-bit files select other tokens than the rest.)"]
    return "\n".join(lines)


def _medians(outcomes: list[dict[str, Any]], subject: str, case: str) -> dict[str, float]:
    """Seconds by contender."""
    for outcome in outcomes:
        if (outcome["section"], outcome["subject"]) == (MODELS, subject) and case in outcome["cases"]:
            measured = outcome["measured"]
            return {
                one["name"]: statistics.median(one["seconds"][case])
                for one in measured
                if one["seconds"].get(case)
            }
    there = [
        f"{outcome['subject']}: {', '.join(outcome['cases'])}"
        for outcome in outcomes
        if outcome["section"] == MODELS
    ]
    raise ConfigError(
        f"There is no {case!r} of {subject} among the results, but {'; '.join(there) or 'nothing'}. "
        "Run keras-tx bench without --subject."
    )


if __name__ == "__main__":
    main()

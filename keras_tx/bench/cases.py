"""What is measured of a subject, and its inputs: the same for every contender."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_tx.bench.field import BERT, GPT, MIXED, VIT

IMAGES, TEXTS, PREFILL, DECODE = "images", "texts", "prefill", "decode"
PARTS = {IMAGES: ("pixels",), TEXTS: ("ids", "mask", "segments"), PREFILL: ("ids",), DECODE: ("ids",)}
STEPS = 32  # tokens of a decoding case, over which their time is averaged


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    kind: str
    batch: int = 1
    lengths: tuple[int, int] = (128, 128)  # of texts, from and to

    @property
    def inputs(self) -> str:
        return self.name.replace(" ", "_")

    @property
    def parts(self) -> tuple[str, ...]:
        return PARTS[self.kind]


CASES = {
    VIT: (Case("batch 1", IMAGES), Case("batch 8", IMAGES, 8)),
    BERT: (Case(MIXED, TEXTS, 8, (16, 128)), Case("batch 1, length 128", TEXTS)),
    GPT: (
        Case("prefill of 128", PREFILL),
        Case("decode at 16", DECODE, lengths=(16, 16)),
        Case("decode at 512", DECODE, lengths=(512, 512)),
        Case("decode at 768", DECODE, lengths=(768, 768)),
    ),
}


def case_of(subject: str, name: str) -> Case:
    (found,) = (case for case in CASES[subject] if case.name == name)
    return found


def inputs_of(
    subject: str, vocabulary: int, image: tuple[int, int, int] = (3, 224, 224)
) -> dict[str, np.ndarray]:
    """Random ones, by the name of case and part."""
    random = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    for case in CASES[subject]:
        if case.kind == IMAGES:
            found[f"{case.inputs}.pixels"] = random.normal(size=(case.batch, *image)).astype("float32")
            continue
        lengths = random.integers(case.lengths[0], case.lengths[1] + 1, case.batch)
        lengths[0] = case.lengths[1]
        ids = random.integers(1, vocabulary, (case.batch, lengths.max()))
        if case.kind != TEXTS:
            found[f"{case.inputs}.ids"] = ids[0]
            continue
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype("int64")
        parts = {"ids": ids * mask, "mask": mask, "segments": np.zeros_like(mask)}
        found |= {f"{case.inputs}.{name}": value for name, value in parts.items()}
    return found


def token_of(run: Callable[[int], tuple[list[int], float]]) -> dict[str, Any]:
    """Seconds of one token behind a prompt, from two runs.

    Some contenders give all their tokens at once: so what the prompt and the first took is subtracted.
    """
    _, prefill = run(1)
    made, seconds = run(1 + STEPS)
    return {"seconds": (seconds - prefill) / STEPS, "check": made[0]}

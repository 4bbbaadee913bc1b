"""The benchmark of encoder-decoders: their inputs, batches and goals."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from tests.benchmarks import comparisons, models
from tests.benchmarks.adapters import BATCH, Adapter, generate_in_batches
from tests.benchmarks.adapters.keras_tx import Runtime
from tests.benchmarks.adapters.pytorch import Inference
from tests.benchmarks.cases import (
    BEAMS,
    CASES,
    ENCODER_DECODERS,
    GENERATE,
    GREEDY,
    MARIAN,
    SENTENCES,
    SPECIAL,
    T5_BASE,
    T5_SMALL,
    Case,
    inputs_of,
)
from tests.benchmarks.goals import GOALS, judge
from tests.benchmarks.report import outcome_table
from tests.benchmarks.results import Outcome, Result
from tests.benchmarks.timing import measure
from tests.benchmarks.tiny_models import make_place

VOCABULARY = 50
TINY = Case("tiny", GENERATE, 3, (2, 5), new_tokens=4, beams=2)


@pytest.mark.parametrize("model", ENCODER_DECODERS)
def test_sources_have_no_special_tokens(model: str):
    arrays = inputs_of(CASES[model], VOCABULARY)
    for case in CASES[model]:
        ids, mask = (arrays[f"{case.inputs}.{part}"] for part in ("ids", "mask"))
        lengths = mask.sum(axis=1)
        assert ids.shape == mask.shape == (case.batch, case.lengths[1])
        assert lengths.min() >= case.lengths[0] and lengths.max() == case.lengths[1]
        assert (ids[mask > 0] >= SPECIAL).all() and ids.max() < VOCABULARY - 1
    assert set(arrays) == {f"{case.inputs}.{part}" for case in CASES[model] for part in ("ids", "mask")}


def test_batches_have_sources_of_similar_lengths():
    (case,) = CASES[MARIAN]
    arrays = inputs_of((case,), VOCABULARY)
    ids, mask = (arrays[f"{case.inputs}.{part}"] for part in ("ids", "mask"))
    seen: list[tuple[int, int]] = []

    def run(ids: np.ndarray, mask: np.ndarray) -> list[list[int]]:
        assert len(ids) <= BATCH and mask[0].all()  # cut to the longest
        seen.append((int(mask.sum(axis=1).min()), ids.shape[1]))
        return [[int(row.sum())] for row in ids]

    targets = generate_in_batches(ids, mask, run)
    assert targets == [[int(row.sum())] for row in ids]
    assert len(seen) == 4 and all(least >= longest for (least, _), (_, longest) in itertools.pairwise(seen))


class Fake(Adapter):
    calls = 0

    def generate(self, ids: np.ndarray, mask: np.ndarray, count: int, beams: int) -> list[list[int]]:
        assert ids.shape == mask.shape == (3, 5) and beams == 2
        self.calls += 1
        return [[7] * (count - int(self.options["missing"]))] * len(ids)


def place_with_inputs(place: Path) -> Path:
    np.savez(place / "inputs.npz", **inputs_of((TINY,), VOCABULARY))  # pyright: ignore[reportArgumentType]
    return place


def test_check_is_the_first_token(tmp_path: Path):
    adapter = Fake(place_with_inputs(tmp_path), missing=0)
    measured = measure(adapter, Case(**{**vars(TINY), "once": True}))
    assert measured["check"] == 7 and adapter.calls == 1 and measured["seconds"] > 0


def test_shorter_target_raises(tmp_path: Path):
    with pytest.raises(ValueError, match=r"3 targets of \{3\} tokens, not 3 of 4"):
        measure(Fake(place_with_inputs(tmp_path), missing=1), TINY)


def outcome(model: str, *cases: str, section: str = comparisons.MODELS, **figures: list[float]) -> Outcome:
    """keras-tx takes twice the time or memory of the others."""
    names = (
        "keras-tx fp32",
        "keras-tx int8",
        "ctranslate2 fp32",
        "ctranslate2 int8",
        "torch eager",
        "optimum",
    )
    results = []
    for name in names:
        factor = 2.0 if name.startswith("keras-tx") else 1.0
        seconds = {case: [factor] * 3 for case in cases}
        results.append(
            Result(name, seconds, figures={k: [factor * x for x in v] for k, v in figures.items()})
        )
    return Outcome(section, model, list(cases), results)


def test_goals_of_speed_and_memory():
    outcomes = [
        outcome(T5_SMALL, GREEDY, BEAMS),
        outcome(T5_BASE, GREEDY, BEAMS),
        outcome(MARIAN, SENTENCES),
        outcome(T5_BASE, GREEDY, section=comparisons.START, peak=[1.0, 1.0, 1.0]),
    ]
    judged = [one for goal in GOALS if (one := judge(goal, outcomes))]
    assert len(judged) == 5 * 2 + 2 * 2 + 2
    assert {one.verdict for one in judged} == {"missed"}
    assert {one.measured for one in judged} == {"0.50x (0.50 to 0.50)"}
    assert [one.goal for one in judged if one.case == "t5-base, peak"] == [
        "at most the memory of ctranslate2 fp32",
        "at most the memory of ctranslate2 int8",
    ]


def test_tokens_per_second():
    lines = outcome_table(outcome(MARIAN, SENTENCES))
    assert (
        f"Tokens per second, {SENTENCES}: keras-tx fp32 1600, keras-tx int8 1600, ctranslate2 fp32 3200"
        in lines[-1]
    )


def test_start_token_of_marian_has_vector_0():
    model: Any = models.marian("tiny", positions="sine-cosine-halves", pad_id=255, logits_bias=True)
    vectors = np.array(model.get_layer("token_embedding").table)
    assert not vectors[model.start_id].any() and vectors[:255].any(axis=1).all() and model.stops() == [0]


@pytest.mark.thorough
def test_contenders_generate_the_same_targets(tmp_path: Path):
    place = make_place(tmp_path / T5_SMALL, keras_tx.t5("tiny", stop_ids=(1,)), (TINY,))
    adapters = [Runtime(place, precision="fp32"), Inference(place, way="eager")]
    for adapter in adapters:
        adapter.imports()
        adapter.load()
    with np.load(place / "inputs.npz") as arrays:
        ids, mask = (arrays[f"{TINY.inputs}.{part}"] for part in TINY.parts)
    for beams in (1, 3):
        ours, theirs = (adapter.generate(ids, mask, 6, beams) for adapter in adapters)
        assert ours == theirs and {len(target) for target in ours} == {6}
        assert len({token for target in ours for token in target}) > 3

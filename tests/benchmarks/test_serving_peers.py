"""Streams and embeddings of servers are measured, and wrong answers are noticed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.benchmarks import chosen_tokens
from tests.benchmarks import contenders as field
from tests.benchmarks.cases import A_REQUEST, CASES, GPT, MINILM, STREAM_CASES, TEXTS_FILE, prompts_of
from tests.benchmarks.comparisons import CLIENTS, STREAMS, Comparison
from tests.benchmarks.machine import Machine, Rate
from tests.benchmarks.report import Report, main, merged, outcome_table
from tests.benchmarks.results import Outcome, Result, deviations
from tests.benchmarks.runner import run_comparison
from tests.drawing import redraw

CASE = STREAM_CASES[1]
MACHINE = Machine(2, "CPU", {})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("streams") / GPT
    model = redraw(keras_tx.gpt("pico", max_length=128))
    keras_tx.save_checkpoint(model, place / "huggingface")
    export_onnx(model, place / "keras_tx", cache="shared", precision=["fp32", "int8"], verify=False)
    return place


def generated(place: Path) -> list[list[int]]:
    with load(place / "keras_tx", provider="cpu") as model:
        prompts = prompts_of(CASE, model.decoder.vocabulary_size)
        answers = model.generate(prompts, max_new_tokens=CASE.new_tokens, stop_tokens=[])
    return [list(answer.ids) for answer in answers]


def judged(place: Path, tokens: list[list[int]]) -> Result:
    result = Result("keras-tx fp32", {CASE.name: [0.1]}, {CASE.name: tokens})  # type: ignore[dict-item]
    comparison = Comparison(STREAMS, GPT, (CASE,), field.STREAMS)
    chosen_tokens.judge(comparison, Outcome(STREAMS, GPT, [CASE.name], [result]), place)
    return result


def test_tokens_of_generate_have_no_gap(place: Path):
    result = judged(place, generated(place))
    assert result.note == "" and result.median("gap") < 1e-4 and not result.checks


def test_tokens_of_another_stream_are_noticed(place: Path):
    tokens = generated(place)
    tokens[2], tokens[5] = tokens[5], tokens[2]
    result = judged(place, tokens)
    assert result.note.startswith("WRONG TOKENS") and result.median("gap") > 0.3


def test_runs_of_several_precisions_are_one_report(tmp_path: Path):
    page, paths = tmp_path / "page.md", []
    page.write_text("before\n<!-- serving:begin -->\n<!-- serving:end -->\nafter\n", "utf-8")
    for name, peer in (("keras-tx fp32", "llama.cpp f32"), ("keras-tx int8", "llama.cpp q8_0")):
        results = [Result(name, {CASE.name: [0.001] * 3}), Result(peer, {CASE.name: [0.002] * 3})]
        outcome = Outcome(STREAMS, GPT, [CASE.name], results)
        Report(MACHINE, outcomes=[outcome], minutes={"streams": 1.0}).save(tmp_path / name)
        paths.append(str(tmp_path / name / "bench.json"))
    main([*paths, str(page)])
    text = page.read_text("utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "2.0 minutes" in text
    assert all(f"| {name} | 1000.0 ± 0% |" in text for name in ("keras-tx fp32", "keras-tx int8"))
    assert "| llama.cpp q8_0 | 500.0 ± 0% |" in text and text.count("| 2.00x (2.00 to 2.00) |") == 2


def report_of(*names: str, machine: Machine = MACHINE) -> Report:
    results = [Result(name, {CASE.name: [0.001] * 3}) for name in names]
    return Report(machine, "2030-01-02", [Outcome(STREAMS, GPT, [CASE.name], results)])


def test_runs_of_different_machines_are_not_merged():
    rates = {"fp32": Rate(1e9, "torch")}
    one, other = report_of("keras-tx fp32"), report_of("keras-tx int8", machine=Machine(2, "CPU", rates))
    assert len(merged([one, other]).outcomes[0].results) == 2  # a rate is measured anew in each run
    for machine in (Machine(4, "CPU", {}), Machine(2, "another CPU", {}), Machine(2, "CPU", {}, 1)):
        with pytest.raises(ConfigError, match="different machines"):
            merged([report_of("keras-tx fp32"), report_of("keras-tx int8", machine=machine)])


def test_contender_of_two_runs_is_not_merged():
    first, second = report_of("keras-tx fp32", "llama.cpp f32"), report_of("keras-tx int8")
    second.outcomes[0].unavailable["llama.cpp f32"] = "crashed: its process ended with 3"
    with pytest.raises(
        ConfigError, match=r"more than one of the results: llama.cpp f32 \(streams gpt2-124m\)"
    ):
        merged([first, second])
    with pytest.raises(ConfigError, match="keras-tx fp32"):
        merged([report_of("keras-tx fp32"), report_of("keras-tx int8"), report_of("keras-tx fp32")])


@pytest.mark.thorough
def test_streams_are_measured(place: Path):
    names = ("keras-tx fp32", "keras-tx int8")
    contenders = tuple(one for one in field.STREAMS if one.name in names)
    cases = STREAM_CASES[:2]
    outcome = Outcome(STREAMS, GPT, [case.name for case in cases])
    comparison = Comparison(STREAMS, GPT, cases, contenders)
    run_comparison(comparison, outcome, place, rounds=2, seconds=60, pythons={}, say=print)
    assert [result.name for result in outcome.results] == list(names), outcome.unavailable
    for result in outcome.results:
        assert result.note == ""
        for case in cases:
            assert len(result.seconds[case.name]) == 2
            first, whole = result.median(f"first token, {case.name}"), result.median(case.name)
            assert 0 < first < whole * case.batch * case.new_tokens
    head, _, row, *_ = outcome_table(outcome)
    assert head.startswith("| tokens/s | 1 stream | 8 streams | first token, 1 stream, ms |")
    assert float(row.split(" | ")[1].split(" ±")[0]) == pytest.approx(
        1 / outcome.results[0].median("1 stream"), rel=0.01
    )


@pytest.mark.thorough
def test_embeddings_over_http(exported_folders, tmp_path: Path):
    """Each server returns the embedding of each text."""
    folder = exported_folders["bert, sentence"].path
    (tmp_path / "keras_tx").symlink_to(folder)
    texts = ["the cat", "a cat sat on the mat", "Ada lives here"]
    (tmp_path / TEXTS_FILE).write_text(json.dumps(texts), "utf-8")
    ours = tuple(one for one in field.EMBEDDERS if one.package == "keras-tx")
    missing = dataclasses.replace(field.EMBEDDERS[-1], requires=("no_such_module",))
    comparison = Comparison(CLIENTS, MINILM, CASES[MINILM], (*ours, missing))
    outcome = Outcome(CLIENTS, MINILM, [A_REQUEST])
    run_comparison(comparison, outcome, tmp_path, rounds=2, seconds=60, pythons={}, say=print)
    assert [result.name for result in outcome.results] == [one.name for one in ours], outcome.unavailable
    assert set(outcome.unavailable) == {missing.name}
    assert deviations(outcome.results, A_REQUEST) == {}
    first = outcome.results[0]
    assert 0 < first.median("p50") <= first.median("p99")
    from tests.benchmarks.adapters.embedders import NUM_CLIENTS, REQUESTS
    from tests.benchmarks.timing import projection

    with load(folder, provider="cpu") as model:
        vectors = model.embed([texts[index % len(texts)] for index in range(NUM_CLIENTS * REQUESTS)])
    assert np.allclose(first.checks[A_REQUEST], projection(vectors), rtol=1e-3, atol=1e-3)

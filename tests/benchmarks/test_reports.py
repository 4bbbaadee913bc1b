"""What is said of measurements: shares, goals, tables, pictures, and no claim within the noise."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks import cases, charts, comparisons, concurrent_clients, contenders, report, utilization
from tests.benchmarks.cases import AT_16, BERT, CASES, GPT, MIXED, ONE, TEXTS, VIT, Case, batch_of, inputs_of
from tests.benchmarks.goals import GOALS, AtMost, Faster, judge
from tests.benchmarks.machine import Machine, Rate, described
from tests.benchmarks.models import Facts
from tests.benchmarks.results import Measured, Outcome, differing, ratios
from tests.benchmarks.tables import table
from tests.benchmarks.timing import STEPS, projected, token_of

MACHINE = Machine(2, "a processor", {"fp32": Rate(500e9, "one"), "memory": Rate(50e9, "other")})


def outcome() -> Outcome:
    ours = Measured("keras-tx fp32", {ONE: [1.0, 1.1, 0.9, 1.0]}, {ONE: 1.0}, {"load": [0.25]})
    peer = Measured("optimum", {ONE: [2.0, 2.2, 1.8, 2.0]}, {ONE: 1.5})
    broken = {"openvino fp32": "not installed: openvino"}
    return Outcome(comparisons.MODELS, VIT, [ONE], [ours, peer], broken)


def test_ratios_and_what_may_be_claimed():
    run = outcome()
    ours, peer = run.measured
    assert ratios(ours, peer, ONE) == pytest.approx([2.0, 2.0, 2.0, 2.0])
    assert differing(run.measured, ONE) == {"optimum": "another result, by 50%"}
    ours.checks[AT_16], peer.checks[AT_16] = 50_000, 50_001
    assert differing(run.measured, AT_16) == {"optimum": "another first token"}
    for goal, verdict in ((1.5, "reached"), (2.5, "missed")):
        assert judge(Faster(VIT, ONE, "keras-tx fp32", "optimum", goal), [run]).verdict == verdict
    peer.seconds[ONE] = [1.9, 2.8, 2.1, 2.0]
    noisy = judge(Faster(VIT, ONE, "keras-tx fp32", "optimum", 2.2), [run])
    assert noisy.verdict == "within the noise" and noisy.seen == "2.17x (1.98 to 2.39)"
    ours.seconds[ONE] = [1.0]
    assert "not claimed" in judge(Faster(VIT, ONE, "keras-tx fp32", "optimum", 1.5), [run]).verdict
    assert judge(Faster(VIT, ONE, "keras-tx fp32", "torch eager", 2), [run]).verdict == "not measured"
    assert judge(Faster(BERT, ONE, "keras-tx fp32", "optimum", 2), [run]) is None


def test_outputs_with_other_rows_or_signs_are_found_out():
    output = np.random.default_rng(3).standard_normal((8, 50))
    noise = np.random.default_rng(4).standard_normal((8, 50))
    wrong = {"swapped": output[::-1], "signs": np.abs(output), "scaled": output * 1.2, "nan": output * np.nan}
    given = {"first": output, "int8": output + 0.03 * noise, **wrong}
    rows = [Measured(name, checks={ONE: projected(x)}) for name, x in given.items()]
    assert set(differing(rows, ONE)) == set(wrong)
    losses = [Measured(name, checks={"step": loss}) for name, loss in (("a", 2.0), ("b", 2.03), ("c", 2.1))]
    assert differing(losses, "step") == {"c": "another result, by 5%"}


def test_what_ours_may_take_whatever_the_peers_need():
    run = outcome()
    for limit, verdict in ((0.9, "missed"), (1.0, "within the noise"), (1.2, "reached")):
        goal = AtMost(VIT, ONE, "keras-tx fp32", limit, "s", comparisons.MODELS)
        assert judge(goal, [run]).verdict == verdict
    in_ms = judge(AtMost(VIT, ONE, "keras-tx fp32", 1200, "ms", comparisons.MODELS, 1000), [run])
    assert in_ms.goal == "at most 1,200 ms" and in_ms.seen == "1,000 (975 to 1,025)"


def test_a_goal_of_ours_that_crashed_is_not_measured():
    goal = Faster(VIT, ONE, "keras-tx int8", "optimum", 2)
    run = outcome()
    assert judge(goal, [run]) is None  # a race without it
    run.absent["keras-tx int8"] = "crashed: its process ended with 3"
    judged = judge(goal, [run])
    assert (judged.verdict, judged.goal, judged.seen) == ("not measured", "2x optimum", "")
    early = Measured("keras-tx int8", {"batch 8": [1.0]}, said="crashed: its process ended with 3")
    run = Outcome(comparisons.MODELS, VIT, [ONE, "batch 8"], [early])
    assert judge(goal, [run]).verdict == "not measured"
    clients = Outcome(comparisons.CLIENTS, BERT, ["request"], [], {"keras-tx fp32": "crashed: it did"})
    of_clients = [one for one in GOALS if one.section == comparisons.CLIENTS]
    assert {judge(one, [clients]).verdict for one in of_clients} == {"not measured"}
    assert (
        judge(AtMost(VIT, "load", "keras-tx int8", 1, "s", comparisons.MODELS), [run]).goal == "at most 1 s"
    )


def test_goals_name_races_contenders_and_cases_that_there_are():
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
    }
    known = {(race.section, race.subject): race for race in comparisons.RACES}
    for goal in GOALS:
        race = known[goal.section, goal.subject]
        names = {one.name for one in race.contenders}
        if goal.section == comparisons.CLIENTS:  # whose rows are the ways of one contender
            ways = (concurrent_clients.AT_ONCE, concurrent_clients.QUEUE, concurrent_clients.BATCHED)
            names = {f"{way} {one.options['precision']}" for one in race.contenders for way in ways}
        assert set(goal.names) <= names, goal
        assert goal.case in figures | {case.name for case in race.cases}, goal
    assert set(contenders.PACKAGES) > {"keras-tx", "optimum", "openvino", "llama.cpp", "genai", "onnxruntime"}


def test_shares_of_what_the_machine_can_do():
    ours = Measured("keras-tx fp32", {AT_16: [0.01], "prefill of 128": [0.1]})
    four = Measured("keras-tx int4", {AT_16: [0.01]})
    run = Outcome(comparisons.MODELS, GPT, [AT_16, "prefill of 128"], [ours, four], {})
    (race,) = (
        race for race in comparisons.RACES if (race.section, race.subject) == (comparisons.MODELS, GPT)
    )
    facts = Facts(120, 100_000_000, {"prefill of 128": 25e9})
    utilization.add_shares(run, race, facts, MACHINE)
    assert ours.shares == {AT_16: pytest.approx(0.8), "prefill of 128": pytest.approx(0.5)}
    assert four.shares == {AT_16: pytest.approx(0.8 * 5 / 32)}
    with_cache = dataclasses.replace(facts, cache=1_000_000)  # 32 bits each, of 16 + 32 / 2 tokens
    utilization.add_shares(run, race, with_cache, MACHINE)
    assert ours.shares[AT_16] == pytest.approx((0.4 + 0.128) / 0.01 / 50)
    assert four.shares[AT_16] == pytest.approx((0.4 * 5 / 32 + 0.128) / 0.01 / 50)
    ours.seconds |= {"decode at 512": [0.015]}
    ours.figures |= {"export": [2.4], "added": [960]}
    utilization.add_figures(run, facts)
    assert ours.figures["a step at 512 against 16"] == pytest.approx([1.5])
    assert ours.figures["loaded, of the weights"] == [2.0]
    assert ours.figures["export a 100 M parameters"] == pytest.approx([2.4 / 1.2e-6])


def test_the_machine_is_the_best_of_those_who_tried():
    slow, fast = Measured("one fp32", {"fp32": [0.004]}), Measured("two fp32", {"fp32": [0.002]})
    disturbed = Measured("two fp32", {"fp32": [0.008, 0.004]})
    first = Outcome(comparisons.MACHINE, "rate-fp32", ["fp32"], [slow, disturbed], {})
    again = Outcome(comparisons.MACHINE, "rate-fp32-again", ["fp32"], [slow, fast], {})
    found = described([first, again])
    assert found.rates == {"fp32": Rate(500e9, "two")} and found.cores > 0
    assert described([first]).rates["fp32"].a_second == 250e9
    assert "fp32 500 (two)" in str(found) and "memory read 50 GB/s (other)" in str(MACHINE)
    assert "GFLOP" not in str(described([]))


def test_results_as_json_markdown_and_pictures(tmp_path: Path):
    run = outcome()
    run.measured[0].shares[ONE] = 0.7
    results = report.Results(MACHINE, "2030-01-02", [run], ["start vit-b16"], {"models": 1.5})
    results.save(tmp_path)
    text = (tmp_path / "bench.md").read_text("utf-8")
    assert "| keras-tx fp32 | 1000.0 ± 2%, 70% | 0.25 |" in text
    assert "another result, by 50%: batch 1" in text and "not installed: openvino |" in text
    assert "2030-01-02, 2 cores of a processor; matrix multiply, GFLOP/s: fp32 500 (one)" in text
    assert "| vit-b16, batch 1 | keras-tx fp32 | 1x optimum | 2.00x (2.00 to 2.00) | reached |" in text
    assert "- start vit-b16" in text and "It took 1.5 minutes" in text
    read = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert read["outcomes"][0]["measured"][0]["seconds"][ONE] == run.measured[0].seconds[ONE]
    assert report.markdown(report.Results.read(tmp_path / "bench.json")) + "\n" == text
    (picture,) = charts.draw(results, tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG") and not list(tmp_path.glob("*.unfinished"))


def test_versions_throughput_and_a_machine_that_was_disturbed():
    run = outcome()
    ours, peer = run.measured
    ours.versions, peer.versions = ({"onnxruntime": v, "numpy": "2"} for v in ("1.30", "1.31"))
    ours.shares[ONE] = 1.15
    said = report.markdown(report.Results(MACHINE, "2030-01-02", [run]))
    assert "With onnxruntime 1.30 (keras-tx) and 1.31 (optimum); numpy 2." in said
    assert "Images a second, batch 1: keras-tx fp32 1, optimum 0.5." in said and "disturbed" not in said
    ours.shares[ONE] = 1.16
    said = report.markdown(report.Results(MACHINE, "2030-01-02", [run]))
    assert "disturbed while its own rates were measured: up to 116% of them were reached" in said


def test_a_page_gets_the_tables_between_its_markers(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", "utf-8")
    report.put_into(page, report.Results(MACHINE, "2030-01-02", [outcome()]))
    text = page.read_text("utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "### models: vit-b16" in text
    page.write_text("no markers", "utf-8")
    with pytest.raises(SystemExit, match="measured:begin"):
        report.put_into(page, report.Results(MACHINE, "2030-01-02"))
    assert page.read_text("utf-8") == "no markers"


def test_contenders_that_said_something_are_rows_with_it():
    run = outcome()
    run.measured[1].said = "crashed: its process ended with 3"
    assert any(row.startswith("| optimum |") and "ended with 3" in row for row in table(run))
    assert table(Outcome("models", VIT, [ONE])) == ["Nobody ran it."]


def test_the_time_of_a_token_is_without_the_prefill():
    found = token_of(lambda count: (list(range(count)), 5.0 + 0.25 * (count - 1)))
    assert found == {"seconds": pytest.approx(0.25), "check": 0}


def test_a_cold_first_prompt_does_not_make_tokens_faster():
    calls: list[int] = []

    def run(count: int) -> tuple[list[int], float]:
        calls.append(count)
        cold = 3.0 if len(calls) == 1 else 0.0
        disturbed = 40.0 if len(calls) == 5 else 0.0  # one pair of three
        return list(range(count)), 5.0 + cold + disturbed + 0.25 * (count - 1)

    assert token_of(run)["seconds"] == pytest.approx(0.25)
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

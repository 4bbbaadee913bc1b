"""Runs a comparison: contenders in processes of their own, interleaved, so that disturbances affect all."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks import chosen_tokens, comparisons
from tests.benchmarks.adapters import WRONG_NOTE
from tests.benchmarks.cases import STEP, STREAMS, Case
from tests.benchmarks.comparisons import Comparison
from tests.benchmarks.contenders import Contender, bits_of
from tests.benchmarks.results import Outcome, Result, deviation
from tests.benchmarks.worker import Unavailable, Worker, check_installed

Say = Callable[[str], None]
Installed = list[tuple[Contender, str]]  # with the path of its Python


def run_comparison(
    comparison: Comparison,
    outcome: Outcome,
    place: Path,
    *,
    rounds: int,
    seconds: float,
    pythons: Mapping[str, str],
    say: Say,
) -> None:
    """Fills the outcome round by round, so that an interruption keeps the finished rounds.

    Spends at most about `seconds` on a case, if that is less than `rounds` rounds.
    """
    run = _Run(comparison, outcome, place, rounds, seconds, say)
    contenders = list(run.prepared(pythons))
    try:
        run.in_new_processes(contenders) if comparison.new_process else run.side_by_side(contenders)
    finally:
        outcome.results[:] = [result for result in outcome.results if result.seconds]
        if comparison.section == comparisons.STREAMS:
            chosen_tokens.judge(comparison, outcome, place)


@dataclasses.dataclass
class _Run:
    comparison: Comparison
    outcome: Outcome
    place: Path
    rounds: int
    seconds: float
    say: Say

    def prepared(self, pythons: Mapping[str, str]) -> Iterator[tuple[Contender, str]]:
        """The installed contenders, after processes of their own have written their files."""
        for contender in self.comparison.contenders:
            python = pythons.get(contender.package, sys.executable)
            try:
                check_installed(contender, python)
                worker = Worker(contender, self.place, python)
                try:
                    worker.call("prepare")
                finally:
                    worker.close()
                yield contender, python
            except Unavailable as error:
                self._give_up(contender.name, error)

    def side_by_side(self, contenders: Installed) -> None:
        workers: dict[str, Worker] = {}
        try:
            for contender, python in contenders:
                workers[contender.name] = Worker(contender, self.place, python)
                try:
                    self.outcome.results.append(self._started(contender.name, workers[contender.name]))
                except Unavailable as error:
                    workers.pop(contender.name).close()
                    self._give_up(contender.name, error)
            for case in self.comparison.cases:
                self._rounds(case, workers)
        finally:
            for worker in workers.values():
                worker.close()

    def _started(self, name: str, worker: Worker) -> Result:
        result = Result(name)
        _load(worker, result)
        for case in self.comparison.cases:  # the first run compiles and fills caches: it is not counted
            if not case.once:
                answer = worker.call("run", dataclasses.replace(case, once=True))
                result.checks[case.name] = answer.get("check", 0.0)
                if "resident" not in result.figures:
                    result.add(resident=answer["resident"])
        result.versions = worker.call("versions")["versions"]
        self.say(f"{name}: loaded in {result.figures['load'][0]:.2f} s")
        return result

    def _rounds(self, case: Case, workers: dict[str, Worker]) -> None:
        start = time.perf_counter()
        rounds = 1 if case.once else self.rounds
        for index in range(rounds):
            for name, worker in list(workers.items()):
                try:
                    self._add(name, case, worker.call("run", case))
                except Unavailable as error:
                    workers.pop(name).close()
                    self._give_up(name, error)
            if 2 <= index < rounds - 1 and time.perf_counter() - start > self.seconds:
                self.say(f"{case.name}: {index + 1} of {rounds} rounds within the time budget")
                break

    def in_new_processes(self, contenders: Installed) -> None:
        """A new process per round. A contender that exceeds its share of the time gets no further round."""
        budget = {contender.name: self.seconds / len(contenders) for contender, _ in contenders}
        for _ in range(self.rounds):
            for contender, python in contenders:
                if budget[contender.name] > 0:
                    start = time.perf_counter()
                    worker = Worker(contender, self.place, python)
                    try:
                        self._once(contender.name, worker, start)
                        budget[contender.name] -= time.perf_counter() - start
                        self.say(f"{contender.name}: {time.perf_counter() - start:.1f} s")
                    except Unavailable as error:
                        budget[contender.name] = 0
                        self._give_up(contender.name, error)
                    finally:
                        worker.close()

    def _once(self, name: str, worker: Worker, start: float) -> None:
        result = self.outcome.add(name)
        _load(worker, result)
        for case in self.comparison.cases:
            answer = worker.call("run", case)
            result.checks.setdefault(case.name, answer.get("check", 0.0))
            result.add(all=time.perf_counter() - start, peak=answer["peak"], resident=answer["resident"])
            self._add(name, case, answer)
        result.versions = worker.call("versions")["versions"]

    def _add(self, name: str, case: Case, answer: dict[str, Any]) -> None:
        """Adds a round. A contender that measures several ways itself has a row for each."""
        for way, seconds in answer.get("ways", {name: [answer["seconds"]]}).items():
            result = self.outcome.add(way)
            result.seconds.setdefault(case.name, []).extend(seconds)
            result.add(**answer.get("figures", {}))
            result.note = answer.get("note") or result.note
        self._compare(name, case, answer)

    def _compare(self, name: str, case: Case, answer: dict[str, Any]) -> None:
        """Notes an answer other than that of the first run; losses change, and logits judge streams."""
        result = self.outcome.of(name)
        if result is None or case.name not in result.checks or case.kind in (STEP, STREAMS):
            return
        how = deviation(answer.get("check", 0.0), result.checks[case.name], bits_of(name))
        if how:
            result.note = f"{WRONG_NOTE}ANSWERS: {how} in a later turn: {case.name}"

    def _give_up(self, name: str, error: Unavailable) -> None:
        """Ends a contender; its finished rounds are kept."""
        result = self.outcome.of(name)
        if result is not None and result.seconds:
            result.note = str(error)
        else:
            self.outcome.unavailable[name] = str(error)
        self.say(f"{name}: {error}")


def _load(worker: Worker, result: Result) -> None:
    imported = worker.call("import")
    loaded = worker.call("load")
    result.add(
        importing=imported["seconds"],
        load=loaded["seconds"],
        added=loaded["resident"] - imported["resident"],
    )

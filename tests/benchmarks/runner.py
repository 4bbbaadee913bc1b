"""Contenders in processes of their own, run in turns: what slows the machine down slows all of them."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.comparisons import Race
from tests.benchmarks.contenders import Contender
from tests.benchmarks.results import Measured, Outcome
from tests.benchmarks.subprocesses import Absent, Worker, check_installed

Say = Callable[[str], None]


def run_race(
    race: Race,
    outcome: Outcome,
    place: Path,
    *,
    rounds: int,
    seconds: float,
    pythons: Mapping[str, str],
    say: Say,
) -> None:
    """Fills the outcome, turn by turn: an interruption leaves what was measured before it.

    At most about `seconds` are spent on a case, if that is less than `rounds` turns.
    """
    installed = _prepared(_installed(race.contenders, pythons, outcome, say), outcome, place, say)
    measure = _in_new_processes if race.fresh else _side_by_side
    try:
        measure(race, installed, outcome, place, rounds, seconds, say)
    finally:
        outcome.measured[:] = [found for found in outcome.measured if found.seconds]


def _installed(
    contenders: Sequence[Contender], pythons: Mapping[str, str], outcome: Outcome, say: Say
) -> list[tuple[Contender, str]]:
    found = []
    for contender in contenders:
        python = pythons.get(contender.package, sys.executable)
        try:
            check_installed(contender, python)
            found.append((contender, python))
        except Absent as error:
            _give_up(outcome, contender.name, error, say)
    return found


def _prepared(
    contenders: Sequence[tuple[Contender, str]], outcome: Outcome, place: Path, say: Say
) -> list[tuple[Contender, str]]:
    """Those whose own files are there, in processes that end: what made them is in nobody's memory later."""
    found = []
    for contender, python in contenders:
        worker = Worker(contender, place, python)
        try:
            worker.tell("prepare")
            found.append((contender, python))
        except Absent as error:
            _give_up(outcome, contender.name, error, say)
        finally:
            worker.close()
    return found


def _give_up(outcome: Outcome, name: str, error: Absent, say: Say) -> None:
    """It is no contender any more, but what it did before counts."""
    found = outcome.of(name)
    if found is not None and found.seconds:
        found.said = str(error)
    else:
        outcome.absent[name] = str(error)
    say(f"{name}: {error}")


def _side_by_side(
    race: Race,
    contenders: Sequence[tuple[Contender, str]],
    outcome: Outcome,
    place: Path,
    rounds: int,
    seconds: float,
    say: Say,
) -> None:
    workers: dict[str, Worker] = {}
    try:
        for contender, python in contenders:
            found = Measured(contender.name)
            worker = workers[contender.name] = Worker(contender, place, python)
            try:
                _ready(worker, found)
                for case in race.cases:  # the first run is no measurement: it compiles, and fills caches
                    if not case.once:
                        done = worker.tell("run", dataclasses.replace(case, once=True))
                        found.checks[case.name] = done.get("check", 0.0)
                        if "resident" not in found.figures:
                            found.note(resident=done["resident"])
                found.versions = worker.tell("versions")["versions"]
            except Absent as error:
                workers.pop(contender.name).close()
                _give_up(outcome, contender.name, error, say)
                continue
            outcome.measured.append(found)
            say(f"{contender.name}: ready, loaded in {found.figures['load'][0]:.2f} s")
        for case in race.cases:
            start = time.perf_counter()
            for turn in range(1 if case.once else rounds):
                for name, worker in list(workers.items()):
                    try:
                        done = worker.tell("run", case)
                    except Absent as error:
                        workers.pop(name).close()
                        _give_up(outcome, name, error, say)
                        continue
                    _note(outcome, name, case.name, done)
                if 2 <= turn < rounds - 1 and time.perf_counter() - start > seconds:
                    say(f"{case.name}: {turn + 1} of {rounds} turns in the time there is")
                    break
    finally:
        for worker in workers.values():
            worker.close()


def _in_new_processes(
    race: Race,
    contenders: Sequence[tuple[Contender, str]],
    outcome: Outcome,
    place: Path,
    rounds: int,
    seconds: float,
    say: Say,
) -> None:
    """A process a turn. One that takes longer than its share of the time gets no other turn."""
    left = {contender.name: seconds / max(1, len(contenders)) for contender, _ in contenders}
    for _ in range(rounds):
        for contender, python in contenders:
            if left[contender.name] <= 0:
                continue
            found = outcome.of(contender.name)
            if found is None:
                found = Measured(contender.name)
                outcome.measured.append(found)
            start = time.perf_counter()
            worker = None
            try:
                worker = Worker(contender, place, python)
                _ready(worker, found)
                for case in race.cases:
                    done = worker.tell("run", case)
                    found.checks[case.name] = done.get("check", 0.0)
                    found.note(all=time.perf_counter() - start, peak=done["peak"], resident=done["resident"])
                    _note(outcome, contender.name, case.name, done)
                found.versions = worker.tell("versions")["versions"]
                left[contender.name] -= time.perf_counter() - start
                say(f"{contender.name}: {time.perf_counter() - start:.1f} s")
            except Absent as error:
                left[contender.name] = 0
                _give_up(outcome, contender.name, error, say)
            finally:
                if worker is not None:
                    worker.close()


def _ready(worker: Worker, found: Measured) -> None:
    imported = worker.tell("import")
    loaded = worker.tell("load")
    found.note(
        importing=imported["seconds"],
        load=loaded["seconds"],
        added=loaded["resident"] - imported["resident"],
    )


def _note(outcome: Outcome, name: str, case: str, done: dict[str, Any]) -> None:
    """A contender with several ways has a row for each, whose turns it took itself."""
    for way, seconds in done.get("ways", {name: [done["seconds"]]}).items():
        found = outcome.of(way)
        if found is None:
            found = Measured(way)
            outcome.measured.append(found)
        found.seconds.setdefault(case, []).extend(seconds)
        found.note(**done.get("figures", {}))
        found.said = done.get("said") or found.said

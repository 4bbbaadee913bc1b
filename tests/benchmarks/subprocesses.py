"""The process of a contender, seen from the parent."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import keras_tx
from tests.benchmarks.cases import Case
from tests.benchmarks.contenders import Contender
from tests.benchmarks.machine import threads

ROOT = Path(__file__).parents[2]  # of the repository


class Absent(Exception):
    """A contender cannot be measured here; the message says why."""


class Worker:
    """It is told what to do, a line of JSON each, and ends with `close`."""

    def __init__(self, contender: Contender, place: Path, python: str) -> None:
        self.contender = contender
        order = {"module": contender.module, "needs": contender.needs, "options": contender.options}
        path = place / f"{contender.module}-{contender.name.replace(' ', '-')}.log"
        self._log = open(path, "w", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-m", "tests.benchmarks.worker", json.dumps(order), str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment() | contender.environment,
        )

    def tell(self, do: str, case: Case | None = None) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        order = {"do": do, "case": dataclasses.asdict(case) if case else None}
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Absent(_crashed(self._process.wait(), self._log.name))
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise Absent(" ".join(found["error"].split())[:300])
        return found

    def close(self) -> None:
        self._process.kill()
        with contextlib.suppress(OSError):
            self._process.communicate()
        self._log.close()


def _crashed(code: int, log: str) -> str:
    """Nobody else kills a contender: the system does when memory runs out."""
    why = (
        "killed, as the system does when memory runs out" if code == -9 else f"its process ended with {code}"
    )
    return f"crashed: {why}; what it printed: {log}"


def check_installed(contender: Contender, python: str) -> None:
    code = f"import importlib.util as i; print(*[m for m in {contender.needs!r} if not i.find_spec(m)])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment())
    if done.returncode or done.stdout.strip():
        said = (
            done.stdout.strip() or done.stderr.strip() or f"{python} ended with {done.returncode}"
        ).splitlines()
        raise Absent(f"not installed: {said[-1]}")


def environment() -> dict[str, str]:
    """Of a process that has these packages, whatever its Python has."""
    given = os.environ.get("PYTHONPATH")
    count = str(threads())
    roots = [str(ROOT), *(str(Path(path).parents[1]) for path in (keras_tx.__file__, _exporter()) if path)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*dict.fromkeys(roots), *([given] if given else [])]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
        "KERAS_TORCH_DEVICE": "cpu",
        "OMP_NUM_THREADS": count,  # PyTorch's
        "TF_NUM_INTRAOP_THREADS": count,
        "NPROC": count,  # JAX's
        "KERAS_BACKEND": "tensorflow",  # the tables name what runs on another one
    }


def _exporter() -> str | None:
    found = importlib.util.find_spec("keras_tx_onnx")
    return found.origin if found else None

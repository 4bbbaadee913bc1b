"""The process of one contender, and its handle in the parent.

    python -m tests.benchmarks.worker ADAPTER PLACE

The parent writes orders to its standard input, and it writes results to its standard output, a line of JSON
each. It may be the Python of another environment: only NumPy and the adapter's packages are imported here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras_tx
from tests.benchmarks.cases import Case
from tests.benchmarks.machine import threads
from tests.benchmarks.timing import measure
from tests.memory import peak, resident

if TYPE_CHECKING:
    from tests.benchmarks.contenders import Contender

ROOT = Path(__file__).parents[2]  # of the repository
LIBRARIES = (
    "onnxruntime",
    "onnxruntime_genai",
    "tensorflow",
    "keras",
    "keras_hub",
    "jax",
    "torch",
    "transformers",
    "optimum",
    "openvino",
    "llama_cpp",
    "ctranslate2",
    "tf2onnx",
    "numpy",
)


class Unavailable(Exception):
    """A contender cannot be measured here; the message is the reason."""


class Worker:
    """A running process of a contender; ends with `close`."""

    def __init__(self, contender: Contender, place: Path, python: str) -> None:
        adapter = {
            "name": contender.adapter,
            "requires": contender.requires,
            "options": contender.options,
        }
        path = place / f"{contender.adapter}-{contender.name.replace(' ', '-')}.log"
        self._log = open(path, "w", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-m", "tests.benchmarks.worker", json.dumps(adapter), str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment() | contender.environment,
        )

    def call(self, order: str, case: Case | None = None) -> dict[str, Any]:
        """Runs one order: prepare, import, load, versions or run.

        Raises:
            Unavailable: if the adapter raises or the process ends.
        """
        assert self._process.stdin and self._process.stdout
        message = {"order": order, "case": dataclasses.asdict(case) if case else None}
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            why = "killed, probably because memory ran out" if code == -9 else f"exit code {code}"
            raise Unavailable(f"crashed: {why}; see {self._log.name}")
        result: dict[str, Any] = json.loads(line)
        if "error" in result:
            raise Unavailable(" ".join(result["error"].split())[:300])
        return result

    def close(self) -> None:
        self._process.kill()
        with contextlib.suppress(OSError):
            self._process.communicate()
        self._log.close()


def check_installed(contender: Contender, python: str) -> None:
    """Raises Unavailable if its Python lacks a required module."""
    code = f"import importlib.util as i; print(*[m for m in {contender.requires!r} if not i.find_spec(m)])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment())
    if done.returncode or done.stdout.strip():
        output = done.stdout.strip() or done.stderr.strip() or f"{python} ended with code {done.returncode}"
        raise Unavailable(f"not installed: {output.splitlines()[-1]}")


def environment() -> dict[str, str]:
    """Variables of a process that imports these packages in any environment, with the same threads."""
    count = str(threads())
    exporter = importlib.util.find_spec("keras_tx_onnx")
    files = [keras_tx.__file__, exporter.origin if exporter else None]
    roots = [str(ROOT), *(str(Path(file).parents[1]) for file in files if file)]
    more = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*dict.fromkeys(roots), *([more] if more else [])]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
        "KERAS_TORCH_DEVICE": "cpu",
        "OMP_NUM_THREADS": count,  # PyTorch's
        "TF_NUM_INTRAOP_THREADS": count,
        "NPROC": count,  # JAX's
        "KERAS_BACKEND": "tensorflow",  # unless the contender names another one
    }


def main() -> None:
    with contextlib.suppress(OSError):  # if memory runs out, Linux shall end this process first
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    described, place = json.loads(sys.argv[1]), Path(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print to the log
    module, _, name = described["name"].partition(".")
    adapter = getattr(importlib.import_module(f"tests.benchmarks.adapters.{module}"), name)(
        place, **described["options"]
    )
    for line in sys.stdin:
        message = json.loads(line)
        start = time.perf_counter()
        try:
            result = _run(adapter, message, described["requires"])
        except Exception as error:  # of any library
            result = {"error": f"{type(error).__name__}: {error}"}
        usual = {"seconds": time.perf_counter() - start, "resident": resident(), "peak": peak()}
        answers.write(json.dumps(usual | result) + "\n")
        answers.flush()


def _run(adapter: Any, message: dict[str, Any], requires: list[str]) -> dict[str, Any]:
    order = message["order"]
    if order == "run":
        case = Case(**message["case"] | {"lengths": tuple(message["case"]["lengths"])})
        return measure(adapter, case)
    if order == "versions":
        return {"versions": versions()}
    if order == "import":
        for name in requires:
            importlib.import_module(name)
        adapter.imports()
    else:
        {"prepare": adapter.prepare, "load": adapter.load}[order]()
    return {}


def versions() -> dict[str, str]:
    """Of the libraries that this process has loaded."""
    loaded = {"Python": platform.python_version()}
    for name in LIBRARIES:
        module = sys.modules.get(name)
        if module is None:
            continue
        version = getattr(module, "__version__", None)
        if version is None:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                version = importlib.metadata.version(name)
        if version:
            loaded[name] = str(version).split("-")[0]  # OpenVINO's continues with the commit
    return loaded


if __name__ == "__main__":
    main()

"""The process of one contender: it is told what to do on its standard input, a line of JSON each.

    python -m tests.benchmarks.worker CONTENDER PLACE

CONTENDER is JSON, too: its module, what that must import, and its options. It may be the Python of another
environment, so only NumPy is imported here, and what the contender needs.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from tests.benchmarks.cases import Case
from tests.benchmarks.memory import first_to_go, peak, resident
from tests.benchmarks.timing import turn

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
    "tf2onnx",
    "numpy",
)


def main() -> None:
    first_to_go()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    contender, place = json.loads(sys.argv[1]), Path(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    module = importlib.import_module(f"tests.benchmarks.adapters.{contender['module']}")
    loaded: Any = None
    for line in sys.stdin:
        order = json.loads(line)
        start = time.perf_counter()
        try:
            if order["do"] == "import":
                for name in contender["needs"]:
                    importlib.import_module(name)
                if hasattr(module, "imports"):
                    module.imports(place)
                found: dict[str, Any] = {}
            elif order["do"] == "prepare":
                module.prepare(place, **contender["options"])
                found = {}
            elif order["do"] == "load":
                loaded = module.load(place, **contender["options"])
                found = {}
            elif order["do"] == "versions":
                found = {"versions": versions()}
            else:
                case = Case(**order["case"] | {"lengths": tuple(order["case"]["lengths"])})
                found = turn(loaded, place, case)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        usual = {"seconds": time.perf_counter() - start, "resident": resident(), "peak": peak()}
        _answer(answers, usual | found)


def versions() -> dict[str, str]:
    """Of the libraries that this process has loaded."""
    found = {"Python": platform.python_version()}
    for name in LIBRARIES:
        module = sys.modules.get(name)
        if module is None:
            continue
        version = getattr(module, "__version__", None)
        if version is None:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                version = importlib.metadata.version(name)
        if version:
            found[name] = str(version).split("-")[0]  # OpenVINO's goes on with the commit
    return found


def _answer(answers: TextIO, found: dict[str, Any]) -> None:
    answers.write(json.dumps(found) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()

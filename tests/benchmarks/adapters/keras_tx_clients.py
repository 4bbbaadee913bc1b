"""Many clients of our folder: one by one, and through a MicroBatcher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.benchmarks.machine import threads_of_onnxruntime


def prepare(place: Path, precision: str) -> None:
    """The subjects are exported by the parent, which has Keras."""


def load(place: Path, precision: str) -> _Loaded:
    from tests.benchmarks import concurrent_clients

    return _Loaded(concurrent_clients, place / "keras_tx", precision)


class _Loaded:
    def __init__(self, clients: Any, folder: Path, precision: str) -> None:
        self._clients, self._folder, self._precision = clients, folder, precision

    def serve(self) -> dict[str, Any]:
        """Seconds of a request by way, of which each had its turns."""
        found = self._clients.measure(
            self._folder,
            precision=self._precision,
            requests=2,
            rounds=5,
            threads=threads_of_onnxruntime(),
        )
        ways = {
            f"{way} {self._precision}": [1 / rate for rate in rates] for way, rates in found["rates"].items()
        }
        same = found["difference"] <= found["allowed"]
        said = "" if same else f"its answers differ from those alone by {found['difference']:.1e}"
        return {"seconds": ways[f"batched {self._precision}"][-1], "ways": ways, "said": said}

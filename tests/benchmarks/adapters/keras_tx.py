"""keras-tx: its runtime, in a process without Keras, and its exporter. Option: precision."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from keras_tx import contract
from tests.benchmarks.adapters import WRONG_NOTE, Adapter
from tests.benchmarks.adapters.exporting import Exporter
from tests.benchmarks.cases import MOST_STREAMS
from tests.benchmarks.machine import threads_of_onnxruntime


class Runtime(Adapter):
    """The exported folder in keras_tx.runtime."""

    def imports(self) -> None:
        import keras_tx.runtime.loading  # noqa: F401
        from keras_tx.runtime.tasks import all_tasks

        all_tasks()

    def load(self) -> None:
        from keras_tx.runtime import load

        precision: Any = self.options["precision"]
        threads = threads_of_onnxruntime()
        self.model: Any = load(self.place / "keras_tx", provider="cpu", precision=precision, threads=threads)

    def images(self, pixels: np.ndarray) -> np.ndarray:
        return self.model.session.run({contract.PIXEL_VALUES: pixels})[contract.LOGITS]

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        inputs = {contract.INPUT_IDS: ids, contract.ATTENTION_MASK: mask, contract.TOKEN_TYPE_IDS: segments}
        return self.model.session.run(inputs)[contract.LAST_HIDDEN_STATE]

    def tokens(self, ids: np.ndarray, count: int) -> Iterator[int]:
        yield from self.model.stream(ids.tolist(), max_new_tokens=count, stop_tokens=[], as_ids=True)

    def generate(self, ids: np.ndarray, mask: np.ndarray, count: int, beams: int) -> list[list[int]]:
        sources = [row[real > 0].tolist() for row, real in zip(ids, mask, strict=True)]
        made = self.model.generate(sources, max_new_tokens=count, min_new_tokens=count, num_beams=beams)
        return [list(one.ids) for one in made]


class Streams(Runtime):
    """A TextEngine, without the caches and guesses that repeated prompts and texts would profit from."""

    def imports(self) -> None:
        import keras_tx.serving.engine.text_engine  # noqa: F401

        super().imports()

    def load(self) -> None:
        from keras_tx.serving import TextEngine

        super().load()
        self.engine = TextEngine(self.model, max_streams=MOST_STREAMS, prefix_cache=0, prompt_lookup=False)
        if self.engine.one_by_one is not None:
            raise RuntimeError(self.engine.one_by_one)

    def streams(self, prompts: list[np.ndarray], count: int) -> tuple[list[list[int]], list[float]]:
        def client(stream: Any) -> tuple[list[int], float]:
            tokens = iter(stream)
            next(tokens)
            first = perf_counter() - start
            return list(stream.result().ids), first

        with ThreadPoolExecutor(len(prompts)) as clients:
            start = perf_counter()
            submitted = [
                self.engine.submit(prompt.tolist(), max_new_tokens=count, stop_tokens=[])
                for prompt in prompts
            ]
            answers = list(clients.map(client, submitted))
        return [ids for ids, _ in answers], [first for _, first in answers]


class Overhead(Runtime):
    """The time of a token outside the graph: the loop and the sampling."""

    def load(self) -> None:
        from tests.benchmarks.decoding_overhead import TimedSession

        super().load()
        self.session = self.model.session._session = TimedSession(self.model.session._session)

    def overhead(self, ids: np.ndarray, count: int) -> float:
        """The median over the tokens after the first, which includes the prefill."""
        times, inside = [perf_counter()], [self.session.seconds]
        for _ in self.tokens(ids, count):
            times.append(perf_counter())
            inside.append(self.session.seconds)
        return float(np.median((np.diff(times) - np.diff(inside))[1:]))


class Clients(Adapter):
    """Concurrent clients of the folder, one by one and through a MicroBatcher."""

    def load(self) -> None:
        from tests.benchmarks import concurrent_clients

        self.clients = concurrent_clients

    def serve(self) -> dict[str, Any]:
        precision: Any = self.options["precision"]
        measured = self.clients.measure(
            self.place / "keras_tx",
            precision=precision,
            requests=2,
            rounds=5,
            threads=threads_of_onnxruntime(),
        )
        ways = {
            f"{way} {precision}": [1 / rate for rate in rates] for way, rates in measured["rates"].items()
        }
        equal = measured["difference"] <= measured["allowed"]
        note = "" if equal else f"{WRONG_NOTE}ANSWERS: batched ones differ by {measured['difference']:.1e}"
        return {"seconds": ways[f"batched {precision}"][-1], "ways": ways, "note": note}


class Export(Exporter):
    """`export_onnx` of keras-tx's model or, with the option hub, of keras-hub's. Options: verify, hub."""

    def load(self) -> None:
        import keras_tx_onnx
        from tests.benchmarks.adapters.keras import hub_model, saved_model

        self.export_onnx = keras_tx_onnx.export_onnx
        self.precision: Any = self.options["precision"]
        self.model = hub_model(self.place) if self.options.get("hub") else saved_model(self.place)

    def write(self, folder: Path) -> None:
        verify = bool(self.options.get("verify"))
        report = self.export_onnx(self.model, folder / "model", precision=self.precision, verify=verify)
        self.path = f"model/{report.manifest.precisions[self.precision]}"

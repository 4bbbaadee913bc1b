"""Servers of text embeddings: `keras-tx serve`, and other libraries in `embedding_server`."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.adapters import Adapter
from tests.benchmarks.cases import TEXTS_FILE
from tests.benchmarks.machine import threads
from tests.benchmarks.timing import projection

NUM_CLIENTS = 16
REQUESTS = 60  # of each client, per round
PATIENCE = 60  # seconds
SERVE = """
import sys
from keras_tx.cli import main
from tests.benchmarks.embedding_server import end_with_input
end_with_input()
sys.exit(main(sys.argv[1:]))
"""


class Served(Adapter):
    """A server in a process of its own, and clients that send one text each.

    Options: library; workers, the number of batches that run concurrently and share the cores; batch, the
    largest number of requests in a batch.
    """

    path, vector = "/", "embedding"

    def load(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.texts = json.loads((self.place / TEXTS_FILE).read_text("utf-8"))
        command = [sys.executable, *self.command(str(self.port))]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE)
        end = time.monotonic() + PATIENCE
        while not self._answers():
            if self.server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not start: {command}")
            time.sleep(0.05)

    @property
    def own_threads(self) -> str:
        """Of each worker."""
        return str(max(1, threads() // int(str(self.options["workers"]))))

    def command(self, port: str) -> list[str]:
        options = ["--workers", str(self.options["workers"]), "--threads", self.own_threads]
        options += ["--batch", str(self.options["batch"])]
        module = "tests.benchmarks.embedding_server"
        return ["-m", module, str(self.options["library"]), str(self.place), port, *options]

    def _answers(self) -> bool:
        try:
            self._ask(self._connect(), self.texts[0])
        except (OSError, http.client.HTTPException, RuntimeError):
            return False
        return True

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def _ask(self, connection: http.client.HTTPConnection, text: str) -> list[float]:
        connection.request(
            "POST", self.path, json.dumps({"text": text}), {"content-type": "application/json"}
        )
        response = connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise RuntimeError(content.decode(errors="replace"))
        return json.loads(content)[self.vector]

    def serve(self) -> dict[str, Any]:
        asked = [self.texts[index % len(self.texts)] for index in range(NUM_CLIENTS * REQUESTS)]
        vectors: list[Any] = [None] * len(asked)
        latencies: list[float] = [0.0] * len(asked)

        def client(number: int) -> None:
            with contextlib.closing(self._connect()) as connection:
                for index in range(number, len(asked), NUM_CLIENTS):
                    start = time.perf_counter()
                    vectors[index] = self._ask(connection, asked[index])
                    latencies[index] = time.perf_counter() - start

        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            start = time.perf_counter()
            list(clients.map(client, range(NUM_CLIENTS)))  # raises the error of a client
            seconds = (time.perf_counter() - start) / len(asked)
        p50, p99 = np.percentile(latencies, [50, 99]).tolist()
        return {
            "seconds": seconds,
            "check": projection(np.array(vectors)),
            "figures": {"p50": p50, "p99": p99},
        }


class KerasTx(Served):
    """`keras-tx serve`. Options: workers and precision."""

    path, vector = "/models/minilm", "embedding"

    def command(self, port: str) -> list[str]:
        options = ["--provider", "cpu", "--precision", str(self.options["precision"])]
        options += ["--threads", self.own_threads, "--port", port]
        return ["-c", SERVE, "serve", f"minilm={self.place / 'keras_tx'}", *options]


class Optimum(Served):
    """onnxruntime on Optimum's file, which fastembed and OpenVINO read too."""

    def prepare(self) -> None:
        from tests.benchmarks.adapters.optimum import OnnxRuntime

        OnnxRuntime(self.place).prepare()


class FastEmbed(Served):
    def prepare(self) -> None:
        folder = self.place / "fastembed"
        if not folder.exists():
            unfinished = _copied(optimum_file(self.place).parent, folder)
            for path in (self.place / "huggingface").glob("*.json"):
                shutil.copy(path, unfinished)
            unfinished.rename(folder)


class OpenVinoGenAI(Served):
    def prepare(self) -> None:
        folder = self.place / "openvino"
        if folder.exists():
            return
        import openvino
        import openvino_tokenizers
        import transformers

        source = optimum_file(self.place)
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        model = openvino.convert_model(source)
        openvino.save_model(model, unfinished / "openvino_model.xml", compress_to_fp16=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.place / "huggingface")
        converted = openvino_tokenizers.convert_tokenizer(tokenizer)
        openvino.save_model(converted, unfinished / "openvino_tokenizer.xml")
        shutil.copy(self.place / "huggingface" / "config.json", unfinished)
        unfinished.rename(folder)


class CTranslate2(Served):
    def prepare(self) -> None:
        folder = self.place / "ctranslate2"
        if not folder.exists():
            from ctranslate2.converters import TransformersConverter

            unfinished = folder.with_suffix(".unfinished")
            TransformersConverter(str(self.place / "huggingface")).convert(str(unfinished), force=True)
            unfinished.rename(folder)


def optimum_file(place: Path) -> Path:
    path = place / "optimum" / "model.onnx"
    if not path.exists():
        raise FileNotFoundError("this contender reads Optimum's file, which is missing: run optimum first")
    return path


def _copied(source: Path, target: Path) -> Path:
    unfinished = target.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    return Path(shutil.copytree(source, unfinished))

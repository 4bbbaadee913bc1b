"""An HTTP server of text embeddings with another library: starlette and uvicorn, as in `keras-tx serve`.

    python -m tests.benchmarks.embedding_server LIBRARY PLACE PORT --workers 1 --threads 2 --batch 32

`POST /` with {"text": ...} returns {"embedding": [...]}: the normalized mean of the last hidden states.
Requests that arrive while all workers are busy run together, at most `--batch` of them. Ends with its
standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
LONGEST = 256  # tokens
Embed = Callable[[Sequence[str]], Any]  # a vector of each text


def _tokenizer(place: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(place / "huggingface" / "tokenizer.json"))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding()
    return tokenizer


def _mean(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    vectors = (hidden * mask[..., None]).sum(axis=1)  # the norm cancels the number of tokens
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def onnxruntime(place: Path, workers: int, threads: int) -> Embed:
    """Optimum's file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        place / "optimum" / "model.onnx", options, providers=["CPUExecutionProvider"]
    )
    tokenizer = _tokenizer(place)

    def embed(texts: Sequence[str]) -> np.ndarray:
        rows = tokenizer.encode_batch(list(texts))
        ids, mask = (np.array([getattr(row, name) for row in rows]) for name in ("ids", "attention_mask"))
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (hidden,) = session.run(["last_hidden_state"], feed)
        return _mean(np.asarray(hidden), mask)

    return embed


def fastembed(place: Path, workers: int, threads: int) -> Embed:
    """Optimum's file, as a model of its own."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        "minilm",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf=MODEL),
        dim=384,
        model_file="model.onnx",
    )
    model = TextEmbedding("minilm", specific_model_path=str(place / "fastembed"), threads=threads)
    return lambda texts: list(model.embed(list(texts), batch_size=len(texts)))


def openvino_genai(place: Path, workers: int, threads: int) -> Embed:
    """A TextEmbeddingPipeline for each worker: one pipeline runs one batch at a time."""
    import openvino_genai

    kind = openvino_genai.TextEmbeddingPipeline
    config = kind.Config()
    config.pooling_type, config.normalize, config.max_length = kind.PoolingType.MEAN, True, LONGEST
    options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    pipelines = [kind(str(place / "openvino"), "CPU", config, **options) for _ in range(workers)]

    def embed(texts: Sequence[str]) -> list[np.ndarray]:
        pipeline = pipelines.pop()
        try:
            return [np.array(vector) for vector in pipeline.embed_documents(list(texts))]
        finally:
            pipelines.append(pipeline)

    return embed


def ctranslate2(place: Path, workers: int, threads: int) -> Embed:
    import ctranslate2

    encoder = ctranslate2.Encoder(
        str(place / "ctranslate2"), compute_type="float32", inter_threads=workers, intra_threads=threads
    )
    tokenizer = _tokenizer(place)
    tokenizer.no_padding()

    def embed(texts: Sequence[str]) -> np.ndarray:
        rows = [row.ids for row in tokenizer.encode_batch(list(texts))]
        hidden = np.array(encoder.forward_batch(rows).last_hidden_state)
        lengths = np.array([len(row) for row in rows])
        return _mean(hidden, np.arange(hidden.shape[1]) < lengths[:, None])

    return embed


LIBRARIES = {one.__name__: one for one in (onnxruntime, fastembed, openvino_genai, ctranslate2)}


def application(embed: Embed, workers: int, most: int) -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    waiting: asyncio.Queue[tuple[str, asyncio.Future[np.ndarray]]] = asyncio.Queue()

    async def work() -> None:
        while True:
            batch = [await waiting.get()]
            while len(batch) < most and not waiting.empty():
                batch.append(waiting.get_nowait())
            try:
                vectors = await asyncio.to_thread(embed, [text for text, _ in batch])
            except Exception as error:  # of any library: the clients get the status 500
                for _, answer in batch:
                    answer.set_exception(error)
                continue
            for (_, answer), vector in zip(batch, vectors, strict=True):
                answer.set_result(vector)

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        yield
        for task in tasks:
            task.cancel()

    async def answer(request: Request) -> JSONResponse:
        future: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
        waiting.put_nowait(((await request.json())["text"], future))
        return JSONResponse({"embedding": (await future).tolist()})

    return Starlette(routes=[Route("/", answer, methods=["POST"])], lifespan=lifespan)


def end_with_input() -> None:
    """Ends the process when the one that started it has ended."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    import uvicorn

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("place", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    end_with_input()
    embed = LIBRARIES[options.library](options.place, options.workers, options.threads)
    server = application(embed, options.workers, options.batch)
    uvicorn.run(server, port=options.port, access_log=False, log_level="error")


if __name__ == "__main__":
    main()

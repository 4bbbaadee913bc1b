"""Throughput of concurrent clients that send one text each, with a MicroBatcher and without.

    python -m tests.benchmarks.concurrent_clients FOLDER [--precision int8] [--clients 16] [--lengths 16 128]

Each client is a thread that sends its next text after the answer to the last. Three ways to serve them are
interleaved: "at once", where each client calls the model; "queue", where requests run one after the other;
and "batched", through a MicroBatcher. Requests are token ids, which need no tokenizer. An answer is the mean
of the first output over the tokens, or that output if it has no token axis.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_tx import contract
from tests.benchmarks.results import quartiles

AT_ONCE, QUEUE, BATCHED = "at once", "queue", "batched"
ONE_BY_ONE = (AT_ONCE, QUEUE)
MULTIPLE = 16  # texts are padded to a multiple of it, as in the text tasks


def measure(
    folder: str | os.PathLike[str],
    *,
    precision: str | None = None,
    clients: int = 16,
    lengths: tuple[int, int] = (16, 128),
    requests: int = 6,
    rounds: int = 5,
    max_batch: int = 32,
    max_tokens: int = 512,
    workers: int | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Measures requests per second of each way, and compares the answers.

    Args:
        folder: an exported text encoder.
        clients: the number of clients.
        lengths: the range of the tokens of their texts.
        requests: of each client, per round and way.
        max_batch, max_tokens, workers: of the MicroBatcher; by default, one worker for each `threads` cores.
        threads: of the model.

    Returns:
        A dict: `rates`, requests per second by way and round; `ratio`, the quartiles of the throughput of
        "batched" relative to the faster of the other two; `difference`, the largest difference of a batched
        answer, in units of the answers' scale, and `allowed`, its limit; `cosine`, the smallest cosine of
        them; `companions`, whether answers depend on the rest of the batch, as with dynamic int8; `batch`,
        the mean batch size.
    """
    from keras_tx.runtime import load
    from keras_tx.serving.micro_batcher import MicroBatcher, default_workers

    with load(folder, provider="cpu", precision=precision, threads=threads) as model:
        variant = model.folder.manifest.variants.get(model.folder.precision)
        asked = _requests(model, clients * requests, lengths)
        answer, sizes = _answerer(model), list[int]()
        alone = np.stack([answer([ids])[0] for ids in asked])
        together = alone
        rates: dict[str, list[float]] = {way: [] for way in (*ONE_BY_ONE, BATCHED)}
        with (
            ThreadPoolExecutor(clients) as pool,
            MicroBatcher(answer, max_batch=1) as queue,
            MicroBatcher(
                _noted(answer, sizes),
                max_batch=max_batch,
                max_tokens=max_tokens,
                workers=default_workers(model) if workers is None else workers,
                count_tokens=_padded_length,
            ) as batcher,
        ):
            ways: dict[str, Callable[[np.ndarray], Any]] = {
                AT_ONCE: lambda ids: answer([ids])[0],
                QUEUE: queue,
                BATCHED: batcher,
            }
            for turn in range(rounds + 1):
                for way, ask in ways.items():
                    rate, answers = _serve(pool, ask, asked, clients)
                    if turn:  # the first round is not counted: memory is planned for new shapes
                        rates[way].append(rate)
                    if way == BATCHED and turn == 0:
                        together = np.stack(answers)
        ratios = [
            batched / max(rates[way][turn] for way in ONE_BY_ONE)
            for turn, batched in enumerate(rates[BATCHED])
        ]
        return {
            "folder": str(folder),
            "precision": model.folder.precision,
            "clients": clients,
            "lengths": lengths,
            "rates": rates,
            "ratio": quartiles(ratios),
            "difference": float(np.abs(together - alone).max() / np.abs(alone).max()),
            "allowed": contract.FLOAT32 if model.folder.precision == "fp32" else contract.ROUNDED,
            "companions": variant is not None and variant.recipe == "dynamic",
            "cosine": float(_cosines(together, alone).min()),
            "batch": statistics.mean(sizes),
        }


def _requests(model: Any, count: int, lengths: tuple[int, int]) -> list[np.ndarray]:
    """Random ids without 0, which may be padding."""
    random = np.random.default_rng(0)
    vocabulary = int((model.folder.config or {})["vocab_size"])
    return [random.integers(1, vocabulary, random.integers(lengths[0], lengths[1] + 1)) for _ in range(count)]


def _padded_length(ids: np.ndarray) -> int:
    return -(-len(ids) // MULTIPLE) * MULTIPLE


def _answerer(model: Any) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """The model as a function of several texts, each an array of ids."""
    session = model.session
    names = {spec.name for spec in session.inputs}
    output = session.outputs[0]
    by_token = contract.SEQUENCE_AXIS in output.shape

    def answer(texts: Sequence[np.ndarray]) -> list[np.ndarray]:
        length = max(map(_padded_length, texts))
        ids = np.zeros((len(texts), length), "int64")
        mask = np.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)], mask[row, : len(text)] = text, 1
        inputs = {contract.INPUT_IDS: ids, contract.ATTENTION_MASK: mask}
        inputs[contract.TOKEN_TYPE_IDS] = np.zeros_like(ids)
        rows = session.run({name: value for name, value in inputs.items() if name in names})[output.name]
        return [
            row[: len(text)].mean(axis=0) if by_token else row for row, text in zip(rows, texts, strict=True)
        ]

    return answer


def _serve(
    pool: ThreadPoolExecutor, ask: Callable[[np.ndarray], Any], asked: Sequence[np.ndarray], clients: int
) -> tuple[float, list[Any]]:
    """Requests per second, and the answers in the order of the requests."""

    def client(number: int) -> list[Any]:
        return [ask(ids) for ids in asked[number::clients]]

    start = time.perf_counter()
    by_client = list(pool.map(client, range(clients)))
    seconds = time.perf_counter() - start
    return len(asked) / seconds, [by_client[i % clients][i // clients] for i in range(len(asked))]


def _noted(answer: Callable[..., Any], sizes: list[int]) -> Callable[..., Any]:
    def noting(texts: Sequence[np.ndarray]) -> Any:
        sizes.append(len(texts))
        return answer(texts)

    return noting


def _cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    one, other = (x.astype("float64").reshape(len(x), -1) for x in (one, other))
    return (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)


def describe(measured: dict[str, Any]) -> str:
    """A Markdown table of the throughput, and a sentence on the answers."""
    low, middle, high = measured["ratio"]
    short, long = measured["lengths"]
    lines = [f"{measured['clients']} clients, texts of {short} to {long} tokens, {measured['precision']}", ""]
    lines += ["| requests | a second | |", "| --- | --- | --- |"]
    for way, rates in measured["rates"].items():
        below, rate, above = quartiles(rates)
        gain = f"{middle:.2f}x ({low:.2f} to {high:.2f})" if way == BATCHED else ""
        lines.append(f"| {way} | {rate:.1f} ({below:.1f} to {above:.1f}) | {gain} |")
    same = "the same" if measured["difference"] <= measured["allowed"] else "NOT the same"
    lines += [
        "",
        f"The mean batch size is {measured['batch']:.1f}. The answers are {same}: they differ from single "
        f"answers by up to {measured['difference']:.1e} of their scale ({measured['allowed']:.0e} allowed), "
        f"cosine {measured['cosine']:.6f} or more.",
    ]
    if measured["companions"]:
        lines.append("This precision has one range per batch: answers depend on the rest of the batch.")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("folder", help="an exported text encoder")
    parser.add_argument("--precision", help="which file of the folder (default: fp32)")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--lengths", type=int, nargs=2, default=(16, 128), metavar=("FROM", "TO"))
    parser.add_argument("--requests", type=int, default=6, help="per client and round (default: 6)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--workers", type=int, help="(default: one for each --threads cores)")
    parser.add_argument("--threads", type=int)
    options = vars(parser.parse_args(arguments))
    options["lengths"] = tuple(options["lengths"])
    print(describe(measure(options.pop("folder"), **options)))


if __name__ == "__main__":
    main()

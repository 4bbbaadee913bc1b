"""Measures latency and throughput of a running server with concurrent clients.

The clients are threads of this process, each with its own connection. They send texts, images and prompts as
other programs do: tokenizing, decoding of images and the network are included.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.client
import json
import os
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, KerasTxError, RunError
from keras_tx.processing import TextTransform
from keras_tx.processing.image_file import encode_png
from keras_tx.runtime import benchmark, load
from keras_tx.runtime.benchmark import NEGLIGIBLE, ROUNDS
from keras_tx.runtime.folder import Folder, open_folder
from keras_tx.serving.client_benchmark import (
    TEXTS,
    ClientMeasurement,
    measure_clients,
    numbers_of_clients,
    random_lengths,
)

CLIENTS = (1, 16)
PATIENCE = 300  # seconds for an answer
MEMORY = "process_resident_memory_bytes"
SHOWN = 300  # characters of an answer that is not JSON
COMPLETIONS = "/v1/completions"
JSON = {"content-type": "application/json"}
DESCRIBED = ("name", "task", "input", "request", "precision", "provider")  # of a model by its server


@dataclasses.dataclass(frozen=True)
class ServerPlan:
    """What to measure. `plan` makes one that fits the folder and the server.

    Attributes:
        model: the server's description of the model.
        key: that of a client; None for none.
        sizes: of the dynamic axes of the graph other than the batch.
    """

    folder: Path
    url: str
    model: Mapping[str, Any]
    key: str | None
    clients: tuple[int, ...]
    sizes: Mapping[str, int]
    new_tokens: int
    seconds: float

    @property
    def length(self) -> int:
        """Tokens of a text or prompt; 1 for other models."""
        return self.sizes.get(contract.SOURCE_AXIS) or self.sizes.get(contract.SEQUENCE_AXIS) or 1

    @property
    def unit(self) -> str:
        return "tokens/s" if self.model["input"] == "prompt" else "requests/s"


def plan(
    folder: str | os.PathLike[str],
    url: str,
    clients: Sequence[int] | None = None,
    *,
    key: str | None = None,
    **options: Any,
) -> ServerPlan:
    """Checks that the server has the model of the folder.

    Args:
        folder: the exported folder, from which the requests are made.
        url: address of the server, whose model has the folder's name; or that of the model:
            http://127.0.0.1:8000/models/NAME.
        clients: the numbers of clients; by default 1 and 16.
        key: of a client, for a server that requires one.
        options: length, new_tokens, sizes and seconds, as for `keras_tx.runtime.benchmark.plan`.

    Raises:
        ConfigError: for an option that does not fit the folder, or a server without the model.
        RunError: if the server does not answer, or is not `keras-tx serve`.
    """
    counts = numbers_of_clients(CLIENTS if clients is None else clients)
    checked = benchmark.plan(folder, **options)
    opened = open_folder(folder)
    address = urllib.parse.urlsplit(url)
    name = address.path.strip("/").removeprefix("models/") or opened.path.resolve().name
    if address.scheme not in ("http", "https") or not address.hostname or "/" in name:
        raise ConfigError(f"url is {url!r}, expected http://HOST:PORT or http://HOST:PORT/models/NAME.")
    server = f"{address.scheme}://{address.netloc}"
    with contextlib.closing(_Client(server, key)) as client:
        model = _description(client, server, f"/models/{urllib.parse.quote(name)}")
    if model["task"] != opened.manifest.task:
        raise ConfigError(
            f"Model {name!r} of {server} has the task {model['task']!r}, but {opened.path} has "
            f"{opened.manifest.task!r}. Pass its own folder."
        )
    return ServerPlan(
        opened.path, server, model, key, counts, checked.sizes, checked.new_tokens, checked.seconds
    )


def _description(client: _Client, server: str, path: str) -> dict[str, Any]:
    """The server's description of a model."""
    content = client.send("GET", path)
    try:
        model = json.loads(content)
        return {name: model[name] for name in DESCRIBED} | model
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{server}{path} answered {content.decode(errors='replace')[:SHOWN]!r}, expected the description "
            "of a model. Pass the address of keras-tx serve."
        ) from error


def run(plan: ServerPlan, advance: Callable[[int], None] = lambda count: None) -> list[ClientMeasurement]:
    """Measures the server with each number of clients, in several rounds.

    Raises:
        RunError: if the server refuses or loses a request.
    """
    model = plan.model
    rows = [ClientMeasurement(model["precision"], 0, 0, count, model["provider"]) for count in plan.clients]
    body_of, send = _requests_of(plan)
    end = time.monotonic() + plan.seconds
    for index in range(ROUNDS):
        for row in rows:
            if index == 0 or time.monotonic() < end:
                _measure(plan, body_of, send, row)
            advance(1)
    return rows


def recommend(rows: Sequence[ClientMeasurement]) -> ClientMeasurement:
    """The fewest clients whose throughput is negligibly below the best."""
    enough = max(row.throughput for row in rows) * (1 - NEGLIGIBLE)
    return min((row for row in rows if row.throughput >= enough), key=lambda row: row.clients)


def as_json(plan: ServerPlan, rows: Sequence[ClientMeasurement]) -> dict[str, Any]:
    """The results with all their numbers, as JSON values."""
    described = {name: value for name, value in dataclasses.asdict(plan).items() if name != "key"}
    return {
        **benchmark.versions(),
        "plan": {**described, "folder": str(plan.folder)},
        "unit": plan.unit,
        "measurements": [row.as_json() for row in rows],
        "recommendation": {"clients": recommend(rows).clients},
    }


class _Client:
    """A connection to the server, which is opened again where the server has closed it."""

    def __init__(self, server: str, key: str | None) -> None:
        self._server = server
        address = urllib.parse.urlsplit(server)
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        self._connection = kinds[address.scheme](address.netloc, timeout=PATIENCE)
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}

    def open(
        self, method: str, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """The response, whose status is 200; the caller reads it.

        Raises:
            ConfigError: if the server has no such model, or requires another key.
            RunError: if the server cannot be reached, or for any other status.
        """
        try:
            self._connection.request(method, path, content, {**self._headers, **(headers or {})})
            response = self._connection.getresponse()
            refusal = b"" if response.status == 200 else response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise RunError(f"{self._server} does not answer ({error!r}). Start keras-tx serve.") from error
        if response.status != 200:
            message = f"{self._server}{path} answered {response.status}: {_message(refusal)}"
            raise (ConfigError if response.status in (401, 404) else RunError)(message)
        return response

    def send(
        self, method: str, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """The content of a response."""
        with self.reading(method, path):
            return self.open(method, path, content, headers).read()

    @contextlib.contextmanager
    def reading(self, method: str, path: str) -> Iterator[None]:
        """Raises a RunError for a response that ends early, or has other content than expected."""
        try:
            yield
        except KerasTxError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RunError(f"{self._server} lost the request {method} {path} ({error!r}).") from error

    def close(self) -> None:
        self._connection.close()


def _message(content: bytes) -> str:
    """The error of an answer."""
    try:
        error = json.loads(content)["error"]
        return error if isinstance(error, str) else error["message"]
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:SHOWN]


Send = Callable[[_Client, bytes], tuple[int, float | None]]  # tokens, and the seconds to the first one


def _measure(plan: ServerPlan, body_of: Callable[[int], bytes], send: Send, row: ClientMeasurement) -> None:
    """Adds a round to the measurements of one number of clients."""
    own = threading.local()
    clients: list[_Client] = []
    sent: list[tuple[int, float | None]] = []

    def request(body: bytes) -> None:
        if not hasattr(own, "client"):
            own.client = _Client(plan.url, plan.key)
            clients.append(own.client)
        sent.append(send(own.client, body))

    try:
        seconds = plan.seconds / (ROUNDS * len(plan.clients))
        latencies, duration = measure_clients(request, row.clients, seconds, body_of)
    finally:
        for client in clients:
            client.close()
    counted = sent[1 + row.clients :]  # without the first request of each client
    row.latencies += latencies
    row.first_tokens += [first for _, first in counted if first is not None]
    amount = sum(tokens for tokens, _ in counted) if plan.unit == "tokens/s" else len(latencies)
    row.rates.append(amount / duration)
    row.memory = max(filter(None, (row.memory, _memory(plan))), default=None)


def _memory(plan: ServerPlan) -> int | None:
    """The resident memory of the server in bytes; None where its metrics do not have it."""
    with contextlib.closing(_Client(plan.url, plan.key)) as client:
        lines = client.send("GET", "/metrics").decode().splitlines()
    return next((int(float(line.split()[1])) for line in lines if line.startswith(f"{MEMORY} ")), None)


def _requests_of(plan: ServerPlan) -> tuple[Callable[[int], bytes], Send]:
    """The body of each request by its number, and a function that sends one and reads its answer."""
    folder = open_folder(plan.folder)
    path = f"/models/{urllib.parse.quote(plan.model['name'])}"
    kind, headers = plan.model["input"], JSON
    if kind == "prompt":
        streamed = folder.tokenizer is not None
        body_of = functools.partial(_prompt, plan, _vocabulary_size(folder), streamed)
        return body_of, functools.partial(_send_streamed, plan) if streamed else functools.partial(
            _send_ids, path
        )
    if kind == "image":
        bodies, headers = _images(folder), {"content-type": "image/png"}
    else:
        bodies = _texts(plan, folder) if kind == "text" else [_arrays(plan)]

    def send(client: _Client, body: bytes) -> tuple[int, float | None]:
        client.send("POST", path, body, headers)
        return 0, None

    return lambda number: bodies[number % len(bodies)], send


def _prompt(plan: ServerPlan, vocabulary_size: int, streamed: bool, number: int) -> bytes:
    """A request for a text after a random prompt."""
    prompt = np.random.default_rng(number).integers(0, vocabulary_size, plan.length).tolist()
    body: dict[str, Any] = {"prompt": prompt, "max_new_tokens": plan.new_tokens, "stop_tokens": []}
    if streamed:
        body = {"model": plan.model["name"], "prompt": prompt, "max_tokens": plan.new_tokens}
        body |= {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(body).encode()


def _send_ids(path: str, client: _Client, body: bytes) -> tuple[int, float | None]:
    """Generates the ids of a text; a folder without a tokenizer has no stream."""
    answer = json.loads(client.send("POST", path, body, JSON))
    return len(answer["ids"]), None


def _send_streamed(plan: ServerPlan, client: _Client, body: bytes) -> tuple[int, float | None]:
    """Generates a text as a stream of tokens."""
    start = time.perf_counter()
    first, tokens = None, 0
    with client.reading("POST", COMPLETIONS):
        for event in _events(client.open("POST", COMPLETIONS, body, JSON)):
            if "error" in event:
                raise RunError(f"{plan.url}{COMPLETIONS}: {event['error']['message']}")
            first = first or time.perf_counter() - start
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return tokens, first


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The objects of a stream; raises an HTTPException if it has no end."""
    ended = False
    for line in response:
        content = line.strip().removeprefix(b"data: ")
        ended = ended or content == b"[DONE]"
        if content and not ended:
            yield json.loads(content)
    if not ended:
        raise http.client.HTTPException("the stream ended before [DONE]")


def _vocabulary_size(folder: Folder) -> int:
    return int(next(spec for spec in folder.outputs if spec.name == contract.LOGITS).shape[-1])


def _images(folder: Folder) -> list[bytes]:
    """Random images in the size of the model, as PNG files."""
    transform = folder.transform
    assert transform is not None  # the task needs it
    shape = (transform.height, transform.width, *([] if transform.channels == 1 else [3]))
    random = np.random.default_rng(0)
    return [encode_png(random.integers(0, 256, shape).astype("uint8")) for _ in range(TEXTS)]


def _texts(plan: ServerPlan, folder: Folder) -> list[bytes]:
    """Random texts of an eighth of the longest to all of its tokens, with what the task requires."""
    transform = TextTransform.load(folder.path)
    required = plan.model["request"]["required"]
    values: dict[str, Any] = {"question": "?", "choices": ["a", "b"]}
    fields = {name: values[name] for name in required if name in values}
    if "max_new_tokens" in plan.model["request"]["properties"]:
        fields |= {"max_new_tokens": plan.new_tokens, "stop_tokens": []}
    others = sum(transform.count(text) for name in ("question", "choices") for text in fields.get(name, ()))
    room = max(1, plan.length - 1 - others)  # the transform counts no more tokens than the model accepts
    random = np.random.default_rng(0)
    masked = plan.model["task"] == contract.FILL_MASK
    texts = [_text(transform, length, random, masked) for length in random_lengths(room, random)]
    return [json.dumps({"text": text, **fields}).encode() for text in texts]


def _text(transform: TextTransform, length: int, random: np.random.Generator, masked: bool) -> str:
    """A random text of at most so many tokens, or of one word."""
    words = list(transform.vocabulary)
    special = {transform.decode([number], special=True) for number in transform.special_ids()}
    words = [word for word in words if word.isascii() and word.isalpha() and word not in special] or words
    beginning = [transform.mask_token] if masked and transform.mask_token else []
    drawn = [*beginning, *random.choice(words, length)]
    while len(drawn) > 1 and transform.count(" ".join(drawn)) > length:
        drawn.pop()
    return " ".join(drawn)


def _arrays(plan: ServerPlan) -> bytes:
    """Random arrays."""
    with load(plan.folder, provider="cpu") as model:
        arrays = benchmark.graph_inputs(model, 1, {"sizes": plan.sizes})
    return json.dumps({"inputs": {name: array.tolist() for name, array in arrays.items()}}).encode()

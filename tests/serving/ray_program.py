"""A local Ray cluster that serves two models, one with adapters, for tests/serving/test_ray_serve.py.

    python -m tests.serving.ray_program REVIEWS POET OUT

Sends requests from several threads, kills one of two replicas with SIGKILL, and waits until there are two
again. Then sends prompts to the base and its adapters, of several clients together. Writes what each request
received to the file OUT, as JSON.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray
from ray import serve

from keras_tx.serving.ray import ray_application

CLIENTS = 8
PATIENCE = 240  # seconds
PROMPT = "the cat sat on the mat Ada lives in London"
ADAPTERS = (None, "reviews", "sport")
TEXTS = ["a very good film", "not good", "bad", "the cat sat on the mat", "good " * 12]


def send(port: int, path: str, body: Any) -> tuple[int, Any]:
    """The status and the JSON of an answer; the lines of a stream as a list."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        if response.getheader("content-type", "").startswith("text/event-stream"):
            return response.status, [line for line in content.decode().split("\n\n") if line]
        try:
            return response.status, json.loads(content)
        except ValueError:  # a text of Ray Serve
            return response.status, content.decode(errors="replace")
    finally:
        connection.close()


def replicas() -> list[int]:
    """The processes of the replicas."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:  # it has ended
            continue
        if command.startswith(b"ray::ServeReplica:default:keras-tx"):
            processes.append(int(path.parent.name))
    return sorted(processes)


def running() -> int:
    """The number of replicas that get requests."""
    states = serve.status().applications["default"].deployments["keras-tx"].replica_states
    return states.get("RUNNING", 0)


def until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, serve.status()
        time.sleep(0.2)


def adapted_texts(port: int) -> list[tuple[str | None, int, Any]]:
    """Texts of the base and its adapters, by OpenAI's names and by POST /models, of concurrent clients."""

    def ask(number: int) -> tuple[str | None, int, Any]:
        adapter = ADAPTERS[number % len(ADAPTERS)]
        if number % 2:
            body: dict[str, Any] = {"prompt": PROMPT, "max_new_tokens": 8}
            body |= {} if adapter is None else {"adapter": adapter}
            status, answer = send(port, "/models/poet", body)
            return adapter, status, answer.get("generated_text", answer)
        name = "poet" if adapter is None else f"poet:{adapter}"
        body = {"model": name, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
        status, answer = send(port, "/v1/completions", body)
        return adapter, status, answer["choices"][0]["text"] if status == 200 else answer

    with ThreadPoolExecutor(CLIENTS) as clients:
        return list(clients.map(ask, range(8 * len(ADAPTERS))))


def main(reviews: str, poet: str, out: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join(sys.path)
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 2**20,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    application = ray_application(
        {"reviews": reviews, "poet": poet},
        autoscaling_config={
            "min_replicas": 1,
            "max_replicas": 2,
            "target_ongoing_requests": 1,
            "upscale_delay_s": 0.5,
            "downscale_delay_s": 600,
        },
        health_check_period_s=1,
    )
    serve.run(application)
    result: dict[str, Any] = {"before": running(), "texts": TEXTS, "prompt": PROMPT}
    _, result["expected"] = send(port, "/models/reviews", {"text": TEXTS})
    stream = {"model": "poet", "prompt": PROMPT, "max_tokens": 8, "stream": True, "temperature": 0}
    result["stream"] = send(port, "/v1/completions", stream)

    received: list[tuple[str, int, Any]] = []
    problems: list[str] = []
    sent = [0] * CLIENTS
    stop = threading.Event()

    def client(number: int) -> None:
        while not stop.is_set():
            text = TEXTS[sent[number] % len(TEXTS)]
            sent[number] += 1
            try:
                received.append((text, *send(port, "/models/reviews", {"text": text})))
            except (OSError, http.client.HTTPException) as error:
                problems.append(repr(error))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    until(lambda: running() == 2)  # by the load
    killed = replicas()
    os.kill(killed[0], signal.SIGKILL)
    result["at_kill"] = len(received)
    until(lambda: running() == 2 and len(set(replicas()) - set(killed)) == 1)
    count = len(received)
    until(lambda: len(received) > count + 100)
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    result["adapted"] = adapted_texts(port)
    result["unknown"] = send(port, "/v1/completions", {"model": "poet:none", "prompt": PROMPT})
    result |= {"sent": sum(sent), "received": received, "problems": problems, "killed": len(killed)}
    Path(out).write_text(json.dumps(result), "utf-8")
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])

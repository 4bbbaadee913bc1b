"""A local Ray cluster with two replicas, one of which is killed under load."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.processing import train_byte_bpe
from keras_tx.runtime import load
from tests.drawing import redraw
from tests.exported_folders import CORPUS
from tests.serving.test_http_adapters import exported

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None or importlib.util.find_spec("fastapi") is None,
    reason="Ray Serve is missing: pip install keras-tx[serve,ray]",
)

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_killed_replica_loses_no_request_without_an_error(exported_folders, tmp_path):
    reviews = exported_folders["bert, classifier"].path
    poet = exported(
        tmp_path / "poet", redraw(keras_tx.gpt("pico", processing=train_byte_bpe(CORPUS, size=280)))
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'export'}", "RAY_DEDUP_LOGS": "0"}
    command = [sys.executable, "-m", "tests.serving.ray_program", str(reviews), str(poet)]
    command.append(str(tmp_path / "result.json"))
    done = subprocess.run(command, text=True, cwd=ROOT, env=environment, capture_output=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert (result["before"], result["killed"]) == (1, 2)  # the load starts the second replica

    received = result["received"]
    assert result["problems"] == []
    assert len(received) == result["sent"] > result["at_kill"] + 100
    answers = dict(zip(result["texts"], result["expected"], strict=True))
    failed = [row for row in received if row[1] != 200]
    for text, status, body in received:
        if status == 200:
            assert_close(body["predictions"], answers[text]["predictions"])
        else:
            assert status == 500, body
    assert len(failed) <= 16, failed[:3]  # those that the killed replica computed

    status, events = result["stream"]
    assert (status, events[-1]) == (200, "data: [DONE]")
    pieces = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-1]]
    with load(poet, provider="cpu") as model:
        texts = {
            name: model.generate(result["prompt"], max_new_tokens=8, adapter=name).text
            for name in (None, "reviews", "sport")
        }
    assert "".join(pieces) == texts[None]
    assert len(events) > 2

    assert len(set(texts.values())) == 3  # adapters change the text
    assert result["adapted"] == [[name, 200, texts[name]] for name, _, _ in result["adapted"]]
    assert {name for name, _, _ in result["adapted"]} == set(texts)
    status, problem = result["unknown"]
    assert status == 404 and "'none'" in problem["error"]["message"]


def assert_close(actual: Any, expected: Any) -> None:
    """Equal labels in the same order, and scores up to rounding."""
    assert [row["label"] for row in actual] == [row["label"] for row in expected]
    for one, other in zip(actual, expected, strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=contract.FLOAT32)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray, when it is imported
def test_invalid_arguments_raise():
    from keras_tx.serving.ray import ray_application

    with pytest.raises(ConfigError, match="folders is empty"):
        ray_application({})
    with pytest.raises(ConfigError, match="num_cpus of ray_actor_options is -1"):
        ray_application({"reviews": "reviews"}, ray_actor_options={"num_cpus": -1})

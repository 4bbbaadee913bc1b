"""The description agrees with the server: schemathesis tries every operation."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_tx.serving.http.api_keys import ApiKeys
from keras_tx.serving.http.limits import Limits
from tests.serving.running_server import RunningServer, running

EXECUTABLE = shutil.which("schemathesis")
# What a schema cannot express, so that a request may fit it and yet be refused with the status 422: the
# bytes of an image, the size of an array and its shape, the number of pairs of texts and choices, and options
# of generation that exclude each other.
DEPENDENT = "^/(v1|v2)/|^/models/(flowers|poet|translator|stories)$"
# The longest list of bad words of the schema is larger than any body, which is refused with the status 413.
CONFIG = """
[checks.positive_data_acceptance]
enabled = true
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
[[operations]]
include-path-regex = "{}"
checks.positive_data_acceptance.enabled = false
"""


@pytest.fixture(scope="module")
def server(exported_folders) -> Iterator[RunningServer]:
    names = {"flowers": "vit", "poet": "gpt", "translator": "translation", "stories": "multiple choice"}
    names |= {"reviews": "bert, classifier", "squad": "bert, span", "minilm": "bert, sentence"}
    folders = {name: exported_folders[export].path for name, export in names.items()}
    with running(folders, limits=Limits(max_new_tokens=8)) as one:
        yield one


def test_every_route_is_described(server):
    description = server.get("/openapi.json").json
    paths = description["paths"]
    assert set(paths["/models/reviews"]) == {"get", "post"}
    body = paths["/models/reviews"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"text", "pair", "top_k"} and body["required"] == ["text"]
    assert set(paths["/models/flowers"]["post"]["requestBody"]["content"]) == {
        "multipart/form-data",
        "application/octet-stream",
    }
    described = {path.replace("reviews", "{name}") for path in paths}
    without_chat = set(server.application.paths) - {"/v1/chat/completions"}  # no model has a template
    assert without_chat <= described
    names = paths["/v1/embeddings"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert names["properties"]["model"]["enum"] == ["minilm"]
    assert "security" not in paths["/models"]["get"]


def test_keys_are_described(exported_folders):
    with running({"flowers": exported_folders["vit"].path}, keys=ApiKeys(["secret"])) as server:
        assert server.get("/openapi.json").status == 401
        description = server.get("/openapi.json", authorization="Bearer secret").json
    assert description["paths"]["/models"]["get"]["security"] == [{"key": []}]
    assert "security" not in description["paths"]["/v2/health/live"]["get"]


@pytest.mark.thorough
@pytest.mark.skipif(EXECUTABLE is None, reason="no schemathesis on the PATH: pipx install schemathesis")
def test_schemathesis_has_no_finding(server, tmp_path):
    assert EXECUTABLE is not None
    config = Path(tmp_path, "schemathesis.toml")
    config.write_text(CONFIG.format(DEPENDENT))
    command = [EXECUTABLE, f"--config-file={config}", "run", f"http://{server.address}/openapi.json"]
    command += ["--max-examples=15", "--generation-database=:memory:", "--continue-on-failure"]
    command += ["--phases=examples,coverage,fuzzing", "--seed=1", "--no-color"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]

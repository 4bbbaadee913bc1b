"""The files and commands of docs/deploy.md: parsed, and compared with the command line and the server."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from keras_tx.cli import build_parser

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "deploy.md").read_text("utf-8")
INSTRUCTIONS = {
    *("FROM", "COPY", "RUN", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"),
    *("ADD", "ARG", "LABEL", "ONBUILD", "SHELL", "VOLUME", "WORKDIR"),
}
NEVER = {"keras", "tensorflow", "tensorflow-cpu", "keras-hub", "keras-nlp", "torch", "jax", "onnx"}


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return text


def dockerfile() -> list[tuple[str, str]]:
    """Instructions and their arguments, with continued lines joined."""
    lines = re.sub(r"\\\n\s*", "", block("dockerfile")).splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines if line]


def last(instruction: str) -> str:
    return [rest for name, rest in dockerfile() if name == instruction][-1]


def parsed(arguments: list[str]) -> Any:
    """Arguments after `keras-tx`, as its parser reads them; raises for those that it does not have."""
    return build_parser().parse_args(arguments)


def entrypoint() -> list[str]:
    command, *rest = json.loads(last("ENTRYPOINT"))
    assert command == "keras-tx"
    return rest


def paths() -> Any:
    pytest.importorskip("starlette", reason='pip install "keras-tx[serve]"')
    from keras_tx.serving.http.routes import all_paths

    return all_paths()


def test_instructions_of_the_dockerfile():
    rows = dockerfile()
    assert {name for name, _ in rows} <= INSTRUCTIONS
    stages = [rest for name, rest in rows if name == "FROM"]
    assert rows[0][0] == "FROM" and len(stages) == 2
    (build,) = (stage.partition(" AS ")[2] for stage in stages[:1])
    assert any(f"--from={build} " in rest for name, rest in rows if name == "COPY")
    user = last("USER").partition(":")[0]
    assert int(user) > 0  # not root, in a form that Kubernetes can check
    assert last("STOPSIGNAL") == "SIGTERM"
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["requires-python"]
    version = re.match(r"python:(\d+\.\d+)-slim", stages[-1])
    assert version and all(f"python:{version[1]}-slim" in stage for stage in stages)
    assert Requirement(f"python{requires}").specifier.contains(f"{version[1]}.0")


def test_the_image_has_no_keras():
    (extra,) = re.findall(r"\.whl\)\[([\w-]+)\]", last("RUN"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    names = {Requirement(line).name for line in extras[extra]}
    assert "onnxruntime" in names and not names & NEVER


def test_the_container_starts_the_server():
    arguments = parsed([*entrypoint(), *json.loads(last("CMD"))])
    assert (arguments.host, arguments.port) == ("0.0.0.0", int(last("EXPOSE")))
    assert arguments.folders == [last("COPY").split()[-1]]
    (path,) = re.findall(r"127\.0\.0\.1:(\d+)(/[\w/]+)", last("HEALTHCHECK"))
    assert int(path[0]) == arguments.port
    assert paths()[path[1]]["GET"].public
    compile(re.findall(r'-c\s+"(.*)"', last("HEALTHCHECK"))[0], "healthcheck", "exec")


def test_manifest_of_kserve():
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    manifest = yaml.safe_load(block("yaml"))
    assert (manifest["apiVersion"], manifest["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    predictor = manifest["spec"]["predictor"]
    assert 1 <= predictor["minReplicas"] <= predictor["maxReplicas"]
    (container,) = predictor["containers"]
    assert container["name"] == "kserve-container"  # the name by which KServe finds it
    arguments = parsed([*entrypoint(), *container["args"]])
    (port,) = container["ports"]
    assert arguments.port == port["containerPort"]
    command, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert predictor["terminationGracePeriodSeconds"] > int(seconds) + arguments.drain_seconds
    assert arguments.threads == int(container["resources"]["limits"]["cpu"])
    for name in ("readinessProbe", "livenessProbe"):
        probe = container[name]["httpGet"]
        assert probe["port"] == arguments.port and paths()[probe["path"]]["GET"].public
    assert "/metrics" in paths()
    assert [entry["name"] for entry in container["env"]] == ["KERAS_TX_KEYS"]
    assert container["securityContext"]["runAsNonRoot"] is True


def test_probes_of_a_running_server(exported_folders):
    pytest.importorskip("starlette", reason='pip install "keras-tx[serve]"')
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    from tests.serving.running_server import running

    (container,) = yaml.safe_load(block("yaml"))["spec"]["predictor"]["containers"]
    with running({"reviews": exported_folders["bert, classifier"].path}) as server:
        for name in ("readinessProbe", "livenessProbe"):
            assert server.get(container[name]["httpGet"]["path"]).status == 200
        assert server.get("/metrics").status == 200


def test_commands_exist():
    """Each command of the page that starts keras-tx, also in a container."""
    text = re.sub(r" \\\n\s*", " ", PAGE)
    commands = [shlex.split(line) for line in re.findall(r"^    (\S.*)$", text, re.MULTILINE)]
    ours = [words[1:] for words in commands if words[0] == "keras-tx"]
    runs = [words for words in commands if words[:2] == ["docker", "run"] and "reviews" in words]
    ours += [
        [*entrypoint(), *(rest or json.loads(last("CMD")))]
        for words in runs
        for rest in [words[words.index("reviews") + 1 :]]
    ]
    assert len(ours) >= 3
    for arguments in ours:
        parsed(arguments)

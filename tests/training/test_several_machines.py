"""Several machines train one model: a SLURM job that loses its processes, and two hosts with own networks."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.test_two_processes import ROOT, result, start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("jax") is None, reason="needs JAX: pip install keras-tx[jax]"
    ),
    pytest.mark.skipif(sys.platform != "linux", reason="SLURM and network namespaces are Linux's"),
]

# Two processes of vit_several_machines.py with variables of SLURM. The first job is killed after two epochs.
SRUN = """#!/bin/bash
export SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2
[ "$1" = --kill-on-bad-exit=1 ] && shift
for index in 0 1; do
    SLURM_PROCID=$index SLURM_LOCALID=$index "$@" >> "$LOGS/process-$index.log" 2>&1 &
done
if [ ! -e "$LOGS/killed" ]; then
    until [ "$(grep -c 'val_accuracy' "$LOGS/process-0.log")" -ge 2 ]; do sleep 0.1; done
    touch "$LOGS/killed"
    pkill -9 --parent $$
    exit 137
fi
wait -n && wait -n
"""


def test_a_slurm_job_continues_after_a_killed_process(tmp_path):
    programs, logs = tmp_path / "programs", tmp_path / "logs"
    logs.mkdir()
    programs.mkdir()
    for name, text in {"srun": SRUN, "scontrol": '#!/bin/sh\necho "$@" > "$LOGS/requeued"\n'}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'export'}",
        "PYTHONUNBUFFERED": "1",
        "SHARED": str(tmp_path / "shared"),
        "SLURM_JOB_ID": "77",
        "LOGS": str(logs),
    }
    environment.pop("KERAS_BACKEND", None)

    def job() -> int:
        command = ["bash", "examples/several_machines.sbatch"]
        return subprocess.run(command, cwd=ROOT, env=environment, timeout=500).returncode

    assert job() == 1
    assert (logs / "requeued").read_text() == "requeue 77\n"
    assert job() == 0
    log = (logs / "process-0.log").read_text()
    assert log.count("Epoch 1/10") == 1
    for index in range(2):
        (line,) = [
            line for line in (logs / f"process-{index}.log").read_text().splitlines() if "of 2: " in line
        ]
        assert float(line.split()[-1].rstrip("%")) > 90
    assert (tmp_path / "shared" / "digits" / "onnx" / "model.onnx").is_file()


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces that are connected by a pair of interfaces, 10.77.0.1 and 10.77.0.2."""
    names = (f"tx{os.getpid()}a", f"tx{os.getpid()}b")

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    try:
        for number, name in enumerate(names, 1):
            ip("netns", "add", name)
            Path("/etc/netns", name).mkdir(parents=True)  # `ip netns exec` mounts its files in /etc
            Path("/etc/netns", name, "hosts").write_text(f"10.77.0.{number} {socket.gethostname()}\n")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs root and iproute2 for network namespaces: {error}")
    try:
        ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", names[1], "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "delete", name)
            shutil.rmtree(Path("/etc/netns", name))


def test_two_hosts_train_as_one(hosts):
    inside = [[shutil.which("ip") or "ip", "netns", "exec", name] for name in hosts]
    both = [start("10.77.0.1:45671", "2", str(index), within=command) for index, command in enumerate(inside)]
    first, second = map(result, both)
    one = result(start("127.0.0.1:45671", "1", "0", within=inside[0]))
    assert first == second
    assert first["losses"] == pytest.approx(one["losses"], abs=1e-5)

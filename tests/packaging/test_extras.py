"""What pyproject.toml promises about the extras; .ci/run resolves each of them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
BASE = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {
    name: [Requirement(line) for line in lines] for name, lines in PROJECT["optional-dependencies"].items()
}


def names(extra: str) -> set[str]:
    return {requirement.name for requirement in EXTRAS[extra]}


def test_names_of_the_extras():
    others = {"jax", "torch", "ray", "constrained", "metrics", "inspect", "parity", "docs", "test"}
    assert set(EXTRAS) == {"cpu", "gpu", "runtime", "runtime-gpu", "serve", "serve-gpu", *others}


@pytest.mark.parametrize("extra", EXTRAS)
def test_onnxruntime_comes_once(extra: str):
    """Both wheels hold the same import package: installed together, one overwrites the other."""
    assert not {"onnxruntime", "onnxruntime-gpu"} <= names(extra)


def test_runtime_extra_installs_four_packages():
    assert names("runtime") == {"numpy", "onnxruntime", "tokenizers", "pillow"}
    assert names("runtime-gpu") == {"numpy", "onnxruntime-gpu", "tokenizers", "pillow"}


def test_serve_is_runtime_and_the_same_packages():
    assert names("serve") - names("runtime") == names("serve-gpu") - names("runtime-gpu")
    assert names("runtime") < names("serve") and names("runtime-gpu") < names("serve-gpu")


def test_gpu_is_cpu_but_for_two_lines():
    assert names("cpu") - names("gpu") == {"onnxruntime"}
    assert names("gpu") - names("cpu") == {"onnxruntime-gpu"}
    for requirement in EXTRAS["gpu"]:
        cuda = requirement.name in ("tensorflow", "onnxruntime-gpu")
        assert (str(requirement.marker) == 'sys_platform == "linux"') is cuda
        assert bool(requirement.extras) is cuda


def test_every_range_has_two_bounds_and_equal_ranges_per_package():
    ranges: dict[str, str] = {}
    for requirement in [*BASE, *(line for extra in EXTRAS.values() for line in extra)]:
        if requirement.name == "onnxruntime-gpu":
            continue  # one for CUDA 12, one for CUDA 13
        operators = {part.operator for part in requirement.specifier}
        assert operators in ({">=", "<"}, {"=="}), requirement
        assert ranges.setdefault(requirement.name, str(requirement.specifier)) == str(requirement.specifier)


def test_the_lowest_versions_are_the_floors():
    """.ci/lowest.txt is what .ci/full installs to prove the floors."""
    lines = (ROOT / ".ci" / "lowest.txt").read_text("utf-8").splitlines()
    lowest = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {canonicalize_name(line.name): str(line.specifier).removeprefix("==") for line in lowest}
    extras = ("cpu", "runtime", "serve", "jax", "constrained", "metrics", "inspect")
    for requirement in [*BASE, *(line for extra in extras for line in EXTRAS[extra])]:
        (floor,) = (part.version for part in requirement.specifier if part.operator == ">=")
        version = pinned[canonicalize_name(requirement.name)]
        assert version == floor or version.startswith(f"{floor}."), f"{requirement}: lowest.txt has {version}"

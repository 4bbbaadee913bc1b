"""The tests on JAX compile fast, except in .ci/full, which compiles as users do."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import pytest

from tests.conftest import shorten_compilations

VARIABLE = "KERAS_TX_OPTIMIZE_JAX"


@pytest.mark.parametrize(
    ("backend", "optimize", "shortened"),
    [("jax", None, True), ("jax", "0", True), ("jax", "1", False), ("tensorflow", None, False)],
)
def test_jax_compiles_as_usual_on_request(
    backend: str, optimize: str | None, shortened: bool, monkeypatch: pytest.MonkeyPatch
):
    jax = mock.Mock()
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.delenv(VARIABLE, raising=False)
    if optimize is not None:
        monkeypatch.setenv(VARIABLE, optimize)
    shorten_compilations()
    assert jax.config.update.called is shortened


def test_full_run_compiles_as_usual():
    lines = (Path(__file__).parents[1] / ".ci/full").read_text("utf-8").splitlines()
    usual = next(index for index, line in enumerate(lines) if line.startswith(f"export {VARIABLE}=1"))
    assert usual < min(index for index, line in enumerate(lines) if "KERAS_BACKEND=" in line)

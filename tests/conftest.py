"""Marks the quick tests: a part of each room that runs in about a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
QUICK = {
    "packaging/test_complexity.py",
    "packaging/test_import_rules.py",
    "layers/test_attention.py",
    "layers/test_class_token.py",
    "layers/test_patch_embedding.py",
    "layers/test_positional_embedding.py",
    "layers/test_token_embedding.py",
    "metrics/test_metrics.py",
    "models/test_gpt.py",
    "models/test_vit.py",
    "processing/test_image.py",
    "processing/test_text.py",
    "generation/test_sampling.py",
    "runtime/test_folder.py",
    "runtime/test_session.py",
    "export/test_graph_walk.py",
    "export/test_token_selection.py",
    "quantizing/test_against_onnxruntime.py",
    "cli/test_cli.py",
    "test_arguments.py",
}


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        others = item.get_closest_marker("slow") or item.get_closest_marker("thorough")
        if item.path.relative_to(TESTS).as_posix() in QUICK and others is None:
            item.add_marker(pytest.mark.quick)

"""The comparison of exporters: a graph that ignores padding is wrong for texts of several lengths only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx_onnx import export_onnx
from tests.benchmarks import export_command, exported_graphs
from tests.drawing import redraw


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    place = tmp_path_factory.mktemp("checkpoints")
    models = {
        "bert": redraw(keras_tx.bert("tiny", depth=1, vocabulary_size=50)),
        "gpt": redraw(keras_tx.gpt("pico", depth=1, vocabulary_size=50, max_length=160)),
        "vit": redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3, depth=1)),
    }
    for name, model in models.items():
        keras_tx.save_checkpoint(model, place / name)
        export_onnx(model, place / f"{name}-out")
    return {name: place / name for name in models}


@pytest.mark.parametrize("name", ["bert", "gpt", "vit"])
def test_graphs_of_keras_tx_are_right(checkpoints, name: str, tmp_path: Path):
    exported_graphs.write_reference(checkpoints[name], tmp_path / "reference.npz")
    figures = exported_graphs.inspect(tmp_path / "reference.npz", checkpoints[name].with_name(f"{name}-out"))
    assert figures["alone"] < 1e-5 and figures["milliseconds"] > 0 and figures["nodes"] > 10, figures
    assert (figures["padded"] < 1e-5) if name != "vit" else "padded" not in figures


@pytest.mark.parametrize("name", ["bert", "gpt"])
def test_graph_that_ignores_padding_is_wrong(checkpoints, name: str, tmp_path: Path):
    model = onnx.load(checkpoints[name].with_name(f"{name}-out") / contract.MODEL)
    for node in model.graph.node:
        node.input[:] = ["ones" if x == contract.ATTENTION_MASK else x for x in node.input]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    model.graph.node.insert(
        0, onnx.helper.make_node("Clip", [contract.ATTENTION_MASK, "one", "one"], ["ones"])
    )
    (tmp_path / "out").mkdir()
    onnx.save(model, tmp_path / "out" / "model.onnx")
    exported_graphs.write_reference(checkpoints[name], tmp_path / "reference.npz")
    figures = exported_graphs.inspect(tmp_path / "reference.npz", tmp_path / "out")
    assert figures["alone"] < 1e-5 and figures["padded"] > 1e-3, figures


def test_unknown_exporter_raises(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"'mobios'.*mobius"):
        export_command.main([str(tmp_path), "--exporter", "mobios"])


def test_failed_export_is_an_error_in_its_row(checkpoints, capsys):
    export_command.main([str(checkpoints["bert"]), "--exporter", "mobius", "--python", "mobius=/bin/false"])
    assert "| bert | mobius |  |  |  |  |  |  |  | exit code 1 |" in capsys.readouterr().out


def test_error_of_a_process_is_that_of_its_last_exception():
    messages = (
        "Traceback:\n  File\nValueError: one\n\njax.errors.OtherError: two | three\nFor simplicity, ..."
    )
    assert export_command._last_error(messages) == "jax.errors.OtherError: two / three"
    assert export_command._last_error("no space\n") == "no space"
    assert export_command._last_error("") == ""

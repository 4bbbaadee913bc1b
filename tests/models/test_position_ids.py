"""position_ids of a BERT: equal to transformers, optional, and absent from the exported graph."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, draw, redraw
from tests.export.exporting import exported, outputs_of, run
from tests.tolerances import assert_close
from tests.weights.small_models import bert

IDS = np.array([[4, 5, 6, 7, 8], [9, 10, 11, 0, 0]])
MASK = (IDS != 0).astype("int64")
POSITIONS = np.array([[7, 3, 3, 0, 12], [2, 1, 0, 15, 15]])
FAMILIES = {
    "BertModel": {},
    "RobertaModel": {"segments": 1, "position_offset": 2, "pad_id": 1, "norm_epsilon": 1e-5},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    import torch

    folder = tmp_path / "folder"
    keras_tx.save_checkpoint(redraw(bert(width=16, depth=1, **FAMILIES[name])), folder)
    theirs = getattr(transformers, name).from_pretrained(folder).eval()
    model = keras_tx.from_checkpoint(folder, position_ids=True)
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    for positions in (POSITIONS, None):
        more = {} if positions is None else {"position_ids": positions}
        with torch.no_grad():
            expected = theirs(**{k: torch.from_numpy(v) for k, v in (inputs | more).items()})
        outputs = as_numpy(model(inputs | more))
        real = MASK[..., None]
        assert_close(outputs["last_hidden_state"] * real, expected.last_hidden_state.numpy() * real)
        assert_close(outputs["pooler_output"], expected.pooler_output.numpy())


def test_without_them_the_model_is_the_plain_one(tmp_path):
    plain = redraw(bert(keras_tx.ClassifierHead(3), depth=1))
    model = bert(keras_tx.ClassifierHead(3), depth=1, position_ids=True)
    assert "position_ids" in model.input and "position_ids" not in plain.input
    model.assign_weights(plain)
    np.testing.assert_array_equal(as_numpy(model(IDS)), as_numpy(plain(IDS)))
    model.compile(run_eagerly=keras.backend.backend() != "jax")
    model.fit({"input_ids": IDS}, np.array([0, 2]), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras_tx.load_model(tmp_path / "model.keras")
    inputs = {"input_ids": IDS, "position_ids": POSITIONS}
    np.testing.assert_array_equal(as_numpy(loaded(inputs)), as_numpy(model(inputs)))


@pytest.mark.parametrize("position", [16, -1])
def test_positions_out_of_range_are_refused(position):
    model = bert(position_ids=True, depth=1)
    with pytest.raises(ConfigError, match=rf"position_ids has {position} in row 1.*0 to 15"):
        model({"input_ids": IDS, "position_ids": np.array([[0] * 5, [position] * 5])})
    with pytest.raises(ConfigError, match="has no input 'position_ids'"):
        bert(depth=1)({"input_ids": IDS, "position_ids": POSITIONS})


@pytest.mark.exports
@pytest.mark.parametrize("head", [keras_tx.ClassifierHead(3), keras_tx.SentenceEmbeddingHead()])
def test_the_exported_graph_has_the_default_positions(head, tmp_path):
    model = redraw(bert(head, depth=1, segments=0, position_ids=True))
    report = export_onnx(model, tmp_path / "folder")
    assert [x.name for x in report.manifest.inputs] == ["input_ids", "attention_mask"]
    assert any("position_ids is not an input of the graph" in note for note in report.manifest.notes)
    outputs = run(tmp_path / "folder", IDS, MASK)
    assert_close(outputs[-1], as_numpy(model({"input_ids": IDS, "attention_mask": MASK})))


@pytest.mark.exports
@pytest.mark.parametrize("kind", ["learned", "sine-cosine", "fourier"])
def test_a_layer_that_is_passed_positions_exports(kind, tmp_path):
    x = keras.Input((None, 8), name="x")
    positions = keras.Input((None,), dtype="int32", name="positions")
    model = redraw(keras.Model([x, positions], keras_tx.layers.PositionalEmbedding(6, kind)(x, positions)))
    folder = exported(model, tmp_path / "folder")
    arrays = draw(2, 3, 8), np.array([[4, 0, 0], [1, 2, 5]])
    assert_close(run(folder, *arrays)[0], outputs_of(model, *arrays)[0])

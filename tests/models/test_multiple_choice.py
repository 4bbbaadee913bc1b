"""Multiple choice: equal to transformers in Keras and exported; batches, training, the runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.data import multiple_choice_batches
from keras_tx.errors import ConfigError, InputError, TextError
from keras_tx.processing import TextTransform
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close
from tests.weights.states import quietly_opened
from tests.wordpiece import VOCABULARY, wordpiece

HEAD = keras_tx.MultipleChoiceHead()
TINY = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 24, "max_length": 24}
THEIR_TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
FAMILIES = {
    "Bert": {**THEIR_TINY, "vocab_size": 30, "max_position_embeddings": 20},
    "Roberta": {
        **THEIR_TINY,
        "vocab_size": 30,
        "max_position_embeddings": 22,
        "type_vocab_size": 1,
        "pad_token_id": 1,
    },
    "DistilBert": {
        "dim": 16,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 24,
        "vocab_size": 30,
        "max_position_embeddings": 20,
    },
}
CONTEXTS = ["the cat sat", "Ada lives", "the film"]
CHOICES = [["on the mat.", "in London."], ["in London.", "on the mat.", "Paris"], ["is very good.", "Ada!"]]


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_transformers_in_and_out(family: str, tmp_path: Path):
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    name = f"{family}ForMultipleChoice"
    theirs = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**FAMILIES[family])).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    theirs.save_pretrained(tmp_path / "theirs")
    random = np.random.default_rng(0)
    pad = FAMILIES[family].get("pad_token_id", 0)
    mask = (np.arange(9) < random.integers(2, 10, (3, 4, 1))).astype(int)
    inputs = {"input_ids": np.where(mask, random.integers(4, 30, (3, 4, 9)), pad), "attention_mask": mask}
    if family == "Bert":
        inputs["token_type_ids"] = random.integers(0, 2, (3, 4, 9))
    with torch.no_grad():
        expected = theirs(**{key: torch.tensor(x) for key, x in inputs.items()}).logits.numpy()
    model = keras_tx.from_checkpoint(tmp_path / "theirs")
    assert isinstance(model.head, keras_tx.MultipleChoiceHead)
    assert_close(as_numpy(model(inputs)), expected)

    keras_tx.save_checkpoint(model, tmp_path / "ours")
    assert json.loads((tmp_path / "ours/config.json").read_text())["architectures"] == [name]
    again, info = quietly_opened(getattr(transformers, name), tmp_path / "ours")
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        tensors = {key: torch.tensor(x) for key, x in inputs.items()}
        assert_close(again.eval()(**tensors).logits.numpy(), expected)

    export_onnx(model, tmp_path / "folder")
    with load(tmp_path / "folder", provider="cpu") as folder:
        for axes in (slice(None), np.s_[:1], np.s_[:, :2], np.s_[:, :, :9]):
            part = {key: x[axes].astype("int64") for key, x in inputs.items()}
            assert_close(folder(part)["logits"], expected[axes if axes != np.s_[:, :, :9] else slice(None)])


def tiny(**options: Any) -> Any:
    return redraw(keras_tx.bert("tiny", head=HEAD, **{**TINY, "vocabulary_size": len(VOCABULARY), **options}))


def test_each_choice_is_computed_alone():
    model = tiny()
    body = keras_tx.bert("tiny", head=None, **{**TINY, "vocabulary_size": len(VOCABULARY)})
    weights = {weight.path: weight for weight in model.weights}
    for weight in body.weights:
        weight.assign(weights[weight.path])
    ids = np.random.default_rng(0).integers(1, len(VOCABULARY), (2, 3, 5))
    ids[1, 2] = 0  # a choice less
    dense = model.get_layer("logits")
    pooled = as_numpy(body(ids.reshape(6, 5))["pooler_output"])
    expected = (pooled @ as_numpy(dense.kernel) + as_numpy(dense.bias)).reshape(2, 3)
    expected[1, 2] = -1e4
    assert_close(as_numpy(model(ids)), expected)


def test_batches_and_fit(tmp_path: Path):
    transform = TextTransform.of(wordpiece())
    batches = multiple_choice_batches(CONTEXTS, CHOICES, [0, 0, 1], transform, batch_size=3, shuffle=False)
    inputs, labels = batches[0]
    assert labels.tolist() == [0, 0, 1]
    for index, (context, choices) in enumerate(zip(CONTEXTS, CHOICES, strict=True)):
        for place, choice in enumerate(choices):
            for name, array in transform([context], [choice]).items():
                length = array.shape[1]
                np.testing.assert_array_equal(inputs[name][index, place, :length], array[0])
                assert not inputs[name][index, place, length:].any()
    assert not inputs["attention_mask"][0, 2].any()  # it has two choices
    keras.utils.set_random_seed(0)
    rates = {"dropout": 0.0, "attention_dropout": 0.0}
    model = keras_tx.bert("tiny", head=HEAD, processing=transform, **TINY, **rates)
    # Faster than tracing for each size; on JAX, compiling is.
    model.compile(keras.optimizers.Adam(3e-3), run_eagerly=keras.backend.backend() != "jax")
    several = multiple_choice_batches(CONTEXTS, CHOICES, [0, 0, 1], transform, batch_size=1)
    model.fit(several, epochs=2, verbose=0)  # batches of different lengths and numbers of choices
    history = model.fit(batches, epochs=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    model.save(tmp_path / "x.keras")
    again = keras_tx.load_model(tmp_path / "x.keras")
    np.testing.assert_array_equal(as_numpy(again(inputs)), as_numpy(model(inputs)))


@pytest.mark.exports
def test_runtime_and_command(tmp_path: Path, capsys: Any):
    from keras_tx.cli import main
    from keras_tx.inspect import write_report

    model = tiny()
    export_onnx(model, tmp_path / "x", tokenizer=wordpiece())
    transform = TextTransform.load(tmp_path / "x")
    with load(tmp_path / "x", provider="cpu") as chooser:
        results = chooser(CONTEXTS, CHOICES, batch_size=2)
        for context, choices, answer in zip(CONTEXTS, CHOICES, results, strict=True):
            arrays = transform([context] * len(choices), choices)
            logits = as_numpy(model({name: x[None] for name, x in arrays.items()}))[0]
            assert [x["choice"] for x in answer] == [choices[i] for i in np.argsort(-logits)]
            assert_close(np.array([x["score"] for x in answer]), np.sort(softmax(logits))[::-1])
            assert all(choices[x["index"]] == x["choice"] for x in answer)
        assert chooser(CONTEXTS[0], CHOICES[0], top_k=1) == results[0][:1]
        shared = chooser(CONTEXTS, CHOICES[0])
        assert len(shared) == 3 and shared[0] == results[0]
        with pytest.raises(InputError, match="choices is 'a'"):
            chooser("a", "a")
        with pytest.raises(TextError, match=r"choices\[1\] is \[\]"):
            chooser(["a", "b"], [["c"], []])
        with pytest.raises(TextError, match="2 contexts but 1 lists"):
            chooser(["a", "b"], [["c"]])
    assert main(["run", str(tmp_path / "x"), CONTEXTS[0], "--choices", *CHOICES[0]]) == 0
    assert results[0][0]["choice"] in capsys.readouterr().out
    assert main(["run", str(tmp_path / "x"), CONTEXTS[0]]) != 0
    assert "--choices" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "x")]) == 0
    with pytest.raises(InputError, match="several choices"):
        write_report(tmp_path / "x", CONTEXTS[0], tmp_path / "report.html")


@pytest.mark.parametrize(
    ("answers", "choices", "message"),
    [
        ([0, 3, 0], CHOICES, r"answers\[1\] is 3, expected an index from 0 to 2"),
        ([0, 0], CHOICES, r"3 contexts but answers of shape \(2,\)"),
        ([0, 0, 0], ["a", "b", "c"], r"choices\[0\] is 'a'"),
    ],
)
def test_invalid_batches_raise(answers: Any, choices: Any, message: str):
    with pytest.raises(TextError, match=message):
        multiple_choice_batches(CONTEXTS, choices, answers, TextTransform.of(wordpiece()))


def test_invalid_inputs_raise():
    model = tiny()
    with pytest.raises(ConfigError, match=r"shape \(2, 3\), expected \(batch, choices, sequence\)"):
        model(np.ones((2, 3), int))
    with pytest.raises(ConfigError, match=r"input_ids has 99999 in row 1"):
        model(np.array([[[1, 2]], [[3, 99999]]]))
    model.compile()
    with pytest.raises(ConfigError, match=r"Label 3 in row 1 is out of range: .* has 3 choices"):
        model.fit({"input_ids": np.ones((2, 3, 4), int)}, np.array([0, 3]), verbose=0)

"""Each tensor is assigned, reported as new or unused, or listed in one error."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
from keras import layers

from keras_tx.errors import ConfigError
from keras_tx.weights.assignment import fill
from keras_tx.weights.tensor_map import HEAD, Entry, Form, Plan, first_rows, layer_norm, linear
from keras_tx.weights.tensor_source import Tensors


def model_of(classes: int = 3) -> keras.Model:
    x = keras.Input((4,))
    y = layers.LayerNormalization(name="norm")(layers.Dense(5, name="dense")(x))
    return keras.Model(x, layers.Dense(classes, name="logits")(y), name="small")


def plan_of(**more: Any) -> Plan:
    entries = [
        *linear("net.fc", "dense"),
        *layer_norm("net.ln", "norm"),
        *linear("head", "logits", part=HEAD),
    ]
    return Plan(tuple(entries), canonical=lambda name: name.removeprefix("net."), **more)


def state_of(classes: int = 3) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"net.fc.weight": (5, 4), "net.fc.bias": (5,), "net.ln.weight": (5,), "net.ln.bias": (5,)}
    shapes |= {"head.weight": (classes, 5), "head.bias": (classes,)}
    return {name: random.standard_normal(shape).astype("float32") for name, shape in shapes.items()}


def tensors_of(state: dict[str, np.ndarray]) -> Tensors:
    shapes = {name: x.shape for name, x in state.items()}
    dtypes = {name: x.dtype for name, x in state.items()}
    return Tensors("the file", shapes, state.__getitem__, sum(x.nbytes for x in state.values()), dtypes)


def values(model: keras.Model) -> dict[str, np.ndarray]:
    return {x.path: keras.ops.convert_to_numpy(x) for x in model.weights}


def test_all_tensors_are_assigned():
    model, state = model_of(), state_of()
    filled = fill(model, plan_of(), tensors_of(state))
    assert (filled.new, filled.unused, filled.resized) == ((), (), ())
    assigned = values(model)
    np.testing.assert_array_equal(assigned["dense/kernel"], state["net.fc.weight"].T)
    np.testing.assert_array_equal(assigned["norm/gamma"], state["net.ln.weight"])
    np.testing.assert_array_equal(assigned["logits/bias"], state["head.bias"])


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float64"], ids=str)
def test_other_floats_are_converted(dtype):
    model, state = model_of(), {name: x.astype(dtype) for name, x in state_of().items()}
    fill(model, plan_of(), tensors_of(state))
    np.testing.assert_array_equal(values(model)["norm/beta"], state["net.ln.bias"].astype("float32"))


def test_all_problems_are_in_one_error_and_nothing_is_assigned():
    model, state = model_of(), state_of()
    before = values(model)
    del state["net.fc.bias"]
    state["net.extra.weight"] = np.zeros((2, 2), "float32")
    state["net.ln.weight"] = np.zeros(6, "float32")
    state["net.fc.weight"] = state["net.fc.weight"].astype("int32")
    with pytest.raises(ConfigError) as error:
        fill(model, plan_of(), tensors_of(state))
    assert str(error.value).splitlines() == [
        "The weights of the file do not fit model 'small':",
        "  missing: net.fc.bias 5 for dense/bias",
        "  not expected: net.extra.weight 2 x 2",
        "  shape: net.ln.weight is 6, but norm/gamma of the model needs 5",
        "  dtype: net.fc.weight is int32, expected floats",
        "Create the model from the checkpoint's own config, with keras_tx.from_checkpoint.",
    ]
    for path, value in values(model).items():
        np.testing.assert_array_equal(value, before[path])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "int64", ml_dtypes.float8_e4m3fn], ids=str)
def test_other_dtypes_raise(dtype):
    """Integers and eight-bit floats require scales."""
    state = state_of()
    state["net.ln.bias"] = state["net.ln.bias"].astype(dtype)
    with pytest.raises(ConfigError, match="dtype: net.ln.bias is .*, expected floats"):
        fill(model_of(), plan_of(), tensors_of(state))


def test_long_list_is_shortened():
    state = {**state_of(), **{f"extra.{i}": np.zeros(1, "float32") for i in range(100)}}
    with pytest.raises(ConfigError, match=r"not expected: extra.11 1\n  ... and 88 more\nCreate"):
        fill(model_of(), plan_of(), tensors_of(state))


def test_two_names_of_one_tensor_raise():
    state = state_of()
    state["fc.weight"] = state["net.fc.weight"]
    with pytest.raises(ConfigError, match="the file .*'net.fc.weight'.*'fc.weight'"):
        fill(model_of(), plan_of(), tensors_of(state))


def test_missing_head_is_new_and_warns():
    model, state = model_of(), state_of()
    before = values(model)
    del state["head.weight"], state["head.bias"]
    with pytest.warns(UserWarning, match="from the file: .*logits/kernel, logits/bias."):
        filled = fill(model, plan_of(), tensors_of(state))
    assert filled.new == ("logits/kernel", "logits/bias")
    np.testing.assert_array_equal(values(model)["logits/kernel"], before["logits/kernel"])
    np.testing.assert_array_equal(values(model)["dense/bias"], state["net.fc.bias"])


def test_head_of_another_size_is_new_and_warns():
    model = model_of(classes=7)
    with pytest.warns(UserWarning, match="initialized: logits/kernel.*; unused: head.weight, head.bias"):
        filled = fill(model, plan_of(), tensors_of(state_of()))
    assert filled.unused == ("head.weight", "head.bias")
    assert filled.new == ("logits/kernel", "logits/bias")


def test_other_parts_warn():
    state = {**state_of(), "pooler.weight": np.zeros((5, 5), "int8")}
    with pytest.warns(UserWarning, match="pooler.weight."):
        fill(model_of(), plan_of(others=("pooler.",)), tensors_of(state))


def test_incomplete_part_raises():
    entries = [dataclasses.replace(x, part="pooler") if "ln" in x.name else x for x in plan_of().entries]
    state = state_of()
    del state["net.ln.bias"]
    plan = Plan(tuple(entries), canonical=lambda name: name.removeprefix("net."))
    with pytest.raises(ConfigError, match="missing: net.ln.bias 5 for norm/beta"):
        fill(model_of(), plan, tensors_of(state))


def test_copies_must_be_equal():
    state = state_of()
    state["decoder.bias"] = state["head.bias"].copy()
    plan = plan_of(copies={"decoder.bias": "head.bias"})
    fill(model_of(), plan, tensors_of(state))
    state["decoder.bias"][0] += 1
    with pytest.raises(ConfigError, match="decoder.bias differs from head.bias, but"):
        fill(model_of(), plan, tensors_of(state))


def test_buffers_are_ignored():
    state = {**state_of(), "net.position_ids": np.zeros((1, 9), "int64")}
    assert fill(model_of(), plan_of(computed=("position_ids",)), tensors_of(state)).unused == ()


def test_fit_raises_before_any_assignment():
    def fit(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        if value.shape[0] < shape[0]:
            raise ConfigError("too few")
        return value[: shape[0]]

    *others, beta = (
        [x for x in plan_of().entries if x.name != "net.ln.bias"],
        Entry("net.ln.bias", ("norm/beta",), fit=fit),
    )
    plan = Plan((*others[0], beta), canonical=lambda name: name.removeprefix("net."))
    model, state = model_of(), state_of()
    before = values(model)
    state["net.ln.bias"] = np.zeros(4, "float32")
    with pytest.raises(ConfigError, match="too few"):
        fill(model, plan, tensors_of(state))
    np.testing.assert_array_equal(values(model)["dense/kernel"], before["dense/kernel"])
    state["net.ln.bias"] = np.arange(8, dtype="float32")
    assert fill(model, plan, tensors_of(state)).resized == ("norm/beta",)
    assert values(model)["norm/beta"].tolist() == [0, 1, 2, 3, 4]


def test_first_rows():
    table = np.arange(12.0).reshape(6, 2)
    np.testing.assert_array_equal(first_rows(table, (4, 2)), table[:4])
    for shape in ((7, 2), (4, 3)):
        with pytest.raises(ConfigError, match=rf"6 positions of width 2.* {shape[0]} of width {shape[1]}"):
            first_rows(table, shape)


def test_form_converts_both_ways():
    random = np.random.default_rng(0)
    variables = [random.standard_normal((4, size)) for size in (6, 2, 2)]
    shapes = [x.shape for x in variables]
    for form in (Form(permute=(1, 0)), Form(join=1), Form(permute=(1, 0), reshape=(-1, 2, 4))):
        tensor = form.to_tensor(variables)
        assert tensor.shape == form.tensor_shape(shapes)
        for one, other in zip(form.to_variables(tensor, shapes), variables, strict=True):
            np.testing.assert_array_equal(one, other)


def test_plan_without_a_variable_raises():
    with pytest.raises(ConfigError, match="norm/beta"):
        fill(model_of(), Plan(plan_of().entries[:3]), tensors_of(state_of()))


def test_progress_bar_is_shown_for_large_files(capsys):
    tensors = tensors_of(state_of())
    fill(model_of(), plan_of(), tensors)
    assert capsys.readouterr().err == ""
    fill(model_of(), plan_of(), dataclasses.replace(tensors, nbytes=2**30))
    assert "6 of 6 tensors" in capsys.readouterr().err


def test_variables_own_their_values(tmp_path):
    """A backend may keep the assigned array; training must not change the mapped file."""
    from keras_tx.weights.safetensors_file import open_tensors, write_tensors

    state = {name: np.asfortranarray(x) for name, x in state_of().items()}
    state["net.fc.weight"] = np.zeros((5, 4), "float32")
    path = tmp_path / "a.safetensors"
    write_tensors(path, {name: (x.dtype, x.shape) for name, x in state.items()}, state.__getitem__)
    model = model_of()
    fill(model, plan_of(), open_tensors(path))
    before = path.read_bytes()
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 4)), np.ones((4, 3)), verbose=0)
    assert path.read_bytes() == before
    assert not np.array_equal(values(model)["norm/gamma"], state["net.ln.weight"])


SCRIPT = """
import gc, json, sys, threading, time
import numpy as np
import keras_tx
from keras_tx.weights.safetensors_file import write_tensors

folder = sys.argv[1]
options = {"depth": 8, "width": 1024, "vocabulary_size": 100_000, "num_heads": 16}

def memory(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))

keras_tx.bert("tiny", vocabulary_size=99)  # memory of the libraries
if sys.argv[2] == "write":
    keras_tx.save_checkpoint(keras_tx.bert("base", **options), folder)
    sys.exit()
gc.collect()
before = memory("RssAnon")
peak, done = [0], threading.Event()

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], memory("RssAnon"))
        time.sleep(0.002)

thread = threading.Thread(target=watch)
thread.start()
start = time.perf_counter()
model = keras_tx.from_checkpoint(folder)
seconds = time.perf_counter() - start
done.set()
thread.join()
gc.collect()
print(json.dumps({
    "weights": int(sum(4 * np.prod(v.shape) for v in model.weights)),
    "largest": int(max(4 * np.prod(v.shape) for v in model.weights)),
    "kept": memory("RssAnon") - before,
    "peak": peak[0] - before,
    "seconds": seconds,
}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_peak_memory(tmp_path):
    """The peak is the model and one tensor, in anonymous memory: the system can drop mapped pages."""
    measured = {}
    for what in ("write", "read"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "large"), what],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        measured = json.loads(done.stdout.splitlines()[-1]) if what == "read" else {}
    print(measured)
    assert measured["weights"] > 0.8e9
    assert measured["kept"] <= 1.15 * measured["weights"]
    assert measured["peak"] <= 1.15 * measured["weights"] + 1.2 * measured["largest"]

"""Keras: prediction, training, and its own ONNX export, of keras-tx's models or of keras-hub's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract
from tests.benchmarks.adapters import Adapter
from tests.benchmarks.adapters.exporting import Exporter
from tests.benchmarks.machine import threads_of_onnxruntime

DTYPES = {"tensor(float)": "float32", "tensor(int32)": "int32", "tensor(int64)": "int64"}


def saved_model(place: Path) -> Any:
    import keras_tx

    return keras_tx.load_model(place / "model.keras", compile=False)


def hub_model(place: Path) -> Any:
    """keras-hub's model with the same weights. Its BERT and GPT-2 have the tanh approximation of gelu."""
    import keras_tx

    model = saved_model(place)
    if model.config.activation == "gelu" and type(model).__name__ in ("Bert", "GPT"):
        config = model.get_config()
        config["config"]["activation"] = "gelu_tanh"
        twin = type(model).from_config(config)
        twin.set_weights(model.get_weights())
        model = twin
    return keras_tx.to_keras_hub(model)


def called_model(place: Path, hub: bool) -> Any:
    """A model that was called once, which Keras requires before an export."""
    model = hub_model(place) if hub else saved_model(place)
    inputs = {
        spec.name: np.zeros([8 if size is None else size for size in spec.shape], spec.dtype)
        for spec in model.inputs
    }
    model(inputs if len(inputs) > 1 else next(iter(inputs.values())))
    return model


def stock_export(model: Any, path: Path) -> None:
    """Keras's own export, which keras-tx's models override."""
    import keras

    keras.Model.export(model, path, format="onnx", verbose=False)


class Predict(Adapter):
    """keras-tx's model in Keras, compiled with XLA."""

    channels_last = True

    def imports(self) -> None:
        import keras_tx

        keras_tx.load_model  # noqa: B018

    def load(self) -> None:
        self.model = saved_model(self.place)
        self.model.compile(loss="mse" if self.model.head is None else None, jit_compile=True)

    def images(self, pixels: np.ndarray) -> np.ndarray:
        return self.model.predict_on_batch(pixels)

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        inputs = {contract.INPUT_IDS: ids, contract.ATTENTION_MASK: mask, contract.TOKEN_TYPE_IDS: segments}
        outputs = self.model.predict_on_batch({name: x.astype("int32") for name, x in inputs.items()})
        return outputs[contract.LAST_HIDDEN_STATE]


class _Hub(Adapter):
    def imports(self) -> None:
        import keras_tx

        _ = keras_tx.load_model, keras_tx.to_keras_hub

    def load(self) -> None:
        self.model = hub_model(self.place)
        if hasattr(self.model, "preprocessor"):
            self.model.preprocessor = None


class HubPredict(_Hub):
    """keras-hub's ViT and BERT."""

    channels_last = True

    def load(self) -> None:
        super().load()
        self.model.compile(loss=None, jit_compile=True)

    def images(self, pixels: np.ndarray) -> np.ndarray:
        return self.model.predict_on_batch(pixels)

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        inputs = {"token_ids": ids, "padding_mask": mask, "segment_ids": segments}
        outputs = self.model.predict_on_batch({name: x.astype("int32") for name, x in inputs.items()})
        return outputs["sequence_output"]


class HubGenerate(_Hub):
    """keras-hub's GPT-2 with its compiled `generate`, which does not stream."""

    def load(self) -> None:
        super().load()
        self.model.compile(sampler="greedy")

    def tokens(self, ids: np.ndarray, count: int) -> Iterator[int]:
        length = len(ids) + count
        padded = np.zeros((1, length), "int32")
        padded[0, : len(ids)] = ids
        mask = np.zeros((1, length), "int32")
        mask[0, : len(ids)] = 1
        outputs = self.model.generate({"token_ids": padded, "padding_mask": mask}, stop_token_ids=None)
        yield from np.asarray(outputs["token_ids"])[0, len(ids) :].tolist()


class Training(Adapter):
    """`train_on_batch` on the backend of KERAS_BACKEND. Option: precision."""

    def load(self) -> None:
        import keras

        saved = saved_model(self.place)
        policy = keras.dtype_policies.serialize(keras.DTypePolicy(self.options["precision"]))
        self.model = type(saved).from_config(saved.get_config() | {"dtype": policy})
        self.model.set_weights(saved.get_weights())
        # "auto" omits XLA on a CPU, where it is faster; on PyTorch it would mean torch.compile
        jit = keras.backend.backend() != "torch"
        self.model.compile(keras.optimizers.AdamW(1e-4), metrics=[], jit_compile=jit)

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        return float(self.model.train_on_batch(x, y))


class HubTraining(_Hub):
    """`train_on_batch` of keras-hub's task with the same weights. Option: precision."""

    def load(self) -> None:
        import keras

        policy = keras.config.dtype_policy().name
        keras.config.set_dtype_policy(self.options["precision"])
        super().load()
        keras.config.set_dtype_policy(policy)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        jit = keras.backend.backend() != "torch"
        self.model.compile(keras.optimizers.AdamW(1e-4), loss, metrics=[], jit_compile=jit)

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        inputs: Any = x
        if x.ndim == 2:
            ones = np.ones_like(x)
            inputs = {"token_ids": x, "padding_mask": ones, "segment_ids": ones - 1}
            inputs = {name: inputs[name] for name in self.model.input}
        return float(self.model.train_on_batch(inputs, y))


class Export(Exporter):
    """`model.export(format="onnx")`, through tf2onnx. Option: hub."""

    def load(self) -> None:
        self.model = called_model(self.place, bool(self.options.get("hub")))

    def write(self, folder: Path) -> None:
        stock_export(self.model, folder / self.path)


class ExportedHub(Adapter):
    """The file of `model.export` of keras-hub's model; onnxruntime refuses that of an exact gelu."""

    channels_last = True

    @property
    def path(self) -> Path:
        return self.place / "keras_stock" / "model.onnx"

    def prepare(self) -> None:
        if not self.path.exists():
            self.path.parent.mkdir(exist_ok=True)
            unfinished = self.path.with_name("unfinished.onnx")
            stock_export(called_model(self.place, hub=True), unfinished)
            os.replace(unfinished, self.path)

    def load(self) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads_of_onnxruntime() or 0
        self.session = onnxruntime.InferenceSession(self.path, options, providers=["CPUExecutionProvider"])
        self.inputs = {spec.name.split(":")[0]: spec for spec in self.session.get_inputs()}

    def images(self, pixels: np.ndarray) -> np.ndarray:
        (spec,) = self.inputs.values()
        return self.session.run(None, {spec.name: pixels})[0]

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        values = {"token_ids": ids, "padding_mask": mask, "segment_ids": segments}
        specs = self.inputs
        feed = {specs[name].name: x.astype(DTYPES[specs[name].type]) for name, x in values.items()}
        return next(output for output in self.session.run(None, feed) if output.ndim == 3)

"""Checks the first batch of a data source before `fit`, `evaluate` or `predict` uses it."""

from __future__ import annotations

import copy
import gc
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

Check = Callable[[Any], None]


class FirstBatch:
    """Wraps data sources so that `check` is called with the first batch of each.

    No batch is read twice, and an iterator is not consumed.
    """

    def __init__(self, check: Check):
        self._check = check
        self._failure: Exception | None = None

    def run(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Returns the result of a call; raises the error of a check even if a pipeline wraps it."""
        try:
            return call(*args, **kwargs)
        except Exception as error:
            if self._failure is None:
                raise
            _drop_frames(error)
        failure, self._failure = self._failure, None
        # Keras's iterator is in a reference cycle. If it is deleted later, TensorFlow waits up to a minute.
        gc.collect()
        raise failure.with_traceback(None)

    def of(self, data: Any) -> Any:
        """Returns a source of the same batches; arrays and unknown sources are returned unchanged."""
        tf, torch = sys.modules.get("tensorflow"), sys.modules.get("torch")
        if isinstance(data, types.GeneratorType):
            return self._of_iterator(data)
        if isinstance(data, keras.utils.PyDataset):
            self._seen(data[0])  # batches are read by index, so Keras reads this one again
        elif tf is not None and isinstance(data, tf.data.Dataset):
            return self._of_tf_data(tf, data)
        elif torch is not None and isinstance(data, torch.utils.data.DataLoader):
            return self._of_loader(data)
        return data

    def _seen(self, batch: Any) -> None:
        try:
            self._check(batch)
        except Exception as error:
            self._failure = error
            raise

    def _of_iterator(self, batches: Iterator[Any]) -> Iterator[Any]:
        for index, batch in enumerate(batches):
            if index == 0:
                self._seen(batch)
            yield batch

    def _of_loader(self, loader: Any) -> Any:
        """Returns a copy of the loader: a second pass would start its workers and draw samples twice."""
        first, kind = self, type(loader)

        class Checked(kind):
            def __iter__(self) -> Iterator[Any]:
                return first._of_iterator(super().__iter__())

        checked = copy.copy(loader)
        checked.__class__ = Checked
        return checked

    def _of_tf_data(self, tf: Any, data: Any) -> Any:
        structure = data.element_spec
        dense = [isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(structure)]

        def see(*arrays: np.ndarray) -> bool:
            values = iter(arrays)
            leaves = [next(values) if is_dense else None for is_dense in dense]
            self._seen(tf.nest.pack_sequence_as(structure, leaves))
            return True

        def checked(index: Any, batch: Any) -> Any:
            leaves = [x for x, is_dense in zip(tf.nest.flatten(batch), dense, strict=True) if is_dense]
            tf.cond(index == 0, lambda: tf.numpy_function(see, leaves, tf.bool), lambda: True)
            return batch

        return data.enumerate().map(checked)


def _drop_frames(error: BaseException | None) -> None:
    """Removes the tracebacks of an error and of those that it was raised from."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def labels_like(data: Any) -> Any:
    """Returns zeros with the shape and dtype of the labels of a tf.data dataset; None if they are unknown.

    The shape is checked before Keras traces the loss, which happens before the first batch is read.
    """
    tf = sys.modules.get("tensorflow")
    if tf is None or not isinstance(data, tf.data.Dataset):
        return None
    spec = data.element_spec
    specs = spec[1] if isinstance(spec, tuple) and len(spec) > 1 else None

    def zeros(spec: Any) -> Any:
        known = isinstance(spec, tf.TensorSpec) and spec.dtype != tf.string and spec.shape.rank is not None
        if not known or None in tuple(spec.shape)[1:]:
            return None
        return np.zeros([size or 1 for size in spec.shape], spec.dtype.as_numpy_dtype)

    return tf.nest.map_structure(zeros, specs)


def of_any_length(batches: keras.utils.PyDataset, axes: Any, **options: Any) -> Any:
    """Returns Keras's adapter for a PyDataset whose batches differ in axes other than the first.

    On TensorFlow, Keras fixes each axis in which the first two batches agree, and raises for a later batch
    that differs.

    Args:
        axes: maps a batch to one that is longer wherever batches may differ.
        options: of `fit`: shuffle, class_weight.
    """
    from keras.src.trainers.data_adapters import data_adapter_utils
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    adapter: Any = PyDatasetAdapter(batches, **options)
    first = batches[0]
    both = [adapter._standardize_batch(batch) for batch in (first, axes(first))]
    adapter._output_signature = data_adapter_utils.get_tensor_spec(both)
    return adapter

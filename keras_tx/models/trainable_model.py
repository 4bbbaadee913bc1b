"""TrainableModel: a functional keras.Model with a head, whose data is checked before it trains on logits."""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, user_stacklevel, whole_number
from keras_tx.heads import Head, MultiLabelHead
from keras_tx.layers import TransformerBlock
from keras_tx.layers.rematerialization import rematerialize_in_chunks
from keras_tx.losses import TokenCrossentropy, on_logits, refuse_categorical_loss
from keras_tx.metrics import MultiLabelAccuracy, TokenAccuracy
from keras_tx.models.class_names import check_data_names, named_head, names_of_data
from keras_tx.models.first_batch import FirstBatch, labels_like
from keras_tx.models.targets import check_targets, valid_targets
from keras_tx.optimizers import AdamW, check_averages
from keras_tx.processing import ImageTransform

CROSSENTROPIES: dict[str, Any] = dict.fromkeys(
    ("sparse_categorical_crossentropy", "SparseCategoricalCrossentropy"), TokenCrossentropy
)
ACCURACIES: dict[str, Any] = dict.fromkeys(
    ("accuracy", "acc", "sparse_categorical_accuracy", "SparseCategoricalAccuracy"),
    functools.partial(TokenAccuracy, name="accuracy"),
)
OF_SEVERAL = ("accuracy", "acc", "binary_accuracy", "BinaryAccuracy")
CHECKED_IMAGES = 32  # of an array; the default batch size
_FIT = inspect.signature(keras.Model.fit)


class TrainableModel(keras.Model):
    """A functional keras.Model with a `compile` whose losses are computed from logits.

    Args:
        inputs: Keras tensors, as for keras.Model.
        outputs: Keras tensors, as for keras.Model.
        head: the head of the model, or None.
        processing: converts raw data to inputs: an ImageTransform or a TextTransform, or None.
        kwargs: other arguments of keras.Model, such as `name`.
    """

    def __init__(
        self,
        inputs: Any,
        outputs: Any,
        *,
        head: Head | None,
        processing: Any = None,
        **kwargs: Any,
    ):
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        self.head = head
        self.processing = processing
        self.joint_metrics = [] if head is None else head.joint_metrics()
        self.remat = False
        self.chunk_size: int | None = None

    def compile(  # type: ignore[override]
        self,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        remat: bool = False,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Configures the model for training, as keras.Model.compile does.

        Names are resolved for transformers: losses are computed from logits, and losses and "accuracy" of
        tokens ignore the label -100. Objects are used unchanged.

        Args:
            optimizer: as for Keras; by default and for "adamw", keras_tx.AdamW.
            loss: as for Keras; by default the loss of the head.
            metrics: as for Keras; if `loss` is also omitted, by default the metrics of the head.
            weighted_metrics: as for Keras.
            remat: whether training steps recompute each TransformerBlock in the backward pass. A step needs
                less memory and more time; the weights are the same.
            chunk_size: the largest number of rows that training steps compute at a time; None for the whole
                batch. The loss is that of the whole batch, and the backward pass recomputes each chunk. A
                step needs the memory of a chunk and more time; the weights are the same, except for the
                random numbers of dropout. With MultipleNegativesRankingLoss, this is the
                CachedMultipleNegativesRankingLoss of sentence-transformers.
            kwargs: other arguments of keras.Model.compile.

        Raises:
            ConfigError: for a loss or metric that expects probabilities, and a chunk_size out of range.
        """
        if loss is None and self.head is not None:
            loss = self.head.loss()
            metrics = self.head.metrics() if metrics is None else metrics
        if isinstance(self.head, MultiLabelHead):
            refuse_categorical_loss(loss)
            metrics, weighted_metrics = self._of_several(metrics), self._of_several(weighted_metrics)
        self._set_remat(remat)
        self.chunk_size = None if chunk_size is None else whole_number("chunk_size", chunk_size)
        optimizer = AdamW() if optimizer in (None, "adamw", "AdamW") else keras.optimizers.get(optimizer)
        check_averages(optimizer)
        super().compile(
            optimizer=self._scaled(optimizer) if kwargs.get("auto_scale_loss", True) else optimizer,
            loss=on_logits(self._of_tokens(loss, CROSSENTROPIES)),
            metrics=on_logits(self._of_tokens(metrics, ACCURACIES), kind="metrics"),
            weighted_metrics=on_logits(self._of_tokens(weighted_metrics, ACCURACIES), kind="metrics"),
            **kwargs,
        )

    def _scaled(self, optimizer: Any) -> Any:
        """Adds loss scaling for layers in mixed_float16; Keras adds it for the policy of the model only."""
        scaling = keras.optimizers.LossScaleOptimizer
        is_half = self.layers_policy.name == "mixed_float16"
        return scaling(optimizer) if is_half and not isinstance(optimizer, scaling) else optimizer

    def _of_several(self, metrics: Any) -> Any:
        """Replaces names of accuracies, which Keras would resolve to those of exclusive classes."""
        if isinstance(metrics, dict):
            return {name: self._of_several(value) for name, value in metrics.items()}
        if isinstance(metrics, list | tuple):
            return [self._of_several(value) for value in metrics]
        return MultiLabelAccuracy() if isinstance(metrics, str) and metrics in OF_SEVERAL else metrics

    def _of_tokens(self, names: Any, classes: dict[str, Any], output: str = contract.LOGITS) -> Any:
        """Replaces names of losses or metrics by objects that ignore the label -100."""
        if isinstance(names, dict):
            return {name: self._of_tokens(value, classes, name) for name, value in names.items()}
        if isinstance(names, list | tuple):
            return [self._of_tokens(value, classes, output) for value in names]
        if not isinstance(names, str) or self.head is None or output not in self.head.token_outputs:
            return names
        return classes[names]() if names in classes else names

    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains the model, as keras.Model.fit does, after checking the data.

        Arrays are checked whole; of a dataset, a generator or a loader, the first batch is checked.

        Args:
            x: inputs, or a data source.
            y: labels, if `x` is not a data source.
            args: other arguments of keras.Model.fit.
            kwargs: other arguments of keras.Model.fit.

        Returns:
            The History of keras.Model.fit.

        Raises:
            ConfigError: before the first step, for inputs or labels that do not fit the model.
        """
        _check_distribution(self)
        bound = _FIT.bind(None, x, y, *args, **kwargs).arguments
        held_out = bound.get("validation_data")
        head = self._head_for(x, held_out)
        if getattr(x, "ordered", False):
            bound["shuffle"] = False
        first = self._first_batch(x, y)
        options = {"shuffle": bound.get("shuffle", True), "class_weight": bound.get("class_weight")}
        bound["x"] = self.adapted(first.of(x), **options)
        if isinstance(held_out, tuple | list) and len(held_out) > 1:
            self._check_arrays(held_out[0], held_out[1])
        elif held_out is not None:
            bound["validation_data"] = self.adapted(first.of(held_out))
        del bound["self"]
        self.head = head
        _separate_averages(self)
        return first.run(super().fit, **bound)

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Computes the loss and metrics, as keras.Model.evaluate does; the data is checked as in `fit`."""
        if kwargs.get("_use_cached_eval_dataset"):  # called by fit, which has checked them
            return super().evaluate(x, y, *args, **kwargs)
        self.check_class_names(x)
        first = self._first_batch(x, y)
        return first.run(super().evaluate, self.adapted(first.of(x)), y, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes the outputs, as keras.Model.predict does; the inputs are checked as in `fit`."""
        first = self._first_batch(x, None)
        return first.run(super().predict, self.adapted(first.of(x)), *args, **kwargs)

    def check_class_names(self, data: Any) -> None:
        """Checks that the names of the classes of batches are those of the model, in the same order.

        Args:
            data: a data source. Batches of keras_tx.data have the names as `labels`, and tf.data datasets of
                Keras and of `Batches.tf_data` as `class_names`.

        Raises:
            ConfigError: the names or the number of the classes differ, or the head predicts numbers.
        """
        check_data_names(self.head, data, self.name)

    def _head_for(self, data: Any, held_out: Any) -> Any:
        """Checks class names, and returns the head with those of the data if it has none.

        An exported folder then contains them.
        """
        self.check_class_names(data)
        head = named_head(self.head, names_of_data(data))
        check_data_names(head, held_out, self.name, source="The validation data")
        return head

    def adapted(self, data: Any, **options: Any) -> Any:
        """Returns the data source to pass to Keras; `options` are arguments of `fit`."""
        return data

    def _first_batch(self, x: Any, y: Any) -> FirstBatch:
        """Checks arrays, and returns the check of the first batch of a data source."""
        self._check_arrays(x, y)
        if y is None:
            self.check_labels(labels_like(x))
        return FirstBatch(self._check_batch)

    def _check_batch(self, batch: Any) -> None:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
        self.check(x, "x")
        self.check_labels(y, x)

    def _check_arrays(self, x: Any, y: Any) -> None:
        self.check(x)
        self.check_labels(y, x)

    def check(self, inputs: Any, batch: str | None = None) -> None:
        """Checks that inputs are like the outputs of `processing`.

        Args:
            inputs: inputs of `fit`. Only arrays and raw data are checked.
            batch: the name of the inputs in a batch of a dataset; None for arrays.

        Raises:
            ConfigError: for raw data, and for arrays that `processing` does not return.

        Example:

        >>> import keras_tx, numpy as np
        >>> model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
        >>> model.check(np.full((4, 8, 8, 3), 200, "uint8"))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        keras_tx.errors.ConfigError: The images have values from 200 to 200, but model.processing ...
        """
        self.refuse_raw(inputs, batch)
        if isinstance(self.processing, ImageTransform) and isinstance(inputs := as_array(inputs), np.ndarray):
            self.processing.check_output(inputs[:CHECKED_IMAGES], in_dataset=batch is not None)

    def refuse_raw(self, inputs: Any, batch: str | None = None) -> None:
        """Raises a ConfigError for paths, texts and images, which `processing` converts to arrays."""
        first = inputs
        while isinstance(first, list | tuple | set) and len(first):
            first = next(iter(first))
        if isinstance(first, np.ndarray) and first.dtype.kind in "OUS" and first.size:
            first = np.ravel(first)[0]
        if isinstance(first, str | bytes | os.PathLike) or type(first).__module__.startswith("PIL."):
            raise ConfigError(
                f"x is raw data, such as {first!r:.60}, but model {self.name!r} accepts arrays. "
                + self.remedy(batch)
            )

    def remedy(self, batch: str | None) -> str:
        """Returns the code that converts raw data to inputs, for an error message."""
        if self.processing is None:
            return "Create the model with processing=, and pass model.processing(x)."
        line = "model.fit(model.processing(x), y)" if batch is None else "(model.processing(x), y)"
        return f"Write `{line}`."

    # Branches: one for each form of labels and losses.
    def check_labels(self, labels: Any, inputs: Any = None) -> None:
        """Checks that arrays of labels are valid for the loss.

        Args:
            labels: labels of `fit`, of one or several outputs. Only arrays are checked.
            inputs: of the same samples; positions in a text are compared with its length.

        Raises:
            ConfigError: for labels that the loss does not accept.

        Example:

        >>> import keras_tx, numpy as np
        >>> model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
        >>> model.check_labels(np.array([0, 2, 3]))
        Traceback (most recent call last):
        keras_tx.errors.ConfigError: Label 3 in row 2 is out of range: model 'vit' has 3 classes (0 to 2).
        """
        if labels is None:
            return
        if isinstance(labels, list | tuple) and len(labels) and isinstance(labels[0], str | int | float):
            raise ConfigError(
                f"y is a {type(labels).__name__} of {type(labels[0]).__name__}, which Keras reads as several "
                "outputs. Pass an array: np.array(y)."
            )
        length = None
        if isinstance(inputs, dict) and contract.INPUT_IDS in inputs:
            length = np.shape(inputs[contract.INPUT_IDS])[1]  # of the tokens, or of the choices
        for part, loss, output in self._labelled_outputs(labels, self.output):
            array = as_array(part)
            if not isinstance(array, np.ndarray):
                continue
            shape = tuple(output.shape)
            spans = len(shape) == 2 and shape[-1] is None
            if spans:
                shape = (None, length)
            unit = "choices" if self.head is not None and self.head.has_choices else "positions"
            check_targets(array, loss, shape, self.name, unit if spans else "classes")

    def _labelled_outputs(self, labels: Any, outputs: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Yields the labels, the loss and the output of each output with labels."""
        outputs = outputs if isinstance(outputs, dict) else {contract.LOGITS: outputs}
        count = len(outputs)
        if count > 1 and not isinstance(labels, dict) and not _is_list(labels, count):
            return  # Keras reports the missing outputs
        losses = self._loss_of(count)
        for index, (name, output) in enumerate(outputs.items()):
            part, loss = (_part(values, name, index, count) for values in (labels, losses))
            if part is not None:
                yield part, keras.losses.get(loss) if isinstance(loss, str) else loss, output

    def _loss_of(self, count: int) -> Any:
        """Returns the loss, or None if it does not fit `count` outputs, which Keras reports."""
        if not self.compiled:
            return None if self.head is None else self.head.loss()
        loss: Any = self.loss
        return None if isinstance(loss, list | tuple) and len(loss) != count else loss

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Computes the loss, as keras.Model.compute_loss does; it is NaN for labels that are not valid.

        Only the first batch of a dataset is checked before the training. In later batches, some backends
        ignore a label that is out of range.
        """
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        for labels, of_output, outputs in self._labelled_outputs(y, y_pred) if y is not None else ():
            valid = valid_targets(keras.ops.convert_to_tensor(labels), of_output, outputs)
            if valid is not None:
                loss = keras.ops.where(valid, loss, keras.ops.cast(float("nan"), loss.dtype))
        return loss

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        for metric in self.joint_metrics:
            metric.update_state(y, y_pred, sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _set_remat(self, remat: bool) -> None:
        blocks = [layer for layer in self._flatten_layers() if isinstance(layer, TransformerBlock)]
        if remat and not blocks:
            raise ConfigError(f"Model {self.name!r} has no TransformerBlock. Remove remat=True.")
        for block in blocks:
            block.remat = remat
        self.remat = remat

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any) -> Any:
        """Computes the outputs, as keras.Model.call does; in training steps, by chunks of `chunk_size`."""
        symbolic = any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(inputs))
        if not (training and self.chunk_size) or symbolic:
            return super().call(inputs, training=training, mask=mask, **kwargs)
        generators = (getattr(layer, "seed_generator", None) for layer in self._flatten_layers())
        return rematerialize_in_chunks(
            lambda chunk: super(TrainableModel, self).call(chunk, training=True, **kwargs),
            inputs,
            self.output,
            self.chunk_size,
            self.trainable_variables,
            list(dict.fromkeys(generator for generator in generators if generator is not None)),
        )

    def get_compile_config(self) -> dict[str, Any] | None:
        config = super().get_compile_config()
        options = {"remat": self.remat or None, "chunk_size": self.chunk_size}
        return config and {**config, **{name: x for name, x in options.items() if x is not None}}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        # Keras skips this for a class that overrides compile; a reloaded model would have no optimizer.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    @property
    def layers_policy(self) -> keras.DTypePolicy:
        """The dtype policy of the layers below the head, which is always float32."""
        layers = (layer for layer in self.layers if not isinstance(layer, keras.layers.InputLayer))
        return next(layers).dtype_policy


def _separate_averages(model: Any) -> None:
    """Copies averages of weights that share their memory with the weights, as after `fit` on JAX.

    JAX refuses to train with such arrays, since a step reuses the memory of both.
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # of a loss scale
    if keras.backend.backend() == "jax" and getattr(optimizer, "use_ema", False) and optimizer.built:
        for variable in optimizer.variables:
            variable.assign(keras.ops.copy(variable))


def _check_distribution(model: Any) -> None:
    """Warns if keras.distribution is set on TensorFlow, which then trains on one device.

    Raises:
        ConfigError: the model is in the scope of a tf.distribute strategy of several processes.
    """
    if keras.backend.backend() != "tensorflow":
        return
    if getattr(model.distribute_strategy.extended, "_in_multi_worker_mode", bool)():
        raise ConfigError(
            f"{type(model.distribute_strategy).__name__} of several processes is not supported by Keras "
            f"{keras.__version__}. Use JAX (KERAS_BACKEND=jax) with keras.distribution.initialize."
        )
    distribution = keras.distribution.distribution()
    if distribution is None:
        return
    warnings.warn(
        f"{type(distribution).__name__} is set, but has no effect on TensorFlow: keras.distribution is for "
        "JAX. Create and compile the model in `with tf.distribute.MirroredStrategy().scope():`.",
        stacklevel=user_stacklevel(),
    )


def _is_list(values: Any, count: int) -> bool:
    return isinstance(values, list | tuple) and len(values) == count


def _part(values: Any, name: str, index: int, count: int) -> Any:
    """Returns the labels or the loss of one output."""
    if isinstance(values, dict):
        return values.get(name)
    return values[index] if _is_list(values, count) else values


def as_array(data: Any) -> Any:
    """Converts an array, tensor or column of any package to NumPy; returns anything else unchanged."""
    if isinstance(data, np.ndarray) or not hasattr(data, "shape") or not hasattr(data, "__array__"):
        return data
    return keras.ops.convert_to_numpy(data) if keras.ops.is_tensor(data) else np.asarray(data)

"""TransformerModel: a functional keras.Model with a config, whose heads return logits."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import h5py
import keras
import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, nearest, user_stacklevel, whole_number
from keras_tx.heads import ClassifierHead, Encoded, Head, MultiLabelHead
from keras_tx.layers import TransformerBlock
from keras_tx.layers.rematerialization import rematerialize_in_chunks
from keras_tx.losses import TokenCrossentropy, on_logits, refuse_categorical_loss
from keras_tx.metrics import MultiLabelAccuracy, TokenAccuracy
from keras_tx.models.adapters.adaptation import adapt_from_config, adapters_config
from keras_tx.models.class_names import check_data_names, named_head, names_of_data
from keras_tx.models.config import make_config
from keras_tx.models.first_batch import FirstBatch, labels_like
from keras_tx.models.inner_outputs import with_outputs
from keras_tx.models.quantized_layers import check_saved, quantize_from_config, quantized_config
from keras_tx.models.targets import check_targets, valid_targets
from keras_tx.models.tokenizer_checks import check_tokenizer, tokenizer_fields
from keras_tx.optimizers import AdamW, check_averages
from keras_tx.processing import ImageTransform
from keras_tx.weights.weight_values import check_finite, merged_weights, saved_weights
from keras_tx.weights.weightless import build_weightless

CROSSENTROPIES: dict[str, Any] = dict.fromkeys(
    ("sparse_categorical_crossentropy", "SparseCategoricalCrossentropy"), TokenCrossentropy
)
ACCURACIES: dict[str, Any] = dict.fromkeys(
    ("accuracy", "acc", "sparse_categorical_accuracy", "SparseCategoricalAccuracy"),
    functools.partial(TokenAccuracy, name="accuracy"),
)
AUTO = "auto"  # default of `head`: that of the family or of the checkpoint
DIVERGED = "The training diverged: restore the last saved weights, and lower the learning rate."
OF_SEVERAL = ("accuracy", "acc", "binary_accuracy", "BinaryAccuracy")
CHECKED_IMAGES = 32  # of an array; the default batch size
_FIT = inspect.signature(keras.Model.fit)


class TransformerModel(keras.Model):
    """Base class of the model families. Their factories create the models.

    It is a functional keras.Model (`summary`, `save`, `fit`, callbacks ...) with a config, which is saved
    with the model, and a `compile` whose losses are computed from logits.

    Args:
        inputs: Keras tensors, as for keras.Model.
        outputs: Keras tensors, as for keras.Model.
        config: a config of the family.
        head: the head of the model, or None.
        processing: converts raw data to inputs: an ImageTransform or a TextTransform, or None.
        kwargs: other arguments of keras.Model, such as `name`.
    """

    config_class: type
    processing_class: type = ImageTransform
    heads: ClassVar[tuple[type[Head], ...]] = ()  # supported by the family
    task: str | None
    encoded: Encoded | None = None  # of a text model: the tensors that a head reads

    def __init__(
        self,
        inputs: Any,
        outputs: Any,
        *,
        config: Any,
        head: Head | None,
        processing: Any = None,
        **kwargs: Any,
    ):
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        self.config = config
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
            lambda chunk: super(TransformerModel, self).call(chunk, training=True, **kwargs),
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

    def get_config(self) -> dict[str, Any]:
        adapters, quantized = adapters_config(self), quantized_config(self)
        return {
            "config": dataclasses.asdict(self.config),
            "head": None if self.head is None else keras.saving.serialize_keras_object(self.head),
            "processing": None if self.processing is None else dataclasses.asdict(self.processing),
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.layers_policy),
            "frozen": self.frozen(),
            **({"quantized": quantized} if quantized else {}),
            **({"adapters": adapters} if adapters else {}),
        }

    @property
    def layers_policy(self) -> keras.DTypePolicy:
        """The dtype policy of the layers below the head, which is always float32."""
        layers = (layer for layer in self.layers if not isinstance(layer, keras.layers.InputLayer))
        return next(layers).dtype_policy

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Saves the model, as keras.Model.save does.

        Raises:
            ConfigError: If weights are NaN or infinite, or would be lost because Keras does not save them.
        """
        check_finite(self, DIVERGED)
        check_saved(self)
        super().save(*args, **kwargs)

    def save_weights(self, *args: Any, **kwargs: Any) -> None:
        """Saves the weights, as keras.Model.save_weights does; raises the same error as `save`."""
        check_finite(self, DIVERGED)
        check_saved(self)
        super().save_weights(*args, **kwargs)

    def export(  # type: ignore[override]
        self, filepath: Any, format: str = "tf_saved_model", verbose: Any = None, **options: Any
    ) -> Any:
        """Exports the model, as keras.Model.export does; `format="onnx"` calls keras_tx_onnx.export_onnx.

        Args:
            filepath: where to write; with `format="onnx"` a folder.
            format: "onnx", or another format of keras.Model.export.
            verbose: whether to print; with `format="onnx"`, the report.
            options: of export_onnx with `format="onnx"`, else of keras.Model.export.

        Returns:
            The report of export_onnx with `format="onnx"`, else None.
        """
        if format != "onnx":
            return super().export(filepath, format=format, verbose=verbose, **options)
        from keras_tx_onnx import export_onnx

        if "opset_version" in options:  # Keras's name
            options["opset"] = options.pop("opset_version")
        report = export_onnx(self, filepath, **options)
        if verbose:
            print(report)
        return report

    def load_weights(self, filepath: Any, **options: Any) -> None:  # type: ignore[override]
        """Loads weights, as keras.Model.load_weights does; after an error the weights are unchanged.

        Args:
            filepath: a weights file.
            options: other arguments of keras.Model.load_weights.

        Raises:
            ConfigError: if the file cannot be read or its weights do not fit the model.
        """
        before = self.get_weights()
        try:
            with warnings.catch_warnings():
                # Keras visits the model on several paths and warns of those that the file does not contain.
                warnings.filterwarnings("ignore", "Skipping nested container", UserWarning)
                super().load_weights(filepath, **options)
            self._check_all_used(filepath)
            check_finite(self, f"Load weights from before the training diverged, instead of {filepath}.")
        except ConfigError:
            self.set_weights(before)
            raise
        except OSError as error:
            self.set_weights(before)  # a truncated file may have been read in part
            raise ConfigError(
                f"{filepath} cannot be read as a weights file: {error}. Save or copy it again."
            ) from error
        except ValueError as error:
            self.set_weights(before)
            # The message of Keras ends with the values of the variable and a list of all layers.
            reason = " ".join(str(error).split("Target variable:")[0].split("List of objects")[0].split())
            raise ConfigError(
                f"The weights in {filepath} do not fit model {self.name!r} ({self.config}): {reason} Load "
                "them into a model with the config that they were saved with, or load the .keras file with "
                "keras_tx.load_model."
            ) from error

    def _check_all_used(self, filepath: Any) -> None:
        """Raises a ValueError for a file with more weights than the model, which Keras accepts."""
        if not str(filepath).endswith(".weights.h5"):
            return
        saved: list[str] = []
        with h5py.File(filepath) as file:
            file["layers"].visititems(
                lambda name, x: saved.append(name) if isinstance(x, h5py.Dataset) else None
            )
        count = len(saved_weights(self))
        if len(saved) not in (count, len(merged_weights(self))):  # of a model with adapters, or without
            raise ValueError(f"the file has {len(saved)} weights, but the model has {count}.")

    def assign_weights(self, other: TransformerModel) -> None:
        """Assigns the weights of another model with the same layers, by path."""
        weights = merged_weights(other)
        for weight in self.weights:
            weight.assign(weights[weight.path])

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        processing = config["processing"]
        model = cls.assemble(
            make_config(cls.config_class, config["config"]),
            head=None if config["head"] is None else keras.saving.deserialize_keras_object(config["head"]),
            processing=None if processing is None else cls.processing_class(**processing),
            name=config["name"],
            dtype=keras.dtype_policies.get(config["dtype"]),
        )
        quantize_from_config(model, config.get("quantized", {}))
        if config.get("adapters"):
            adapt_from_config(model, config["adapters"])
        model.freeze(config["frozen"])
        return model

    @classmethod
    def from_variant(
        cls,
        variant: str,
        *,
        num_classes: int | None = None,
        head: Any = AUTO,
        weights: Any = None,
        processing: Any = None,
        name: str | None = None,
        dtype: Any = None,
        **overrides: Any,
    ) -> Self:
        """Creates a model of a published size; the factories of the families call it with their arguments."""
        if num_classes is not None:
            head = cls._classifier(num_classes, head)
        elif isinstance(head, str) and head == AUTO:
            head = cls.default_head()
        options = {"head": head, "processing": processing, "name": name, "dtype": dtype}
        if weights is not None:
            from keras_tx.models.checkpoint_loading import load_variant  # knows the families

            return load_variant(cls, variant, weights, **options, overrides=overrides)
        config_class: Any = cls.config_class
        config = config_class.variant(variant, **{**tokenizer_fields(processing), **overrides})
        check_tokenizer(processing, config)
        return cls.assemble(config, **options)

    @classmethod
    def _classifier(cls, num_classes: int, head: Any) -> Head:
        if not isinstance(head, str) or head != AUTO:
            raise ConfigError(
                f"num_classes={num_classes} and head={head} were both passed. Pass one of them."
            )
        if ClassifierHead not in cls.heads:
            known = ", ".join(kind.__name__ for kind in cls.heads)
            raise ConfigError(
                f"num_classes={num_classes} requires a ClassifierHead, but a {cls.__name__} supports "
                f"{known}. Create a classifier with keras_tx.bert or keras_tx.vit."
            )
        return ClassifierHead(num_classes)

    @classmethod
    def default_head(cls) -> Head | None:
        """Returns the head of a model for which no head is passed."""
        return None

    @classmethod
    def check_head(cls, head: Any) -> None:
        """Raises a ConfigError for a head that the family does not support."""
        if head is not None and not isinstance(head, cls.heads):
            known = ", ".join(kind.__name__ for kind in cls.heads)
            raise ConfigError(
                f"head={head!r} is not supported by a {cls.__name__}. Pass one of {known}, or None for the "
                "features."
            )

    @classmethod
    def assemble(
        cls,
        config: Any,
        *,
        head: Any = None,
        processing: Any = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> Self:
        """Creates the functional model of a config. Each family implements it."""
        raise NotImplementedError

    def with_outputs(self, *, hidden_states: bool = False, attentions: bool = False) -> keras.Model:
        """Returns a model of the same layers and weights that also outputs hidden states and attentions.

        It is a functional keras.Model with the same inputs, none of them optional: `complete` of a text model
        adds those that are missing. It can be exported.

        Args:
            hidden_states: adds "hidden_states" as in transformers: a tuple of (batch, tokens, width), the
                embeddings and the output of each block; in GPT the last one is after the final norm.
            attentions: adds "attentions": a tuple of (batch, heads, queries, keys), the weights of each
                block's self-attention; 0 for masked keys.

        An encoder-decoder has "encoder_hidden_states", "decoder_hidden_states", "encoder_attentions",
        "decoder_attentions" and "cross_attentions" (batch, heads, target, source) instead.

        Returns:
            A keras.Model whose outputs are a dict: the outputs of this model by name, and the tuples.

        Raises:
            ConfigError: if the model has no TransformerBlock.

        Example:

        >>> import keras_tx, numpy as np
        >>> model = keras_tx.bert("tiny", vocabulary_size=50, head=keras_tx.ClassifierHead(2))
        >>> inside = model.with_outputs(hidden_states=True, attentions=True)
        >>> outputs = inside(model.complete(np.array([[7, 8, 9]])))
        >>> tuple(outputs["logits"].shape), len(outputs["hidden_states"])
        ((1, 2), 3)
        >>> tuple(outputs["attentions"][0].shape)
        (1, 2, 3, 3)
        """
        return with_outputs(self, hidden_states, attentions)

    @property
    def output_name(self) -> str:
        """The name of the only output in the exported folder."""
        if self.head is not None:
            return self.output_names[0]
        return contract.LAST_HIDDEN_STATE if len(self.output.shape) == 3 else contract.IMAGE_EMBEDS

    def freeze(self, paths: list[str]) -> None:
        """Makes layers not trainable.

        Args:
            paths: of the layers, such as "block_0/attention".

        Raises:
            ConfigError: if the model has no such layer.

        Example:

        >>> import keras_tx
        >>> model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
        >>> model.freeze(["patch_embedding", "block_0/attention"])
        """
        layers = self._parts()
        unknown = [path for path in paths if path not in layers]
        if unknown:
            raise ConfigError(
                f"Model {self.name!r} has no layer {unknown[0]!r}. {nearest(unknown[0], layers)}"
            )
        for path in paths:
            layers[path].trainable = False

    def frozen(self) -> list[str]:
        """Returns the paths of the layers that are not trainable."""
        return [path for path, layer in self._parts().items() if not layer.trainable]

    def head_layers(self) -> list[keras.layers.Layer]:
        """Returns the layers of the head: those with weights that a model without the head does not have.

        Example:

        >>> import keras_tx
        >>> model = keras_tx.bert("tiny", vocabulary_size=50, head=keras_tx.MaskedLMHead())
        >>> [layer.name for layer in model.head_layers()]
        ['prediction_dense', 'prediction_norm', 'logits']
        """
        if self.head is None:
            return []
        bare = build_weightless(type(self).assemble, self.config, head=None)
        names = {layer.name for layer in bare.layers}
        return [layer for layer in self.layers if layer.weights and layer.name not in names]

    def _parts(self) -> dict[str, keras.layers.Layer]:
        """Returns all layers with weights, nested ones included, by path."""
        return {
            top.name + part.path.removeprefix(top.path): part
            for top in self.layers
            for part in top._flatten_layers()
            if part.weights
        }


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

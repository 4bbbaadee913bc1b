"""TransformerModel: a functional keras.Model with a config, whose heads return logits."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, ClassVar, Self

import h5py
import keras

from keras_tx import contract
from keras_tx.errors import ConfigError, nearest
from keras_tx.heads import ClassifierHead, Encoded, Head
from keras_tx.models.adapters.adaptation import adapt_from_config, adapters_config
from keras_tx.models.config import make_config
from keras_tx.models.inner_outputs import with_outputs
from keras_tx.models.quantized_layers import check_saved, quantize_from_config, quantized_config
from keras_tx.models.tokenizer_checks import check_tokenizer, tokenizer_fields
from keras_tx.models.trainable_model import TrainableModel
from keras_tx.processing import ImageTransform
from keras_tx.weights.weight_values import check_finite, merged_weights, saved_weights
from keras_tx.weights.weightless import build_weightless

AUTO = "auto"  # default of `head`: that of the family or of the checkpoint
DIVERGED = "The training diverged: restore the last saved weights, and lower the learning rate."


class TransformerModel(TrainableModel):
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
        super().__init__(inputs, outputs, head=head, processing=processing, **kwargs)
        self.config = config

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

"""TextModel, EncoderModel and DecoderModel: base classes of text models, whose inputs are partly optional."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import keras
import numpy as np
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError, nearest
from keras_tx.heads import CausalLMHead, Encoded, Head
from keras_tx.heads.base import average_tokens
from keras_tx.heads.multiple_choice import FoldChoices, UnfoldChoices
from keras_tx.models.first_batch import of_any_length
from keras_tx.models.tokenizer_checks import check_padded_right, fit_to_model
from keras_tx.models.trainable_model import as_array
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.processing import TextTransform

CAUSAL_LM = CausalLMHead()


class TextModel(TransformerModel):
    """Base class of the text families.

    The model has the same inputs as its exported folder. Only `input_ids` is required, as an array or in a
    dict; missing inputs are derived from it, in training and prediction.
    """

    processing_class = TextTransform
    required: ClassVar[tuple[str, ...]] = (contract.INPUT_IDS,)

    @property
    def task(self) -> str | None:  # type: ignore[override]
        return contract.FEATURE_EXTRACTION if self.head is None else self.head.task

    @classmethod
    def input_names(cls, config: Any) -> list[str]:
        """Returns the names of the inputs. Each family implements it."""
        raise NotImplementedError

    @classmethod
    def encode(cls, config: Any, inputs: dict[str, Any], dtype: Any) -> Encoded:
        """Computes the vectors of the tokens. Each family implements it."""
        raise NotImplementedError

    @classmethod
    def features(cls, encoded: Encoded) -> Any:
        """Returns the outputs of a model without a head."""
        return encoded.tokens

    @classmethod
    def logits(cls, head: Head, encoded: Encoded) -> Any:
        """Returns the outputs of a head."""
        if not head.takes_sample:
            return head(encoded)
        if getattr(head, "pooling", None) == "average":
            return head(average_tokens(encoded))
        return head(encoded.pool() if encoded.pool else encoded)

    @classmethod
    def assemble(
        cls,
        config: Any,
        *,
        head: Head | None = None,
        processing: TextTransform | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> Self:
        cls.check_head(head)
        names = cls.input_names(config)
        axes = (None, None) if head is not None and head.has_choices else (None,)
        inputs = {name: keras.Input(axes, dtype="int32", name=name) for name in names}
        if len(axes) == 1:
            encoded = cls.encode(config, inputs, dtype)
            outputs = cls.features(encoded) if head is None else cls.logits(head, encoded)
        else:
            assert head is not None
            rows = {name: FoldChoices(dtype=dtype, name=f"{name}_rows")(x) for name, x in inputs.items()}
            encoded = cls.encode(config, rows, dtype)
            unfold = UnfoldChoices(dtype="float32", autocast=False, name="choices")
            outputs = unfold(cls.logits(head, encoded), inputs[contract.ATTENTION_MASK])
        processing = fit_to_model(processing, config, segments=contract.TOKEN_TYPE_IDS in names)
        name = name or cls.__name__.lower()
        model = cls(inputs, outputs, config=config, head=head, processing=processing, name=name)
        model.encoded = encoded
        return model

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(self.complete(inputs), *args, **kwargs)

    def stateless_call(self, trainable: Any, other: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # JAX's training step calls this method instead of __call__.
        return super().stateless_call(trainable, other, self.complete(inputs), *args, **kwargs)

    # Branches: one check for each way in which inputs differ from those of the graph.
    def complete(self, inputs: Any) -> dict[str, Any]:
        """Returns all inputs of the model, deriving those that are missing.

        Args:
            inputs: token ids, or a dict of inputs with at least `input_ids`, and `decoder_input_ids` of an
                encoder-decoder.

        Returns:
            A dict of all inputs by name.

        Raises:
            ConfigError: for unknown or missing inputs, wrong shapes or dtypes, and ids out of range.

        Example:

        >>> import keras_tx
        >>> model = keras_tx.bert("tiny", vocabulary_size=50, depth=1)
        >>> sorted(model.complete([[7, 8, 9, 0]]))
        ['attention_mask', 'input_ids', 'token_type_ids']
        """
        present = dict(inputs) if isinstance(inputs, dict) else {contract.INPUT_IDS: inputs}
        present = {name: value for name, value in present.items() if value is not None}
        known = list(self.input)
        segments = present.get(contract.TOKEN_TYPE_IDS)
        if getattr(self.config, "segments", 0) == 1 and isinstance(segments, list | tuple | np.ndarray):
            del present[contract.TOKEN_TYPE_IDS]
            self._integers(contract.TOKEN_TYPE_IDS, segments)  # raises unless all are 0
        for name in present:
            if name not in known:
                raise ConfigError(f"Model {self.name!r} has no input {name!r}. {nearest(name, known)}")
        missing = [name for name in self.required if name not in present]
        if missing:
            raise ConfigError(f"Model {self.name!r} requires {missing[0]!r}, got {sorted(present)}.")
        present = {name: self._integers(name, value) for name, value in present.items()}
        for name in self.required:
            length, longest = present[name].shape[-1], self.config.max_length
            if length is not None and length > longest:
                raise ConfigError(
                    f"{name} has length {length}, but model {self.name!r} has max_length={longest}. Truncate "
                    f"the texts, or create the model with max_length={length} or more."
                )
        for name, value in present.items():
            ids_name = contract.DECODER_INPUT_IDS if name.startswith("decoder_") else contract.INPUT_IDS
            ids = present[ids_name]
            if tuple(value.shape) != tuple(ids.shape) and None not in (*value.shape, *ids.shape):
                raise ConfigError(
                    f"{name} has the shape {tuple(value.shape)}, but {ids_name} has {tuple(ids.shape)}."
                )
        self._check_batches(present)
        return self.derive(present) if set(present) != set(known) else present

    def _check_batches(self, inputs: dict[str, Any]) -> None:
        """Raises a ConfigError if the required inputs have different numbers of rows."""
        counts = {name: inputs[name].shape[0] for name in self.required}
        if len({count for count in counts.values() if count is not None}) > 1:
            raise ConfigError(
                "The batch sizes differ: "
                + ", ".join(f"{name} has {n} rows" for name, n in counts.items())
                + "."
            )

    @property
    def positions(self) -> int:
        """The number of positions."""
        return self.config.max_length

    def derive(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Adds the attention mask if it is missing: 0 for padding, else 1. Families add other inputs."""
        if contract.ATTENTION_MASK not in inputs:
            ids, padding = inputs[contract.INPUT_IDS], getattr(self.config, "pad_id", None)
            inputs[contract.ATTENTION_MASK] = (
                ops.ones_like(ids) if padding is None else ops.cast(ops.not_equal(ids, padding), "int32")
            )
        return inputs

    def adapted(self, data: Any, **options: Any) -> Any:
        """Returns the data source to pass to Keras; batches of a PyDataset may differ in length."""
        if keras.backend.backend() != "tensorflow" or not isinstance(data, keras.utils.PyDataset):
            return data
        return of_any_length(data, self._longer, **options)

    def _longer(self, batch: Any) -> Any:
        """Returns a batch with one more token in the inputs and in per-token targets and weights."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        outputs = self.output if isinstance(self.output, dict) else {contract.LOGITS: self.output}
        of_tokens = {name for name, output in outputs.items() if len(output.shape) == 3}

        def longer(array: Any) -> Any:
            return np.empty((array.shape[0], array.shape[1] + 1, *array.shape[2:]), array.dtype)

        def longer_input(array: Any) -> Any:
            return np.empty((array.shape[0], *(size + 1 for size in array.shape[1:])), array.dtype)

        def of_outputs(values: Any) -> Any:
            if isinstance(values, dict):
                return {name: longer(x) if name in of_tokens else x for name, x in values.items()}
            return longer(values) if of_tokens and getattr(values, "ndim", 0) > 1 else values

        x = keras.tree.map_structure(longer_input, x)
        return keras.utils.pack_x_y_sample_weight(x, of_outputs(y), of_outputs(weights))

    def check(self, inputs: Any, batch: str | None = None) -> None:
        """Checks that inputs are arrays of ids in range, which the graph itself cannot check.

        Args:
            inputs: token ids, or a dict of inputs. Only arrays and raw data are checked.
            batch: the name of the inputs in a batch of a dataset; None for arrays.

        Raises:
            ConfigError: for texts and for ids out of range.

        Example:

        >>> import keras_tx, numpy as np
        >>> keras_tx.bert("tiny", vocabulary_size=50, depth=1).check(np.array([[7, 8, 50]]))
        Traceback (most recent call last):
        keras_tx.errors.ConfigError: input_ids has 50 in row 0, but model 'bert' accepts 0 to 49.
        """
        self.refuse_raw(inputs, batch)
        config = self.config
        vocabulary = getattr(inputs, "vocabulary_size", None)  # set by causal_lm_batches
        if isinstance(vocabulary, int) and vocabulary > config.vocabulary_size:
            raise ConfigError(
                f"The token file has vocabulary_size={vocabulary}, but model {self.name!r} has "
                f"vocabulary_size={config.vocabulary_size}. Create it with vocabulary_size={vocabulary}, or "
                "with the processing= of the file's folder."
            )
        limits = {
            contract.INPUT_IDS: config.vocabulary_size,
            contract.DECODER_INPUT_IDS: config.vocabulary_size,
            contract.ATTENTION_MASK: 2,
            contract.DECODER_ATTENTION_MASK: 2,
            contract.TOKEN_TYPE_IDS: getattr(config, "segments", 0) or None,  # `complete` refuses the input
            contract.POSITION_IDS: self.positions,
        }
        for name, array in (inputs if isinstance(inputs, dict) else {contract.INPUT_IDS: inputs}).items():
            self.refuse_raw(array, batch)
            array = as_array(array)
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "biu" or array.ndim not in (2, 3):
                continue  # `complete` checks dtypes and shapes
            limit = limits.get(name)
            if limit is None or not array.size or (array.min() >= 0 and array.max() < limit):
                continue
            wrong = (array < 0) | (array >= limit)
            row = int(np.argmax(wrong.reshape(len(wrong), -1).any(axis=1)))
            number = array[row][wrong[row]][0]
            raise ConfigError(
                f"{name} has {number} in row {row}, but model {self.name!r} accepts 0 to {limit - 1}."
            )

    def _integers(self, name: str, value: Any) -> Any:
        """Returns an int32 tensor of shape (batch, sequence), or (batch, choices, sequence)."""
        if isinstance(value, list | tuple | np.ndarray):
            try:
                array = np.asarray(value)
            except ValueError as error:
                raise ConfigError(f"{name} has rows of different lengths. Pad them to one length.") from error
            if array.dtype.kind not in "biu":
                raise ConfigError(f"{name} is {array.dtype}, expected integers.")
            self.check({name: array})
            value = array.astype("int32")
        if not isinstance(value, keras.KerasTensor):
            value = ops.convert_to_tensor(value)
        kind = keras.backend.standardize_dtype(value.dtype)
        if "int" not in kind and kind != "bool":
            raise ConfigError(f"{name} is {kind}, expected integers.")
        rank = len(self.input[contract.INPUT_IDS].shape)
        expected = "(batch, sequence)" if rank == 2 else "(batch, choices, sequence)"
        if len(value.shape) != rank:
            raise ConfigError(f"{name} has the shape {tuple(value.shape)}, expected {expected}.")
        return value if kind == "int32" else ops.cast(value, "int32")


class GenerativeModel(TextModel):
    """Base class of the models that generate text: decoders and encoder-decoders."""

    def stops(self, transform: TextTransform | None = None) -> list[int]:
        """Returns the ids that end a text; empty if they are unknown."""
        ids = getattr(self.config, "stop_ids", None)
        if ids is not None:
            return list(ids)
        transform = transform or self.processing
        end = transform and (transform.eos_token or transform.sep_token)
        return [transform.id_of(end)] if transform and end else []

    def eos_token_id(self, transform: TextTransform | None = None) -> int | list[int] | None:
        """Returns `stops` as Hugging Face's configs have it: one id, a list, or None."""
        stops = self.stops(transform)
        return stops if len(stops) > 1 else stops[0] if stops else None


class EncoderModel(TextModel):
    """Base class of the bidirectional encoders, whose texts are padded on the right."""

    @classmethod
    def assemble(cls, config: Any, **options: Any) -> Self:
        model = super().assemble(config, **options)
        check_padded_right(model.processing)
        return model


class DecoderModel(GenerativeModel):
    """Base class of the decoders.

    The config has `vocabulary_size`, `max_length`, `width`, `depth` and `num_heads`, and optionally
    `kv_heads`, `head_size`, `pad_id`, `stop_ids` and `generation`, the default options of `generate`.
    """

    heads = (CausalLMHead,)

    @classmethod
    def default_head(cls) -> Head:
        return CAUSAL_LM

    @classmethod
    def input_names(cls, config: Any) -> list[str]:
        return [contract.INPUT_IDS, contract.ATTENTION_MASK, contract.POSITION_IDS]

    def derive(self, inputs: dict[str, Any]) -> dict[str, Any]:
        super().derive(inputs)
        if contract.POSITION_IDS not in inputs:
            # Padding is not counted, so that padding on the left does not shift positions.
            count = ops.cumsum(inputs[contract.ATTENTION_MASK], axis=1)
            inputs[contract.POSITION_IDS] = ops.cast(ops.maximum(count - 1, 0), "int32")
        return inputs

    def without_position_ids(self) -> keras.Model:
        """A model of the same layers that counts positions along the mask, as the default position_ids."""
        names = (contract.INPUT_IDS, contract.ATTENTION_MASK)
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
        return keras.Model(inputs, self.call(self.complete(inputs)), name=self.name)

    def special_ids(self, transform: TextTransform | None = None) -> dict[str, Any]:
        """Returns the BOS, EOS and padding ids by their Hugging Face names.

        Args:
            transform: the tokenizer; by default the model's `processing`.

        Returns:
            A dict of ids, None for unknown ones; eos_token_id is a list if several ids end a text.

        Example:

        >>> import keras_tx
        >>> keras_tx.gpt("pico", pad_id=0, stop_ids=[3, 7]).special_ids()
        {'bos_token_id': None, 'eos_token_id': [3, 7], 'pad_token_id': 0}
        """
        transform = transform or self.processing
        begin = transform and (transform.bos_token or transform.cls_token)
        return {
            "bos_token_id": transform.id_of(begin) if transform and begin else None,
            "eos_token_id": self.eos_token_id(transform),
            "pad_token_id": getattr(self.config, "pad_id", None),
        }

    def next(self, prompt: Any, *, top_k: int = 10, tokenizer: Any = None) -> Any:
        """Returns the most probable next tokens of a text, as the exported folder's `next` does.

        Args:
            prompt: token ids or, if there is a tokenizer, text. An empty one starts from the end-of-text
                token.
            top_k: number of tokens.
            tokenizer: a tokenizers.Tokenizer; by default that of `processing`.

        Returns:
            A list of keras_tx.generation.NextToken, most probable first, which prints as a table.

        Raises:
            ConfigError: if top_k is out of range, or the model has no head.
            InputError: if the prompt is not valid or longer than the context.

        Example:

        >>> import keras_tx
        >>> keras_tx.gpt("pico").next([5, 17, 99], top_k=3)[0].text is None
        True
        """
        from keras_tx.models.generation import generator_of

        return generator_of(self, tokenizer).next(prompt, top_k=top_k)

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """The shape of the key-value cache: layers, key-value heads per layer, and head size."""
        config = self.config
        size = getattr(config, "head_size", config.width // config.num_heads)
        return config.depth, getattr(config, "kv_heads", None) or config.num_heads, size

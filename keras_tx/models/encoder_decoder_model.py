"""EncoderDecoderModel: base class of the models that read one sequence and write another."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.heads import Head, Seq2SeqLMHead
from keras_tx.models.text_model import GenerativeModel
from keras_tx.processing import TextTransform

SEQ2SEQ_LM = Seq2SeqLMHead()


class EncoderDecoderModel(GenerativeModel):
    """Base class of the encoder-decoders.

    Its inputs are `input_ids` and `attention_mask` of the source, and `decoder_input_ids` and
    `decoder_attention_mask` of the target, whose first token is `config.start_id`. The config has
    `vocabulary_size`, `max_length`, `width`, `depth`, `num_heads`, `pad_id`, `start_id`, `stop_ids`,
    `logits_scale` and `logits_bias`, and optionally `decoder_depth` and `head_size`.
    """

    heads = (Seq2SeqLMHead,)
    required = (contract.INPUT_IDS, contract.DECODER_INPUT_IDS)

    @classmethod
    def default_head(cls) -> Head:
        return SEQ2SEQ_LM

    @classmethod
    def input_names(cls, config: Any) -> list[str]:
        return [
            contract.INPUT_IDS,
            contract.ATTENTION_MASK,
            contract.DECODER_INPUT_IDS,
            contract.DECODER_ATTENTION_MASK,
        ]

    def derive(self, inputs: dict[str, Any]) -> dict[str, Any]:
        super().derive(inputs)
        if contract.DECODER_ATTENTION_MASK not in inputs:
            # The first token is often the padding token, and padding behind the text is masked by causality.
            inputs[contract.DECODER_ATTENTION_MASK] = ops.ones_like(inputs[contract.DECODER_INPUT_IDS])
        return inputs

    def check(self, inputs: Any, batch: str | None = None) -> None:
        start, longest = (getattr(inputs, name, None) for name in ("start_id", "longest"))  # of the packers
        if isinstance(start, int) and start != self.start_id:
            raise ConfigError(
                f"The batches have start_id={start}, but model {self.name!r} has start_id={self.start_id}. "
                "Pass start_id=model.start_id to the function that returns the batches."
            )
        if isinstance(longest, int) and longest > self.config.max_length:
            raise ConfigError(
                f"The batches have a text of {longest} tokens, but model {self.name!r} has "
                f"max_length={self.config.max_length}. Pass model.processing as the transform of the batches."
            )
        super().check(inputs, batch)

    def encoder(self) -> keras.Model:
        """Returns the encoder as a model with the same layers and weights.

        Returns:
            A functional keras.Model with the inputs `input_ids` and `attention_mask`, both required, and the
            output {"last_hidden_state": (batch, source, width)}.

        Example:

        >>> import keras_tx, numpy as np
        >>> model = keras_tx.t5("tiny")
        >>> ids = np.array([[7, 8, 1]])
        >>> outputs = model.encoder()({"input_ids": ids, "attention_mask": np.ones_like(ids)})
        >>> tuple(outputs["last_hidden_state"].shape)
        (1, 3, 32)
        """
        assert self.encoded is not None
        inputs = {name: self.input[name] for name in (contract.INPUT_IDS, contract.ATTENTION_MASK)}
        source, name = self.encoded.source, contract.LAST_HIDDEN_STATE
        # The layer names the output of an exported graph.
        outputs = {name: keras.layers.Identity(dtype=source.dtype, name=name)(source)}
        return keras.Model(inputs, outputs, name=f"{self.name}_encoder")

    def decoder(self) -> keras.Model:
        """Returns the decoder as a model with the same layers and weights.

        Returns:
            A functional keras.Model with the inputs `encoder_hidden_states`, `attention_mask` of the source,
            `decoder_input_ids` and `decoder_attention_mask`, all required, and the output of this model.
        """
        assert self.encoded is not None
        source = self.encoded.source
        inputs = {
            contract.ENCODER_HIDDEN_STATES: keras.Input(
                source.shape[1:], dtype=source.dtype, name=contract.ENCODER_HIDDEN_STATES
            )
        }
        names = (contract.ATTENTION_MASK, contract.DECODER_INPUT_IDS, contract.DECODER_ATTENTION_MASK)
        for name in names:
            inputs[name] = keras.Input((None,), dtype="int32", name=name)
        part = keras.Function([source, *(self.input[name] for name in names)], self.output)
        decoder = keras.Model(inputs, part(list(inputs.values())), name=f"{self.name}_decoder")
        # Keras tracks the weights of layers, but not those of a Function.
        decoder.parts = [layer for layer in part.operations if isinstance(layer, keras.Layer)]
        return decoder

    def next(self, source: Any, target: Any = "", *, top_k: int = 10, tokenizer: Any = None) -> Any:
        """Returns the most probable next tokens of a target, as the exported folder's `next` does.

        Args:
            source: token ids or, if there is a tokenizer, text.
            target: the beginning of its target; ids without the start token.
            top_k: number of tokens.
            tokenizer: a tokenizers.Tokenizer; by default those of `processing`.

        Returns:
            A list of keras_tx.generation.NextToken, most probable first, which prints as a table.

        Raises:
            ConfigError: if top_k is out of range, or the model has no head.
            InputError: if the source or target is not valid or too long, or the source is empty.
        """
        from keras_tx.models.generation import generator_of

        generator: Any = generator_of(self, tokenizer)
        return generator.next(source, target, top_k=top_k)

    def special_ids(self, transform: TextTransform | None = None) -> dict[str, Any]:
        """Returns the ids of the start, EOS and padding tokens by their Hugging Face names.

        Args:
            transform: the tokenizer; by default the model's `processing`.

        Returns:
            A dict of ids, None for unknown ones; eos_token_id is a list if several ids end a text.

        Example:

        >>> import keras_tx
        >>> keras_tx.t5("tiny", stop_ids=[1]).special_ids()
        {'decoder_start_token_id': 0, 'eos_token_id': 1, 'pad_token_id': 0}
        """
        return {
            "decoder_start_token_id": self.start_id,
            "eos_token_id": self.eos_token_id(transform),
            "pad_token_id": self.config.pad_id,
        }

    @property
    def start_id(self) -> int:
        """The first token of every target."""
        return self.config.pad_id if self.config.start_id is None else self.config.start_id

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """The shape of the decoder's key-value cache: layers, heads per layer, and head size."""
        config = self.config
        size = getattr(config, "head_size", config.width // config.num_heads)
        return getattr(config, "decoder_depth", None) or config.depth, config.num_heads, size

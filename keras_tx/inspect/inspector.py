"""inspect and Inspector: attention weights, hidden states and tokens of a Keras model or a folder."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, InputError, nearest
from keras_tx.inspect.attention import (
    PatchGrid,
    class_token_map,
    entropy_in_nats,
    mean_attention_distance,
    reference_point_map,
    rollout,
)
from keras_tx.inspect.attribution import IntegratedGradients
from keras_tx.inspect.embeddings import (
    NearestTokens,
    nearest_tokens,
    position_similarity,
    principal_filters,
)
from keras_tx.inspect.explanations import (
    check_gradients,
    integrated_gradients_map,
    occlusion_map,
    relevance_map,
    rollout_map,
)
from keras_tx.inspect.folder import FolderReader
from keras_tx.inspect.html_page import attention_parts, check_page_path, write_attention_page
from keras_tx.inspect.inputs import InputAdapter
from keras_tx.inspect.keras_model import KerasModelReader
from keras_tx.runtime.folder import Folder

Layers = int | str | Sequence[int | str] | None

MAX_BYTES = 2**30  # of the arrays that a call of `attention` returns


class Reader(Protocol):
    """A model that computes attention weights and hidden states of tensors."""

    name: str
    adapter: InputAdapter
    parts: tuple[str, ...]

    def layer_names(self, part: str | None) -> list[str]: ...

    def attention_layers(
        self, tensors: dict[str, Any], indices: Sequence[int], part: str | None
    ) -> Iterator[np.ndarray]:
        """Yields the weights of layers, whose distinct indices are in the order of the model."""
        ...

    def hidden_states(self, tensors: dict[str, Any], part: str | None) -> list[np.ndarray]: ...

    def query_mask(self, tensors: dict[str, Any], part: str | None) -> np.ndarray | None: ...

    def outputs(self, tensors: dict[str, Any]) -> Any: ...

    def grid(self, tensors: dict[str, Any]) -> PatchGrid: ...

    def token_table(self) -> np.ndarray: ...

    def patch_size(self) -> tuple[int, int]: ...

    def patch_kernel(self, layer: str | None) -> np.ndarray: ...

    def position_table(self, layer: str | None) -> tuple[np.ndarray, tuple[int, ...], int]: ...


def inspect(model: Any, *, precision: str | None = None) -> Inspector:
    """Returns an Inspector of a Keras model or an exported folder.

    Args:
        model: a model of keras_tx, a functional Keras model with attention layers, the path of a folder that
            `export_onnx` wrote, or a model that `keras_tx.runtime.load` returned. A folder needs neither
            Keras nor another training package.
        precision: of a folder, such as "int8"; by default that of the loaded model, or fp32.

    Returns:
        An Inspector.

    Raises:
        ConfigError: if the model is of another type or has no attention layers.
        FolderError: if the folder is damaged, or its graph has no Attention nodes.

    Example:

    >>> import keras_tx, numpy as np
    >>> from keras_tx.inspect import inspect
    >>> inspector = inspect(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
    >>> image = np.zeros((8, 8, 3), "uint8")
    >>> inspector.attention(image)[0].shape
    (1, 2, 17, 17)
    >>> inspector.grid(image)
    PatchGrid(rows=4, columns=4, prefix=1, covered=(1.0, 1.0), registers=0)
    """
    folder = getattr(model, "folder", None)
    if isinstance(folder, Folder):  # of a loaded model
        model, precision = folder.path, precision or folder.precision
    if isinstance(model, str | os.PathLike):
        return Inspector(FolderReader(model, precision))
    if precision is not None:
        raise ConfigError(f"precision={precision!r} is for folders. Omit it for a Keras model.")
    return Inspector(KerasModelReader(model))


class Inspector:
    """Attention weights, hidden states and tokens; `inspect` creates it.

    Inputs are images (a path, a Pillow image, an array, or a list of these), texts (one or a list), or a dict
    of the tensors that the Keras model or the graph of the folder accepts. Results always have a batch axis.
    At padding, rows of attention weights and hidden states are 0.

    An encoder-decoder has the parts "encoder", "decoder" and "cross" (from the decoder to the encoder), of
    which the last two require `targets`.

    Attributes:
        reader: computes the arrays, with Keras or onnxruntime.
        name: name of the model, or path of the folder.
        kind: the kind of inputs: "image", "text" or "arrays".
        parts: the parts of an encoder-decoder; empty for other models.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.name = reader.name
        self.kind = reader.adapter.kind
        self.parts = reader.parts

    def __repr__(self) -> str:
        return f"<Inspector of {self.name!r}>"

    def layer_names(self, part: str | None = None) -> list[str]:
        """Returns the names of the layers with attention, in the order of the model.

        Args:
            part: of an encoder-decoder.
        """
        return self.reader.layer_names(self._part(part))

    def layer_indices(self, layers: Layers, part: str | None = None) -> list[int]:
        """Returns the indices of layers in `layer_names`.

        Args:
            layers: one index or name, or a list of them; None for all. Negative indices count from the end.
            part: of an encoder-decoder.

        Raises:
            ConfigError: if a layer does not exist.
        """
        names = self.layer_names(part)
        if layers is None:
            return list(range(len(names)))
        selected = list(layers) if isinstance(layers, Sequence) and not isinstance(layers, str) else [layers]
        return [_index(layer, names, self.name) for layer in selected]

    def attention(
        self, inputs: Any, *, targets: Any = None, layers: Layers = None, part: str | None = None
    ) -> list[np.ndarray]:
        """Returns the attention weights of each layer: float32 (batch, heads, queries, keys).

        Args:
            inputs: images, texts, or a dict of tensors.
            targets: of an encoder-decoder: the target texts, or their token ids.
            layers: indices or names of layers; by default all.
            part: of an encoder-decoder: "encoder", "decoder" or "cross".

        Returns:
            A list with one array per layer. The weights of a query sum to 1, and are 0 for masked keys.

        Raises:
            ConfigError: if a layer or part does not exist.
            InputError: if the inputs are of another kind than those of the model, or if the result would
                exceed 1 GiB; `attention_layers` computes one layer at a time.
        """
        indices = self.layer_indices(layers, part)
        results: list[np.ndarray] = []
        for weights in self._attention_layers(inputs, targets, indices, part):
            results.append(weights)
            if len(results) == 1 and weights.nbytes * len(indices) > MAX_BYTES:
                raise InputError(
                    f"The attention weights {weights.shape} of {len(indices)} layers have "
                    f"{weights.nbytes * len(indices) / 2**30:.1f} GiB, expected at most 1. Pass layers= or "
                    "fewer inputs, or iterate over attention_layers."
                )
        return results

    def attention_layers(
        self, inputs: Any, *, targets: Any = None, layers: Layers = None, part: str | None = None
    ) -> Iterator[np.ndarray]:
        """Yields the arrays of `attention` one at a time, with the memory of a few layers.

        Args:
            inputs, targets, layers, part: as for `attention`.

        Raises:
            ConfigError, InputError: as `attention`, except for the size.
        """
        return self._attention_layers(inputs, targets, self.layer_indices(layers, part), part)

    def _attention_layers(
        self, inputs: Any, targets: Any, indices: list[int], part: str | None
    ) -> Iterator[np.ndarray]:
        part = self._part(part)
        tensors = self._tensors(inputs, targets, part)
        layers = self.reader.attention_layers(tensors, sorted(set(indices)), part)
        queries = self.reader.query_mask(tensors, part)
        if queries is not None and not queries.all():
            layers = (weights * queries[:, None, :, None] for weights in layers)
        return _in_order(indices, layers)

    def hidden_states(
        self, inputs: Any, *, targets: Any = None, layers: Layers = None, part: str | None = None
    ) -> list[np.ndarray]:
        """Returns the hidden states: float32 (batch, tokens, width).

        As in transformers, the first are the embeddings, followed by the output of each layer; in GPT and T5
        the last are after the final norm.

        Args:
            inputs: images, texts, or a dict of tensors.
            targets: of an encoder-decoder: the target texts, or their token ids.
            layers: indices or names of layers, whose outputs are returned, without the embeddings; by
                default the embeddings and all layers.
            part: of an encoder-decoder: "encoder" or "decoder".

        Raises:
            ConfigError: if a layer or part does not exist, or the model has no transformer blocks.
            InputError: if the inputs are of another kind than those of the model.
        """
        if part == "cross":
            raise ConfigError("part='cross' has no hidden states. Pass part='encoder' or part='decoder'.")
        indices = None if layers is None else self.layer_indices(layers, part)
        part = self._part(part)
        tensors = self._tensors(inputs, targets, part)
        states = self.reader.hidden_states(tensors, part)
        mask = self.reader.query_mask(tensors, part)
        if mask is not None and not mask.all():
            states = [state * mask[:, :, None] for state in states]
        return states if indices is None else [states[index + 1] for index in indices]

    def class_token_maps(self, images: Any, *, layers: Layers = -1) -> list[np.ndarray]:
        """Returns the weights of the class token for the patches, of each layer.

        Args:
            images: images, or a dict of tensors.
            layers: indices or names of layers; by default the last one, as in DINO's figures.

        Returns:
            A list with one array (batch, heads, rows, columns) per layer.

        Raises:
            ConfigError: if a layer does not exist, or the model has no class token.
            InputError: if the model does not accept images.
        """
        grid = self.grid(images)
        layers_of_weights = self.attention_layers(images, layers=layers)
        return [class_token_map(weights, grid).copy() for weights in layers_of_weights]  # frees the weights

    def reference_point_maps(
        self, images: Any, points: Sequence[tuple[int, int]], *, layers: Layers = -1
    ) -> list[np.ndarray]:
        """Returns the weights of chosen patches for all patches, of each layer.

        Args:
            images: images, or a dict of tensors.
            points: (row, column) of each chosen patch, from 0.
            layers: indices or names of layers; by default the last one.

        Returns:
            A list with one array (batch, heads, points, rows, columns) per layer.

        Raises:
            ConfigError: if a layer does not exist, or a point is outside of the grid.
            InputError: if the model does not accept images.
        """
        grid = self.grid(images)
        layers_of_weights = self.attention_layers(images, layers=layers)
        return [reference_point_map(weights, grid, points).copy() for weights in layers_of_weights]

    def rollout(
        self, inputs: Any, *, targets: Any = None, residual: bool = True, part: str | None = None
    ) -> np.ndarray:
        """Returns the attention rollout of all layers: float32 (batch, tokens, tokens).

        Args:
            inputs: images, texts, or a dict of tensors.
            targets: of an encoder-decoder: the target texts, or their token ids.
            residual: whether the residual connection is added; see `keras_tx.inspect.rollout`.
            part: of an encoder-decoder: "encoder" or "decoder".

        Raises:
            ConfigError: if the part does not exist, or the queries and keys are of different sequences.
            InputError: if the inputs are of another kind than those of the model.
        """
        if part == "cross":
            raise ConfigError("part='cross' has no rollout. Pass part='encoder' or part='decoder'.")
        return rollout(self.attention_layers(inputs, targets=targets, part=part), residual=residual)

    def attention_distances(self, images: Any, *, layers: Layers = None) -> np.ndarray:
        """Returns the mean attention distance of each head in pixels: (layers, heads).

        Args:
            images: images, or a dict of tensors.
            layers: indices or names of layers; by default all.

        Raises:
            ConfigError: if a layer does not exist.
            InputError: if the model does not accept images.
        """
        rows, columns, prefix = self.grid(images)[:3]
        patch_size = self.reader.patch_size()
        return np.stack(
            [
                mean_attention_distance(weights, (rows, columns), patch_size, prefix)
                for weights in self.attention_layers(images, layers=layers)
            ]
        )

    def attention_entropies(
        self, inputs: Any, *, targets: Any = None, layers: Layers = None, part: str | None = None
    ) -> np.ndarray:
        """Returns the entropy of the attention weights of each head in nats: (layers, heads).

        Args:
            inputs, targets, layers, part: as for `attention`.

        Raises:
            ConfigError, InputError: as `attention`, except for the size.
        """
        weights = self.attention_layers(inputs, targets=targets, layers=layers, part=part)
        return np.stack([entropy_in_nats(layer) for layer in weights])

    def principal_filters(
        self, count: int = 28, *, layer: str | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the principal components of the patch embedding; see `keras_tx.inspect.principal_filters`.

        Args:
            count: largest number of components.
            layer: the name of the PatchEmbedding; by default the only one, of a folder "patch_embedding".

        Returns:
            The components (count, height, width, channels), and the share of the variance of each.

        Raises:
            ConfigError, FolderError: if the model or graph has no such layer.
        """
        return principal_filters(self.reader.patch_kernel(layer), count)

    def position_similarity(self, *, layer: str | None = None) -> np.ndarray:
        """Returns the cosine similarity of the positional embeddings, without prefix tokens.

        Args:
            layer: the name of the PositionalEmbedding; by default the only one, of a folder "positions".

        Returns:
            An array (rows, columns, rows, columns) for images, (length, length) for texts.

        Raises:
            ConfigError, FolderError: if the model or graph has no such layer.
        """
        return position_similarity(*self.reader.position_table(layer))

    def tokens(self, inputs: Any, *, targets: Any = None, part: str | None = None) -> list[list[str]]:
        """Returns the tokens of each text as strings, padding included; without tokenizer, the ids.

        Args:
            inputs: texts, or a dict of tensors.
            targets: of an encoder-decoder, with part="decoder".
            part: of an encoder-decoder: "encoder" (the default) or "decoder".

        Raises:
            InputError: if the model does not accept texts.
        """
        return self.tokens_and_mask(inputs, targets=targets, part=part)[0]

    def tokens_and_mask(
        self, inputs: Any, *, targets: Any = None, part: str | None = None
    ) -> tuple[list[list[str]], np.ndarray]:
        """Returns `tokens`, and an array (batch, tokens) that is False for padding; see `tokens`."""
        part = part or ("encoder" if self.parts else None)
        tensors = self._tensors(inputs, targets, self._part(part))
        tokens = self.reader.adapter.tokens(tensors, part)
        mask = self.reader.query_mask(tensors, part)
        return tokens, np.ones((len(tokens), len(tokens[0])), "bool") if mask is None else mask

    def page(
        self,
        inputs: Any,
        path: str | os.PathLike[str],
        *,
        targets: Any = None,
        layers: Layers = None,
        title: str | None = None,
    ) -> Path:
        """Writes an interactive HTML page of the attention of a text: what each token attends to.

        The page has all layers and heads, is one file and needs no network.

        Args:
            inputs: a text, or a dict of tensors with one row.
            path: of the file, which ends in .html.
            targets: of an encoder-decoder: the target. The page has its three parts.
            layers: indices or names of layers; by default all.
            title: of the page; by default the text.

        Returns:
            The path.

        Raises:
            ConfigError: if a layer does not exist, or the file cannot be written.
            InputError: if there are several texts, the model is not for texts, or the attention has more than
                40 million weights.
        """
        check_page_path(path)
        if title is None:
            title = inputs if isinstance(inputs, str) else "Attention"
        parts = attention_parts(self, inputs, targets=targets, layers=layers)
        return write_attention_page(parts, path, title=title)

    def nearest_tokens(self, token: Any, *, top_k: int = 10) -> NearestTokens:
        """Returns the tokens whose embeddings have the largest cosine similarity to that of a token.

        Args:
            token: a token, its id, or a vector (width,). A token is not in its own list.
            top_k: number of tokens.

        Returns:
            A list of NearestToken (`id`, `text`, `similarity`), most similar first, which prints as a table.

        Raises:
            ConfigError: if the model has no token embedding that can be read, or top_k is out of range.
            InputError: if the token is not in the vocabulary, or the vector is not valid.

        Example:

        >>> inspect("sentences").nearest_tokens("tired", top_k=3)  # doctest: +SKIP
        """
        adapter = self.reader.adapter
        if adapter.kind != "text":
            raise ConfigError(f"{self.name!r} does not accept texts, so it has no token embedding.")
        return nearest_tokens(
            self.reader.token_table(), token, adapter.token_texts(), adapter.token_id, top_k
        )

    def grid(self, inputs: Any) -> PatchGrid:
        """Returns the rows and columns of patches, and the number of tokens before them.

        Args:
            inputs: images, or a dict of tensors.

        Raises:
            InputError: if the model does not accept images.
        """
        if self.kind == "text":
            raise InputError(f"{self.name!r} is a text model, which has no patches. Call tokens(inputs).")
        return self.reader.grid(self._tensors(inputs, None, None))

    def relevance(
        self,
        inputs: Any,
        *,
        target: Any = None,
        position: Any = None,
        output: str | None = None,
        targets: Any = None,
        part: str | None = None,
    ) -> np.ndarray:
        """Returns the relevance of patches or tokens for a decision, by attention and its gradients.

        The rules are those of Chefer et al. (2021): `self_attention_relevance`, and for encoder-decoders
        `encoder_decoder_relevance`. The result is that of the tokens from which the score is computed: the
        class token, or the mean over the tokens that are averaged.

        Args:
            inputs: images, texts, or a dict of tensors.
            target: index of the explained class or token, or one for each example; by default the one with
                the highest score.
            position: of an output for each token, the explained position; by default the last one that is
                not padding.
            output: name of the explained output; by default the only one, or "logits".
            targets: of an encoder-decoder: the target texts, or their token ids.
            part: of an encoder-decoder: "encoder" for the source, "decoder" for the target.

        Returns:
            An array (batch, rows, columns) for images, (batch, tokens) for texts; 0 or more.

        Raises:
            ConfigError: for a folder, which has no gradients, or an unknown target, position or output.
            InputError: if the inputs are of another kind than those of the model.

        Example:

        >>> import keras_tx, numpy as np
        >>> from keras_tx.inspect import inspect
        >>> inspector = inspect(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
        >>> inspector.relevance(np.zeros((8, 8, 3), "uint8"), target=2).shape
        (1, 4, 4)
        """
        check_gradients(self.reader, "relevance")
        tensors = self._explained(inputs, targets, part)
        return relevance_map(self.reader, tensors, part, target=target, position=position, output=output)

    def gradient_rollout(
        self, inputs: Any, *, target: Any = None, position: Any = None, output: str | None = None
    ) -> np.ndarray:
        """Returns gradient-weighted rollout for a decision; see `keras_tx.inspect.gradient_rollout`.

        Args:
            inputs: images, texts, or a dict of tensors.
            target, position, output: as for `relevance`.

        Returns:
            An array (batch, rows, columns) for images, (batch, tokens) for texts; 0 or more.

        Raises:
            ConfigError: for a folder or an encoder-decoder, or an unknown target, position or output.
            InputError: if the inputs are of another kind than those of the model.
        """
        check_gradients(self.reader, "gradient_rollout")
        tensors = self.reader.adapter.tensors(inputs)
        return rollout_map(self.reader, tensors, target=target, position=position, output=output)

    def integrated_gradients(
        self,
        inputs: Any,
        *,
        target: Any = None,
        position: Any = None,
        output: str | None = None,
        targets: Any = None,
        part: str | None = None,
        baseline: Any = 0.0,
        steps: int = 50,
        batch_size: int = 4,
        progress: bool = False,
    ) -> IntegratedGradients:
        """Returns integrated gradients of a decision, for each pixel or token.

        Args:
            inputs: images, texts, or a dict of tensors.
            target, position, output, targets, part: as for `relevance`.
            baseline: the input, or token embedding, without information: a number or an array, or for texts
                a token, whose embedding it is. For images, 0 is the mean of `processing`, mostly gray. For
                Llama and T5, pass a token such as that of padding; see the function of this name.
            steps: number of points between baseline and input.
            batch_size: number of points that the model computes at once; a ViT-B/16 needs 0.5 GB for each.
            progress: whether to show a progress bar.

        Returns:
            An IntegratedGradients, whose `values` are (batch, height, width) for images and (batch, tokens)
            for texts. Their sum is the score minus that of the baseline, up to `error`.

        Raises:
            ConfigError: for a folder, which has no gradients, or an unknown target, position or output.
            InputError: if the inputs are of another kind than those of the model.
        """
        check_gradients(self.reader, "integrated_gradients")
        return integrated_gradients_map(
            self.reader,
            self._explained(inputs, targets, part),
            part,
            target=target,
            position=position,
            output=output,
            baseline=baseline,
            steps=steps,
            batch_size=batch_size,
            progress=progress,
        )

    def occlusion(
        self,
        inputs: Any,
        *,
        target: Any = None,
        position: Any = None,
        output: str | None = None,
        targets: Any = None,
        part: str | None = None,
        window: Any = None,
        stride: Any = None,
        baseline: Any = None,
        batch_size: int = 32,
        progress: bool = False,
    ) -> np.ndarray:
        """Returns the decrease of the score if a part of the input is occluded; also supports folders.

        Args:
            inputs: images, texts, or a dict of tensors.
            target, position, output, targets, part: as for `relevance`.
            window: size of the window, such as (16, 16); by default that of a patch, and 1 token.
            stride: distance between windows; by default `window`.
            baseline: the value in the window. By default 0 for images, which is mostly gray, or black for a
                folder that accepts raw pixels, and for texts the mask token, or the padding token if the
                tokenizer has no mask token.
            batch_size: number of occluded inputs that the model computes at once.
            progress: whether to show a progress bar.

        Returns:
            An array (batch, height, width) for images, (batch, tokens) for texts.

        Raises:
            ConfigError: for a window that does not fit, or an unknown target, position or output.
            InputError: if the inputs are of another kind than those of the model.
        """
        return occlusion_map(
            self.reader,
            self._explained(inputs, targets, part),
            part,
            window,
            baseline,
            target=target,
            position=position,
            output=output,
            stride=stride,
            batch_size=batch_size,
            progress=progress,
        )

    def _explained(self, inputs: Any, targets: Any, part: str | None) -> dict[str, Any]:
        """The tensors of a decision, for which an encoder-decoder needs source and target."""
        if self.parts and part not in ("encoder", "decoder"):
            raise ConfigError(
                f"part is {part!r}, but {self.name!r} is an encoder-decoder. Pass part='encoder' to explain "
                "a decision by the source, or part='decoder' by the target."
            )
        return self._tensors(inputs, targets, "decoder" if self._part(part) else None)

    def _part(self, part: str | None) -> str | None:
        known = ", ".join(map(repr, self.parts))
        if part is None and self.parts:
            raise ConfigError(f"part is None, but {self.name!r} has the parts {known}. Pass one of them.")
        if part is not None and part not in self.parts:
            if not self.parts:
                raise ConfigError(f"part={part!r} is for encoder-decoders. Omit it for {self.name!r}.")
            raise ConfigError(f"part={part!r} is unknown. {self.name!r} has the parts {known}.")
        return part

    def _tensors(self, inputs: Any, targets: Any, part: str | None) -> dict[str, Any]:
        adapter = self.reader.adapter
        if part in ("decoder", "cross"):
            if targets is None and not isinstance(inputs, dict):
                raise InputError(f"part={part!r} requires targets=, the texts that the decoder reads.")
        elif targets is not None and not self.parts:
            raise InputError(f"targets= is for encoder-decoders. Omit it for {self.name!r}.")
        tensors = adapter.tensors(inputs, None if part == "encoder" else targets)
        if part in ("decoder", "cross") and contract.DECODER_INPUT_IDS not in tensors:
            raise InputError(
                f"part={part!r} requires {contract.DECODER_INPUT_IDS!r} or targets=, but the inputs are "
                f"{sorted(tensors)}."
            )
        return tensors


def _index(layer: object, names: Sequence[str], model: str) -> int:
    if isinstance(layer, str):
        if layer not in names:
            raise ConfigError(f"Model {model!r} has no layer {layer!r}. {nearest(layer, names)}")
        indices = [index for index, name in enumerate(names) if name == layer]
        if len(indices) > 1:
            raise ConfigError(
                f"Model {model!r} calls the layer {layer!r} several times. Pass one of {indices}."
            )
        return indices[0]
    try:
        index = operator.index(layer)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"layers has {layer!r}, expected indices or names of layers.") from None
    if not -len(names) <= index < len(names):
        raise ConfigError(
            f"layers has {index}, but model {model!r} has {len(names)} layers with attention (0 to "
            f"{len(names) - 1})."
        )
    return index % len(names)


def _in_order(indices: Sequence[int], arrays: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Yields arrays, computed by increasing index, in the order of `indices`; later ones are not computed."""
    computed = zip(sorted(set(indices)), arrays, strict=True)
    pending = list(indices)
    waiting: dict[int, np.ndarray] = {}
    while pending:
        while pending[0] not in waiting:
            index, waiting[index] = next(computed)
        index = pending.pop(0)
        yield waiting[index] if index in pending else waiting.pop(index)

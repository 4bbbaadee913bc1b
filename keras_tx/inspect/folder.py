"""FolderReader: attention weights and hidden states of an exported folder, with onnxruntime on the CPU."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, FolderError, InputError
from keras_tx.inspect.attention import PatchGrid
from keras_tx.inspect.graph_outputs import AttentionNode, GraphOutputs
from keras_tx.inspect.inputs import InputAdapter, Tensors
from keras_tx.processing import ImageTransform, TextTransform
from keras_tx.runtime.folder import Folder, check_unchanged, open_folder
from keras_tx.runtime.session import Session

RUN_BYTES = 2**28  # of the attention weights that one run of a graph computes
TOKEN_VECTORS = "token_embedding/Gather"  # the exporter's name of the output of a TokenEmbedding
PAST_PREFIX = "past_key_values."
PRESENT_PREFIX = "present."


class FolderReader:
    """Computes the arrays of an Inspector with onnxruntime.

    The graphs are opened with other outputs, in memory: the files of the folder are not changed.
    """

    def __init__(self, path: str | os.PathLike[str], precision: str | None = None) -> None:
        self.folder = folder = open_folder(path, precision)
        self.name = str(folder.path)
        self._decoder = InspectedGraph(folder, folder.graph, folder.inputs)
        self.parts: tuple[str, ...] = ()
        self._tokens: int | None = None  # of an image
        self._encoder: InspectedGraph | None = None
        if folder.encoder is not None and folder.manifest.encoder is not None:
            self._encoder = InspectedGraph(folder, folder.encoder, folder.manifest.encoder.inputs)
            self.parts = ("encoder", "decoder", "cross")
        if not self._decoder.outputs.attention:
            raise FolderError(
                f"{folder.path}: the graph has no Attention nodes (opset {folder.manifest.opset}). Export a "
                "model with attention layers again with opset=23 or higher, or inspect the Keras model."
            )
        self.adapter = InputAdapter(
            self.name,
            tuple(spec.name for spec in (self._encoder or self._decoder).inputs),
            folder.transform if folder.transform is not None else _text_transform(folder),
            self._image_tensor,
            (folder.generation or {}).get("decoder_start_token_id"),
        )

    def layer_names(self, part: str | None) -> list[str]:
        # Of a graph without parts, a block can have both.
        return [one.path if one.is_cross and part is None else one.layer for one in self._attention(part)]

    def attention_layers(
        self, tensors: Tensors, indices: Sequence[int], part: str | None
    ) -> Iterator[np.ndarray]:
        nodes = self._attention(part)
        graph, feed = self._graph(part), self._feed(tensors, part)
        is_family = self.adapter.kind != "arrays" and part != "cross"
        for weights in graph.attention(feed, [nodes[index] for index in indices]):
            if is_family and weights.shape[2] != weights.shape[3]:
                raise FolderError(
                    f"{self.name}: attention weights have the shape {weights.shape}, so the graph "
                    "computes only some of the queries. Inspect the Keras model instead."
                )
            yield weights

    def hidden_states(self, tensors: Tensors, part: str | None) -> list[np.ndarray]:
        graph = self._graph(part)
        names = graph.outputs.hidden_states(final_norm=self.adapter.kind == "text")
        if names is None:
            raise ConfigError(
                f"{self.name!r} has no transformer blocks of keras_tx, so its hidden states are not defined. "
                "Create a keras.Model with the outputs of its layers instead."
            )
        mask = self.query_mask(tensors, part)
        states = graph.values(self._feed(tensors, part), names)
        return [state if state.ndim == 3 or mask is None else _with_padding(state, mask) for state in states]

    def outputs(self, tensors: Tensors) -> dict[str, np.ndarray]:
        names = [spec.name for spec in self.folder.outputs if not spec.name.startswith(PRESENT_PREFIX)]
        feed = self._feed(tensors, "decoder" if self.parts else None)
        return dict(zip(names, self._decoder.values(feed, names), strict=True))

    def grid(self, tensors: Tensors) -> PatchGrid:
        rows, columns = self._patches()
        tokens = self._tokens
        if tokens is None:  # the same for all images, which the transform resizes
            first = {name: value[:1] for name, value in tensors.items()}
            tokens = self._tokens = next(self.attention_layers(first, [0], None)).shape[-1]
        (height, width), transform = self.patch_size(), self.adapter.transform
        assert isinstance(transform, ImageTransform)
        covered = rows * height / transform.height, columns * width / transform.width
        tables = self._decoder.constants("registers")
        registers = next((table.shape[-2] for table in tables if table.ndim in (2, 3)), 0)
        return PatchGrid(rows, columns, tokens - rows * columns, covered, registers)

    def _patches(self) -> tuple[int, int]:
        """The rows and columns of patches."""
        height, width = self.patch_size()
        transform = self.adapter.transform
        assert isinstance(transform, ImageTransform)
        return transform.height // height, transform.width // width

    def patch_size(self) -> tuple[int, int]:
        patch = (self.folder.config or {}).get("patch_size")
        if not isinstance(self.adapter.transform, ImageTransform) or patch is None:
            raise InputError(f"{self.name!r} has no patch_size in {contract.CONFIG}, so it has no grid.")
        height, width = patch if isinstance(patch, list) else (patch, patch)
        return height, width

    def patch_kernel(self, layer: str | None) -> np.ndarray:
        layer = layer or "patch_embedding"
        kernel = next((x for x in self._decoder.constants(layer) if x.ndim == 4), None)
        if kernel is None:
            raise FolderError(
                f"{self.name} has no kernel of the layer {layer!r} in its graph. Pass layer=, the name of "
                "the PatchEmbedding, or inspect the Keras model."
            )
        return kernel.transpose(2, 3, 1, 0)

    def position_table(self, layer: str | None) -> tuple[np.ndarray, tuple[int, ...], int]:
        layer = layer or "positions"
        graphs = [graph for graph in (self._decoder, self._encoder) if graph is not None]
        constants = [x for graph in graphs for x in graph.constants(layer)]
        table = next((x.reshape(-1, x.shape[-1]) for x in constants if x.ndim in (2, 3)), None)
        if table is None:
            raise FolderError(
                f"{self.name} has no table of the layer {layer!r} in its graph. Pass layer=, the name of the "
                "PositionalEmbedding, or inspect the Keras model."
            )
        if self.adapter.kind != "image":
            config = self.folder.config or {}  # of RoBERTa, whose first rows are of padding
            before = config["pad_token_id"] + 1 if config.get("model_type") == "roberta" else 0
            return table, (len(table) - before,), before
        grid = self._patches()
        return table, grid, len(table) - math.prod(grid)

    def token_table(self) -> np.ndarray:
        graph, count = self._encoder or self._decoder, (self.folder.config or {}).get("vocab_size")
        if count is None or not any(TOKEN_VECTORS in node.outputs for node in graph.outputs.graph.nodes):
            raise FolderError(
                f"{self.name} has no vocab_size in {contract.CONFIG}, or no layer 'token_embedding' in its "
                "graph, so its token embeddings are not known. Inspect the Keras model."
            )
        ids = np.arange(count)[None]  # the vectors of all tokens, also of a quantized table
        feed = self._text_feed({contract.INPUT_IDS: ids, contract.ATTENTION_MASK: np.ones_like(ids)})
        (vectors,) = graph.values(feed, [TOKEN_VECTORS])
        return vectors.reshape(count, -1)

    def query_mask(self, tensors: Tensors, part: str | None) -> np.ndarray | None:
        if self.adapter.kind != "text":
            return None
        if part in ("decoder", "cross"):
            mask = tensors.get(contract.DECODER_ATTENTION_MASK)
            return None if mask is None else np.asarray(mask) != 0
        return self._text_feed(tensors)[contract.ATTENTION_MASK] != 0

    def _attention(self, part: str | None) -> list[AttentionNode]:
        every = self._graph(part).outputs.attention
        return [one for one in every if part is None or one.is_cross == (part == "cross")]

    def _graph(self, part: str | None) -> InspectedGraph:
        return self._encoder if part == "encoder" and self._encoder is not None else self._decoder

    def _image_tensor(self, images: Any) -> np.ndarray:
        transform = self.folder.transform
        assert transform is not None
        if self._decoder.inputs[0].name == contract.PIXELS:
            return transform.resize(images)
        return np.ascontiguousarray(transform(images).transpose(0, 3, 1, 2))

    def _feed(self, tensors: Tensors, part: str | None) -> Tensors:
        """The inputs of the graph of a part."""
        if self.adapter.kind != "text":
            return tensors
        if part in ("decoder", "cross"):
            return self._decoder_feed(tensors)
        return self._text_feed(tensors)

    def _text_feed(self, tensors: Tensors) -> Tensors:
        """The inputs of a graph of texts; those that are missing are derived from the token ids."""
        known = {spec.name for spec in (self._encoder or self._decoder).inputs}
        ids = np.asarray(tensors[contract.INPUT_IDS]) if contract.INPUT_IDS in tensors else None
        if ids is None:
            raise InputError(f"{self.name!r} requires {contract.INPUT_IDS!r}, got {sorted(tensors)}.")
        self._check_ids(contract.INPUT_IDS, ids)
        feed = {name: np.asarray(value) for name, value in tensors.items() if "decoder_" not in name}
        pad_id = (self.folder.config or {}).get("pad_token_id")
        padding = np.zeros(ids.shape, bool) if pad_id is None else ids == pad_id
        feed.setdefault(contract.ATTENTION_MASK, (~padding).astype("int64"))
        positions = np.maximum(feed[contract.ATTENTION_MASK].cumsum(1) - 1, 0)
        if contract.POSITION_IDS in known:
            feed.setdefault(contract.POSITION_IDS, positions)
        if contract.TOKEN_TYPE_IDS in known:
            feed.setdefault(contract.TOKEN_TYPE_IDS, np.zeros_like(ids))
        elif not np.any(feed.get(contract.TOKEN_TYPE_IDS, 0)):
            feed.pop(contract.TOKEN_TYPE_IDS, None)  # RoBERTa's tokenizers return zeros
        return feed | (self._decoder.empty_past(len(ids)) if self._encoder is None else {})

    def _check_ids(self, name: str, ids: np.ndarray) -> None:
        """Raises an InputError for ids out of range: ONNX counts negative ones from the end of the table."""
        count = (self.folder.config or {}).get("vocab_size", np.inf)
        wrong = ids[(ids < 0) | (ids >= count)]
        if wrong.size:
            raise InputError(f"{name} has {wrong.flat[0]}, but {self.name!r} accepts 0 to {count - 1}.")

    def _decoder_feed(self, tensors: Tensors) -> Tensors:
        """The inputs of the decoder, after the encoder has run."""
        assert self._encoder is not None
        source = self._text_feed(tensors)
        (hidden,) = self._encoder.values(source, [contract.LAST_HIDDEN_STATE])
        ids = np.asarray(tensors[contract.DECODER_INPUT_IDS])
        self._check_ids(contract.DECODER_INPUT_IDS, ids)
        if len(ids) != len(hidden):
            raise InputError(f"There are {len(hidden)} inputs, but {len(ids)} targets.")
        return {
            contract.INPUT_IDS: ids,
            contract.ENCODER_HIDDEN_STATES: hidden,
            contract.ENCODER_ATTENTION_MASK: source[contract.ATTENTION_MASK],
            contract.USE_CACHE_BRANCH: np.array([False]),
            **self._decoder.empty_past(len(ids)),
        }


class InspectedGraph:
    """A graph of a folder, opened with the outputs of a run.

    Args:
        folder: the folder.
        path: of the graph.
        inputs: of the graph, by the manifest.

    Attributes:
        outputs: the Attention nodes and values of the graph.
    """

    def __init__(self, folder: Folder, path: Path, inputs: Sequence[contract.TensorSpec]) -> None:
        self.folder = folder
        self.path = path
        self.inputs = inputs
        try:
            self.outputs = GraphOutputs(path.read_bytes(), folder.manifest.tiers)
        except (OSError, ValueError) as error:
            if isinstance(error, FolderError):
                raise
            raise FolderError(f"{path} cannot be read ({error}). Copy or export it again.") from error
        check_unchanged(folder)
        self._session: tuple[Any, Session] | None = None
        self._sizes: dict[Any, int] = {}  # bytes of the attention weights of a layer, by shapes of inputs

    def attention(self, feed: Tensors, nodes: Sequence[AttentionNode]) -> Iterator[np.ndarray]:
        """Yields the attention weights of nodes: of small inputs in one run, else layer by layer.

        Args:
            feed: the inputs.
            nodes: some of `outputs.attention`, in this order.
        """
        shapes = tuple(np.shape(value) for value in feed.values())
        if self._sizes.get(shapes, RUN_BYTES + 1) * len(nodes) > RUN_BYTES:
            yield from self._layers(feed, shapes, nodes)
            return
        names = tuple(one.weights for one in nodes)
        arrays = self._run(feed, names, lambda: self.outputs.write(nodes))
        for name in names:
            yield arrays[name].astype(np.float32, copy=False)

    def _layers(self, feed: Tensors, shapes: Any, nodes: Sequence[AttentionNode]) -> Iterator[np.ndarray]:
        """Yields the attention weights of nodes; only a segment of the graph is in memory."""
        known: Tensors = {}
        for segment in self.outputs.segments(nodes):
            name = segment.attention.weights
            content = self.outputs.write_segment(segment, known)
            arrays = self._run({**feed, **known}, None, lambda content=content: content)
            known = {key: value for key, value in (known | arrays).items() if key in segment.later}
            self._sizes[shapes] = 4 * arrays[name].size
            yield arrays.pop(name).astype(np.float32, copy=False)

    def values(self, feed: Tensors, names: Sequence[str]) -> list[np.ndarray]:
        """Returns values of the graph as float32."""
        arrays = self._run(feed, tuple(names), lambda: self.outputs.write(values=names))
        return [arrays[name].astype(np.float32, copy=False) for name in names]

    def constants(self, layer: str) -> Iterator[np.ndarray]:
        """Yields the constants of a layer as float32."""
        for name in self.outputs.constants_of(layer):
            arrays = self._run({}, ("constant", name), lambda name=name: self.outputs.write_constant(name))
            yield arrays[name].astype(np.float32, copy=False)

    def empty_past(self, rows: int) -> Tensors:
        """Returns the inputs for keys and values of earlier tokens, without tokens."""
        specs = [spec for spec in self.inputs if spec.name.startswith(PAST_PREFIX)]
        sizes = {contract.HEAD_AXIS: self._head_size()}
        return {
            spec.name: np.zeros(
                [rows, *(axis if isinstance(axis, int) else sizes.get(axis, 0) for axis in spec.shape[1:])],
                spec.dtype,
            )
            for spec in specs
        }

    def _head_size(self) -> int:
        """The size of a head, which the inputs may declare as dynamic."""
        sizes = [spec.shape[-1] for spec in self.folder.outputs if spec.name.startswith(PRESENT_PREFIX)]
        return next((size for size in sizes if isinstance(size, int)), 0)

    def _run(
        self, feed: Tensors, key: tuple[str, ...] | None, content: Callable[[], bytes]
    ) -> dict[str, np.ndarray]:
        """The outputs of the graph; the session remains for the same outputs, unless `key` is None."""
        if self._session is None or self._session[0] != key:
            self._session = None  # frees its memory first
            try:
                session = Session(self.path, "cpu", content=content())
            finally:
                check_unchanged(self.folder)
            if key is None:
                return session.run(feed)
            self._session = key, session
        return self._session[1].run(feed)


def _text_transform(folder: Folder) -> TextTransform | None:
    if folder.tokenizer is None:
        return None
    try:
        return TextTransform.load(folder.path)
    except ConfigError as error:
        raise FolderError(str(error)) from error


def _with_padding(packed: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(tokens, width) of an unpadded graph, which also computes each row's first token -> (b, s, width)."""
    computed = mask.copy()
    computed[:, 0] = True
    padded = np.zeros((*mask.shape, packed.shape[-1]), packed.dtype)
    padded[computed] = packed
    return padded

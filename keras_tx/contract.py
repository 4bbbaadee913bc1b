"""The format of an exported folder: file names, tensor names and the manifest. Standard library only."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FORMAT_VERSION = 1

MANIFEST = "keras_tx.json"
CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
TOKENIZER = "tokenizer.json"
TARGET_TOKENIZER = "target_tokenizer.json"  # of an encoder-decoder that splits targets differently
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
GENERATION_CONFIG = "generation_config.json"
GENAI_CONFIG = "genai_config.json"
VOCAB = "vocab.txt"  # of WordPiece: one token per line, in the order of the ids
VOCAB_JSON = "vocab.json"  # of byte-level BPE, with MERGES
MERGES = "merges.txt"
MODULES = "modules.json"  # of sentence-transformers, like the next three
POOLING = "1_Pooling/config.json"
NORMALIZE = "2_Normalize/config.json"
SENTENCE_BERT = "sentence_bert_config.json"
MODEL = "onnx/model.onnx"
MODEL_DATA = "onnx/model.onnx_data"
ENCODER_MODEL = "onnx/encoder_model.onnx"  # of an encoder-decoder, with the next, as Optimum names them
DECODER_MODEL = "onnx/decoder_model_merged.onnx"
SHARED = "_shared"  # suffix of a decoder's second graph, which updates its cache in place

# The graph of each precision, most precise first. The suffixes are those of transformers.js; int8 is its q8.
# A model has two kinds of 8-bit files: int8 is the recommended one, and the name of the other is its method.
PRECISIONS = {
    "fp32": MODEL,
    "fp16": "onnx/model_fp16.onnx",
    "int8": "onnx/model_quantized.onnx",
    "int8-blocks": "onnx/model_int8.onnx",
    "int8-dynamic": "onnx/model_int8.onnx",
    "int4": "onnx/model_q4.onnx",
}

ADAPTERS = "adapters/{}.onnx_adapter"  # by the name of an adapter; onnxruntime's format of values for inputs
ENCODER_ADAPTERS = "adapters/encoder/{}.onnx_adapter"  # those of the encoder graph of an encoder-decoder

EXTERNAL_DATA_FROM = 64 * 2**20  # bytes; fewer weights are stored in the graph file

PIXEL_VALUES = "pixel_values"  # float32 (batch, channels, height, width), already normalized
PIXELS = "pixels"  # uint8 (batch, height, width, channels); the graph contains the transform
INPUT_IDS = "input_ids"  # int64 (batch, sequence), like the next three
ATTENTION_MASK = "attention_mask"  # 1 at tokens, 0 at padding
TOKEN_TYPE_IDS = "token_type_ids"  # 0 in the first text, 1 in the second
POSITION_IDS = "position_ids"
DECODER_INPUT_IDS = "decoder_input_ids"  # of an encoder-decoder, like the next
DECODER_ATTENTION_MASK = "decoder_attention_mask"
ENCODER_HIDDEN_STATES = "encoder_hidden_states"  # the encoder's output (batch, source, width)
ENCODER_ATTENTION_MASK = "encoder_attention_mask"  # the decoder graph's name of the source's attention_mask
USE_CACHE_BRANCH = "use_cache_branch"  # bool (1,): whether the keys and values of the source are passed
PAST = ("past_key_values.{}.key", "past_key_values.{}.value")  # (batch, key-value heads, past, head width)
PRESENT = ("present.{}.key", "present.{}.value")  # the same, and the tokens of this call
# The cache of an encoder-decoder, layer by layer: keys and values of the target, then those of the source.
# The first call has empty pasts and computes the presents of the source. Later calls pass these unchanged as
# pasts, and their own presents of the source are empty.
SEQ2SEQ_PAST = tuple(
    f"past_key_values.{{}}.{x}" for x in ("decoder.key", "decoder.value", "encoder.key", "encoder.value")
)
SEQ2SEQ_PRESENT = tuple(name.replace("past_key_values", "present") for name in SEQ2SEQ_PAST)
NUM_LOGITS_TO_KEEP = "num_logits_to_keep"  # int64, optional: the number of last tokens with logits; 0 for all
LOGITS = "logits"
START_LOGITS = "start_logits"
END_LOGITS = "end_logits"
LAST_HIDDEN_STATE = "last_hidden_state"
POOLER_OUTPUT = "pooler_output"
SENTENCE_EMBEDDING = "sentence_embedding"
IMAGE_EMBEDS = "image_embeds"
SCORES = "scores"  # (batch, height, width, classes) of masks, (batch, boxes, classes) of boxes
BOXES = "boxes"  # (batch, boxes, 4): left, upper, right and lower edge in pixels of the input
PREDICTION_LOGITS = "prediction_logits"  # with the next, the names of BertForPreTraining
SEQ_RELATIONSHIP_LOGITS = "seq_relationship_logits"
NEXT_SENTENCE_LABELS = ("IS_NEXT", "NOT_NEXT")  # the classes of SEQ_RELATIONSHIP_LOGITS, in order
BATCH_AXIS = "batch_size"
SEQUENCE_AXIS = "sequence_length"
CHOICES_AXIS = "num_choices"  # of the inputs (batch, choices, sequence) of multiple choice
PAST_AXIS = "past_sequence_length"
LOGITS_AXIS = "num_logits"  # sequence_length, or the number of last tokens with logits
TOTAL_AXIS = "total_sequence_length"  # past_sequence_length + sequence_length
HEAD_AXIS = "head_size"  # of pasts, if clients cannot know it: any size is accepted as long as they are empty
SOURCE_AXIS = "encoder_sequence_length"  # tokens of the source of an encoder-decoder
TARGET_AXIS = "decoder_sequence_length"  # tokens of its target in this call
SOURCE_PAST_AXIS = "past_encoder_sequence_length"  # 0 in the first call, then encoder_sequence_length
SOURCE_PRESENT_AXIS = "present_encoder_sequence_length"  # encoder_sequence_length in the first call, then 0

# Tolerances of two runs or two graphs of one model, relative to the scale of their outputs: in float32, where
# the order of summation differs, and with values rounded to a few bits, where a value halfway between two
# steps may be rounded to either. The error of a wrong graph is as large as the output.
FLOAT32, ROUNDED = 1e-4, 0.1

# Recipes of int8 files with one range for the input of a layer, which is computed over the whole batch when
# the graph runs, or fixed by a calibration.
DYNAMIC, STATIC = "dynamic", "static"

NO_LABEL = -100  # the label of tokens that losses and metrics ignore

IMAGE_CLASSIFICATION = "image-classification"
IMAGE_FEATURES = "image-feature-extraction"
IMAGE_SEGMENTATION = "image-segmentation"
OBJECT_DETECTION = "object-detection"
TEXT_CLASSIFICATION = "text-classification"
TOKEN_CLASSIFICATION = "token-classification"
QUESTION_ANSWERING = "question-answering"
MULTIPLE_CHOICE = "multiple-choice"
FILL_MASK = "fill-mask"
FEATURE_EXTRACTION = "feature-extraction"
TEXT_GENERATION = "text-generation"
TEXT2TEXT_GENERATION = "text2text-generation"
TRANSLATION = "translation"
SUMMARIZATION = "summarization"

# problem_type in config.json: the meaning of the logits of a classifier.
REGRESSION = "regression"
SINGLE_LABEL = "single_label_classification"
MULTI_LABEL = "multi_label_classification"
PROBLEM_TYPES = (REGRESSION, SINGLE_LABEL, MULTI_LABEL)

# The IR version by opset, of the onnx release with this opset. Older runtimes reject graphs with a newer IR
# version, even if they support the opset.
IR_VERSIONS = {17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12, 25: 13, 26: 13}
DEFAULT_OPSET = 23
BOUNDS = "keras_tx.bounds"  # key of the graph's metadata: its bounds as a JSON list


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """An input or output of the graph. Dynamic axes are strings in `shape`."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclasses.dataclass(frozen=True)
class FileRecord:
    """The expected size and hash of a file of the folder."""

    size: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Parity:
    """The result of the comparison of onnxruntime with Keras during the export."""

    max_difference: float
    tolerance: float
    cases: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Variant:
    """A file of lower precision, and its comparison with the fp32 file on random inputs.

    `noise` is the largest difference of an output relative to its scale, and `agreement` the fraction of rows
    in which the first output has the same argmax. `inputs` and `outputs` are None if their dtypes are those
    of the fp32 file.
    """

    recipe: str
    noise: float
    agreement: float | None = None
    kept: tuple[str, ...] = ()  # layers that the export was asked to keep in fp32
    notes: tuple[str, ...] = ()
    inputs: tuple[TensorSpec, ...] | None = None
    outputs: tuple[TensorSpec, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Adapter:
    """The values of optional inputs of the graphs, which add an adapter (LoRA) to the base model.

    `parity` is the comparison with the Keras model that has the adapter. `labels` are the class names of the
    adapter's own head, if they are known.
    """

    file: str
    parity: Parity | None = None
    labels: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class TargetGraph:
    """A graph in fp32 for an execution target, beside the main graph, and its comparison with Keras.

    `export_options` are the options that shape the graph, as those of the manifest.
    """

    file: str
    opset: int
    export_options: dict[str, bool | int | float | str | None]
    parity: Parity | None = None


@dataclasses.dataclass(frozen=True)
class EncoderGraphs:
    """The encoder graphs of an encoder-decoder. The other fields of the manifest describe its decoder graphs.

    The inputs and outputs have the same dtypes in every precision.
    """

    precisions: dict[str, str]  # {"fp32": "onnx/encoder_model.onnx"}
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    variants: dict[str, Variant] = dataclasses.field(default_factory=dict)  # by precision
    adapters: dict[str, str] = dataclasses.field(default_factory=dict)  # files by the name of an adapter


@dataclasses.dataclass(frozen=True)
class Manifest:
    """keras_tx.json: the contents of the folder and the options of the export."""

    keras_tx_version: str
    task: str | None
    opset: int
    precisions: dict[str, str]  # {"fp32": "onnx/model.onnx"}
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    tiers: dict[str, str]  # {"block_0/attention": "registered"}
    files: dict[str, FileRecord]
    parity: Parity | None = None
    labels: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    # Limits of dynamic axes, within which the graph is correct: "sequence_length <= 200".
    bounds: tuple[str, ...] = ()
    # The options of the export that shape the graph: {"unpad": true}; None if not recorded.
    export_options: dict[str, bool | int | float | str | None] | None = None
    variants: dict[str, Variant] = dataclasses.field(default_factory=dict)  # by precision
    encoder: EncoderGraphs | None = None
    adapters: dict[str, Adapter] = dataclasses.field(default_factory=dict)  # by name
    # By the execution target of the export: None for the main graph, or a graph beside it.
    targets: dict[str, TargetGraph | None] = dataclasses.field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def depends_on_batch(self, precision: str) -> bool:
        """Whether the outputs of a sample depend on the other samples of its batch."""
        variant = self.variants.get(precision)
        return variant is not None and variant.recipe == DYNAMIC

    def save(self, folder: str | os.PathLike[str]) -> None:
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
        Path(folder, MANIFEST).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parses a manifest; raises a ValueError if the text is not a manifest of this format."""
        try:
            raw = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"it is not JSON ({error})") from None
        if not isinstance(raw, dict) or "format_version" not in raw:
            raise ValueError("it has no format_version")
        if raw["format_version"] != FORMAT_VERSION:
            raise ValueError(
                f"its format_version is {raw['format_version']!r}, this keras-tx reads {FORMAT_VERSION}"
            )
        return cls._from_fields(raw)

    @classmethod
    def _from_fields(cls, raw: dict[str, Any]) -> Manifest:
        manifest = cls(
            keras_tx_version=_field(raw, "keras_tx_version", str),
            task=_optional(raw, "task", str),
            opset=_field(raw, "opset", int),
            precisions=_texts_by_name(raw, "precisions"),
            inputs=_tensors(raw, "inputs"),
            outputs=_tensors(raw, "outputs"),
            tiers=_texts_by_name(raw, "tiers"),
            files={
                name: FileRecord(_field(one, "size", int, place), _field(one, "sha256", str, place))
                for name, one, place in _objects(raw, "files")
            },
            parity=_parity(_optional(raw, "parity", dict)),
            labels=None if raw.get("labels") is None else _texts(raw, "labels"),
            notes=_texts(raw, "notes") if "notes" in raw else (),
            bounds=_texts(raw, "bounds") if "bounds" in raw else (),
            export_options=_scalars(_optional(raw, "export_options", dict), "export_options"),
            variants=_variants(raw),
            encoder=_encoder(_optional(raw, "encoder", dict)),
            adapters=_adapters(raw),
            targets=_targets(_optional(raw, "targets", dict)),
        )
        return _with_current_names(manifest)


def _with_current_names(manifest: Manifest) -> Manifest:
    """The manifest of a decoder whose int8 was dynamic when it was written, with the names of today."""
    dynamic = manifest.variants.get("int8")
    renamed = dynamic is not None and dynamic.recipe in (DYNAMIC, STATIC)
    if manifest.task != TEXT_GENERATION or not (renamed or "int8-blocks" in manifest.precisions):
        return manifest
    names = {"int8": "int8-dynamic", "int8-blocks": "int8"}
    files = {names.get(name, name): file for name, file in manifest.precisions.items()}
    return dataclasses.replace(
        manifest,
        precisions=in_order(files),
        variants={names.get(name, name): variant for name, variant in manifest.variants.items()},
    )


# Names of the types of JSON values.
_KINDS = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


def _check(value: Any, kind: type, name: str) -> Any:
    """Returns the value if it has this type; a boolean is not a number. Raises a ValueError otherwise."""
    kinds = (int, float) if kind is float else kind
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise ValueError(f"{name} is {reprlib.repr(value)}, expected {_KINDS[kind]}")
    return value


def _field(raw: dict[str, Any], field: str, kind: type, place: str = "") -> Any:
    """Returns a field of the object at `place` of the file."""
    name = f"{place}.{field}" if place else field
    if field not in raw:
        raise ValueError(f"{name} is missing")
    return _check(raw[field], kind, name)


def _optional(raw: dict[str, Any], field: str, kind: type, place: str = "") -> Any:
    return None if raw.get(field) is None else _field(raw, field, kind, place)


def _texts(raw: dict[str, Any], field: str, place: str = "") -> tuple[str, ...]:
    name = f"{place}.{field}" if place else field
    items = _field(raw, field, list, place)
    return tuple(_check(item, str, f"{name}[{index}]") for index, item in enumerate(items))


def _texts_by_name(raw: dict[str, Any], field: str, place: str = "") -> dict[str, str]:
    path = f"{place}.{field}" if place else field
    items = _field(raw, field, dict, place)
    return {name: _check(item, str, f"{path}.{name}") for name, item in items.items()}


def _scalars(raw: dict[str, Any] | None, place: str) -> dict[str, bool | int | float | str | None] | None:
    for name, item in (raw or {}).items():
        if not isinstance(item, bool | int | float | str | None):
            raise ValueError(
                f"{place}.{name} is {reprlib.repr(item)}, expected a string, a number, a boolean or null"
            )
    return raw


def _objects(raw: dict[str, Any], field: str, place: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yields the name, the value and the place of each object in an object."""
    path = f"{place}.{field}" if place else field
    for name, item in _field(raw, field, dict, place).items():
        yield name, _check(item, dict, f"{path}.{name}"), f"{path}.{name}"


def _tensors(raw: dict[str, Any], field: str, place: str = "") -> tuple[TensorSpec, ...]:
    name = f"{place}.{field}" if place else field
    return tuple(
        _tensor(_check(item, dict, f"{name}[{index}]"), f"{name}[{index}]")
        for index, item in enumerate(_field(raw, field, list, place))
    )


def _tensor(raw: dict[str, Any], place: str) -> TensorSpec:
    shape = _field(raw, "shape", list, place)
    for index, axis in enumerate(shape):
        if not isinstance(axis, str):
            _check(axis, int, f"{place}.shape[{index}]")
    return TensorSpec(_field(raw, "name", str, place), _field(raw, "dtype", str, place), tuple(shape))


def _parity(raw: dict[str, Any] | None, place: str = "parity") -> Parity | None:
    if raw is None:
        return None
    largest, tolerance = (float(_field(raw, name, float, place)) for name in ("max_difference", "tolerance"))
    return Parity(largest, tolerance, _texts(raw, "cases", place))


def _targets(raw: dict[str, Any] | None) -> dict[str, TargetGraph | None]:
    return {
        name: None if graph is None else _target(_check(graph, dict, f"targets.{name}"), f"targets.{name}")
        for name, graph in (raw or {}).items()
    }


def _target(raw: dict[str, Any], place: str) -> TargetGraph:
    options = _scalars(_field(raw, "export_options", dict, place), f"{place}.export_options")
    return TargetGraph(
        _field(raw, "file", str, place),
        _field(raw, "opset", int, place),
        options or {},
        _parity(_optional(raw, "parity", dict, place), f"{place}.parity"),
    )


def _adapters(raw: dict[str, Any]) -> dict[str, Adapter]:
    objects = _objects(raw, "adapters") if "adapters" in raw else ()
    return {
        name: Adapter(
            _field(one, "file", str, place),
            _parity(_optional(one, "parity", dict, place), f"{place}.parity"),
            None if one.get("labels") is None else _texts(one, "labels", place),
        )
        for name, one, place in objects
    }


def _encoder(raw: dict[str, Any] | None) -> EncoderGraphs | None:
    if raw is None:
        return None
    return EncoderGraphs(
        precisions=_texts_by_name(raw, "precisions", "encoder"),
        inputs=_tensors(raw, "inputs", "encoder"),
        outputs=_tensors(raw, "outputs", "encoder"),
        variants=_variants(raw, "encoder"),
        adapters=_texts_by_name(raw, "adapters", "encoder") if "adapters" in raw else {},
    )


def _variants(raw: dict[str, Any], place: str = "") -> dict[str, Variant]:
    objects = _objects(raw, "variants", place) if "variants" in raw else ()
    return {name: _variant(one, path) for name, one, path in objects}


def _variant(raw: dict[str, Any], place: str) -> Variant:
    def tensors(name: str) -> tuple[TensorSpec, ...] | None:
        return None if raw.get(name) is None else _tensors(raw, name, place)

    agreement = _optional(raw, "agreement", float, place)
    return Variant(
        recipe=_field(raw, "recipe", str, place),
        noise=float(_field(raw, "noise", float, place)),
        agreement=None if agreement is None else float(agreement),
        kept=_texts(raw, "kept", place) if "kept" in raw else (),
        notes=_texts(raw, "notes", place) if "notes" in raw else (),
        inputs=tensors("inputs"),
        outputs=tensors("outputs"),
    )


def precisions_of(task: str | None) -> tuple[str, ...]:
    """Returns the precisions that a model can have, most precise first.

    Trained decoders have activations hundreds of times as large as others. Their int8 has weights in blocks,
    that of other models one range for the input of a layer, which is faster for many tokens.

    >>> [name for name in precisions_of(TEXT_GENERATION) if name.startswith("int8")]
    ['int8', 'int8-dynamic']
    """
    return tuple(name for name in PRECISIONS if name != method_of("int8", task))


def method_of(precision: str, task: str | None) -> str:
    """Returns a precision by the name of its method, which for int8 depends on the task.

    >>> [method_of("int8", task) for task in (TEXT_GENERATION, IMAGE_CLASSIFICATION)]
    ['int8-blocks', 'int8-dynamic']
    >>> method_of("int4", None)
    'int4'
    """
    if precision != "int8":
        return precision
    return "int8-blocks" if task == TEXT_GENERATION else "int8-dynamic"


def in_order(files: dict[str, str]) -> dict[str, str]:
    """Returns the files of precisions, most precise first."""
    return {name: files[name] for name in (*PRECISIONS, *files) if name in files}


def graph_name(precision: str, graph: str = MODEL) -> str:
    """Returns the name of the graph of a precision, by the name of the fp32 graph.

    >>> graph_name("int8"), graph_name("fp32", ENCODER_MODEL)
    ('onnx/model_quantized.onnx', 'onnx/encoder_model.onnx')
    """
    return graph.removesuffix(".onnx") + PRECISIONS[precision].removeprefix(MODEL.removesuffix(".onnx"))


def shared_name(graph: str) -> str:
    """Returns the name of the graph that updates its cache in place, by the name of the other graph.

    >>> shared_name("onnx/model.onnx")
    'onnx/model_shared.onnx'
    """
    return f"{graph.removesuffix('.onnx')}{SHARED}.onnx"


def target_name(target: str) -> str:
    """Returns the name of the graph of an execution target beside the main graph.

    >>> target_name("webgpu")
    'onnx/model_webgpu.onnx'
    """
    return f"{MODEL.removesuffix('.onnx')}_{target}.onnx"


def describe_file(path: str | os.PathLike[str]) -> FileRecord:
    """Returns the size and hash of a file, which is read in chunks."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(size=file.tell(), sha256=digest)

"""keras-tx export: exports a saved Keras model or a checkpoint to a verified ONNX folder."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from keras_tx import contract, kernels
from keras_tx.commands.arguments import refuse_existing
from keras_tx.commands.light_imports import (
    import_exporter,
    import_keras_for_export,
    without_garbage_collection,
)
from keras_tx.commands.model_file import check_model_file, is_checkpoint, load
from keras_tx.errors import ConfigError, ExportError, nearest

SUMMARY = "export a saved .keras model or a checkpoint to a verified ONNX folder"
DESCRIPTION = """\
Loads a .keras file or a checkpoint that keras_tx.from_checkpoint supports: a Hugging Face folder,
hf://owner/name or a keras-hub preset. Writes it as ONNX and verifies onnxruntime against Keras before FOLDER
is created: a failed export leaves nothing behind. .keras files are loaded in Keras's safe mode: files that
contain Python code (Lambda layers) raise an error.
"""
EPILOG = """\
examples:
  keras-tx export flowers.keras flowers --labels daisy,rose,tulip
  keras-tx export flowers.keras flowers --labels-file names.txt --overwrite
  keras-tx export hf://google/vit-base-patch16-224 vit         a checkpoint of the Hugging Face Hub
  keras-tx export bert-base-uncased/ bert                      a folder with config.json and model.safetensors
  keras-tx export bert-base-uncased/ bert --adapter reviews/   with an adapter merged into its weights
  keras-tx export bert-base-uncased/ bert --adapters reviews/ news/
                                                               with two adapters beside its weights
  keras-tx export bert_tiny_en_uncased bert                    a preset of keras-hub
  keras-tx export garden.keras garden --task image-classification --image resnet
                                                               any classifier, with its preprocessing
  keras-tx export spam.keras spam --labels no,yes              a keras-hub text classifier, with its tokenizer
  keras-tx export flowers.keras camera --raw-pixels            uint8 images; the graph normalizes them
  keras-tx export opus-mt-it-en/ italian-english --task translation
                                                               a Marian, for keras-tx run and generate
  keras-tx export poet.keras poet --tokenizer tokenizer.json   a GPT, for keras-tx generate
  keras-tx export flowers.keras flowers --precision fp32 int8  also a smaller, faster file
  keras-tx export flowers.keras old-server --opset 17          for onnxruntime before 1.23
  keras-tx export flowers.keras page --target webgpu           for a web page on a GPU

Export models with custom layers from Python, where their classes are defined:
`from keras_tx_onnx import export_onnx; export_onnx(model, "folder")`.
"""
OPSETS = sorted(contract.IR_VERSIONS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a .keras file, a Hugging Face folder, hf://owner/name, or a keras-hub preset",
    )
    parser.add_argument("folder", metavar="FOLDER", help="the folder to write")
    labels = parser.add_mutually_exclusive_group()
    labels.add_argument(
        "--labels",
        metavar="A,B,C",
        help="class names, in order; for a model with one sigmoid, the names of 0 and 1",
    )
    labels.add_argument("--labels-file", metavar="FILE", help="class names, one per line, UTF-8")
    parser.add_argument(
        "--task",
        metavar="TASK",
        choices=(
            contract.IMAGE_CLASSIFICATION,
            contract.IMAGE_SEGMENTATION,
            contract.OBJECT_DETECTION,
            contract.TEXT_CLASSIFICATION,
            contract.FEATURE_EXTRACTION,
            contract.FILL_MASK,
            contract.TRANSLATION,
            contract.SUMMARIZATION,
        ),
        help="export any model as a classifier (implied by --labels and --image): a model from one image to "
        "one vector; or the task of a model of keras-hub, which otherwise falls back to a graph without "
        "preprocessing; or the purpose of an encoder-decoder. One of %(choices)s",
    )
    parser.add_argument(
        "--image",
        metavar="HOW",
        help="preprocessing of an image model: a module of keras.applications with its preprocess_input "
        "(resnet, mobilenet_v2 ...), a range (0..1, 0..255, --image=-1..1), or a preprocessor_config.json "
        "(default: the model's own preprocessing)",
    )
    adapters = parser.add_mutually_exclusive_group()
    adapters.add_argument(
        "--adapter", metavar="FOLDER", help="merge an adapter, written by PEFT or keras_tx.save_adapter"
    )
    adapters.add_argument(
        "--adapters",
        nargs="+",
        metavar="FOLDER",
        help="store adapters beside the base, under the names of their folders; keras-tx run and generate "
        "select one with --adapter",
    )
    parser.add_argument("--tokenizer", metavar="FILE", help="the tokenizer.json of a text model")
    parser.add_argument(
        "--raw-pixels",
        action="store_true",
        help="the graph accepts uint8 pixels and normalizes them",
    )
    parser.add_argument(
        "--opset",
        type=int,
        choices=OPSETS,
        metavar="N",
        help=f"ONNX opset, {OPSETS[0]} to {OPSETS[-1]} (default: {contract.DEFAULT_OPSET}, or the newest of "
        "which the target has kernels)",
    )
    parser.add_argument(
        "--target",
        nargs="+",
        choices=tuple(kernels.TARGETS),
        metavar="TARGET",
        help=f"where onnxruntime will run the graph: {', '.join(kernels.TARGETS)}",
    )
    parser.add_argument(
        "--size",
        action="append",
        type=_size,
        metavar="AXIS=N",
        help="the one size of a dynamic axis, such as batch_size=1; coreml and qnn require all of them",
    )
    parser.add_argument(
        "--precision",
        nargs="+",
        default=["fp32"],
        choices=tuple(contract.PRECISIONS),
        metavar="PRECISION",
        help="some of fp32, fp16, int8, int8-blocks, int8-dynamic, int4 (default: fp32); see quantize --help",
    )
    parser.add_argument(
        "--no-verify", action="store_true", help="skip the comparison with Keras; the manifest records it"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export in FOLDER")


def execute(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.folder)
    if not is_checkpoint(arguments.model):
        check_model_file(Path(arguments.model))
    refuse_existing(folder, arguments.overwrite)
    labels = read_labels(arguments.labels, arguments.labels_file)
    tokenizer = None if arguments.tokenizer is None else _tokenizer(arguments.tokenizer)
    with without_garbage_collection():
        import_keras_for_export(Path(arguments.model))
        export_onnx = import_exporter()
    model = load(arguments.model)
    if arguments.adapter is not None:
        from keras_tx import load_adapter

        load_adapter(model, arguments.adapter)
    report = export_onnx(
        model,
        folder,
        labels=labels,
        task=arguments.task,
        image=None if arguments.image is None else image_of(arguments.image, model),
        tokenizer=tokenizer,
        raw_pixels=arguments.raw_pixels,
        precision=arguments.precision,
        opset=arguments.opset,
        target=arguments.target,
        sizes=dict(arguments.size) if arguments.size else None,
        adapters=arguments.adapters,
        verify=not arguments.no_verify,
        overwrite=arguments.overwrite,
    )
    print(report)
    return 0


def _size(text: str) -> tuple[str, int]:
    """The axis and the number of AXIS=N."""
    axis, _, number = text.partition("=")
    if not axis or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is invalid, expected AXIS=N such as batch_size=1")
    return axis, int(number)


_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)")


def image_of(value: str, model: Any) -> Any:
    """Returns the image transform or the preprocess_input function for --image."""
    import numpy as np
    from keras import applications

    from keras_tx.processing import ImageTransform
    from keras_tx_onnx.interfaces.vision import affine

    modules = [name for name in dir(applications) if hasattr(getattr(applications, name), "preprocess_input")]
    if value in modules:
        return getattr(applications, value).preprocess_input
    ends = _RANGE.fullmatch(value)
    if ends:
        low, high = map(float, ends.groups())
        shape = tuple(model.inputs[0].shape)
        if not low < high or len(shape) != 4 or None in shape[1:]:
            raise ConfigError(
                f"--image {value} requires a low..high range and a model with a fixed height and width, but "
                f"the model has inputs of shape {shape}. Otherwise pass a preprocessor_config.json."
            )
        _, height, width, channels = shape
        slope, offset = np.full(channels, (high - low) / 255), np.full(channels, low)
        return affine(slope, offset, (height, width))
    if not value.endswith(".json"):
        raise ConfigError(
            f"--image {value!r} is not a module of keras.applications, a range such as 0..255, or the path "
            f"of a preprocessor_config.json. {nearest(value, modules)}"
        )
    try:
        config = json.loads(Path(value).read_text(encoding="utf-8"))
        return ImageTransform.from_preprocessor_config(config)
    except (ValueError, AttributeError) as error:  # not JSON, or not an object
        raise ConfigError(f"--image {value} is not a preprocessor_config.json: {error}") from error


def _tokenizer(file: str) -> Any:
    from keras_tx.processing.detokenizer import read_tokenizer

    with open(file, "rb"):  # raises a clearer error than tokenizers
        pass
    try:
        return read_tokenizer(file)
    except ImportError:
        raise
    except Exception as error:  # tokenizers raises plain Exceptions
        raise ConfigError(
            f"--tokenizer {file} is not a valid tokenizer.json ({error}). Save it with tokenizer.save(FILE)."
        ) from error


def read_labels(listed: str | None, file: str | None) -> list[str] | None:
    """Returns the labels of --labels or --labels-file; None without either."""
    if file is not None:
        try:
            labels = Path(file).read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise ExportError(
                f"--labels-file {file} is not UTF-8 text ({error.reason}). Save it as UTF-8."
            ) from error
        labels = [label.strip() for label in labels]
        while labels and not labels[-1]:
            labels.pop()
        option = f"--labels-file {file}"
    elif listed is not None:
        labels = [label.strip() for label in listed.split(",")]
        option = f"--labels {listed!r}"
    else:
        return None
    if "" in labels or not labels:
        place = f"label {labels.index('') + 1} is empty" if labels else "it has no labels"
        raise ExportError(f"{option}: {place}. Pass a name for each class, in order.")
    return labels

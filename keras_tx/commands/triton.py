"""keras-tx triton: a folder as a model of a Triton repository."""

from __future__ import annotations

import argparse

from keras_tx import contract
from keras_tx.commands.arguments import whole

SUMMARY = "write an exported folder as a model of an NVIDIA Triton repository"
DESCRIPTION = """\
Writes REPOSITORY/NAME with config.pbtxt and a version folder, 1, that has the graph of one precision and its
weights. Triton's ONNX Runtime backend serves it: it batches concurrent requests with dynamic batching, where
all inputs and outputs have a batch axis. The model is written under a temporary name and renamed when it is
complete. Triton needs tensors: clients prepare images and texts, with the folder's own files. A folder that
generates text is refused, because Triton's backend keeps no cache between requests. Needs neither Keras nor
Triton, only pip install "keras-tx[runtime]".
"""
EPILOG = """\
examples:
  keras-tx triton reviews models                          models/reviews/config.pbtxt and models/reviews/1
  keras-tx triton reviews models --precision int8 --max-batch 16 --max-wait-ms 2
  keras-tx triton flowers models --name flowers-v2 --device gpu --instances 2
  tritonserver --model-repository models                  serve it
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="an exported folder")
    parser.add_argument("repository", metavar="REPOSITORY", help="the model repository, created if missing")
    parser.add_argument("--name", metavar="NAME", help="the model's name (default: the folder's)")
    parser.add_argument(
        "--precision", choices=list(contract.PRECISIONS), metavar="P", help="precision (default: fp32)"
    )
    parser.add_argument(
        "--max-batch", type=whole, default=32, metavar="N", help="largest batch (default: 32); 1 for none"
    )
    parser.add_argument(
        "--max-wait-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="milliseconds that a request may wait for others (default: 0)",
    )
    parser.add_argument(
        "--instances", type=whole, default=1, metavar="N", help="copies that run concurrently (default: 1)"
    )
    parser.add_argument(
        "--device", choices=["cpu", "gpu"], default="cpu", help="where the model runs (default: cpu)"
    )
    parser.add_argument(
        "--threads", type=whole, metavar="N", help="threads of each instance on the CPU (default: all cores)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a model that this command wrote")


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.serving.triton import TritonOptions, write_model

    options = TritonOptions(
        arguments.max_batch,
        arguments.max_wait_ms,
        arguments.instances,
        arguments.device,
        arguments.threads,
    )
    path = write_model(
        arguments.folder,
        arguments.repository,
        name=arguments.name,
        precision=arguments.precision,
        options=options,
        overwrite=arguments.overwrite,
    )
    print(f"wrote {path}")
    return 0

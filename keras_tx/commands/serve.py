"""keras-tx serve: serves exported folders over HTTP. Needs onnxruntime, not Keras."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from keras_tx.commands.arguments import add_session, session_options, whole

SUMMARY = "serve exported folders over HTTP, as OpenAI's clients and the Open Inference Protocol speak it"
DESCRIPTION = """\
Serves exported folders over HTTP in one process. Needs neither Keras nor TensorFlow, only
pip install "keras-tx[serve]". The name of a model is that of its folder, or NAME in NAME=FOLDER.

  /                     a page to try each model
  POST /models/NAME     an image or texts, answered as by keras_tx.runtime.load(FOLDER)
  /v1                   models, completions, chat completions and embeddings, for OpenAI's clients
  /v2                   the Open Inference Protocol of KServe and Triton: health, metadata, arrays
  /metrics              metrics for Prometheus
  /docs                 all paths; /openapi.json describes them for programs

Requests of several clients run in batches. While models are loaded and after SIGTERM, requests get the
status 503; running requests are answered before the server stops. Only this machine can connect, unless
--host is passed. Keys of clients are read from --keys FILE or from the variable KERAS_TX_KEYS, and are sent
as Authorization: Bearer KEY. Logs are JSON objects, one per line, on standard error, without the contents of
requests.
"""
EPILOG = """\
examples:
  keras-tx serve flowers                                  on http://127.0.0.1:8000
  keras-tx serve flowers reviews poet=exports/gpt --port 9000
  keras-tx serve poet=exports/gpt --max-streams 32        32 texts in one batch
  keras-tx serve reviews --uds /run/reviews.sock          on a Unix socket of this user
  keras-tx serve reviews --host 0.0.0.0 --keys keys.txt   for other machines, with keys
  keras-tx serve reviews --reload                         loads each new export of the folder
  curl http://127.0.0.1:8000/models/flowers -F image=@rose.jpg
  curl http://127.0.0.1:8000/v1/completions --json '{"model": "poet", "prompt": "To be", "stream": true}'
  curl http://127.0.0.1:8000/models/reviews --json '{"text": "A very good film.", "top_k": 1}'

exit codes: 0 stopped by SIGINT or SIGTERM; 2 an error, such as a folder that cannot be loaded.
"""


RELOAD_SECONDS = 1.0
# Those of keras_tx.serving.http.limits.Limits, which `keras-tx --help` does not import.
LIMITS = {
    "max_body": (32 * 2**20, "bytes of a request"),
    "max_texts": (256, "texts or images of a request"),
    "max_characters": (200_000, "characters of a text or a chat, and ids of a prompt"),
    "max_pixels": (50_000_000, "pixels of an image"),
    "max_new_tokens": (4096, "new tokens of a generated text"),
    "max_concurrent": (64, "requests that run at the same time"),
    "max_queue": (256, "requests that wait; others get the status 429"),
    "body_seconds": (60, "seconds in which a body must arrive"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders", metavar="FOLDER", nargs="+", help="an exported folder, or NAME=FOLDER for another name"
    )
    address = parser.add_argument_group("address")
    address.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 for all (default: %(default)s)",
    )
    address.add_argument(
        "--port", type=_port, default=8000, help="port; 0 for a free one (default: %(default)s)"
    )
    address.add_argument("--uds", metavar="PATH", help="a Unix socket instead of a port")
    access = parser.add_argument_group("access")
    access.add_argument("--keys", metavar="FILE", help="keys of clients, one per line (default: no keys)")
    access.add_argument(
        "--cors",
        metavar="ORIGIN",
        nargs="+",
        default=(),
        help="other origins whose web pages may send requests, such as https://example.org, and host "
        "names of proxies before a local server",
    )
    models = parser.add_argument_group("models")
    add_session(models)
    models.add_argument(
        "--reload",
        action="store_true",
        help="load new exports of the folders; a damaged one is refused, and the old one continues",
    )
    models.add_argument(
        "--truncate",
        action="store_true",
        help="truncate texts that are longer than the model's maximum, instead of refusing them",
    )
    models.add_argument(
        "--max-batch", type=whole, default=32, metavar="N", help="requests per batch (default: %(default)s)"
    )
    models.add_argument(
        "--max-streams",
        type=whole,
        default=16,
        metavar="N",
        help="texts that a decoder generates together (default: %(default)s)",
    )
    models.add_argument(
        "--cache-memory",
        type=whole,
        metavar="BYTES",
        help="memory for the keys and values of each decoder (default: half of the memory of the machine or "
        "container, divided by the number of decoders)",
    )
    limits = parser.add_argument_group("limits")
    for name, (default, text) in LIMITS.items():
        limits.add_argument(
            f"--{name.replace('_', '-')}",
            type=whole,
            default=default,
            metavar="N",
            help=f"{text} (default: %(default)s)",
        )
    limits.add_argument(
        "--drain-seconds",
        type=whole,
        default=30,
        metavar="N",
        help="seconds in which running requests are answered after SIGTERM (default: %(default)s)",
    )


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.serving.http.api_keys import ApiKeys
    from keras_tx.serving.http.application import Application
    from keras_tx.serving.http.limits import Limits
    from keras_tx.serving.http.model_set import ModelOptions, named_folders
    from keras_tx.serving.http.origins import LOCAL, Origins
    from keras_tx.serving.http.request_log import write_logs
    from keras_tx.serving.http.server import listening_socket, serve

    folders = named_folders(arguments.folders)
    keys = ApiKeys.read(arguments.keys, os.environ)
    local = arguments.uds is None and arguments.host in LOCAL
    origins = Origins(arguments.cors, LOCAL if local else ())
    names = ("truncate", "max_batch", "max_streams", "max_queue", "cache_memory")
    options = ModelOptions(**session_options(arguments), **{name: getattr(arguments, name) for name in names})
    limits = Limits(**{name: getattr(arguments, name) for name in LIMITS})
    if arguments.uds is None and not local and not keys:
        _warn_without_keys(arguments.host)
    application = Application(
        folders,
        options,
        limits=limits,
        keys=keys,
        origins=origins,
        reload_seconds=RELOAD_SECONDS if arguments.reload else None,
    )
    with listening_socket(arguments.host, arguments.port, arguments.uds) as listener:
        write_logs()
        print(f"{_address(arguments, listener)} serves {', '.join(folders)}. Ctrl-C stops it.", flush=True)
        serve(application, listener, drain_seconds=arguments.drain_seconds)
    return 0


def _port(text: str) -> int:
    """Parses the number of a port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)


def _address(arguments: argparse.Namespace, listener: Any) -> str:
    if arguments.uds is not None:
        return f"The socket {arguments.uds}"
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _warn_without_keys(host: str) -> None:
    print(
        f"keras-tx: warning: {host} can be reached from other machines, and every client is served. Pass "
        "--keys FILE to require keys.",
        file=sys.stderr,
    )

"""Checkpoints of the Hugging Face Hub: "hf://owner/name" or "hf://owner/name@revision"."""

from __future__ import annotations

import re
from pathlib import Path

from keras_tx.errors import ConfigError
from keras_tx.weights import tensorflow_file

SCHEME = "hf://"
NAME = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
# The files of a checkpoint, without pickles and the same weights in other formats.
FILES = [
    "*.json",
    "model.safetensors",
    "model-*.safetensors",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "*.spm",
    "chat_template.jinja",
]


def download(source: str) -> Path:
    """Returns the folder of a repository in the cache of huggingface_hub; downloads it if it is missing."""
    match = NAME.fullmatch(source)
    if match is None:
        raise ConfigError(f"source={source!r}, expected hf://owner/name or hf://owner/name@revision.")
    name, revision = match.groups()
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise ConfigError(
            f"{source} requires huggingface_hub: pip install huggingface_hub. Or download the folder "
            "otherwise, and pass its path."
        ) from error
    try:
        folder = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=FILES))
        if not any(folder.glob("model*.safetensors")):
            only = [tensorflow_file.WEIGHTS]
            huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=only)
        return folder
    except errors.GatedRepoError as error:
        raise ConfigError(
            f"{source} is gated. Accept its terms on https://huggingface.co/{name}, and log in with "
            "`hf auth login`."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ConfigError(
            f"{source} was not found on huggingface.co. Check the name; for a private repository, log in "
            "with `hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigError(f"{source}: the repository has no revision {revision!r}.") from error
    except errors.HFValidationError as error:
        raise ConfigError(f"{source} is not a valid repository name: {error}") from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise ConfigError(
            f"{source} is not in the local cache, and huggingface.co cannot be reached "
            f"({_first_line(error)}). Run `hf download {name} --local-dir FOLDER` on a machine with a "
            "network, copy the folder, and pass its path."
        ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160].rstrip(". ")

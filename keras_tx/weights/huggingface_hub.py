"""Checkpoints of the Hugging Face Hub: "hf://owner/name" or "hf://owner/name@revision"."""

from __future__ import annotations

import re
from pathlib import Path

from keras_tx.errors import ConfigError

SCHEME = "hf://"
NAME = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
# What a checkpoint consists of. Neither pickles nor the same weights in other formats are downloaded.
FILES = ["*.json", "model.safetensors", "model-*.safetensors", "vocab.txt", "merges.txt"]


def download(source: str) -> Path:
    """The folder of a repository in the local cache of huggingface_hub, downloaded if it is not there."""
    match = NAME.fullmatch(source)
    if match is None:
        raise ConfigError(f"{source!r}: expected hf://owner/name or hf://owner/name@revision.")
    name, revision = match.groups()
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise ConfigError(
            f"{source} needs the package huggingface_hub: pip install huggingface_hub. Or download the "
            "folder by other means, and give its path."
        ) from error
    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=FILES))
    except errors.GatedRepoError as error:
        raise ConfigError(
            f"{source} asks for consent: accept its terms on https://huggingface.co/{name}, and log in with "
            "`hf auth login`."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ConfigError(
            f"{source} was not found on huggingface.co: mistyped, or private (then log in with "
            "`hf auth login`)."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigError(f"{source}: the repository has no revision {revision!r}.") from error
    except errors.HFValidationError as error:
        raise ConfigError(f"{source} is no name of a repository: {error}") from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise ConfigError(
            f"{source} is not in the local cache, and huggingface.co cannot be reached: "
            f"{' '.join(str(error).split())[:200]} Where there is a network, `hf download {name} --local-dir "
            "FOLDER` writes the folder; copy it here, and give its path."
        ) from error

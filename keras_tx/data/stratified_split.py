"""A split into training and validation rows by hashes, which keeps the share of each class."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Hashable, Sequence

import numpy as np

from keras_tx.errors import ConfigError


def stratified_split(
    keys: Sequence[str], classes: Sequence[Hashable], share: float, seed: int, *, name: str = "share"
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices of the rows for training and of those for validation, in order.

    Rows with equal keys are in the same part. The keys of each class are ordered by a hash of seed and key,
    and the first ones are the validation part: about `share` of them, at least one, and none of a class with
    a single key. If rows are added, only keys near the border move to the other part.

    Args:
        keys: one per row, equal for rows that belong together.
        classes: one per row; for rows that belong together, the class of the first one counts.
        share: share of the validation part.
        seed: seed of the hashes.
        name: name of the argument `share`, for messages.

    Raises:
        ConfigError: the share or the seed is out of range, or no rows would be left.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise ConfigError(f"{name}={share!r} is out of range. Pass a number between 0 and 1, such as 0.1.")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed={seed!r} is out of range. Pass a whole number, 0 or more.")
    class_of: dict[str, Hashable] = {}
    for key, value in zip(keys, classes, strict=True):
        class_of.setdefault(key, value)
    strata: dict[Hashable, list[str]] = collections.defaultdict(list)
    for key, value in class_of.items():
        strata[value].append(key)
    held_out: set[str] = set()
    for members in strata.values():
        count = min(max(1, round(share * len(members))), len(members) - 1)
        held_out.update(sorted(members, key=lambda key: _hash(seed, key))[:count])
    if not held_out:
        raise ConfigError(
            f"{name}={share!r} leaves no rows for validation, because there are {len(class_of):,} different "
            f"rows of {len(strata):,} classes. Add rows."
        )
    of_validation = np.array([key in held_out for key in keys])
    return np.flatnonzero(~of_validation), np.flatnonzero(of_validation)


def _hash(seed: int, key: str) -> bytes:
    return hashlib.blake2b(f"{seed}/{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()

"""A split into training and validation rows that keeps the share of each class, and equal texts together."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Sequence

import numpy as np

from keras_tx.errors import ConfigError


def stratified_split(
    keys: Sequence[Hashable], classes: Sequence[Hashable], share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices of the rows for training and of those for validation, in order.

    Rows with equal keys are in the same part. The validation part has about `share` of the keys of each
    class, and at least one if the class has two.

    Args:
        keys: one per row, equal for rows that belong together.
        classes: one per row; for rows that belong together, the class of the first one counts.
        share: share of the validation part.
        seed: seed of the random order.

    Raises:
        ConfigError: the share is out of range, or no rows would be left.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise ConfigError(f"share={share!r} is out of range. Pass a number between 0 and 1, such as 0.1.")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed={seed!r} is out of range. Pass a whole number, 0 or more.")
    rows: dict[Hashable, list[int]] = collections.defaultdict(list)
    for index, key in enumerate(keys):
        rows[key].append(index)
    strata: dict[Hashable, list[Hashable]] = collections.defaultdict(list)
    for key, indices in rows.items():
        strata[classes[indices[0]]].append(key)
    random = np.random.default_rng(seed)
    chosen: set[int] = set()
    for members in strata.values():
        count = min(max(1, round(share * len(members))), len(members) - 1)
        for place in random.permutation(len(members))[:count]:
            chosen.update(rows[members[place]])
    validation = np.array(sorted(chosen), "int64")
    train = np.setdiff1d(np.arange(len(keys)), validation)
    if not len(train) or not len(validation):
        raise ConfigError(
            f"share={share!r} of {len(rows):,} different rows leaves no rows for training or validation. Use "
            "more rows."
        )
    return train, validation

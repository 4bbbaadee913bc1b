"""The memory that this process may use: that of the machine, or less in a container."""

from __future__ import annotations

import os
from pathlib import Path

# The limit of a container: of cgroups version 2, and of version 1.
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def half_of_the_memory() -> int | None:
    """Half of the memory of the machine or the container, in bytes; None where the size is unknown."""
    sizes = [int(text) for text in map(_text, LIMITS) if text.isdecimal()]  # "max" is no limit
    if hasattr(os, "sysconf"):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(sizes) // 2 if sizes else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:  # there is no limit of this version
        return ""

"""Memory of this process in bytes, where the system tells (Linux), and 0 elsewhere."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def resident() -> int:
    """All of it now, mapped files included."""
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """The most that it ever was, or since `forget_peak`."""
    try:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")


def first_to_go() -> None:
    """Where memory runs out, the system shall end this process, and not one that nobody measures."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")

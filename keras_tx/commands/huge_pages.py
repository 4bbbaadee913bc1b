"""Starts the process of a command again, with huge pages for its large blocks of memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE, VALUE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
# Linux lists "always", "madvise" (for memory of programs that ask for it) and "never"; one is in brackets.
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def restart_with_huge_pages() -> None:
    """Starts this program again with huge pages, if Linux has them on request; otherwise returns.

    A generated token reads all weights once, and with huge pages the processor finds them faster. glibc
    reads the variable only when a process starts. If it is set, also to nothing, it stays as it is.
    """
    if VARIABLE in os.environ or not sys.executable or not are_on_request():
        return
    sys.stdout.flush()
    os.execve(sys.executable, sys.orig_argv, {**os.environ, VARIABLE: VALUE})


def are_on_request() -> bool:
    try:
        return "[madvise]" in SETTING.read_text()
    except OSError:  # not Linux, or without huge pages
        return False

"""Memory of this process in bytes, on Linux; 0 on other systems."""

from __future__ import annotations

from pathlib import Path

SELF = Path("/proc/self")


def resident() -> int:
    """The resident memory now, mapped files included."""
    return _field("VmRSS")


def begin_peak() -> None:
    """Starts the measurement of `peak`."""
    if SELF.exists():
        (SELF / "clear_refs").write_text("5")


def peak() -> int:
    """The largest resident memory since `begin_peak`, or since the process started."""
    return _field("VmHWM")


def _field(name: str) -> int:
    if not SELF.exists():
        return 0
    (line,) = (x for x in (SELF / "status").read_text().splitlines() if x.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024

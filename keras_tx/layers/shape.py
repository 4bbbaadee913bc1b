"""The type of a tensor's shape in Keras."""

from __future__ import annotations

from typing import Any

Shape = tuple[Any, ...]  # an integer for each axis, or None where its size is not known yet

"""Checks and prints the versions that uv resolved: resolved.py FILE EXTRA."""

import re
import sys
from pathlib import Path

SHOWN = ("keras", "tensorflow", "jax", "torch", "onnx", "onnxruntime", "onnxruntime-gpu")

file, extra = sys.argv[1:]
versions = dict(re.findall(r"^([\w.-]+)(?:\[.*?\])?==([^\s;]+)", Path(file).read_text("utf-8"), re.MULTILINE))
if not versions:
    sys.exit(f"{extra}: nothing was resolved")
if {"onnxruntime", "onnxruntime-gpu"} <= set(versions):
    sys.exit(f"{extra} requires both onnxruntime and onnxruntime-gpu, which overwrite each other")
shown = ", ".join(f"{name} {versions[name]}" for name in SHOWN if name in versions)
print(f"{extra}: {len(versions)} packages; {shown}")

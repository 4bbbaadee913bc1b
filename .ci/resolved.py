"""Checks and prints what pip resolved: resolved.py REPORT EXTRA."""

import json
import sys
from pathlib import Path

SHOWN = ("keras", "tensorflow", "jax", "torch", "onnx", "onnxruntime", "onnxruntime-gpu")

report, extra = sys.argv[1:]
packages = [item["metadata"] for item in json.loads(Path(report).read_text("utf-8"))["install"]]
found = {package["name"].lower(): package["version"] for package in packages}
if {"onnxruntime", "onnxruntime-gpu"} <= set(found):
    sys.exit(f"{extra} brings both onnxruntime and onnxruntime-gpu: they overwrite each other")
shown = ", ".join(f"{name} {found[name]}" for name in SHOWN if name in found)
print(f"{extra}: {len(found)} packages; {shown}")

"""Kernels: the operators that each execution target of onnxruntime computes itself, by onnxruntime's version.

The table, kernels.json, is read from onnxruntime's registrations of kernels at the commits that it names.
For an operator of a target it lists the opsets of graphs, from a version of onnxruntime on, whose nodes have
a kernel: {"1.24": "17-22", "1.27": "17-26"}. The nodes of other opsets run on the CPU, and their inputs and
outputs are copied. Data types are not in it, except those of WebGPU.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_tx import contract

MICROSOFT = "com.microsoft"


@dataclasses.dataclass(frozen=True)
class Target:
    """What is known of an execution target beside its kernels.

    Attributes:
        since: the oldest version of onnxruntime for which graphs are written.
        fixed_sizes: whether every size must be known when a graph is opened.
        sizes_on_cpu: whether onnxruntime leaves the nodes that compute sizes to the CPU, without a loss.
        integers: whether there are kernels for int64.
        tested: how the tests run onnxruntime's provider; empty if they compare the table with documentation.
    """

    since: str
    fixed_sizes: bool = False
    sizes_on_cpu: bool = False
    integers: bool = True
    tested: str = ""


TARGETS = {
    "cpu": Target("1.28", tested="onnxruntime"),
    "cuda": Target("1.24", sizes_on_cpu=True),
    "webgpu": Target("1.24", sizes_on_cpu=True, integers=False, tested="a software adapter in Chromium"),
    "tensorrt": Target("1.24"),
    "openvino": Target("1.24"),
    "coreml": Target("1.24", fixed_sizes=True),
    "qnn": Target("1.24", fixed_sizes=True),
}
# Operators that have a form in older ones, and the opset from which on the exporter writes them.
NEWER_FORMS = {"Gelu": 20, "Attention": 23, "RotaryEmbedding": 23, "RMSNormalization": 23}
# The other operators of exported transformers; a test compares. The opset of a target has kernels for all
# of them for which it has kernels at all.
BASIC = """
    Add And Cast Clip Concat ConstantOfShape Conv Cos CumSum Div Equal Erf Expand Floor Gather GatherND
    Gemm LayerNormalization LessOrEqual MatMul Max Mul Neg NonZero Not Pad Range ReduceMax ReduceMean
    ReduceSum Relu Reshape ScatterND Shape Sigmoid Sin Slice Softmax Split Sqrt Squeeze Sub Tanh
    Transpose Unsqueeze Where
""".split()


@functools.cache
def _table() -> Mapping[str, Any]:
    return json.loads(Path(__file__).with_name("kernels.json").read_text(encoding="utf-8"))


def versions() -> list[str]:
    """The versions of onnxruntime in the table, oldest first."""
    return [name for name in _table()["sources"] if name[0].isdigit()]


def has_kernel(target: str, operator: str, opset: int, version: str) -> bool:
    """Whether a version of onnxruntime has a kernel of the target for a node in a graph of an opset.

    >>> has_kernel("cuda", "Attention", 23, "1.24"), has_kernel("cuda", "Attention", 23, "1.25")
    (False, True)

    Args:
        target: name of the target.
        operator: type of the node; of another domain than ONNX's, behind the domain and a dot.
        opset: of the graph.
        version: one of `versions()`.
    """
    row = _table()["kernels"][target].get(operator, {})
    known = versions()
    listed = [text for since, text in row.items() if known.index(since) <= known.index(version)]
    return bool(listed) and any(
        int(first) <= opset <= int(last or first)
        for first, _, last in (span.partition("-") for span in listed[-1].split(",") if span)
    )


def newest_opset(target: str) -> int:
    """The newest opset, up to the default, of which the target has kernels for all that graphs consist of.

    >>> newest_opset("cpu"), newest_opset("webgpu")
    (23, 21)
    """
    since = TARGETS[target].since
    for opset in range(contract.DEFAULT_OPSET, min(contract.IR_VERSIONS), -1):
        if not missing(target, opset, since):
            return opset
    return min(contract.IR_VERSIONS)


def missing(target: str, opset: int, version: str) -> list[str]:
    """The operators of an opset's graphs without a kernel, where graphs of an older opset have one."""
    oldest = min(contract.IR_VERSIONS)
    newer = [name for name, first in NEWER_FORMS.items() if first <= opset]
    basic = [name for name in BASIC if has_kernel(target, name, oldest, version)]
    return [name for name in (*newer, *basic) if not has_kernel(target, name, opset, version)]

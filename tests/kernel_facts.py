"""Reads, from onnxruntime's sources, which operators each execution provider has kernels for.

    git clone https://github.com/microsoft/onnxruntime, and https://github.com/onnx/onnx-tensorrt
    python -m tests.kernel_facts ONNXRUNTIME ONNX_TENSORRT

Writes keras_tx/kernels.json from the registrations in the code, and tests/documented_kernels.json from the
tables of onnxruntime's documentation; a test compares them. Both hold opsets only, in the form that
keras_tx/kernels.py describes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx

from keras_tx import contract

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "keras_tx" / "kernels.json"
DOCUMENTED = ROOT / "tests" / "documented_kernels.json"
# The newest release of each minor version from the floor of the extra "gpu" on; then the development branch.
SOURCES = {
    "1.24": "v1.24.4",
    "1.25": "v1.25.1",
    "1.26": "v1.26.0",
    "1.27": "v1.27.1",
    "1.28": "v1.28.1",
    "1.29": "v1.29.0",
    "1.30": "89b01b406ca7e94078913eea3189e11bef5654c5",
}
TENSORRT = "96e781103cfc4adf4a6bb557e94bac8e693f6f4c"  # TensorRT 10.0
PAGES = "74a1bdf7a82984a2c5e359f47ab499c0f7a09f6e"  # documentation of providers, of its branch gh-pages
PROVIDERS = "onnxruntime/core/providers"
OPSETS = sorted(contract.IR_VERSIONS)
MICROSOFT = "com.microsoft"
OF_MICROSOFT = ("GroupQueryAttention", "MatMulNBits")  # the operators of this domain in exported graphs
LAST = 10**6  # the end of a kernel without one

Spans = dict[str, set[tuple[int, int]]]  # by operator: first and last version of its kernels
Opsets = dict[str, list[int]]  # by operator: the opsets of graphs whose nodes have a kernel


class Checkout:
    """Files of a git repository at a commit."""

    def __init__(self, path: str):
        self.path = path

    def read(self, commit: str, name: str) -> str:
        return self._git("show", f"{commit}:{name}")

    def read_all(self, commit: str, folder: str) -> str:
        """All lines of a folder's C++ files that may register a kernel."""
        forms = "KERNEL_CREATE_INFO KERNEL_CLASS_NAME KernelInfo( KernelInfo< RegisterBinaryOp( RangeKernels("
        patterns = [option for form in forms.split() for option in ("-e", form)]
        return self._git("grep", "-h", "-F", *patterns, commit, "--", folder)

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", self.path, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def add(spans: Spans, operator: str, first: str | int, last: str | int | None) -> None:
    spans.setdefault(operator, set()).add((int(first), LAST if last is None else int(last)))


def registered_kernels(text: str, provider: str, domain: str) -> Spans:
    """The kernels in lists of C++ classes: ...(kCudaExecutionProvider, kOnnxDomain, 13, 15, float, Add)."""
    spans: Spans = {}
    text = re.sub(r"//[^\n]*", "", text)
    name = r"ONNX_OPERATOR_(?:TWO_)?(VERSIONED_)?(?:TWO_)?(?:TYPED_)?KERNEL_CLASS_NAME"
    for versioned, numbers in re.findall(rf"{name}\(\s*{provider},\s*{domain},\s*([^)]*)\)", text):
        parts = [part.strip() for part in numbers.split(",")]
        if parts[0].isdigit():
            add(spans, parts[-1], parts[0], parts[1] if versioned else None)
    return spans


def webgpu_kernels(text: str) -> Spans:
    """The kernels of the WebGPU provider, which are registered in several forms."""
    spans = registered_kernels(text, "kWebGpuExecutionProvider", "kOnnxDomain")
    for versioned, numbers in re.findall(
        r"(?<!define )KERNEL_CREATE_INFO(_VERSIONED)?(?:_TYPED)?\((\d[^)]*)\)", text
    ):
        parts = [part.strip() for part in numbers.split(",")]
        add(spans, parts[-1], parts[0], parts[1] if versioned else None)
    versions = r"(\d+)(?:, (\d+))?"
    created = rf"Create(\w+?)(?:Versioned)?KernelInfo(?:<{versions}>)?\((?:{versions}, )?enable"
    for operator, *numbers in re.findall(rf"Register\({created}", text):
        first, last = numbers[:2] if numbers[0] else numbers[2:]
        add(spans, operator, first, last or None)
    for operator, listed in re.findall(r'RegisterBinaryOp\(kernel_registry, "(\w+)".*?(\{\{.*?\}\})', text):
        for first, last in re.findall(r"\{(\d+), (\d+|std::nullopt)\}", listed):
            add(spans, operator, first, last if last.isdigit() else None)
    if "RegisterRangeKernels(*kernel_registry" in text:
        add(spans, "Range", 11, None)
    return spans


def documented_kernels(text: str, provider: str) -> tuple[Spans, Spans]:
    """Those of docs/OperatorKernels.md: of ONNX's own domain, and of com.microsoft."""
    section = text.split(f"## Operators implemented by {provider}")[1].split("\n## ")[0]
    standard, _, microsoft = section.partition("**Operator Domain:** *com.microsoft*|")
    return _table(standard), _table(microsoft.partition("**Operator Domain:**")[0])


def _table(text: str) -> Spans:
    """Rows |operator|parameters|versions|types|; further versions of an operator have rows without a name."""
    spans: Spans = {}
    operator = ""
    for row in text.splitlines():
        cells = row.split("|")
        if len(cells) < 5 or cells[1] in ("Op Name", "--------"):
            continue
        operator = cells[1] or operator
        for first, last in re.findall(r"\[(\d+), (\d+)\]", cells[3]):
            add(spans, operator, first, last)
        for first in re.findall(r"(\d+)\+", cells[3]):
            add(spans, operator, first, None)
        for only in re.findall(r"^(\d+)$", cells[3]):
            add(spans, operator, only, only)
    return spans


def versions_of(operator: str) -> dict[int, int]:
    """By the opset of a graph: the version of the operator in it."""
    versions = {}
    for opset in OPSETS:
        if onnx.defs.has(operator, opset):
            versions[opset] = onnx.defs.get_schema(operator, opset).since_version
    return versions


def opsets_of(spans: Spans) -> Opsets:
    """An open-ended kernel is for the version at which it begins only, as in onnxruntime's registry."""
    opsets = {}
    for operator, kernels in spans.items():
        fits = [
            opset
            for opset, version in versions_of(operator).items()
            if any(a == version or (a <= version <= b < LAST) for a, b in kernels)
        ]
        if fits:
            opsets[operator] = fits
    return opsets


def named_opsets(names: Iterable[str], last: int = OPSETS[-1]) -> Opsets:
    """For a provider that accepts operators by name, in opsets up to `last`."""
    known = {name: [opset for opset in versions_of(name) if opset <= last] for name in sorted(set(names))}
    return {name: opsets for name, opsets in known.items() if opsets} | microsoft_opsets(names)


def microsoft_opsets(names: Iterable[str]) -> Opsets:
    """Operators of com.microsoft have version 1 in every opset."""
    return {f"{MICROSOFT}.{name}": OPSETS for name in OF_MICROSOFT if name in names}


def builders(text: str) -> list[str]:
    """Operators of CoreML's and QNN's lists of builders."""
    return re.findall(r'Create\w+OpBuilder\("(\w+)"', text)


def named_rows(text: str) -> list[str]:
    return re.findall(r"^\| *ai\.onnx[:.](\w+)", text, re.MULTILINE)


def registrations(runtime: Checkout, commit: str, tensorrt: Opsets) -> dict[str, Opsets]:
    """By target: its kernels in the code of onnxruntime."""
    cpu = runtime.read(commit, f"{PROVIDERS}/cpu/cpu_execution_provider.cc")
    cpu_contrib = runtime.read(commit, "onnxruntime/contrib_ops/cpu/cpu_contrib_kernels.cc")
    cuda = runtime.read(commit, f"{PROVIDERS}/cuda/cuda_execution_provider.cc")
    cuda_contrib = runtime.read(commit, "onnxruntime/contrib_ops/cuda/cuda_contrib_kernels.cc")
    webgpu_contrib = runtime.read(commit, "onnxruntime/contrib_ops/webgpu/webgpu_contrib_kernels.cc")
    openvino = runtime.read(commit, f"{PROVIDERS}/openvino/ov_versions/data_ops.cc")
    coreml = runtime.read(commit, f"{PROVIDERS}/coreml/builders/op_builder_factory.cc")
    qnn = runtime.read(commit, f"{PROVIDERS}/qnn/builder/op_builder_factory.cc")

    def microsoft(text: str, provider: str) -> Opsets:
        return microsoft_opsets(registered_kernels(text, provider, "kMSDomain"))

    of_cuda = microsoft_opsets(re.findall(r"class CUDA_MS_OP_\w*CLASS_NAME\(1, .*?(\w+)\);", cuda_contrib))

    of_webgpu = webgpu_kernels(runtime.read_all(commit, f"{PROVIDERS}/webgpu"))
    rows = re.findall(r'^ *\{"(\w+)", V_\w+, \{([^}]*)\}\}', openvino, re.MULTILINE)
    # Its list has names only: Attention is that of com.microsoft.
    on_openvino = {name for name, devices in rows if '"CPU"' in devices} - {"Attention"}
    return {
        "cpu": opsets_of(registered_kernels(cpu, "kCpuExecutionProvider", "kOnnxDomain"))
        | microsoft(cpu_contrib, "kCpuExecutionProvider"),
        "cuda": opsets_of(registered_kernels(cuda, "kCudaExecutionProvider", "kOnnxDomain")) | of_cuda,
        "webgpu": opsets_of(of_webgpu)
        | microsoft(webgpu_contrib, "kWebGpuExecutionProvider")
        | microsoft_opsets(re.findall(r"Register\(Create(\w+)KernelInfo\(enable_graph", webgpu_contrib)),
        "tensorrt": tensorrt,
        "openvino": named_opsets(on_openvino),
        "coreml": named_opsets(builders(coreml)),
        "qnn": named_opsets(builders(qnn)),
    }


def tensorrt_kernels(checkout: Checkout) -> Opsets:
    """From its documentation; onnxruntime passes what TensorRT's parser accepts."""
    text = checkout.read(TENSORRT, "docs/operators.md")
    last = re.search(r"inclusive range of opset \d+ to opset (\d+)", text)
    assert last is not None
    return named_opsets(re.findall(r"^\| (\w+) +\| Y ", text, re.MULTILINE), int(last[1]))


def documentation(runtime: Checkout, commit: str) -> dict[str, Opsets]:
    """By target: its kernels in onnxruntime's documentation."""
    text = runtime.read(commit, "docs/OperatorKernels.md")
    kernels = {}
    for target, provider in (("cpu", "CPUExecutionProvider"), ("cuda", "CUDAExecutionProvider")):
        standard, microsoft = documented_kernels(text, provider)
        kernels[target] = opsets_of(standard) | microsoft_opsets(microsoft)
    page = "docs/execution-providers/{}-ExecutionProvider.md"
    openvino = runtime.read(PAGES, page.format("OpenVINO"))
    rows = re.findall(r"^\| (\w+) \| Yes \|", openvino, re.MULTILINE)
    coreml = runtime.read(commit, "tools/ci_build/github/apple/coreml_supported_mlprogram_ops.md")
    kernels["openvino"] = named_opsets(rows)
    kernels["coreml"] = named_opsets(["ArgMax" if name == "Argmax" else name for name in named_rows(coreml)])
    kernels["qnn"] = named_opsets(named_rows(runtime.read(PAGES, page.format("QNN"))))
    return kernels


def ranges(opsets: Iterable[int]) -> str:
    """Consecutive opsets as ranges: "17-22,25"."""
    spans: list[list[int]] = []
    for opset in sorted(opsets):
        if spans and spans[-1][1] == opset - 1:
            spans[-1][1] = opset
        else:
            spans.append([opset, opset])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def compact(by_version: Mapping[str, Mapping[str, Opsets]]) -> dict[str, dict[str, dict[str, str]]]:
    """By target and operator: the opsets from a version on, where they change."""
    table: dict[str, dict[str, dict[str, str]]] = {}
    for version, targets in by_version.items():
        for target, kernels in targets.items():
            rows = table.setdefault(target, {})
            for operator in sorted({*rows, *kernels}):
                row, opsets = rows.setdefault(operator, {}), ranges(kernels.get(operator, ()))
                if opsets != next(reversed(row.values()), ""):
                    row[version] = opsets
    return {target: dict(sorted(rows.items())) for target, rows in table.items()}


def write(
    path: Path, sources: Mapping[str, str], kernels: Mapping[str, Mapping[str, Mapping[str, str]]]
) -> None:
    """One operator per line."""
    lines = ["{", f' "sources": {json.dumps(sources)},', ' "kernels": {']
    for target, rows in kernels.items():
        lines.append(f'  "{target}": {{')
        lines += [f'   "{name}": {json.dumps(row)},' for name, row in rows.items()]
        lines[-1] = lines[-1].removesuffix(",")
        lines.append("  },")
    lines[-1] = lines[-1].removesuffix(",")
    path.write_text("\n".join([*lines, " }", "}", ""]), encoding="utf-8")


def main() -> None:
    runtime, tensorrt = map(Checkout, sys.argv[1:])
    on_tensorrt = tensorrt_kernels(tensorrt)
    shipped = {v: registrations(runtime, commit, on_tensorrt) for v, commit in SOURCES.items()}
    write(SHIPPED, {**SOURCES, "tensorrt": TENSORRT}, compact(shipped))
    documented = {v: documentation(runtime, commit) for v, commit in SOURCES.items()}
    write(DOCUMENTED, SOURCES, compact(documented))


if __name__ == "__main__":
    main()

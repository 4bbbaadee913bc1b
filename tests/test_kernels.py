"""The table of kernels, compared with onnxruntime's documentation, and the opsets that follow from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_tx import contract, kernels
from keras_tx.doctor import SUPPORTED, release
from keras_tx.kernels import BASIC, NEWER_FORMS, TARGETS, has_kernel, missing, newest_opset, versions

DOCUMENTED = json.loads((Path(__file__).parent / "documented_kernels.json").read_text("utf-8"))["kernels"]
# Operators that are registered, and missing in onnxruntime's documentation.
UNDOCUMENTED = {
    "cpu": "NonMaxSuppression",
    "cuda": "NonMaxSuppression",
    "openvino": """
        CastLike Compress DynamicQuantizeLinear GRU GatherElements Gelu HardSwish LayerNormalization
        LogSoftmax LpNormalization RNN RandomNormal RandomNormalLike Trilu com.microsoft.MatMulNBits
    """,
    "coreml": "BatchNormalization Flatten Gather LRN Pad ReduceMin ReduceProd",
    "qnn": """
        Ceil CumSum Einsum GatherElements GatherND GlobalMaxPool HardSigmoid LSTM Mean Mod PRelu
        RMSNormalization RandomUniformLike Reciprocal ReduceL2 Reshape STFT ScatterElements ScatterND Sum
        ThresholdedRelu Upsample com.microsoft.MatMulNBits
    """,
}
REMOVED = {"openvino": {"QLinearMatMul"}}


@pytest.mark.parametrize("target", UNDOCUMENTED)
def test_registrations_equal_the_documentation(target: str):
    """In opsets and versions of onnxruntime; each difference is listed."""
    registered, documented = kernels._table()["kernels"][target], DOCUMENTED[target]
    assert registered.keys() - documented.keys() == set(UNDOCUMENTED[target].split())
    assert documented.keys() - registered.keys() == REMOVED.get(target, set())
    both = registered.keys() & documented.keys()
    assert {name: registered[name] for name in both} == {name: documented[name] for name in both}


def test_every_target_has_kernels():
    assert list(kernels._table()["kernels"]) == list(TARGETS)
    for target, about in TARGETS.items():
        assert about.since in versions()
        assert has_kernel(target, "MatMul", 17, about.since)


def test_the_oldest_versions_are_those_of_the_extras():
    assert TARGETS["cpu"].since == SUPPORTED["onnxruntime"][0]
    assert TARGETS["cuda"].since == SUPPORTED["onnxruntime-gpu"][0]
    assert release(versions()[-1]) >= release(SUPPORTED["onnxruntime"][0])


@pytest.mark.parametrize(
    "target, opset",
    {"cpu": 23, "cuda": 18, "webgpu": 21, "tensorrt": 20, "openvino": 22, "coreml": 22, "qnn": 22}.items(),
)
def test_newest_opset(target: str, opset: int):
    assert newest_opset(target) == opset
    assert missing(target, opset, TARGETS[target].since) == []
    assert opset == contract.DEFAULT_OPSET or missing(target, opset + 1, TARGETS[target].since)


@pytest.mark.parametrize(
    "target, operator, opset, version, expected",
    [
        ("cuda", "Attention", 23, "1.24", False),
        ("cuda", "Attention", 23, "1.25", True),
        ("cuda", "Attention", 22, "1.30", False),  # the operator is of opset 23
        ("webgpu", "Attention", 23, "1.30", False),
        ("cuda", "Equal", 19, "1.26", False),
        ("cuda", "Equal", 19, "1.27", True),
        ("webgpu", "Cos", 21, "1.30", True),
        ("webgpu", "Cos", 22, "1.30", False),
        ("webgpu", "RotaryEmbedding", 23, "1.24", False),
        ("webgpu", "RotaryEmbedding", 23, "1.25", True),
        ("webgpu", "Reshape", 22, "1.24", True),
        ("webgpu", "Reshape", 23, "1.24", False),  # a kernel without an end is for one version
        ("webgpu", "NonZero", 22, "1.30", False),
        ("openvino", "Attention", 23, "1.30", False),  # its list means that of com.microsoft
        ("cpu", "com.microsoft.MatMulNBits", 23, "1.24", True),
        ("qnn", "NoSuchOperator", 22, "1.30", False),
    ],
)
def test_kernels(target: str, operator: str, opset: int, version: str, expected: bool):
    assert has_kernel(target, operator, opset, version) is expected


def test_kernels_stay():
    """A kernel that a newer version lacks would be one that the script did not read."""
    for target, rows in kernels._table()["kernels"].items():
        for operator in rows:
            for opset in contract.IR_VERSIONS:
                has = [has_kernel(target, operator, opset, version) for version in versions()]
                assert has == sorted(has), (target, operator, opset)


def test_names_are_operators():
    for name in (*BASIC, *NEWER_FORMS):
        assert has_kernel("cpu", name, contract.DEFAULT_OPSET, versions()[-1]), name

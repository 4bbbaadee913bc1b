from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from keras_tx.errors import FolderError
from keras_tx.protobuf import write_field
from keras_tx.runtime.external_data import SCHEMA, external_locations


def external_tensor(location: str) -> TensorProto:
    tensor = TensorProto(name=location, data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"offset": "0", "location": location, "length": "4"}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def sparse(location: str) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(
        values=external_tensor(f"{location}.values"), indices=external_tensor(f"{location}.indices")
    )


def graph_of(location: str) -> onnx.GraphProto:
    return onnx.GraphProto(initializer=[external_tensor(location)])


def model_with_all_locations() -> tuple[onnx.ModelProto, set[str]]:
    node = helper.make_node("Nothing", [], [])
    node.attribute.append(onnx.AttributeProto(name="t", t=external_tensor("t")))
    node.attribute.append(
        onnx.AttributeProto(
            name="tensors", tensors=[external_tensor("tensors.0"), external_tensor("tensors.1")]
        )
    )
    node.attribute.append(onnx.AttributeProto(name="sparse", sparse_tensor=sparse("s")))
    node.attribute.append(onnx.AttributeProto(name="sparses", sparse_tensors=[sparse("ss")]))
    inner = helper.make_node("If", [], [])
    inner.attribute.append(onnx.AttributeProto(name="g", g=graph_of("nested")))
    node.attribute.append(onnx.AttributeProto(name="g", g=onnx.GraphProto(node=[inner])))
    node.attribute.append(
        onnx.AttributeProto(name="graphs", graphs=[graph_of("graphs.0"), graph_of("graphs.1")])
    )
    inside = numpy_helper.from_array(np.arange(1000, dtype="float32"), "inside")
    inside.metadata_props.add(key="location", value="only-metadata")
    graph = onnx.GraphProto(node=[node], initializer=[inside, external_tensor("initializer")])
    graph.sparse_initializer.append(sparse("initializer"))
    function = onnx.FunctionProto(
        name="f", node=[onnx.NodeProto(attribute=[onnx.AttributeProto(t=external_tensor("f"))])]
    )
    function.attribute_proto.append(onnx.AttributeProto(name="d", t=external_tensor("default")))
    training = onnx.TrainingInfoProto(initialization=graph_of("initial"), algorithm=graph_of("algorithm"))
    model = onnx.ModelProto(ir_version=11, graph=graph, functions=[function], training_info=[training])
    expected = {"t", "tensors.0", "tensors.1", "s.values", "s.indices", "ss.values", "ss.indices", "nested"}
    expected |= {"graphs.0", "graphs.1", "initializer", "initializer.values", "initializer.indices"}
    return model, expected | {"f", "default", "initial", "algorithm"}


MODEL, EXPECTED = model_with_all_locations()
CONTENT = MODEL.SerializeToString()


def test_schema_equals_that_of_onnx():
    reaching: dict[str, dict[int, str]] = {}

    def visit(descriptor, trail: tuple[str, ...]) -> bool:
        """Whether a message can contain a TensorProto; adds its fields that lead there to `reaching`."""
        if descriptor.name == "TensorProto":
            return True
        if descriptor.name in trail:
            return descriptor.name in ("GraphProto", "NodeProto", "AttributeProto", "FunctionProto")
        ways = {
            field.number: field.message_type.name
            for field in descriptor.fields
            if field.message_type is not None and visit(field.message_type, (*trail, descriptor.name))
        }
        if ways:
            reaching[descriptor.name] = ways
        return bool(ways)

    visit(onnx.ModelProto.DESCRIPTOR, ())
    number = TensorProto.DESCRIPTOR.fields_by_name["external_data"].number
    assert {**reaching, "TensorProto": {number: "StringStringEntryProto"}} == SCHEMA


def test_locations_in_all_messages(tmp_path: Path):
    file = tmp_path / "model.onnx"
    file.write_bytes(CONTENT)
    assert external_locations(file) == tuple(sorted(EXPECTED))


def test_graph_without_external_data(tmp_path: Path):
    file = tmp_path / "model.onnx"
    graph = helper.make_graph([], "g", [], [], [numpy_helper.from_array(np.zeros(3, "float32"), "w")])
    onnx.save_model(helper.make_model(graph), file)
    assert external_locations(str(file)) == ()


def test_repeated_keys_and_values(tmp_path: Path):
    file = tmp_path / "model.onnx"
    # the entry that protobuf would merge: keys "offset" and "location", values "a" and "b"
    entry = b"\x0a\x06offset\x0a\x08location\x12\x01a\x12\x01b"
    tensor = b"\x6a" + bytes([len(entry)]) + entry
    graph = b"\x2a" + bytes([len(tensor)]) + tensor
    file.write_bytes(b"\x3a" + bytes([len(graph)]) + graph)
    assert external_locations(file) == ("a", "b")


def test_nesting_deeper_than_python_calls(tmp_path: Path):
    content = graph_of("deep").SerializeToString()
    for _ in range(3000):
        for number in (6, 5, 1):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            content = write_field(number, content)
    file = tmp_path / "model.onnx"
    file.write_bytes(write_field(7, content))
    assert external_locations(file) == ("deep",)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x3a",  # no length
        b"\x3a\x05abc",  # 5 bytes, of which 3 remain
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # 2**63 - 1 bytes
        b"\x08" + b"\xff" * 11,  # a number of more than ten bytes
        b"\x0d\x00\x00",  # half of a 32-bit number
        b"\x09" + bytes(7),  # most of a 64-bit number
        b"\x00\x00",  # field number 0
        b"\x0b\x0c",  # wire type 3
        b"\x3a\x02\x2a\x01",  # damaged inside a graph
        b"\x3a\x12\x2a\x10\x6a\x0e\x0a\x08location\x12\x02\xff\xfe",  # a location that is not UTF-8
    ],
)
def test_damaged_file_raises(content: bytes, tmp_path: Path):
    file = tmp_path / "model.onnx"
    file.write_bytes(content)
    with pytest.raises(FolderError, match=r"model\.onnx is not a valid ONNX file"):
        external_locations(file)


def test_missing_file_raises(tmp_path: Path):
    with pytest.raises(FolderError, match=r"none\.onnx"):
        external_locations(tmp_path / "none.onnx")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "model.onnx"


def locations_or_none(scratch: Path, content: bytes) -> tuple[str, ...] | None:
    scratch.write_bytes(content)
    try:
        return external_locations(scratch)
    except FolderError:
        return None


@settings(max_examples=300, deadline=1000)
@given(content=st.binary(max_size=200))
def test_random_bytes_raise_no_other_error(scratch: Path, content: bytes):
    locations_or_none(scratch, content)


@settings(max_examples=300, deadline=1000)
@given(at=st.integers(0, len(CONTENT) - 1), by=st.binary(min_size=1, max_size=3), cut=st.booleans())
def test_damaged_models_hide_no_location(scratch: Path, at: int, by: bytes, cut: bool):
    content = CONTENT[:at] if cut else CONTENT[:at] + by + CONTENT[at + len(by) :]
    locations = locations_or_none(scratch, content)
    try:
        expected = {e.value for e in entries_of(onnx.ModelProto.FromString(content)) if e.key == "location"}
    except Exception:  # DecodeError has no public home; what protobuf refuses, onnxruntime refuses too
        return
    assert locations is None or expected <= set(locations)


def entries_of(message: Any) -> Iterator[onnx.StringStringEntryProto]:
    """All entries of external data in a message that protobuf has parsed."""
    if isinstance(message, TensorProto):
        yield from message.external_data
    for field, value in message.ListFields():
        if field.message_type is not None:
            for child in value if isinstance(value, Sequence) or hasattr(value, "__len__") else [value]:
                yield from entries_of(child)

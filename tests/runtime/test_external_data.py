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
from keras_tx.runtime.external_data_check import SCHEMA, external_locations


def outside(location: str) -> TensorProto:
    tensor = TensorProto(name=location, data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"offset": "0", "location": location, "length": "4"}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def sparse(location: str) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(
        values=outside(f"{location}.values"), indices=outside(f"{location}.indices")
    )


def graph_of(location: str) -> onnx.GraphProto:
    return onnx.GraphProto(initializer=[outside(location)])


def model_with_all_hiding_places() -> tuple[onnx.ModelProto, set[str]]:
    node = helper.make_node("Nothing", [], [])
    node.attribute.append(onnx.AttributeProto(name="t", t=outside("t")))
    node.attribute.append(
        onnx.AttributeProto(name="tensors", tensors=[outside("tensors.0"), outside("tensors.1")])
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
    graph = onnx.GraphProto(node=[node], initializer=[inside, outside("initializer")])
    graph.sparse_initializer.append(sparse("initializer"))
    function = onnx.FunctionProto(
        name="f", node=[onnx.NodeProto(attribute=[onnx.AttributeProto(t=outside("f"))])]
    )
    function.attribute_proto.append(onnx.AttributeProto(name="d", t=outside("default")))
    training = onnx.TrainingInfoProto(initialization=graph_of("initial"), algorithm=graph_of("algorithm"))
    model = onnx.ModelProto(ir_version=11, graph=graph, functions=[function], training_info=[training])
    expected = {"t", "tensors.0", "tensors.1", "s.values", "s.indices", "ss.values", "ss.indices", "nested"}
    expected |= {"graphs.0", "graphs.1", "initializer", "initializer.values", "initializer.indices"}
    return model, expected | {"f", "default", "initial", "algorithm"}


MODEL, EXPECTED = model_with_all_hiding_places()
CONTENT = MODEL.SerializeToString()


def test_the_table_is_what_onnx_describes():
    reaching: dict[str, dict[int, str]] = {}

    def visit(descriptor, trail: tuple[str, ...]) -> bool:
        """Whether a TensorProto can be found below; fills `reaching` with the ways to it."""
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


def test_every_hiding_place_is_found(tmp_path: Path):
    file = tmp_path / "model.onnx"
    file.write_bytes(CONTENT)
    assert external_locations(file) == tuple(sorted(EXPECTED))


def test_nothing_is_found_where_nothing_is(tmp_path: Path):
    file = tmp_path / "model.onnx"
    graph = helper.make_graph([], "g", [], [], [numpy_helper.from_array(np.zeros(3, "float32"), "w")])
    onnx.save_model(helper.make_model(graph), file)
    assert external_locations(str(file)) == ()


def test_repeated_keys_and_values_are_all_reported(tmp_path: Path):
    file = tmp_path / "model.onnx"
    # the entry that protobuf would merge: keys "offset" and "location", values "a" and "b"
    entry = b"\x0a\x06offset\x0a\x08location\x12\x01a\x12\x01b"
    tensor = b"\x6a" + bytes([len(entry)]) + entry
    graph = b"\x2a" + bytes([len(tensor)]) + tensor
    file.write_bytes(b"\x3a" + bytes([len(graph)]) + graph)
    assert external_locations(file) == ("a", "b")


def test_nesting_deeper_than_pythons_stack(tmp_path: Path):
    content = graph_of("deep").SerializeToString()
    for _ in range(3000):
        for tag in (0x32, 0x2A, 0x0A):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            content = bytes([tag]) + varint(len(content)) + content
    file = tmp_path / "model.onnx"
    file.write_bytes(b"\x3a" + varint(len(content)) + content)
    assert external_locations(file) == ("deep",)


def varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a sound ONNX file: it is empty"),
        (b"\x3a", "a number is cut off at byte 1"),
        (b"\x3a\x05abc", "a field of 5 bytes at byte 2, where 3 remain"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "a field of 9223372036854775807 bytes"),
        (b"\x08" + b"\xff" * 11, "a number of more than ten bytes at byte 1"),
        (b"\x0d\x00\x00", "a number is cut off at byte 3"),
        (b"\x09" + bytes(7), "a number is cut off at byte 8"),
        (b"\x00\x00", "field number 0"),
        (b"\x0b\x0c", "wire type 3 at byte 1, which ONNX does not use"),
        (b"\x3a\x02\x2a\x01", "a field of 1 bytes at byte 4, where 0 remain"),
        (b"\x3a\x12\x2a\x10\x6a\x0e\x0a\x08location\x12\x02\xff\xfe", r"not UTF-8: b'\\xff\\xfe'"),
    ],
)
def test_damage_is_named(content: bytes, message: str, tmp_path: Path):
    file = tmp_path / "model.onnx"
    file.write_bytes(content)
    with pytest.raises(
        FolderError, match=rf"model\.onnx is not a sound ONNX file: .*{message.split(': ')[-1]}"
    ):
        external_locations(file)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(FolderError, match=r"none\.onnx cannot be read: No such file"):
        external_locations(tmp_path / "none.onnx")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "model.onnx"


def survives(scratch: Path, content: bytes) -> tuple[str, ...] | None:
    scratch.write_bytes(content)
    try:
        return external_locations(scratch)
    except FolderError:
        return None


@settings(max_examples=300, deadline=1000)
@given(content=st.binary(max_size=200))
def test_random_bytes_give_an_answer_or_a_folder_error(scratch: Path, content: bytes):
    survives(scratch, content)


@settings(max_examples=300, deadline=1000)
@given(at=st.integers(0, len(CONTENT) - 1), by=st.binary(min_size=1, max_size=3), cut=st.booleans())
def test_a_damaged_model_gives_an_answer_or_a_folder_error(scratch: Path, at: int, by: bytes, cut: bool):
    content = CONTENT[:at] if cut else CONTENT[:at] + by + CONTENT[at + len(by) :]
    found = survives(scratch, content)
    try:
        expected = {e.value for e in entries_of(onnx.ModelProto.FromString(content)) if e.key == "location"}
    except Exception:  # DecodeError has no public home; what protobuf refuses, onnxruntime refuses too
        return
    assert found is None or expected <= set(found)


def entries_of(message: Any) -> Iterator[onnx.StringStringEntryProto]:
    """What protobuf itself finds, by walking everything that it parsed."""
    if isinstance(message, TensorProto):
        yield from message.external_data
    for field, value in message.ListFields():
        if field.message_type is not None:
            for child in value if isinstance(value, Sequence) or hasattr(value, "__len__") else [value]:
                yield from entries_of(child)

"""The wire format of protobuf equals that of the protobuf package, by messages of onnx."""

from __future__ import annotations

import onnx
import pytest

from keras_tx.protobuf import BYTES, FIXED32, FIXED64, VARINT, read_fields, read_varint, write_field


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**31, 2**63 - 1])
def test_written_fields_equal_those_of_protobuf(number: int):
    message = onnx.AttributeProto(name="a" * 200, i=number, s=b"\x00\xff")
    written = write_field(1, b"a" * 200) + write_field(3, number) + write_field(4, b"\x00\xff")
    assert written == message.SerializeToString()
    dimension = onnx.TensorProto(dims=[number])
    (field,) = read_fields(write_field(1, number))
    assert read_varint(write_field(1, number), field.first, field.end) == (number, field.end)
    assert onnx.TensorProto.FromString(write_field(1, number)) == dimension


def test_fields_have_their_types_and_places():
    message = onnx.TensorProto(dims=[3], float_data=[1.5], name="w", double_data=[2.5])
    message.segment.begin = 7
    attribute = onnx.AttributeProto(f=0.5, ints=[1, -1])
    content, other = message.SerializeToString(), attribute.SerializeToString()
    fields = {field.number: field for field in read_fields(content)}
    assert {number: field.wire_type for number, field in fields.items()} == {
        1: VARINT,  # dims
        3: BYTES,  # segment
        4: BYTES,  # float_data, which is packed
        8: BYTES,  # name
        10: BYTES,  # double_data
    }
    assert content[fields[8].first : fields[8].end] == b"w"
    assert b"".join(content[field.start : field.end] for field in read_fields(content)) == content
    assert [field.wire_type for field in read_fields(other)] == [FIXED32, VARINT, VARINT]
    nested = list(read_fields(content, fields[3].first, fields[3].end))
    assert [(field.number, read_varint(content, field.first, field.end)[0]) for field in nested] == [(1, 7)]
    (fixed,) = read_fields(b"\x09" + bytes(8))
    assert (fixed.number, fixed.wire_type, fixed.end - fixed.first) == (1, FIXED64, 8)


@pytest.mark.parametrize(
    "content",
    [
        b"\x08",  # no value
        b"\x08" + b"\x80" * 11,  # an integer of more than ten bytes
        b"\x0a\x05abc",  # 5 bytes, of which 3 remain
        b"\x0d\x00\x00",  # 4 bytes, of which 2 remain
        b"\x0b",  # a group
        b"\x02\x00",  # field 0
    ],
)
def test_damaged_messages_raise(content: bytes):
    with pytest.raises(ValueError, match="damaged at byte"):
        list(read_fields(content))

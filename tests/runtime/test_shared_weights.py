"""Two graphs with a token table in common: it is in memory once, and the sessions compute the same."""

import mmap
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from keras_tx.errors import FolderError
from keras_tx.runtime.external_data import ExternalTensor, external_tensors
from keras_tx.runtime.session import Session
from keras_tx.runtime.shared_weights import LEAST, SharedWeights

SHAPE = (600, 512)  # 1.2 MB
FEED = {"ids": np.array([3, 599, 0])}

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="pages cannot be released here")


def write(path: Path, table: np.ndarray, location: str) -> Path:
    """A graph that looks up rows of a table, and multiplies them by the table."""
    small = np.arange(4, dtype="float32")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Gemm", ["rows", "table"], ["scores"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", table.shape[0]])],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(small, "small")],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    onnx.save_model(model, path, save_as_external_data=True, location=location, size_threshold=1000)
    return path


@pytest.fixture
def table() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(SHAPE, dtype="float32")


def scores(path: Path, weights: SharedWeights | None = None) -> np.ndarray:
    with Session(path, "cpu", 1, weights) as session:
        return session.run(FEED)["scores"]


def test_external_tensors_equal_those_of_onnx(table, tmp_path):
    path = write(tmp_path / "one.onnx", table, "data")
    assert external_tensors(path) == (ExternalTensor("table", TensorProto.FLOAT, SHAPE, "data", 0),)


@pytest.mark.parametrize("locations", [("data", "data"), ("data", "other")], ids=["one file", "two files"])
def test_sessions_compute_the_same(locations, table, tmp_path):
    one, other = (write(tmp_path / f"{i}.onnx", table, name) for i, name in enumerate(locations))
    weights = SharedWeights.of(one, other)
    np.testing.assert_array_equal(weights.arrays["table"], table)
    assert list(weights.arrays) == ["table"]
    expected = onnxruntime.InferenceSession(one, providers=["CPUExecutionProvider"]).run(None, FEED)[0]
    for path in (one, other):
        np.testing.assert_array_equal(scores(path, weights), expected)


def test_session_reads_the_shared_array(table, tmp_path):
    one = write(tmp_path / "one.onnx", table, "data")
    weights = SharedWeights.of(one, one)
    weights.arrays["table"] = 2 * table
    np.testing.assert_allclose(scores(one, weights), 4 * scores(one), rtol=1e-5)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not list pages")
def test_pages_leave_memory_after_loading(table, tmp_path):
    one = write(tmp_path / "one.onnx", table, "data")
    with Session(one, "cpu", 1, SharedWeights.of(one, one)) as session:
        assert resident(tmp_path / "data") == 0
        session.run(FEED)
        assert resident(tmp_path / "data") > 0
    with Session(one, "cpu", 1):
        assert resident(tmp_path / "data") >= table.nbytes


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not list pages")
def test_populate_reads_only_the_pages_of_the_rows(table, tmp_path):
    ids = np.array([[5, 300], [300, 599]])
    one = write(tmp_path / "one.onnx", table, "data")
    weights = SharedWeights.of(one, one)
    weights.populate(ids, len(table) + 1)
    assert resident(tmp_path / "data") == 0
    for _ in range(2):  # rows of 2 kB, each in one page
        weights.populate(ids, len(table))
        np.testing.assert_array_equal(weights.arrays["table"][ids], table[ids])
        assert resident(tmp_path / "data") == 3 * mmap.PAGESIZE
    np.testing.assert_array_equal(weights.arrays["table"], table)
    weights.release()
    assert resident(tmp_path / "data") == 0
    weights.populate(ids, len(table))
    assert resident(tmp_path / "data") == 3 * mmap.PAGESIZE


def test_tables_of_one_graph(table, tmp_path):
    """As of an encoder in int8, whose decoder stores the table transposed."""
    one = write(tmp_path / "one.onnx", table, "data")
    other = write(tmp_path / "other.onnx", table[:, :-1], "other")
    weights = SharedWeights.of(one, other)
    assert weights.arrays == {}
    assert weights.with_tables(one, len(table) + 1).arrays == {}
    tables = weights.with_tables(one, len(table))
    np.testing.assert_array_equal(tables.arrays["table"], table)
    np.testing.assert_array_equal(scores(one, tables), scores(one))
    tables.arrays["table"] = 2 * table
    np.testing.assert_allclose(scores(one, tables), 4 * scores(one), rtol=1e-5)


def test_populate_of_other_arrays_does_nothing(table, tmp_path):
    one = write(tmp_path / "one.onnx", table, "data")
    weights = SharedWeights.of(one, one)
    weights.arrays["table"] = 2 * table
    weights.populate(np.array([0, 7]), len(table))
    np.testing.assert_array_equal(weights.arrays["table"], 2 * table)


def resident(path: Path) -> int:
    """Bytes of a file in the memory of this process."""
    size, of_file = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            of_file = rest.endswith(str(path))
        elif of_file and name == "Rss:":
            size += int(rest.split()[0]) * 1024
    return size


@pytest.mark.parametrize(
    "changed",
    [lambda x: x + 1, lambda x: x[:-1], lambda x: x.astype("float64")],
    ids=["values", "shape", "type"],
)
def test_different_weights_are_not_shared(changed, table, tmp_path):
    one = write(tmp_path / "one.onnx", table, "data")
    other = write(tmp_path / "other.onnx", changed(table), "other")
    assert SharedWeights.of(one, other).arrays == {}


def test_small_weights_are_not_shared(tmp_path):
    table = np.zeros((LEAST // 4 // 512 - 1, 512), "float32")
    one = write(tmp_path / "one.onnx", table, "data")
    assert SharedWeights.of(one, one).arrays == {}


@pytest.mark.parametrize("content", [b"", b"short"])
def test_short_file_raises_as_without_sharing(content, table, tmp_path):
    one = write(tmp_path / "one.onnx", table, "data")
    (tmp_path / "data").write_bytes(content)
    weights = SharedWeights.of(one, one)
    assert weights.arrays == {}
    with pytest.raises(FolderError, match=r"one\.onnx"):
        Session(one, "cpu", 1, weights)

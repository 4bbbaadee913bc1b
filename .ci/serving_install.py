"""The serving machine: what `pip install "keras-tx[runtime]"` brought, and how long a first answer takes.

    python .ci/serving_install.py

Run in an environment that has nothing but that extra.
"""

import subprocess
import sys
import tempfile
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

NEVER = ("keras", "tensorflow", "torch", "jax", "onnx", "onnx_ir", "scipy", "transformers")
LARGEST = 100  # MB of one distribution: NumPy with its OpenBLAS and onnxruntime have about 70
ALL = 300  # MB, pip and setuptools included
ANSWER = 3.0  # seconds, of which about 0.3 are needed here: this is no benchmark


def main() -> None:
    installed = [name for name in NEVER if find_spec(name)]
    assert not installed, f"the runtime extra brought {installed}"
    sizes = sorted(((megabytes(one), one.name) for one in metadata.distributions()), reverse=True)
    print(", ".join(f"{name} {size:.1f}" for size, name in sizes), "MB")
    assert sizes[0][0] < LARGEST, f"{sizes[0][1]} has {sizes[0][0]:.0f} MB, expected less than {LARGEST}"
    whole = sum(size for size, _ in sizes)
    assert whole < ALL, f"all together have {whole:.0f} MB, expected less than {ALL}"
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        seconds = min(answer(folder) for _ in range(3))
    print(f"{whole:.0f} MB in all; from the start of Python to a first small answer {seconds:.2f} s")
    assert seconds < ANSWER


def megabytes(one: metadata.Distribution) -> float:
    files = [Path(str(one.locate_file(file))) for file in one.files or []]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def answer(folder: str) -> float:
    code = (
        "import sys, numpy\n"
        "from keras_tx.runtime import load\n"
        "with load(sys.argv[1]) as model:\n"
        "    assert model(numpy.ones((2, 3), 'float32'))['y'].shape == (2, 3)"
    )
    start = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", code, folder], check=True)
    return time.perf_counter() - start


# y = Identity(x), float32 (batch_size, 3), opset 17, written by onnx, which this machine does not have.
GRAPH = bytes.fromhex(
    "080812003a530a100a017812017922084964656e746974791201675a1d0a017812180a16080112120a0c120a"
    "62617463685f73697a650a020803621d0a017912180a16080112120a0c120a62617463685f73697a650a0208"
    "0342040a001011"
)


def write(folder: Path) -> None:
    from keras_tx import contract

    graph = folder / contract.MODEL
    graph.parent.mkdir()
    graph.write_bytes(GRAPH)
    shape = (contract.BATCH_AXIS, 3)
    contract.Manifest(
        keras_tx_version="0",
        task=None,
        opset=17,
        precisions={"fp32": contract.MODEL},
        inputs=(contract.TensorSpec("x", "float32", shape),),
        outputs=(contract.TensorSpec("y", "float32", shape),),
        tiers={},
        files={contract.MODEL: contract.describe_file(graph)},
    ).save(folder)


if __name__ == "__main__":
    main()

"""Who may import what, read off the syntax tree: the rooms and arrows of the design, and no others."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"keras_tx": ROOT / "keras_tx", "keras_tx_onnx": ROOT / "export" / "keras_tx_onnx"}
SOURCES = sorted(path for folder in PACKAGES.values() for path in folder.rglob("*.py"))
EVERYWHERE = {"arguments", "contract", "errors", "processing", "protobuf"}

# room: (the rooms it may enter, the packages of others that it may import)
RULES: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "arguments": ({"errors"}, {"numpy"}),
    "contract": ({"errors"}, set()),
    "atomic_write": ({"contract", "errors"}, set()),
    "kernels": ({"contract"}, set()),
    "progress_bar": (set(), set()),
    "protobuf": (set(), set()),
    "consistent_read": ({"errors"}, set()),
    "registration": ({"models", "training"}, {"keras"}),
    "generation": (EVERYWHERE, {"numpy", "llguidance"}),  # llguidance: constrained output, inside a function
    "processing": ({"contract", "errors", "protobuf"}, {"numpy", "PIL", "tokenizers"}),
    "runtime": (
        EVERYWHERE | {"consistent_read", "generation", "kernels", "progress_bar"},
        {"numpy", "onnxruntime"},
    ),
    # the packages of the extra serve: only in serving/http, as a test below has it
    "serving": (
        EVERYWHERE | {"atomic_write", "generation", "runtime"},
        {
            "numpy",
            "onnxruntime",
            "starlette",
            "uvicorn",
            "uvloop",
            "prometheus_client",
            "ray",  # keras_tx.serving.ray
            "jinja2",
            "opentelemetry",
        },
    ),
    # torch: its fused attention; tensorflow: a loop over blocks of queries; imported inside functions
    "layers": ({"arguments", "contract", "errors"}, {"keras", "numpy", "tensorflow", "torch"}),
    "losses": (EVERYWHERE, {"keras", "numpy"}),
    "metrics": (EVERYWHERE, {"keras", "numpy", "sacrebleu"}),
    "optimizers": (EVERYWHERE, {"keras", "numpy"}),
    "heads": (EVERYWHERE | {"layers", "losses", "metrics"}, {"keras", "numpy"}),
    "weights": (
        EVERYWHERE | {"progress_bar"},
        {"keras", "numpy", "ml_dtypes", "h5py", "huggingface_hub", "keras_hub"},
    ),
    "models": (
        EVERYWHERE
        | {"atomic_write", "consistent_read", "generation"}
        | {"layers", "heads", "losses", "metrics", "optimizers", "weights"},
        {"keras", "numpy", "h5py", "ml_dtypes", "keras_hub"},
    ),
    "data": (
        EVERYWHERE | {"atomic_write", "progress_bar"},
        {"keras", "numpy", "PIL", "tensorflow", "keras_hub"},
    ),  # tensorflow: tf.data
    # torch: the state of its random generator; jax: gradients, and processes that train together; tensorflow:
    # also the iterators of tf.data; ray: keras_tx.training.ray
    "training": (
        EVERYWHERE
        | {"atomic_write", "data", "heads", "layers", "metrics", "models", "optimizers", "progress_bar"}
        | {"weights"},
        {"keras", "numpy", "tokenizers", "torch", "jax", "tensorflow", "ray"},
    ),
    # keras, its backends: imported inside functions, so that a folder is inspected without them
    # matplotlib: figures; PIL: overlays; tensorflow: also event files of TensorBoard
    "inspect": (
        EVERYWHERE | {"atomic_write", "layers", "models", "progress_bar", "runtime"},
        {"keras", "numpy", "onnxruntime", "matplotlib", "PIL", "jax", "tensorflow", "torch"},
    ),
    "keras_tx_onnx": (
        EVERYWHERE
        | {"atomic_write", "kernels", "layers", "models", "heads", "weights", "metrics", "runtime"},
        # tf2onnx converts what TensorFlow traces; both only from inside a function, as a test below has it
        # keras_hub: lowerings of its layers, imported when the first of them is met
        {
            "keras",
            "keras_hub",
            "numpy",
            "onnx",
            "onnx_ir",
            "onnxruntime",
            "tf2onnx",
            "tensorflow",
        },
    ),
}
# room of keras_tx_onnx: the rooms of it that it may enter, beside errors and tolerances
EXPORTER_RULES: dict[str, set[str]] = {
    "graph": set(),
    "reading": {"graph"},
    "lowerings": {"graph", "reading"},
    "conversion": {"graph", "reading"},
    "interfaces": {"graph", "reading"},
    "verifying": {"graph", "interfaces", "reading"},
    "quantizing": {"graph", "verifying"},
}
# The one cycle: the walk calls the lowerings, and a lowering that opens a layer walks again.
EXPORTER_CYCLE = {"reading": {"conversion", "lowerings"}}

# These reach everything, but only from inside a function: `keras-tx --help` must not wait for TensorFlow.
LAZY = {"cli", "commands", "demo", "doctor", "environment"}

# Against the arrows, and so only from inside a function: Keras's `model.export` is a method.
BACKWARDS = {"models": {"keras_tx_onnx"}}

# Keras promises nothing about keras.src: each use has its reason, and pyproject.toml's ceiling on Keras.
KERAS_SRC = {
    "export/keras_tx_onnx/callback.py",  # MonitorCallback, which knows a metric's direction
    "export/keras_tx_onnx/reading/functional_graph.py",  # the walk
    "export/keras_tx_onnx/reading/keras_patches.py",  # what the exporter replaces in Keras for a moment
    "keras_tx/layers/attention.py",  # get_keras_mask has no public name
    "keras_tx/layers/transformer_block.py",  # the same
    "keras_tx/models/first_batch.py",  # PyDatasetAdapter, which fixes axes by the first two batches
    "keras_tx/weights/weightless.py",  # a model without memory for its weights
}
PRIVATE_GRAPH = {
    "_functional",
    "_inbound_nodes",
    "_keras_history",
    "_nodes",
    "_nodes_by_depth",
    "_operations",
    "_outbound_nodes",
    "_run_through_graph",
}
GRAPH_WALK = "export/keras_tx_onnx/reading/functional_graph.py"
EXECUTES_ITS_INPUT = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room_of(path: Path) -> str:
    """The first name below keras_tx; "" for keras_tx itself, and the whole of keras_tx_onnx is one room."""
    package = "keras_tx_onnx" if path.is_relative_to(PACKAGES["keras_tx_onnx"]) else "keras_tx"
    if package == "keras_tx_onnx":
        return package
    first = path.relative_to(PACKAGES[package]).parts[0]
    return first.removesuffix(".py").removesuffix("__init__")


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Dotted names of what is imported: `from a import b` gives a.b, since b may be a module.

    `import keras_tx` gives keras_tx.b for each use of it, since the lazy table leads on to the rooms.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name != "keras_tx")
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "keras_tx":
            yield f"keras_tx.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import, write the whole name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_import(tree: ast.Module) -> ast.Module:
    """What runs when the module is imported: without function bodies and `if TYPE_CHECKING`."""

    class Prune(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
            if ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
                return node.orelse
            return self.generic_visit(node)

    return Prune().visit(tree)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), name_of(path))


TREES = {path: parse(path) for path in SOURCES}
AT_IMPORT = {path: at_import(parse(path)) for path in SOURCES}


def forbidden(name: str, rooms: set[str], others: set[str]) -> bool:
    top, *rest = name.split(".")
    if top in PACKAGES:
        room = top if top == "keras_tx_onnx" else rest[0]
        return room not in rooms and room != "__version__"
    return top not in sys.stdlib_module_names and top not in others


def violations(check: Callable[[Path, ast.Module], list[str]]) -> list[str]:
    return [f"{name_of(path)}: {problem}" for path in SOURCES for problem in check(path, TREES[path])]


def test_modules_import_only_what_their_room_may():
    def check(path: Path, tree: ast.Module) -> list[str]:
        room = room_of(path)
        if room in LAZY or not room:
            known = {"contract", "errors", "kernels", "registration"} | LAZY
            bad = [name for name in imports_of(AT_IMPORT[path]) if forbidden(name, known, set())]
            return [f"imports {name} at module level; import it inside a function" for name in bad]
        if room not in RULES:
            return [f"{room!r} is a new room; add its arrows to RULES"]
        rooms, others = RULES[room]
        lazily = rooms | {room} | BACKWARDS.get(room, set())
        bad = [name for name in imports_of(tree) if forbidden(name, lazily, others)]
        bad += [name for name in imports_of(AT_IMPORT[path]) if forbidden(name, rooms | {room}, others)]
        return [f"{room} may not import {name}" for name in bad]

    assert not violations(check)


def test_rooms_of_the_exporter_import_only_what_they_may():
    folder = PACKAGES["keras_tx_onnx"]

    def check(path: Path, tree: ast.Module) -> list[str]:
        if not path.is_relative_to(folder) or path.parent == folder:
            return []
        room = path.relative_to(folder).parts[0]
        if room not in EXPORTER_RULES:
            return [f"{room!r} is a new room; add its arrows to EXPORTER_RULES"]
        allowed = {"errors", "tolerances", room} | EXPORTER_RULES[room] | EXPORTER_CYCLE.get(room, set())
        imported = [name.split(".")[1] for name in imports_of(tree) if name.startswith("keras_tx_onnx.")]
        return [f"{room} may not import keras_tx_onnx.{name}" for name in imported if name not in allowed]

    assert not violations(check)


def test_the_arrows_between_rooms_form_no_cycle():
    tuple(TopologicalSorter(EXPORTER_RULES).static_order())  # raises a CycleError
    tuple(TopologicalSorter({room: targets - {room} for room, (targets, _) in RULES.items()}).static_order())


def test_only_the_http_server_imports_its_packages():
    own = {"starlette", "uvicorn", "uvloop", "prometheus_client", "jinja2", "opentelemetry"}

    def check(path: Path, tree: ast.Module) -> list[str]:
        if name_of(path).startswith(("keras_tx/serving/http/", "keras_tx/serving/ray.py")):
            return []
        names = {name.split(".")[0] for name in imports_of(tree)}
        entered = {name for name in imports_of(tree) if name.startswith("keras_tx.serving.http")}
        return sorted(names & own) + sorted(entered if room_of(path) == "serving" else ())

    assert not violations(check)


def test_frameworks_are_imported_inside_functions():
    def check(path: Path, tree: ast.Module) -> list[str]:
        names = {name.split(".")[0] for name in imports_of(AT_IMPORT[path])}
        return sorted(names & {"tensorflow", "tf2onnx", "torch", "jax"})

    assert not violations(check)


def test_private_interfaces_of_keras_are_used_only_where_listed():
    def check(path: Path, tree: ast.Module) -> list[str]:
        attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        source = [name for name in imports_of(tree) if name.startswith("keras.src")]
        source += [ast.unparse(node) for node in attributes if ast.unparse(node) == "keras.src"]
        bad = [] if name_of(path) in KERAS_SRC else [f"{name}; add a reason to KERAS_SRC" for name in source]
        if name_of(path) != GRAPH_WALK:
            bad += sorted({node.attr for node in attributes} & PRIVATE_GRAPH)
        return bad

    assert not violations(check)


def test_nothing_that_is_read_can_execute():
    def check(path: Path, tree: ast.Module) -> list[str]:
        bad = [name for name in imports_of(tree) if name.split(".")[0] in EXECUTES_ITS_INPUT]
        return bad + [
            f"line {node.value.lineno}: {node.arg}={ast.unparse(node.value)}"
            for node in ast.walk(tree)
            if isinstance(node, ast.keyword)
            and node.arg == "allow_pickle"
            and ast.unparse(node.value) != "False"
        ]

    assert not violations(check)


def test_imports_by_string_occur_only_in_lazy_tables():
    """A module name in a string escapes the other rules."""

    def check(path: Path, tree: ast.Module) -> list[str]:
        if path.name == "__init__.py" or room_of(path) in LAZY:
            return []
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        return sorted(calls & {"importlib.import_module", "import_module", "__import__"})

    assert not violations(check)


def test_modules_are_named_for_their_purpose():
    for path in [*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        assert path.stem not in {"utils", "util", "helpers", "misc", "common"}, name_of(path)


def new_modules(code: str) -> set[str]:
    """The packages, other than the standard library's, that the code loads in a fresh process."""
    code = f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.split()} - sys.stdlib_module_names


@pytest.mark.parametrize("name", ["keras_tx", "keras_tx.runtime", "keras_tx.serving"])
def test_import_loads_no_other_package(name: str):
    assert new_modules(f"import {name}") == {"keras_tx"}


def test_serving_works_where_training_packages_raise():
    """Each module of the inference path, where Keras, its backends and onnx cannot be imported."""
    rooms = {"runtime", "serving", "processing", "generation", "contract", "inspect"}
    of_others = {"keras_tx/inspect/callback.py", "keras_tx/serving/ray.py"}  # of Keras and of Ray
    serving = [path for path in SOURCES if room_of(path) in rooms and name_of(path) not in of_others]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in serving]
    blocked = ["keras", "keras_hub", "tensorflow", "torch", "jax", "onnx", "onnx_ir", "keras_tx_onnx"]
    code = f"""
import importlib
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ImportError(name + " may not be imported here")
sys.meta_path.insert(0, Blocker())
for name in {names}:
    importlib.import_module(name.removesuffix(".__init__"))
"""
    assert not new_modules(code) & set(blocked)

"""Keras loads registered classes in a process that has only imported keras_tx."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import keras_tx
from tests.drawing import as_numpy, redraw

ROOT = Path(__file__).parents[1]


def run(code: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "imports",
    [
        "import keras_tx, tensorflow, keras",
        *(
            pytest.param(f"import {x}", marks=pytest.mark.thorough)
            for x in ("keras_tx, keras", "keras, keras_tx")
        ),
    ],
)
def test_a_fresh_process_loads_a_model(imports: str, tmp_path: Path):
    model = redraw(keras_tx.bert("tiny", head=keras_tx.SpanHead(), vocabulary_size=20, depth=1, max_length=8))
    model.compile(metrics={"start_logits": ["accuracy"]})
    model.save(tmp_path / "model.keras")
    ids = np.array([[3, 4, 5]])
    code = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "export")!r}]
{imports}
assert "keras_tx.models" not in sys.modules
import numpy as np
model = keras.models.load_model({str(tmp_path / "model.keras")!r})
assert type(model) is keras_tx.Bert and type(model.optimizer) is keras_tx.AdamW
print(np.asarray(model(np.array({ids.tolist()}))["start_logits"].numpy()).tolist())
"""
    if "jax" in str(type(model.weights[0].value)).lower():
        code = code.replace(".numpy()", "")
    expected = as_numpy(model(ids))["start_logits"]
    np.testing.assert_allclose(np.array(eval(run(code).splitlines()[-1])), expected, atol=1e-6)


def test_every_registered_class_has_a_placeholder():
    output = run(f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "export")!r}]
import importlib, pathlib, keras_tx, keras
ours = lambda: {{name for name in keras.saving.get_custom_objects() if name.startswith("keras_tx>")}}
before = ours()
import keras_tx.layers, keras_tx.training.schedules
from keras_tx.models.families import families
families()
of_saving = {{name for name, x in keras.saving.get_custom_objects().items() if isinstance(x, type)}}
need_ray = {{pathlib.Path("keras_tx", room, "ray.py") for room in ("training", "serving")}}
for path in set(pathlib.Path("keras_tx").rglob("*.py")) - need_ray:
    importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
classes = {{name for name in ours() if isinstance(keras.saving.get_custom_objects()[name], type)}}
print(sorted(classes - before), sorted(classes - of_saving))
""")
    assert output.splitlines()[-1] == "[] []"  # and what a placeholder imports has them all


def test_missing_package_raises_with_the_install_command():
    message = run(f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "export")!r}]
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "keras":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
import keras_tx
try:
    keras_tx.vit
except ModuleNotFoundError as error:
    print(error)
""")
    assert message.splitlines()[-1] == (
        'keras_tx.vit needs keras, which is not installed. pip install "keras-tx[cpu]"'
    )

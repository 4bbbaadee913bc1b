"""keras-hub's model with the weights of a subject."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def hub_imports() -> None:
    """What is imported lazily."""
    import keras_tx

    keras_tx.load_model, keras_tx.to_keras_hub  # noqa: B018  # pyright: ignore[reportUnusedExpression]


def hub_model(place: Path) -> Any:
    """keras-hub's BERT has gelu as made of a tanh: ours gets it on the way, and results differ a little."""
    import keras_tx

    model = keras_tx.load_model(place / "model.keras", compile=False)
    if type(model).__name__ == "Bert":
        given = model.get_config()
        given["config"]["activation"] = "gelu_tanh"
        twin = type(model).from_config(given)
        twin.set_weights(model.get_weights())
        model = twin
    return keras_tx.to_keras_hub(model)

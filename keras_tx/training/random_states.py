"""Random states of a backend that are not variables of a model."""

from __future__ import annotations

import keras
import numpy as np


def random_states() -> dict[str, np.ndarray]:
    """Returns PyTorch's random states, which dropout uses instead of the generators of its layers."""
    if keras.backend.backend() != "torch":
        return {}
    import torch

    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {str(index): state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    return {name: state.numpy() for name, state in states.items()}


def restore_random_states(states: dict[str, np.ndarray]) -> None:
    """Restores the result of `random_states`."""
    if not states or keras.backend.backend() != "torch":
        return
    import torch

    for name, state in states.items():
        if name == "cpu":
            torch.set_rng_state(torch.from_numpy(state))
        elif int(name) < torch.cuda.device_count():
            torch.cuda.set_rng_state(torch.from_numpy(state), int(name))

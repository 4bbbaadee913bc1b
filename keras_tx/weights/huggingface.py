"""Hugging Face's names for what our configs say."""

from __future__ import annotations

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu", "quick_gelu": "quick_gelu"}

"""nanoGPT's model and recipe in PyTorch, written from its published facts, and a comparison with ours.

    command   python -m tests.training.reference_nanogpt --seeds 0 1 2
    needs     pip install "keras-tx[cpu,parity]"

Both get the same token file, batches, steps and learning rates; each draws its own initial weights from each
seed. The settings are those that nanoGPT's README gives for a CPU: 4 blocks of 4 heads, width 128, context
64, batches of 12, 2000 steps, no dropout. What was measured stands in examples/gpt_characters.py.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

PEAK, LOWEST, WARMUP, DECAY, BETAS, CLIP = 1e-3, 1e-4, 100, 0.1, (0.9, 0.99), 1.0


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.attn_proj = nn.Linear(width, width, bias=False)
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.mlp_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rate = self.dropout if self.training else 0.0
        b, s, width = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (y.view(b, s, self.heads, width // self.heads).transpose(1, 2) for y in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        y = self.attn_proj(y.transpose(1, 2).reshape(b, s, width))
        x = x + functional.dropout(y, rate)
        y = self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x))))
        return x + functional.dropout(y, rate)


class NanoGPT(nn.Module):
    def __init__(
        self, vocabulary: int, context: int, depth: int, heads: int, width: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width, bias=False)
        self.dropout = dropout
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = 1 / math.sqrt(2 * depth) if name.endswith("_proj.weight") else 1.0
                nn.init.normal_(parameter, 0.0, 0.02 * scale)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        x = functional.dropout(x, self.dropout if self.training else 0.0)
        for block in self.blocks:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten().long(), ignore_index=-100)


def rate_at(step: int, steps: int) -> float:
    if step < WARMUP:
        return PEAK * step / WARMUP
    done = (step - WARMUP) / (steps - WARMUP)
    return LOWEST + 0.5 * (1 + math.cos(math.pi * min(1.0, done))) * (PEAK - LOWEST)


def train(model: NanoGPT, batches: Iterable[tuple[Any, Any]], steps: int) -> list[float]:
    """The loss of each step."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=BETAS)
    model.train()
    losses = []
    for step, (ids, labels) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, steps)
        loss = model(torch.from_numpy(ids), torch.from_numpy(labels))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@torch.no_grad()
def evaluate(model: NanoGPT, batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """The mean loss over all labels."""
    model.eval()
    total = count = 0.0
    for ids, labels in batches:
        number = int((labels != -100).sum())
        total += float(model(torch.from_numpy(ids), torch.from_numpy(labels))) * number
        count += number
    return total / count


def main() -> None:
    import keras

    from examples import gpt_characters
    from keras_tx.data import causal_lm_batches
    from keras_tx.processing import TextTransform
    from keras_tx.training import fit_resumable, pretrain_recipe

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        folder = gpt_characters.write_corpus(Path(parent))
        transform = TextTransform.load(folder)
        for seed in options.seeds:
            blocks = causal_lm_batches(folder / "train.tokens", 64, 12, steps=options.steps, seed=seed)
            unseen = causal_lm_batches(folder / "validation.tokens", 64, 64, shuffle=False)

            torch.manual_seed(seed)
            theirs = NanoGPT(transform.vocabulary_size, 64, 4, 4, 128)
            start = time.perf_counter()
            train(theirs, (blocks[i] for i in range(options.steps)), options.steps)
            reference, minutes = evaluate(theirs, unseen), (time.perf_counter() - start) / 60
            print(
                f"seed {seed}: nanoGPT's recipe in PyTorch {reference:.4f}, {minutes:.1f} minutes", flush=True
            )

            keras.utils.set_random_seed(seed)
            ours = gpt_characters.make(transform)
            rates = {"learning_rate": PEAK, "warmup": WARMUP, "beta_2": BETAS[1]}
            ours.compile(pretrain_recipe(options.steps, **rates))
            start = time.perf_counter()
            fit_resumable(ours, blocks, folder / f"{seed}.state", epochs=1, verbose=0)
            loss = ours.evaluate(unseen, verbose=0, return_dict=True)["loss"]
            minutes = (time.perf_counter() - start) / 60
            backend = keras.backend.backend()
            print(f"seed {seed}: keras_tx on {backend} {loss:.4f}, {minutes:.1f} minutes", flush=True)


if __name__ == "__main__":
    main()

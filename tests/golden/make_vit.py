"""Makes the folders of vit/: tiny ViTs of other libraries with random weights, their inputs and outputs.

    pip install "keras-tx[parity]"
    python tests/golden/make_vit.py transformers     # once with transformers 4, once with 5
    pip install timm
    python tests/golden/make_vit.py timm
    python tests/golden/make_vit.py torchvision      # written out here: needs PyTorch alone

The files let the plain test command compare with the reference implementations without PyTorch. Those of
transformers 5 have the names of its classes, which differ from those that it writes: a state dict has them.
"""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn

HERE = Path(__file__).with_name("vit")
EXPECTED = "expected.safetensors"
SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 6,
    "patch_size": 2,
    "num_labels": 3,
}
MLP = {"intermediate_size": 12}
# class and fields of the config
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTForImageClassification", {**MLP, "layer_norm_eps": 1e-6}),
    "vit_body": ("ViTModel", {**MLP, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    "vit_no_qkv_bias": ("ViTForImageClassification", {**MLP, "qkv_bias": False, "hidden_act": "relu"}),
    "deit": ("DeiTForImageClassificationWithTeacher", MLP),
    "deit_plain": ("DeiTForImageClassification", MLP),
    "deit_body": ("DeiTModel", MLP),
    "dinov2": ("Dinov2ForImageClassification", {"mlp_ratio": 1, "layerscale_value": 0.5}),
    "dinov2_body": ("Dinov2Model", {"mlp_ratio": 2}),
    "dinov2_swiglu": ("Dinov2ForImageClassification", {"use_swiglu_ffn": True, "mlp_ratio": 2}),
    "dinov2_without_mask_token": ("Dinov2Model", {"use_mask_token": False, "mlp_ratio": 2}),
    "registers": (
        "Dinov2WithRegistersForImageClassification",
        {"use_swiglu_ffn": True, "num_register_tokens": 2, "mlp_ratio": 2},
    ),
    "registers_body": ("Dinov2WithRegistersModel", {"num_register_tokens": 2, "mlp_ratio": 2}),
    "dinov3": ("DINOv3ViTModel", {**MLP, "num_register_tokens": 2, "layerscale_value": 0.5}),
    "dinov3_gated": (
        "DINOv3ViTModel",
        {**MLP, "num_register_tokens": 2, "use_gated_mlp": True, "hidden_act": "silu", "rope_theta": 7.0},
    ),
    "dinov3_biases": (
        "DINOv3ViTModel",
        {**MLP, "key_bias": True, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-3},
    ),
    "dinov3_no_biases": ("DINOv3ViTModel", {**MLP, "query_bias": False, "value_bias": False}),
}
IN_FILES = {
    4: ("vit", "vit_body", "deit", "dinov2", "registers", "dinov3"),
    5: ("vit", "deit_body", "dinov2_swiglu", "registers", "dinov3_gated"),
}
RESIZED = {"larger": (8, 10), "smaller": (4, 4)}


def redrawn(model: nn.Module, seed: int) -> nn.Module:
    """Every weight is drawn anew: biases at 0 and norms at 1 would hide swapped ones."""
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = random.standard_normal(tuple(parameter.shape)) * 0.3 + 0.1
            parameter.copy_(torch.from_numpy(drawn.astype("float32")))
    return model.eval()


def images_of(size: tuple[int, int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, *size, 3)).astype("float32")


def as_tensor(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


def transformers_model(case: str, seed: int) -> Any:
    import transformers

    name, fields = CASES[case]
    model_class = getattr(transformers, name)
    config = model_class.config_class(**SIZES, **fields, attn_implementation="eager")
    return redrawn(model_class(config), seed)


def of_transformers(model: Any, seed: int) -> dict[str, np.ndarray]:
    """What it gives for random images, and for images of other sizes."""
    dinov3 = "DINOv3" in type(model).__name__  # in whose class `model` is the encoder
    base = model if dinov3 else getattr(model, model.base_model_prefix, model)

    def output(outputs: Any) -> np.ndarray:
        result = outputs.logits if hasattr(outputs, "logits") else outputs.pooler_output
        return np.ascontiguousarray(result.numpy())  # safetensors writes a view's whole memory

    images = images_of((6, 6), seed)
    with torch.no_grad():
        inside = base(as_tensor(images), output_hidden_states=True)
        arrays = {
            "images": images,
            "hidden": np.stack([x.numpy() for x in inside.hidden_states[: SIZES["num_hidden_layers"] + 1]]),
            "tokens": inside.last_hidden_state.numpy(),
            "output": output(model(as_tensor(images))),
        }
        dinov2 = "Dinov2" in type(model).__name__
        asked = {} if dinov2 or dinov3 else {"interpolate_pos_encoding": True}
        for name, size in RESIZED.items():
            arrays[f"{name}/images"] = images_of(size, seed)
            arrays[f"{name}/output"] = output(model(as_tensor(arrays[f"{name}/images"]), **asked))
    return arrays


def write_transformers(case: str, folder: Path, seed: int, *, names_of_classes: bool = False) -> Any:
    """The folder that the reference writes, or one with the names of its classes, and the expectations."""
    model = transformers_model(case, seed)
    model.save_pretrained(folder)
    if names_of_classes:
        state = {name: x.detach().numpy().copy() for name, x in model.state_dict().items()}
        save_file(state, folder / "model.safetensors")
    save_file(of_transformers(model, seed), folder / EXPECTED)
    return model


def with_hooks(
    model: nn.Module, blocks: list[nn.Module], norm: nn.Module, images: np.ndarray
) -> dict[str, Any]:
    """Hidden states of a model that does not give them by itself."""
    hidden: list[np.ndarray] = []
    tokens: list[np.ndarray] = []
    blocks[0].register_forward_pre_hook(lambda module, inputs: hidden.append(inputs[0].numpy()))
    for block in blocks:
        block.register_forward_hook(lambda module, inputs, result: hidden.append(result.numpy()))
    norm.register_forward_hook(lambda module, inputs, result: tokens.append(result.numpy()))
    with torch.no_grad():
        output = model(as_tensor(images)).numpy()
    return {"images": images, "hidden": np.stack(hidden), "tokens": tokens[0], "output": output}


def write_lone(
    folder: Path, model: nn.Module, expected: dict[str, Any], resized: Callable[..., nn.Module]
) -> None:
    folder.mkdir(parents=True)
    save_file(
        {name: x.numpy().copy() for name, x in model.state_dict().items()}, folder / "model.safetensors"
    )
    for name, size in RESIZED.items():
        images = images_of(size, 0)
        with torch.no_grad():
            expected |= {f"{name}/images": images, f"{name}/output": resized(size)(as_tensor(images)).numpy()}
    save_file(expected, folder / EXPECTED)


TIMM = {
    "plain": {"num_classes": 3, "mlp_ratio": 1.5},
    "distilled": {"num_classes": 3, "mlp_ratio": 1.5},
    "registers": {
        "num_classes": 3,
        "mlp_ratio": 3,
        "reg_tokens": 2,
        "no_embed_class": True,
        "init_values": 0.5,
        "qkv_bias": False,
    },
    "average": {"num_classes": 3, "mlp_ratio": 1.5, "global_pool": "avg", "pre_norm": True},
    "qk_norm": {"num_classes": 3, "mlp_ratio": 1.5, "qk_norm": True, "qkv_bias": False},
}


def write_timm(case: str) -> None:
    from timm.layers import SwiGLUPacked
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer

    make = VisionTransformerDistilled if case == "distilled" else VisionTransformer
    options = dict(TIMM[case])
    if case == "registers":
        options |= {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU}
    if case == "qk_norm":
        options |= {"norm_layer": functools.partial(nn.LayerNorm, eps=1e-3)}

    def new() -> Any:
        return redrawn(make(img_size=6, patch_size=2, embed_dim=8, depth=2, num_heads=2, **options), 0)

    def resized(size: tuple[int, int]) -> Any:
        model = new()
        model.set_input_size(img_size=size)
        return model

    model = new()
    norm = model.norm if case != "average" else model.norm_pre
    expected = with_hooks(model, list(model.blocks), norm, images_of((6, 6), 0))
    if case == "average":
        del expected["tokens"]
    write_lone(HERE / f"timm_{case}", model, expected, resized)


class TorchvisionBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(8, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.ln_2 = nn.LayerNorm(8, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(8, 12), nn.GELU(), nn.Dropout(0.0), nn.Linear(12, 8), nn.Dropout(0.0)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Torchvision(nn.Module):
    """A ViT with the parts, and so the names, of torchvision's."""

    def __init__(self) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.conv_proj = nn.Conv2d(3, 8, 2, 2)
        self.encoder = nn.Module()
        self.encoder.pos_embedding = nn.Parameter(torch.zeros(1, 10, 8))
        self.encoder.layers = nn.ModuleDict({f"encoder_layer_{i}": TorchvisionBlock() for i in range(2)})
        self.encoder.ln = nn.LayerNorm(8, eps=1e-6)
        self.heads = nn.ModuleDict({"head": nn.Linear(8, 3)})

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.conv_proj(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.encoder.pos_embedding
        for block in self.encoder.layers.values():
            x = block(x)
        return self.heads["head"](self.encoder.ln(x)[:, 0])


def write_torchvision() -> None:
    def resized(size: tuple[int, int]) -> Torchvision:
        """As torchvision's interpolate_embeddings, which knows squares only."""
        model = redrawn(Torchvision(), 0)
        table = model.encoder.pos_embedding.data
        grid = table[:, 1:].transpose(1, 2).reshape(1, 8, 3, 3)
        new = (size[0] // 2, size[1] // 2)
        grid = nn.functional.interpolate(grid, size=new, mode="bicubic", align_corners=True)
        rows = torch.cat([table[:, :1], grid.flatten(2).transpose(1, 2)], dim=1)
        model.encoder.pos_embedding = nn.Parameter(rows)
        return model

    model = redrawn(Torchvision(), 0)
    blocks = list(model.encoder.layers.values())
    expected = with_hooks(model, blocks, model.encoder.ln, images_of((6, 6), 0))
    write_lone(HERE / "torchvision", model, expected, resized)


def main(library: str) -> None:
    if library == "torchvision":
        shutil.rmtree(HERE / "torchvision", ignore_errors=True)
        write_torchvision()
    elif library == "timm":
        for case in TIMM:
            shutil.rmtree(HERE / f"timm_{case}", ignore_errors=True)
            write_timm(case)
    else:
        import transformers

        major = int(transformers.__version__.split(".")[0])
        for case in IN_FILES[major]:
            folder = HERE / f"transformers{major}_{case}"
            shutil.rmtree(folder, ignore_errors=True)
            write_transformers(case, folder, seed=0, names_of_classes=major > 4)


if __name__ == "__main__":
    main(sys.argv[1])

"""ViT: "An Image is Worth 16x16 Words" (Dosovitskiy et al.), its sizes and its later refinements."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Unpack

import keras
import numpy as np

from keras_tx import contract
from keras_tx.arguments import Count, Epsilon, Positive, Rate, Size, check_fields
from keras_tx.errors import ConfigError, nearest
from keras_tx.heads import ClassifierHead, DistilledClassifierHead, Head, MultiLabelHead, RegressionHead
from keras_tx.layers import ClassToken, PatchEmbedding, PositionalEmbedding, TransformerBlock
from keras_tx.layers.mask_token import MaskToken
from keras_tx.layers.position_tables import resize_grid
from keras_tx.models.config import make_config, unknown_variant
from keras_tx.models.overrides import ViTOverrides
from keras_tx.models.transformer_model import AUTO, TransformerModel
from keras_tx.models.vit.few_images import batch_size, count_batches, warn_of_few_images
from keras_tx.processing import ImageTransform
from keras_tx.weights.weight_values import merged_weights

POOLINGS = ("token", "average", "token+average", "none")
STEMS = ("patches", "convolutions")
POOLERS = ("tanh",)

# patch, width, depth, mlp, heads: table 1 of Dosovitskiy et al.; Ti from Touvron et al., "DeiT"; the small s,
# g and G from Zhai et al., "Scaling Vision Transformers", table 2; S/8 and B/8 from Caron et al., "Emerging
# Properties in Self-Supervised Vision Transformers" (DINO), table 1. Names are case-sensitive, as there. The
# last ones are the published models of Siméoni et al., "DINOv3".
VARIANTS: dict[str, tuple[int, int, int, int, int]] = {
    "Mu/2": (2, 32, 1, 128, 2),  # a toy for tests
    "s/28": (28, 256, 6, 1024, 8),
    "s/16": (16, 256, 6, 1024, 8),
    "Ti/16": (16, 192, 12, 768, 3),
    "S/32": (32, 384, 12, 1536, 6),
    "S/16": (16, 384, 12, 1536, 6),
    "S/8": (8, 384, 12, 1536, 6),
    "B/32": (32, 768, 12, 3072, 12),
    "B/28": (28, 768, 12, 3072, 12),
    "B/16": (16, 768, 12, 3072, 12),
    "B/8": (8, 768, 12, 3072, 12),
    "L/32": (32, 1024, 24, 4096, 16),
    "L/16": (16, 1024, 24, 4096, 16),
    "H/14": (14, 1280, 32, 5120, 16),
    "g/14": (14, 1408, 40, 6144, 16),
    "G/14": (14, 1664, 48, 8192, 16),
    "dinov3-S/16": (16, 384, 12, 1536, 6),
    "dinov3-S+/16": (16, 384, 12, 1536, 6),
    "dinov3-B/16": (16, 768, 12, 3072, 12),
    "dinov3-L/16": (16, 1024, 24, 4096, 16),
    "dinov3-H+/16": (16, 1280, 32, 5120, 20),
    "dinov3-7B/16": (16, 4096, 40, 8192, 32),
}
DINOV3: dict[str, Any] = {
    "positions": "rotary",
    "registers": 4,
    "mask_token": True,
    "key_bias": False,
    "norm_epsilon": 1e-5,
    "layer_scale": 1e-5,
}
GATED = ("dinov3-S+/16", "dinov3-H+/16", "dinov3-7B/16")
ALIASES = {  # torchvision's builders
    "vit_b_16": "B/16",
    "vit_b_32": "B/32",
    "vit_l_16": "L/16",
    "vit_l_32": "L/32",
    "vit_h_14": "H/14",
}


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """The config of a ViT; `ViTConfig.variant("B/16")` returns that of a published size.

    Args:
        patch_size: of the patches; (height, width) if they are not square.
        width: size of the token vectors.
        depth: number of blocks.
        mlp_dim: hidden size of the feed-forward layers.
        num_heads: number of attention heads.
        image_size: of the images; (height, width) if they are not square.
        channels: of the images.
        drop_remainder: whether pixels at the bottom and right that do not fill a patch are dropped. By
            default the image size has to be divisible by the patch size.
        stem: the input of the patch embedding: "patches" (pixels) or "convolutions": 3 x 3 convolutions of
            stride 2, each with a norm and an activation, as in Xiao et al., "Early Convolutions Help
            Transformers See Better". With convolutions, a model needs fewer images.
        pooling: how tokens become features: "token" (the class token), "average" (of the patches),
            "token+average" (both, concatenated) or "none" (all tokens).
        class_token: whether there is a class token; None means unless pooling is "average".
        positions: a kind of PositionalEmbedding; or "relative", the offsets of rows and columns between
            patches in each block, as in appendix D.4 of the paper (`relative_grid` of MultiHeadAttention); or
            "rotary", rotations of query and key in each block, as in DINOv3 (`rotary_grid`).
        rotary_base: base of the rotary frequencies.
        registers: number of additional tokens without positions, after the class token.
        distillation: whether there is DeiT's second token, after the class token.
        mask_token: whether there is DINOv2's mask token, which only its pretraining uses.
        patch_bias: whether the patch embedding has a bias.
        qkv_bias: whether queries, keys and values have biases.
        key_bias: whether keys have biases; None means qkv_bias.
        qk_norm: whether queries and keys are normalized in each head, as in timm.
        pre_norm: whether there is a norm before the first block, as in CLIP.
        pooled_norm: whether the last norm comes after the pooling.
        pooler: activation of a dense layer after the pooling: "tanh"; None for no such layer.
        pooler_dim: units of the pooler; None means the width.
        activation: of the feed-forward layers.
        norm_epsilon: of the norms.
        dropout: rate after the embeddings and in the blocks.
        attention_dropout: rate of the attention weights.
        drop_path: rate of dropping the last block; it grows linearly from 0 in the first.
        layer_scale: initial value of LayerScale; None for no LayerScale.
    """

    patch_size: Size | tuple[Size, Size]
    width: Size
    depth: Size
    mlp_dim: Size
    num_heads: Size
    image_size: Size | tuple[Size, Size] = 224
    channels: Size = 3
    drop_remainder: bool = False
    stem: str = "patches"
    pooling: str = "token"
    class_token: bool | None = None
    positions: str = "learned"
    rotary_base: Positive = 100.0
    registers: Count = 0
    distillation: bool = False
    mask_token: bool = False
    patch_bias: bool = True
    qkv_bias: bool = True
    key_bias: bool | None = None
    qk_norm: bool = False
    pre_norm: bool = False
    pooled_norm: bool = False
    pooler: str | None = None
    pooler_dim: Size | None = None
    activation: str = "gelu"
    norm_epsilon: Epsilon = 1e-6
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    drop_path: Rate = 0.0
    layer_scale: float | None = None

    # Fields that may differ from those of the initial weights.
    FREE: ClassVar[frozenset[str]] = frozenset(
        {"attention_dropout", "drop_path", "drop_remainder", "dropout", "image_size", "pooler", "pooling"}
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.width % self.num_heads:
            raise ConfigError(f"width={self.width} is not divisible by num_heads={self.num_heads}.")
        sides = tuple(zip(self.size, self.patch, strict=True))
        if any(side < patch for side, patch in sides):
            raise ConfigError(
                f"image_size={self.image_size!r} is smaller than patch_size={self.patch_size}. Choose a "
                "larger image_size."
            )
        if not self.drop_remainder and has_remainder(self.size, self.patch):
            near = tuple(max(round(side / patch), 1) * patch for side, patch in sides)
            closest = near[0] if near[0] == near[1] else near
            raise ConfigError(
                f"image_size={self.image_size!r} is not divisible by patch_size={self.patch_size}. "
                f"The closest size is {closest}; drop_remainder=True drops pixels that do not fill a patch."
            )
        if self.pooling not in POOLINGS:
            raise ConfigError(f"pooling={self.pooling!r} is unknown. {nearest(str(self.pooling), POOLINGS)}")
        if self.key_bias == self.qkv_bias:
            object.__setattr__(self, "key_bias", None)
        if self.positions == "rotary" and self.width // self.num_heads % 4:
            raise ConfigError(
                f"positions='rotary' requires heads whose width is divisible by 4, not {self.width} / "
                f"{self.num_heads}."
            )
        self._check_stem()
        self._check_tokens()

    def _check_stem(self) -> None:
        if self.stem not in STEMS:
            raise ConfigError(f"stem={self.stem!r} is unknown. {nearest(str(self.stem), STEMS)}")
        if self.stem == "patches":
            return
        if any(side % 2 for side in self.patch):
            raise ConfigError(
                f"stem='convolutions' requires an even patch_size, not {self.patch_size}: its convolutions "
                "have stride 2. Choose another patch_size, or stem='patches'."
            )
        if self.drop_remainder and has_remainder(self.size, self.patch):
            raise ConfigError(
                f"stem='convolutions' does not support drop_remainder=True with image_size="
                f"{self.image_size!r}. Choose a multiple of patch_size={self.patch_size}."
            )
        if self.mask_token:
            raise ConfigError(
                "stem='convolutions' does not support mask_token=True: neighboring patches share pixels."
            )
        if self.width % 2**self.stem_depth:
            raise ConfigError(
                f"stem='convolutions' requires a width divisible by {2**self.stem_depth} for "
                f"patch_size={self.patch_size}, not {self.width}: each convolution halves the image, and has "
                "twice the filters of the previous one."
            )

    def _check_tokens(self) -> None:
        if not self.has_class_token and ("token" in self.pooling or self.distillation):
            name = "distillation" if self.distillation else "pooling"
            raise ConfigError(
                f"{name}={getattr(self, name)!r} requires the class token. Omit "
                f"class_token={self.class_token}."
            )
        if self.pooler is None and self.pooler_dim is not None:
            raise ConfigError(f"pooler_dim={self.pooler_dim} requires pooler='tanh'.")
        if self.pooler is not None and self.pooler not in POOLERS:
            raise ConfigError(f"pooler={self.pooler!r} is unknown. {nearest(str(self.pooler), POOLERS)}")
        for name in ("pooler", "pooled_norm"):
            if getattr(self, name) and self.pooling == "none":
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} requires a pooling, but pooling='none'. Use 'token' or "
                    "'average'."
                )

    @property
    def has_class_token(self) -> bool:
        return self.pooling != "average" if self.class_token is None else self.class_token

    @property
    def stem_depth(self) -> int:
        """Number of convolutions before the patch embedding: the times that the patch size can be halved."""
        return 0 if self.stem == "patches" else min((side & -side).bit_length() - 1 for side in self.patch)

    @property
    def positioned(self) -> int:
        """Tokens before the patches that have a position: class and distillation."""
        return int(self.has_class_token) + int(self.distillation)

    @property
    def resizing(self) -> str:
        """How positions are resized: DINOv2's with registers, the published ones, are with antialiasing."""
        return "antialiased" if self.registers else "plain"

    @classmethod
    def variant(cls, name: str, **overrides: Any) -> ViTConfig:
        """The config of a published size.

        >>> ViTConfig.variant("S/16").width
        384
        """
        known = ALIASES.get(name, name)
        if known not in VARIANTS:
            raise unknown_variant(name, [*VARIANTS, *ALIASES])
        patch_size, width, depth, mlp_dim, num_heads = VARIANTS[known]
        sizes = {
            "patch_size": patch_size,
            "width": width,
            "depth": depth,
            "mlp_dim": mlp_dim,
            "num_heads": num_heads,
        }
        options = dict(DINOV3) if known.startswith("dinov3-") else {}
        if known in GATED:
            options["activation"] = "swiglu"
        if known == "dinov3-7B/16":
            options["qkv_bias"] = False
        return make_config(cls, {**sizes, **options, **overrides})

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the image."""
        return _pair(self.image_size)

    @property
    def patch(self) -> tuple[int, int]:
        """(height, width) of a patch."""
        return _pair(self.patch_size)

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        return (self.size[0] // self.patch[0], self.size[1] // self.patch[1])


@keras.saving.register_keras_serializable("keras_tx")
class ViT(TransformerModel):
    """A vision transformer; see `vit`."""

    config_class = ViTConfig
    heads = (ClassifierHead, MultiLabelHead, RegressionHead)
    processing: ImageTransform  # type: ignore[assignment]  # a ViT always has it
    published_size: str | None = None  # of a model with random initial weights, for a warning
    _batches: int | None = None  # of an epoch

    @property
    def task(self) -> str:  # type: ignore[override]
        return contract.IMAGE_FEATURES if self.head is None else contract.IMAGE_CLASSIFICATION

    @classmethod
    def assemble(
        cls,
        config: ViTConfig,
        *,
        head: Any = None,
        processing: ImageTransform | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> ViT:
        processing = processing or ImageTransform(config.size, channels=config.channels)
        if (processing.size, processing.channels) != (config.size, config.channels):
            raise ConfigError(
                f"processing returns images of {processing.size} with {processing.channels} channels, but "
                f"the model has image_size={config.size} and channels={config.channels}."
            )
        if getattr(head, "pooling", None) is not None:
            config = dataclasses.replace(config, pooling=head.pooling, class_token=config.has_class_token)
        if head is not None and config.pooling == "none":
            raise ConfigError(
                "pooling='none' returns all tokens, but a classifier requires one vector. Use 'token' or "
                "'average'."
            )
        cls.check_head(head)
        if isinstance(head, DistilledClassifierHead):
            _check_distilled(config)
        images = keras.Input((*config.size, config.channels), name="images")
        tokens, features = _features(config, images, dtype)
        if isinstance(head, DistilledClassifierHead):
            outputs = head(tokens[:, :2])
        else:
            outputs = features if head is None else head(features)
        return cls(images, outputs, config=config, head=head, processing=processing, name=name or "vit")

    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        if self.published_size is not None:
            self._batches = count_batches(x, kwargs.get("steps_per_epoch"))
            count = batch_size(x) if self._batches is None else None
            if count is not None:
                self._warn_of_few_images(count)
        result = super().fit(x, y, *args, **kwargs)
        self.published_size = None
        return result

    def _check_batch(self, batch: Any) -> None:
        super()._check_batch(batch)
        count = batch_size(batch[0]) if isinstance(batch, tuple | list) and len(batch) else None
        if count is not None and self._batches is not None:
            self._warn_of_few_images(count * self._batches)

    def _warn_of_few_images(self, count: int) -> None:
        name, self.published_size = self.published_size, None
        if name is not None:
            warn_of_few_images(name, self.count_params(), count)

    def load_weights(self, filepath: Any, **options: Any) -> None:  # type: ignore[override]
        super().load_weights(filepath, **options)
        self.published_size = None

    def assign_weights(self, other: TransformerModel) -> None:
        super().assign_weights(other)
        self.published_size = None

    def at_image_size(self, image_size: int | tuple[int, int]) -> ViT:
        """A copy for images of another size: the same weights, learned positions resized bicubically.

        >>> vit("Mu/2", image_size=8, num_classes=3).at_image_size(12).config.grid
        (6, 6)
        """
        config = dataclasses.replace(self.config, image_size=image_size)
        if config.positions == "relative" and config.grid != self.config.grid:
            raise ConfigError(
                f"image_size={image_size!r}: positions='relative' cannot be resized. Create a model of this "
                "size."
            )
        processing = dataclasses.replace(self.processing, size=config.size)
        copy = self.assemble(
            config, head=self.head, processing=processing, name=self.name, dtype=self.layers_policy
        )
        weights = merged_weights(self)
        for layer, target in zip(self.layers, copy.layers, strict=True):
            if isinstance(target, PositionalEmbedding):
                target.resize_from(layer, self.config.resizing)
            else:
                for weight in target.weights:
                    weight.assign(weights[weight.path])
        copy.freeze(self.frozen())
        return copy


def vit(
    variant: str = "B/16",
    *,
    num_classes: int | None = None,
    head: Head | str | None = AUTO,
    weights: Any = None,
    processing: ImageTransform | None = None,
    name: str | None = None,
    dtype: Any = None,
    **overrides: Unpack[ViTOverrides],
) -> ViT:
    """A vision transformer as a functional keras.Model.

    Its inputs are float32 images (batch, height, width, channels) from `model.processing`; it returns logits
    (batch, classes), or features if it has no head.

    Args:
        variant: a size as the papers name it, "B/16", "s/28" (case-sensitive) or "dinov3-B/16", or
            torchvision's "vit_b_16".
        num_classes: number of classes; short for `head=ClassifierHead(num_classes)`.
        head: ClassifierHead, DistilledClassifierHead, MultiLabelHead or RegressionHead. None, the default of
            this family, returns features.
        weights: source of the initial weights: a Hugging Face folder, a .safetensors file, "hf://owner/name",
            a keras-hub preset or model, a .keras or .weights.h5 file. The variant must be that of the source;
            keras_tx.from_checkpoint reads it from the source's config.
        processing: converts files and arrays to the model's input; by default it resizes them to the image
            size and normalizes them to -1..1.
        name: of the model.
        dtype: a dtype policy ("mixed_bfloat16"); by default Keras's global one.
        overrides: fields of ViTConfig: `image_size=384`, `pooling="average"`, `drop_path=0.1` ...

    Returns:
        A ViT.

    Raises:
        ConfigError: for an unknown variant or field, a value out of range, or weights that do not fit.

    Example:

    >>> import keras_tx
    >>> model = keras_tx.vit("Mu/2", image_size=32, num_classes=10)
    >>> model.output_shape
    (None, 10)
    """
    model = ViT.from_variant(
        variant,
        num_classes=num_classes,
        head=head,
        weights=weights,
        processing=processing,
        name=name,
        dtype=dtype,
        **overrides,
    )
    model.published_size = variant if weights is None else None
    return model


def has_remainder(image_size: int | tuple[int, int], patch_size: int | tuple[int, int]) -> bool:
    """Whether patches do not fill an image."""
    return any(side % patch for side, patch in zip(_pair(image_size), _pair(patch_size), strict=True))


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def resize_positions(
    table: np.ndarray, old: tuple[int, int], config: ViTConfig, kind: str = "plain"
) -> np.ndarray:
    """Learned positions of an `old` grid for that of the config; those of the tokens before it stay."""
    grid = resize_grid(table[config.positioned :], old, config.grid, kind)
    return np.concatenate([table[: config.positioned], grid])


def _check_distilled(config: ViTConfig) -> None:
    if not config.distillation:
        raise ConfigError("DistilledClassifierHead requires distillation=True.")
    other = {"pooling": "token", "pooler": None, "pooled_norm": False}
    for name, expected in other.items():
        if getattr(config, name) != expected:
            raise ConfigError(
                f"DistilledClassifierHead does not support {name}={getattr(config, name)!r}. Pass "
                f"{name}={expected!r}."
            )


def _features(config: ViTConfig, images: Any, dtype: Any) -> tuple[Any, Any]:
    """All tokens, and what a head takes."""
    tokens, norm = _encode(config, images, dtype)
    if config.pooling == "none":
        return tokens, tokens
    features = _pool(config, tokens, dtype)
    if config.pooled_norm:
        features = norm(features)
    if config.pooler is not None:
        features = keras.layers.Dense(
            config.pooler_dim or config.width,
            config.pooler,
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            dtype=dtype,
            name="pooler",
        )(features)
    return tokens, features


def _encode(config: ViTConfig, images: Any, dtype: Any) -> tuple[Any, keras.layers.Layer]:
    """The tokens of the last block, through the last norm unless that is for later; and this norm."""
    initializer = keras.initializers.TruncatedNormal(stddev=0.02)
    x = PatchEmbedding(
        config.width,
        (config.patch[0] // 2**config.stem_depth, config.patch[1] // 2**config.stem_depth)
        if config.stem_depth
        else config.patch_size,
        use_bias=config.patch_bias,
        kernel_initializer=initializer,
        drop_remainder=config.drop_remainder,
        dtype=dtype,
        name="patch_embedding",
    )(_stem(config, images, dtype))
    if config.mask_token:
        x = MaskToken(dtype=dtype, name="mask_token")(x)
    if config.has_class_token:
        x = ClassToken(initializer=initializer, dtype=dtype, name="class_token")(x)
    if config.distillation:
        x = ClassToken(after=1, initializer=initializer, dtype=dtype, name="distillation_token")(x)
    x = PositionalEmbedding(
        config.grid,
        "none" if config.positions in ("relative", "rotary") else config.positions,
        prefix_tokens=config.positioned,
        initializer=initializer,
        dtype=dtype,
        name="positions",
    )(x)
    if config.registers:
        x = ClassToken(
            config.registers,
            after=config.positioned,
            initializer=initializer,
            dtype=dtype,
            name="registers",
        )(x)
    if config.dropout:
        x = keras.layers.Dropout(config.dropout, dtype=dtype, name="dropout")(x)
    if config.pre_norm:
        x = keras.layers.LayerNormalization(epsilon=config.norm_epsilon, dtype=dtype, name="pre_norm")(x)
    offsets: dict[str, Any] = {}
    if config.positions == "relative":
        offsets = {"relative_grid": config.grid}
    elif config.positions == "rotary":
        offsets = {"rotary_grid": config.grid, "rotary_base": config.rotary_base}
    if offsets:
        offsets["prefix_tokens"] = config.positioned + config.registers
    for index in range(config.depth):
        x = TransformerBlock(
            config.num_heads,
            config.mlp_dim,
            **offsets,
            activation=config.activation,
            norm_epsilon=config.norm_epsilon,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            drop_path=config.drop_path * index / max(config.depth - 1, 1),
            layer_scale=config.layer_scale,
            qkv_bias=config.qkv_bias,
            key_bias=config.key_bias,
            qk_norm=config.qk_norm,
            kernel_initializer=initializer,
            dtype=dtype,
            name=f"block_{index}",
        )(x)
    norm = keras.layers.LayerNormalization(epsilon=config.norm_epsilon, dtype=dtype, name="norm")
    return x if config.pooled_norm else norm(x), norm


def _stem(config: ViTConfig, x: Any, dtype: Any) -> Any:
    """(batch, height, width, channels) -> the input of the patch embedding, halved by each convolution."""
    for index in range(config.stem_depth):
        x = keras.layers.Conv2D(
            config.width // 2 ** (config.stem_depth - 1 - index),
            kernel_size=3,
            strides=2,
            padding="same",
            data_format="channels_last",
            kernel_initializer="he_normal",
            dtype=dtype,
            name=f"stem_{index}",
        )(x)
        x = keras.layers.LayerNormalization(
            epsilon=config.norm_epsilon, dtype=dtype, name=f"stem_norm_{index}"
        )(x)
        x = keras.layers.Activation("gelu", dtype=dtype, name=f"stem_activation_{index}")(x)
    return x


def _pool(config: ViTConfig, tokens: Any, dtype: Any) -> Any:
    """(batch, tokens, width) -> (batch, features)."""
    parts = [tokens[:, 0]] if "token" in config.pooling else []
    if "average" in config.pooling:
        before = config.positioned + config.registers
        patches = tokens[:, before:] if before else tokens
        average = keras.layers.GlobalAveragePooling1D(
            data_format="channels_last", dtype=dtype, name="average"
        )
        parts.append(average(patches))
    return parts[0] if len(parts) == 1 else keras.layers.Concatenate(dtype=dtype, name="both")(parts)

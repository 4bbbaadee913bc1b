"""Tiny backbones of keras-hub's families with several kinds of inputs, and draws of these inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.benchmarks.tiny_image_backbones import hub, mobilenet_v5_backbone

Draw = Callable[[list[int], Any], Any]  # a shape and NumPy's generator
Make = Callable[[int], Any]


def blip2(vocabulary: int, length: int) -> Make:
    def make(depth: int) -> Any:
        models = hub()
        sizes = {"num_heads": 4, "hidden_dim": 16, "intermediate_dim": 24, "num_layers": depth}
        vision = models.BLIP2VisionEncoder(
            image_size=16,
            patch_size=8,
            use_patch_bias=True,
            use_class_token=True,
            use_mha_bias=True,
            use_mlp_bias=True,
            dropout_rate=0.0,
            layer_norm_epsilon=1e-6,
            initializer_range=0.02,
            **sizes,
        )
        qformer = models.BLIP2QFormer(
            num_query_tokens=3,
            vision_dim=16,
            cross_attention_frequency=2,
            dropout=0.0,
            layer_norm_epsilon=1e-6,
            **sizes,
        )
        text = models.BLIP2CustomOPT(
            vocabulary_size=vocabulary,
            num_query_tokens=3,
            dropout=0.0,
            max_sequence_length=length,
            qformer_hidden_dim=16,
            **sizes,
        )
        return models.BLIP2Backbone(vision_encoder=vision, qformer=qformer, language_model=text)

    return make


IMAGES = 30  # the first id of images, each of which a token of an image replaces


def gemma3n(vocabulary: int) -> Make:
    def make(depth: int) -> Any:
        return hub().Gemma3nBackbone(
            text_vocab_size=vocabulary,
            text_hidden_size=16,
            num_hidden_layers=depth,
            pad_token_id=0,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=4,
            intermediate_size=[24] * depth,
            hidden_activation="gelu_approximate",
            layer_types=["sliding_attention"] * (depth - 1) + ["full_attention"],
            sliding_window=4,
            rope_theta=10000.0,
            max_position_embeddings=32,
            vocab_size_per_layer_input=IMAGES,
            hidden_size_per_layer_input=4,
            altup_num_inputs=2,
            laurel_rank=2,
            activation_sparsity_pattern=[0.9] + [0.0] * (depth - 1),
            vision_encoder_config=mobilenet_v5_backbone(image_shape=(16, 16, 3)).get_config(),
            vision_hidden_size=48,
            vision_vocab_size=vocabulary - IMAGES,
            vision_vocab_offset=IMAGES,
            vision_soft_tokens_per_image=4,
            image_token_id=IMAGES,
        )

    return make


PATCH, SIDE, POOL = 2, 4, 2  # pixels of a patch, patches of an image's side, patches of a pooled token's side


def gemma4(vocabulary: int, **sizes: Any) -> Make:
    def make(depth: int) -> Any:
        models = hub()
        vision = models.Gemma4VisionEncoder(
            image_size=PATCH * SIDE,
            patch_size=PATCH,
            num_heads=2,
            hidden_dim=16,
            num_layers=1,
            intermediate_dim=24,
            head_dim=8,
            output_dim=16,
            pool_size=POOL,
            position_embedding_size=8,
        )
        return models.Gemma4Backbone(
            vocabulary_size=vocabulary,
            image_size=PATCH * SIDE,
            num_layers=depth,
            num_query_heads=4,
            num_key_value_heads=2,
            hidden_dim=16,
            intermediate_dim=24,
            head_dim=4,
            sliding_window_size=4,
            sliding_window_pattern=2,
            use_vision_bidirectional_attention=True,
            hidden_size_per_layer_input=4,
            vision_encoder=vision,
            **sizes,
        )

    return make


def _images(batch: int) -> int:
    """The number of images of each text, which depends on the batch to be another in each case."""
    return batch - 1


def _pixel_values(shape: list[int], rng: Any) -> Any:
    return rng.uniform(0, 1, (shape[0], _images(shape[0]), SIDE * SIDE, 3 * PATCH * PATCH)).astype("float32")


def _pixel_position_ids(shape: list[int], rng: Any) -> Any:
    """Columns and rows of patches; the last image has one pooled row of patches, and then padding."""
    import numpy as np

    places = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE)), -1).reshape(SIDE * SIDE, 2)
    every = np.tile(places, (shape[0], _images(shape[0]), 1, 1)).astype("int32")
    every[-1, -1, SIDE * POOL :] = -1
    return every


def _vision_indices(shape: list[int], rng: Any) -> Any:
    import numpy as np

    count = _images(shape[0]) * (SIDE // POOL) ** 2
    return np.tile(np.arange(1, 1 + count), (shape[0], 1)).astype("int32")


def _vision_mask(shape: list[int], rng: Any) -> Any:
    import numpy as np

    places = _vision_indices(shape, rng)
    mask = np.zeros(shape, "int32")
    np.put_along_axis(mask, places, 1, axis=1)
    return mask


def _position_ids(shape: list[int], rng: Any) -> Any:
    import numpy as np

    return np.tile(np.arange(shape[1]), (shape[0], 1)).astype("int32")


GEMMA_4: dict[str, Draw] = {
    "pixel_values": _pixel_values,
    "pixel_position_ids": _pixel_position_ids,
    "vision_indices": _vision_indices,
    "vision_mask": _vision_mask,
    "position_ids": _position_ids,
}


def flux(depth: int) -> Any:
    return hub().FluxBackbone(
        input_channels=8,
        hidden_size=16,
        mlp_ratio=2.0,
        num_heads=2,
        depth=depth,
        depth_single_blocks=depth,
        axes_dim=[2, 2, 4],
        theta=10000,
        use_bias=True,
        guidance_embed=True,
        image_shape=(None, 8),
        text_shape=(5, 12),
        image_ids_shape=(None, 3),
        text_ids_shape=(5, 3),
        y_shape=(6,),
    )


def d_fine(depth: int) -> Any:
    models = hub()
    encoder = models.HGNetV2Backbone(
        stem_channels=[3, 8, 8],
        stackwise_stage_filters=[
            [8, 8, 16, 1, 1, 3],
            [16, 8, 24, 1, 1, 3],
            [24, 8, 32, 1, 1, 3],
        ],
        apply_downsample=[False, True, True],
        use_lightweight_conv_block=[False, False, True],
        depths=[1, 1, 1],
        hidden_sizes=[16, 24, 32],
        embedding_size=8,
        use_learnable_affine_block=True,
        hidden_act="relu",
        image_shape=(64, 64, 3),
        out_features=["stage2", "stage3"],
    )
    return models.DFineBackbone(
        backbone=encoder,
        decoder_in_channels=[16, 16],
        encoder_hidden_dim=16,
        num_denoising=0,
        num_labels=5,
        hidden_dim=16,
        learn_initial_query=False,
        num_queries=6,
        anchor_image_size=(64, 64),
        feat_strides=[8, 16],
        num_feature_levels=2,
        encoder_in_channels=[24, 32],
        encode_proj_layers=[1],
        num_attention_heads=4,
        encoder_ffn_dim=24,
        num_encoder_layers=1,
        hidden_expansion=0.5,
        depth_multiplier=0.5,
        eval_idx=-1,
        num_decoder_layers=depth,
        decoder_attention_heads=4,
        decoder_ffn_dim=24,
        decoder_n_points=[3, 3],
        lqe_hidden_dim=8,
        num_lqe_layers=2,
        out_features=["stage2", "stage3"],
        image_shape=(64, 64, 3),
    )


def sam3(vocabulary: int, length: int) -> Make:
    def make(depth: int) -> Any:
        from keras_hub import layers

        sizes = {"hidden_dim": 16, "intermediate_dim": 24, "num_heads": 2}
        image = {"image_shape": (32, 32, 3), "patch_size": 4}
        vision = layers.SAM3VisionEncoder(
            num_layers=2,
            fpn_hidden_dim=16,
            fpn_scale_factors=[4.0, 2.0, 1.0, 0.5],
            pretrain_image_shape=(16, 16, 3),
            window_size=4,
            global_attn_indexes=[1],
            **image,
            **sizes,
        )
        text = layers.SAM3TextEncoder(
            vocabulary_size=vocabulary,
            embedding_dim=16,
            num_layers=1,
            max_sequence_length=length,
            **sizes,
        )
        return hub().SAM3PromptableConceptBackbone(
            vision_encoder=vision,
            text_encoder=text,
            geometry_encoder=layers.SAM3GeometryEncoder(num_layers=1, roi_size=3, **sizes),
            detr_encoder=layers.SAM3DetrEncoder(num_layers=1, **sizes),
            detr_decoder=layers.SAM3DetrDecoder(num_layers=depth, num_queries=5, **image, **sizes),
            mask_decoder=layers.SAM3MaskDecoder(num_upsampling_stages=3, hidden_dim=16, num_heads=2),
        )

    return make


def _boxes(shape: list[int], rng: Any) -> Any:
    """The image of each box, its center and its size.

    There is one box less than there are images: keras-hub fails at other batch sizes above 1.
    """
    import numpy as np

    count = shape[0] - 1
    which = np.broadcast_to(np.arange(shape[0])[:, None, None], (shape[0], count, 1))
    boxes = rng.uniform(0.2, 0.6, (shape[0], count, 4))
    return np.concatenate([which, boxes], -1).astype("float32")


def _box_labels(shape: list[int], rng: Any) -> Any:
    return rng.integers(0, 2, (shape[0], shape[0] - 1)).astype("int32")


def _masks(shape: list[int], rng: Any) -> Any:
    """Masks of each image, 4 times as large as the embedding of the image."""
    return rng.standard_normal((shape[0], shape[0] - 1, 32, 32, 1), "float32")


SAM: dict[str, Draw] = {"masks": _masks}
SAM_3: dict[str, Draw] = {"boxes": _boxes, "box_labels": _box_labels}

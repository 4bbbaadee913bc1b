"""Tiny backbones of keras-hub's families for images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def hub() -> Any:
    import keras_hub

    return keras_hub.models


def image(name: str, **sizes: Any) -> Callable[[int], Any]:
    common = {"image_shape": (32, 32, 3), "patch_size": 8, "num_heads": 4, "hidden_dim": 16}

    def make(depth: int) -> Any:
        arguments = {**common, "num_layers": depth, **sizes}
        return getattr(hub(), name)(**{key: value for key, value in arguments.items() if value is not None})

    return make


def mit(depth: int) -> Any:
    return hub().MiTBackbone(
        layerwise_depths=[1, depth - 1],
        num_layers=2,
        layerwise_num_heads=[1, 2],
        layerwise_sr_ratios=[2, 1],
        max_drop_path_rate=0.1,
        layerwise_patch_sizes=[7, 3],
        layerwise_strides=[4, 2],
        image_shape=(32, 32, 3),
        hidden_dims=[8, 16],
    )


def segformer(depth: int) -> Any:
    return hub().SegFormerBackbone(
        image_encoder=hub().MiTBackbone(
            layerwise_depths=[1, 1, 1, depth - 1],
            num_layers=4,
            layerwise_num_heads=[1, 2, 2, 2],
            layerwise_sr_ratios=[2, 1, 1, 1],
            max_drop_path_rate=0.1,
            layerwise_patch_sizes=[7, 3, 3, 3],
            layerwise_strides=[4, 2, 2, 2],
            image_shape=(64, 64, 3),
            hidden_dims=[8, 16, 24, 32],
        ),
        projection_filters=8,
    )


def resnet(depth: int = 2, block: str = "basic_block", **options: Any) -> Any:
    return hub().ResNetBackbone(
        **{
            "input_conv_filters": [64],
            "input_conv_kernel_sizes": [7],
            "stackwise_num_filters": [64, 16, 24],
            "stackwise_num_blocks": [1, 1, depth - 1],
            "stackwise_num_strides": [1, 2, 2],
            "block_type": block,
            **options,
        }
    )


def densenet(depth: int) -> Any:
    return hub().DenseNetBackbone(stackwise_num_repeats=[1, depth], growth_rate=8)


def vgg(depth: int) -> Any:
    return hub().VGGBackbone(stackwise_num_repeats=[1, depth], stackwise_num_filters=[8, 12])


def efficientnet(depth: int) -> Any:
    return hub().EfficientNetBackbone(
        stackwise_width_coefficients=[1.0, 1.0],
        stackwise_depth_coefficients=[1.0, 1.0],
        stackwise_kernel_sizes=[3, 5],
        stackwise_num_repeats=[1, depth],
        stackwise_input_filters=[8, 8],
        stackwise_output_filters=[8, 16],
        stackwise_expansion_ratios=[1, 4],
        stackwise_squeeze_and_excite_ratios=[0.25, 0.25],
        stackwise_strides=[1, 2],
        stackwise_block_types=["v1", "v1"],
        num_features=24,
    )


def cspnet(depth: int) -> Any:
    return hub().CSPNetBackbone(
        stem_filters=8,
        stem_kernel_size=3,
        stem_strides=1,
        stackwise_depth=[1, depth],
        stackwise_strides=[2, 2],
        stackwise_num_filters=[8, 16],
        block_type="dark_block",
        stage_type="csp",
        block_ratio=[0.5, 0.5],
    )


def xception(depth: int) -> Any:
    return hub().XceptionBackbone(
        stackwise_conv_filters=[[8, 8], [16] * depth], stackwise_pooling=[True, False]
    )


def mobilenet(depth: int) -> Any:
    return hub().MobileNetBackbone(
        stackwise_expansion=[[8], [16] * depth],
        stackwise_num_blocks=[1, depth],
        stackwise_num_filters=[[8], [16] * depth],
        stackwise_kernel_size=[[3], [5] * depth],
        stackwise_num_strides=[[2], [1] * depth],
        stackwise_se_ratio=[[0.25], [None] * depth],
        stackwise_activation=[["relu"], ["hard_swish"] * depth],
        stackwise_padding=[[1], [2] * depth],
        output_num_filters=16,
        depthwise_filters=8,
        depthwise_stride=2,
        depthwise_residual=False,
        squeeze_and_excite=0.5,
        last_layer_filter=24,
        input_num_filters=8,
    )


def vitdet(depth: int) -> Any:
    return hub().ViTDetBackbone(
        hidden_size=16,
        num_layers=depth,
        intermediate_dim=24,
        num_heads=4,
        global_attention_layer_indices=[1],
        image_shape=(64, 64, 3),
        patch_size=8,
        num_output_channels=8,
        window_size=2,
    )


def swin(depth: int) -> Any:
    return hub().SwinTransformerBackbone(
        image_shape=(32, 32, 3), embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=2, patch_size=4
    )


def sam(depth: int) -> Any:
    from keras_hub.layers import SAMMaskDecoder, SAMPromptEncoder

    encoder = SAMPromptEncoder(
        hidden_size=8, image_embedding_size=(8, 8), input_image_size=(64, 64), mask_in_channels=16
    )
    decoder = SAMMaskDecoder(
        hidden_size=8,
        num_layers=depth,
        intermediate_dim=24,
        num_heads=4,
        embedding_dim=8,
        num_multimask_outputs=3,
        iou_head_depth=2,
        iou_head_hidden_dim=8,
    )
    return hub().SAMBackbone(image_encoder=vitdet(2), prompt_encoder=encoder, mask_decoder=decoder)


def deeplab(depth: int) -> Any:
    return hub().DeepLabV3Backbone(
        image_encoder=resnet(2),
        low_level_feature_key="P2",
        spatial_pyramid_pooling_key="P4",
        dilation_rates=[2, 4],
        upsampling_size=4,
        image_shape=(64, 64, 3),
    )


def retinanet(depth: int) -> Any:
    return hub().RetinaNetBackbone(
        image_encoder=resnet(
            2,
            stackwise_num_filters=[64, 16, 24, 32],
            stackwise_num_blocks=[1] * 4,
            stackwise_num_strides=[1, 2, 2, 2],
        ),
        min_level=3,
        max_level=5,
        use_p5=False,
        image_shape=(64, 64, 3),
    )


def basnet(depth: int) -> Any:
    encoder = resnet(
        stackwise_num_filters=[64, 16, 24, 32],
        stackwise_num_blocks=[1] * 4,
        stackwise_num_strides=[1, 2, 2, 2],
    )
    return hub().BASNetBackbone(
        image_encoder=encoder, num_classes=1, projection_filters=64, image_shape=(64, 64, 3)
    )


def hgnet(depth: int) -> Any:
    return hub().HGNetV2Backbone(
        depths=[1, depth],
        embedding_size=8,
        hidden_sizes=[8, 16],
        stem_channels=[3, 8, 8],
        hidden_act="relu",
        use_learnable_affine_block=False,
        stackwise_stage_filters=[[8, 8, 8, 1, 1, 3], [8, 8, 16, depth, 1, 3]],
        apply_downsample=[False, True],
        use_lightweight_conv_block=[False, False],
        image_shape=(64, 64, 3),
    )


def depth_anything(depth: int) -> Any:
    encoder = image(
        "DINOV2Backbone", intermediate_dim=24, image_shape=(64, 64, 3), position_embedding_shape=(64, 64, 3)
    )(4)
    return hub().DepthAnythingBackbone(
        image_encoder=encoder,
        reassemble_factors=[4, 2, 1, 0.5],
        neck_hidden_dims=[8, 8, 8, 8],
        fusion_hidden_dim=8,
        head_hidden_dim=8,
        head_in_index=-1,
        feature_keys=["stage1", "stage2", "stage3", "stage4"],
    )


def dino(name: str = "DINOV2Backbone", **options: Any) -> Callable[[int], Any]:
    return image(name, intermediate_dim=24, **options)


def vae(depth: int) -> Any:
    from keras_hub.src.models.vae.vae_backbone import VAEBackbone

    return _of_images(VAEBackbone([32, 32], [1, 1], [32, 32], [1, 1], sampler_method="mode"))


def mobilenet_v5(depth: int) -> Any:
    return _of_images(mobilenet_v5_backbone())


def mobilenet_v5_backbone(**options: Any) -> Any:
    none = [[0], [0, 0]]
    unused = (
        "dw_start_kernel_sizes",
        "dw_end_kernel_sizes",
        "num_heads",
        "key_dims",
        "value_dims",
        "kv_strides",
    )
    return hub().MobileNetV5Backbone(
        stackwise_block_types=[["er"], ["uir", "uir"]],
        stackwise_num_blocks=[1, 2],
        stackwise_num_filters=[[24], [48, 48]],
        stackwise_strides=[[2], [2, 1]],
        stackwise_act_layers=[["relu"], ["relu", "relu"]],
        stackwise_exp_ratios=[[4.0], [6.0, 6.0]],
        stackwise_se_ratios=[[0.0], [0.0, 0.0]],
        stackwise_dw_kernel_sizes=[[0], [5, 5]],
        stackwise_exp_kernel_sizes=[[3], [0, 0]],
        stackwise_pw_kernel_sizes=[[1], [0, 0]],
        stackwise_use_cpe=[[False], [False, False]],
        use_msfa=False,
        **{f"stackwise_{name}": none for name in unused},
        **options,
    )


def _of_images(backbone: Any) -> Any:
    """The backbone behind an input with a name."""
    import keras

    images = keras.Input((None, None, 3), name="images")
    return keras.Model(images, backbone(images))

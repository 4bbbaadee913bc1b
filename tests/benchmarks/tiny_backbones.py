"""Tiny backbones of every family of keras-hub, for tests.benchmarks.keras_hub_families and its test."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tests.benchmarks import tiny_image_backbones, tiny_multimodal_backbones
from tests.benchmarks.tiny_image_backbones import hub
from tests.benchmarks.tiny_multimodal_backbones import Draw

VOCABULARY = 50
LENGTH = 32  # the longest text of models with a table of positions


@dataclasses.dataclass(frozen=True)
class Family:
    """`make(depth)` builds a backbone with that many blocks.

    `blocks` says whether `make` honours the depth; `other_length` names inputs that have a length of their
    own, `fixed_length` those that Keras itself takes at one length only; `special` draws inputs that are
    neither tokens, masks nor images; `folder` is that of keras-hub's models, if the key is another name.
    """

    key: str
    name: str
    make: Callable[[int], Any]
    blocks: bool = True
    other_length: tuple[str, ...] = ()
    fixed_length: Mapping[str, int] = dataclasses.field(default_factory=dict)
    special: Mapping[str, Draw] = dataclasses.field(default_factory=dict)
    vocabulary: int = VOCABULARY
    folder: str = ""


def _text(name: str, **sizes: Any) -> Callable[[int], Any]:
    """A backbone of text by the name of its class."""
    common = {"vocabulary_size": VOCABULARY, "hidden_dim": 16, "intermediate_dim": 24}

    def make(depth: int) -> Any:
        arguments = {**common, "num_layers": depth, **sizes}
        return getattr(hub(), name)(**{key: value for key, value in arguments.items() if value is not None})

    return make


def _encoder(name: str, **sizes: Any) -> Callable[[int], Any]:
    return _text(name, **{"num_heads": 4, "max_sequence_length": LENGTH, **sizes})


def _decoder(name: str, **sizes: Any) -> Callable[[int], Any]:
    return _text(name, **{"num_query_heads": 4, "num_key_value_heads": 2, **sizes})


def _clip(prefix: str, **vision: Any) -> Callable[[int], Any]:
    def make(depth: int) -> Any:
        models = hub()
        image = tiny_image_backbones.image(f"{prefix}VisionEncoder", intermediate_dim=24, **vision)(depth)
        text = _encoder(f"{prefix}TextEncoder", embedding_dim=16)(depth)
        projection = {} if prefix == "SigLIP" else {"projection_dim": 12}
        return getattr(models, f"{prefix}Backbone")(vision_encoder=image, text_encoder=text, **projection)

    return make


def _pali_gemma(depth: int) -> Any:
    return hub().PaliGemmaBackbone(
        vocabulary_size=VOCABULARY,
        image_size=16,
        num_layers=depth,
        num_query_heads=4,
        num_key_value_heads=1,
        hidden_dim=16,
        intermediate_dim=24,
        head_dim=4,
        vit_patch_size=8,
        vit_num_heads=4,
        vit_hidden_dim=16,
        vit_num_layers=2,
        vit_intermediate_dim=24,
    )


def _sizes_of_t5_gemma(depth: int) -> dict[str, Any]:
    sizes = {
        "hidden_dim": 16,
        "intermediate_dim": 24,
        "num_layers": depth,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "layer_types": ["full_attention"] * depth,
    }
    return {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in sizes.items()}


def _t5_gemma(depth: int) -> Any:
    return hub().T5GemmaBackbone(vocabulary_size=VOCABULARY, **_sizes_of_t5_gemma(depth))


def _t5_gemma_2(depth: int) -> Any:
    return hub().T5Gemma2Backbone(vocabulary_size=VOCABULARY, **_sizes_of_t5_gemma(depth))


def _qwen_3_5(name: str, **sizes: Any) -> Callable[[int], Any]:
    """Blocks of linear attention, and the last one of full attention."""

    def make(depth: int) -> Any:
        linear = {f"linear_{kind}_head_dim": 4 for kind in ("key", "value")}
        types = [*["linear_attention"] * (depth - 1), "full_attention"]
        heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "head_dim": 8}
        return _decoder(name, layer_types=types, **linear, **heads, **sizes)(depth)

    return make


def _rqvae(depth: int) -> Any:
    import keras
    from keras_hub.src.models.rqvae.rqvae_backbone import RQVAEBackbone

    features = keras.Input((12,), name="features")
    backbone = RQVAEBackbone(12, [16] * depth, 8, [16] * depth, num_embeddings=20, num_quantizers=3)
    return keras.Model(features, backbone(features))


def _video_prism(depth: int) -> Any:
    return hub().VideoPrismBackbone(
        num_frames=4,
        patch_size=8,
        hidden_dim=16,
        intermediate_dim=24,
        num_heads=4,
        num_spatial_layers=depth,
        num_temporal_layers=depth,
        num_auxiliary_layers=0,
        image_shape=(16, 16, 3),
    )


def _smollm(depth: int) -> Any:
    return hub().SmolLM3Backbone(
        vocabulary_size=VOCABULARY,
        hidden_dim=16,
        intermediate_dim=24,
        num_layers=depth,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=False,
        attention_dropout=0.0,
        rope_layer_enabled_list=[True] * depth,
        layer_types=["full_attention"] * depth,
        mlp_bias=False,
        layer_norm_epsilon=1e-5,
        max_position_embeddings=LENGTH,
        rope_theta=10000.0,
        partial_rotary_factor=1.0,
    )


def _edrec(depth: int) -> Any:
    return hub().EdRecBackbone(
        vocab_size=VOCABULARY,
        num_layers_enc=depth,
        num_layers_dec=depth,
        hidden_dim=16,
        intermediate_dim=24,
        num_heads=4,
    )


def _samples(shape: list[int]) -> int:
    """The samples of audio for a drawn length."""
    return 2000 + 400 * shape[1]


def _audio_mask(shape: list[int], rng: Any) -> Any:
    """Padding at the end of every second recording, of more than one frame of the encoder."""
    import numpy as np

    lengths = _samples(shape) - np.where(np.arange(shape[0]) % 2, 0, 1200)
    return np.arange(_samples(shape))[None] < lengths[:, None]


def _moonshine(depth: int) -> Any:
    return hub().MoonshineBackbone(
        vocabulary_size=VOCABULARY,
        filter_dim=16,
        encoder_num_layers=depth,
        decoder_num_layers=depth,
        hidden_dim=16,
        intermediate_dim=24,
        encoder_num_heads=4,
        decoder_num_heads=4,
        pad_head_dim_to_multiple_of=8,
    )


def _rwkv(depth: int) -> Any:
    return hub().RWKV7Backbone(
        hidden_size=16,
        head_size=4,
        num_layers=depth,
        vocabulary_size=VOCABULARY,
        intermediate_dim=24,
        gate_lora=8,
        mv_lora=8,
        aaa_lora=8,
        decay_lora=8,
    )


def _mmdit(depth: int) -> Any:
    from keras_hub.src.models.stable_diffusion_3.mmdit import MMDiT

    return MMDiT(
        patch_size=2,
        hidden_dim=16,
        num_layers=depth,
        num_heads=4,
        position_size=16,
        qk_norm=None,
        dual_attention_indices=None,
        latent_shape=(8, 8, 4),
        context_shape=(None, 16),
        pooled_projection_shape=(16,),
    )


def _parseq(depth: int) -> Any:
    encoder = tiny_image_backbones.image("ViTBackbone", mlp_dim=24, use_class_token=False)(2)
    return hub().PARSeqBackbone(
        image_encoder=encoder,
        vocabulary_size=VOCABULARY,
        max_label_length=12,
        decoder_hidden_dim=16,
        num_decoder_layers=depth,
        num_decoder_heads=4,
        decoder_mlp_dim=24,
    )


MOE = {"num_experts": 4, "top_k": 2}

FAMILIES = (
    Family("vit", "ViT", tiny_image_backbones.image("ViTBackbone", mlp_dim=24)),
    Family("deit", "DeiT", tiny_image_backbones.image("DeiTBackbone", intermediate_dim=24)),
    Family("dinov2", "DINOv2", tiny_image_backbones.dino(position_embedding_shape=(48, 48, 3))),
    Family("dinov3", "DINOv3", tiny_image_backbones.dino("DINOV3Backbone")),
    Family("bert", "BERT", _encoder("BertBackbone")),
    Family("roberta", "RoBERTa", _encoder("RobertaBackbone")),
    Family("distilbert", "DistilBERT", _encoder("DistilBertBackbone"), folder="distil_bert"),
    Family("albert", "ALBERT", _encoder("AlbertBackbone", embedding_dim=8)),
    Family(
        "electra",
        "ELECTRA",
        _encoder("ElectraBackbone", vocabulary_size=None, vocab_size=VOCABULARY, embedding_dim=8),
    ),
    Family("xlm_roberta", "XLM-RoBERTa", _encoder("XLMRobertaBackbone")),
    Family("deberta_v3", "DeBERTa-v3", _encoder("DebertaV3Backbone", bucket_size=8)),
    Family("fnet", "FNet", _encoder("FNetBackbone", num_heads=None), folder="f_net"),
    Family("xlnet", "XLNet", _text("XLNetBackbone", num_heads=4)),
    Family("roformer_v2", "RoFormerV2", _text("RoformerV2Backbone", num_heads=4, head_size=4)),
    Family("esm", "ESM-2", _encoder("ESMBackbone")),
    Family("gpt2", "GPT-2", _encoder("GPT2Backbone")),
    Family("gpt_neo_x", "GPT-NeoX", _encoder("GPTNeoXBackbone", rotary_percentage=0.5, hidden_dim=32)),
    Family("opt", "OPT", _encoder("OPTBackbone")),
    Family("bloom", "Bloom", _text("BloomBackbone", num_heads=4)),
    Family("falcon", "Falcon", _text("FalconBackbone", num_attention_heads=4)),
    Family("llama", "Llama", _decoder("LlamaBackbone")),
    Family("llama3", "Llama 3", _decoder("Llama3Backbone")),
    Family("mistral", "Mistral", _decoder("MistralBackbone", sliding_window=4)),
    Family("mixtral", "Mixtral", _decoder("MixtralBackbone", sliding_window=4, **MOE)),
    Family("gemma", "Gemma", _decoder("GemmaBackbone", head_dim=4)),
    Family(
        "gemma2",
        "Gemma 2",
        _decoder(
            "GemmaBackbone",
            head_dim=4,
            use_post_ffw_norm=True,
            use_post_attention_norm=True,
            attention_logit_soft_cap=50.0,
            final_logit_soft_cap=30.0,
            use_sliding_window_attention=True,
            sliding_window_size=4,
        ),
        folder="gemma",
    ),
    Family(
        "gemma3",
        "Gemma 3",
        _decoder(
            "Gemma3Backbone",
            head_dim=4,
            image_size=16,
            use_sliding_window_attention=True,
            sliding_window_size=4,
        ),
    ),
    Family("qwen", "Qwen 2.5", _decoder("QwenBackbone")),
    Family("qwen3", "Qwen 3", _decoder("Qwen3Backbone", head_dim=4)),
    Family(
        "qwen_moe",
        "Qwen MoE",
        _decoder("QwenMoeBackbone", moe_intermediate_dim=8, shared_expert_intermediate_dim=8, **MOE),
    ),
    Family(
        "qwen3_moe", "Qwen 3 MoE", _decoder("Qwen3MoeBackbone", head_dim=4, moe_intermediate_dim=8, **MOE)
    ),
    Family("qwen3_5", "Qwen 3.5", _qwen_3_5("Qwen3_5Backbone")),
    Family(
        "qwen3_5_moe",
        "Qwen 3.5 MoE",
        _qwen_3_5(
            "Qwen3_5MoeBackbone",
            intermediate_dim=None,
            moe_intermediate_dim=8,
            shared_expert_intermediate_size=8,
            **MOE,
        ),
    ),
    Family("phi3", "Phi-3", _decoder("Phi3Backbone")),
    Family("smollm3", "SmolLM3", _smollm),
    Family("gpt_oss", "GPT-OSS", _decoder("GptOssBackbone", sliding_window=4, head_dim=4, **MOE)),
    Family("rwkv7", "RWKV-7", _rwkv),
    Family(
        "t5",
        "T5",
        _text("T5Backbone", num_heads=4),
        other_length=("encoder_token_ids", "encoder_padding_mask"),
    ),
    Family("t5gemma", "T5Gemma", _t5_gemma, other_length=("encoder_token_ids", "encoder_padding_mask")),
    Family("t5gemma2", "T5Gemma 2", _t5_gemma_2, other_length=("encoder_token_ids", "encoder_padding_mask")),
    Family(
        "bart", "BART", _encoder("BartBackbone"), other_length=("encoder_token_ids", "encoder_padding_mask")
    ),
    Family("edrec", "EdRec", _edrec, other_length=("encoder_token_ids", "encoder_padding_mask")),
    Family(
        "whisper",
        "Whisper",
        _text(
            "WhisperBackbone",
            num_heads=4,
            num_mels=8,
            max_encoder_sequence_length=24,
            max_decoder_sequence_length=LENGTH,
        ),
        fixed_length={"encoder_features": 24},
    ),
    Family(
        "moonshine",
        "Moonshine",
        _moonshine,
        other_length=("encoder_input_values", "encoder_padding_mask"),
        special={
            "encoder_input_values": lambda shape, rng: rng.standard_normal(
                (shape[0], _samples(shape), 1), "float32"
            ),
            "encoder_padding_mask": _audio_mask,
        },
    ),
    Family("clip", "CLIP", _clip("CLIP")),
    Family("metaclip_2", "MetaCLIP 2", _clip("MetaCLIP2")),
    Family("siglip", "SigLIP", _clip("SigLIP"), fixed_length={"token_ids": LENGTH}),
    Family("pali_gemma", "PaliGemma", _pali_gemma),
    Family("blip2", "BLIP-2", tiny_multimodal_backbones.blip2(VOCABULARY, LENGTH)),
    Family("gemma3n", "Gemma 3n", tiny_multimodal_backbones.gemma3n(VOCABULARY)),
    Family(
        "gemma4",
        "Gemma 4",
        tiny_multimodal_backbones.gemma4(VOCABULARY),
        special=tiny_multimodal_backbones.GEMMA_4,
    ),
    Family("mit", "MiT", tiny_image_backbones.mit),
    Family("segformer", "SegFormer", tiny_image_backbones.segformer),
    Family("swin", "Swin", tiny_image_backbones.swin, blocks=False, folder="swin_transformer"),
    Family("vitdet", "ViTDet", tiny_image_backbones.vitdet, folder="vit_det"),
    Family("sam", "SAM", tiny_image_backbones.sam, blocks=False, special=tiny_multimodal_backbones.SAM),
    Family(
        "sam3",
        "SAM 3",
        tiny_multimodal_backbones.sam3(VOCABULARY, LENGTH),
        special=tiny_multimodal_backbones.SAM_3,
    ),
    Family("parseq", "PARSeq", _parseq),
    Family("depth_anything", "Depth Anything", tiny_image_backbones.depth_anything, blocks=False),
    Family("mmdit", "Stable Diffusion 3 (MMDiT)", _mmdit, folder="stable_diffusion_3"),
    Family("video_prism", "VideoPrism", _video_prism),
    Family("flux", "Flux", tiny_multimodal_backbones.flux),
    Family("vae", "VAE", tiny_image_backbones.vae, blocks=False),
    Family(
        "rqvae",
        "RQ-VAE",
        _rqvae,
        special={"features": lambda shape, rng: 4 * rng.standard_normal(shape, "float32")},
    ),
    Family("resnet", "ResNet", tiny_image_backbones.resnet),
    Family("densenet", "DenseNet", tiny_image_backbones.densenet),
    Family("vgg", "VGG", tiny_image_backbones.vgg),
    Family("efficientnet", "EfficientNet", tiny_image_backbones.efficientnet),
    Family("cspnet", "CSPNet", tiny_image_backbones.cspnet),
    Family("xception", "Xception", tiny_image_backbones.xception),
    Family("mobilenet", "MobileNet", tiny_image_backbones.mobilenet),
    Family("mobilenetv5", "MobileNetV5", tiny_image_backbones.mobilenet_v5, blocks=False),
    Family("hgnetv2", "HGNetV2", tiny_image_backbones.hgnet),
    Family("deeplab_v3", "DeepLabV3", tiny_image_backbones.deeplab, blocks=False),
    Family("retinanet", "RetinaNet", tiny_image_backbones.retinanet, blocks=False),
    Family("d_fine", "D-FINE", tiny_multimodal_backbones.d_fine),
    Family("basnet", "BASNet", tiny_image_backbones.basnet, blocks=False),
)

"""keras-tx: from `model.fit` to a transformer that runs anywhere ONNX runs."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from keras_tx.errors import install_remedy
from keras_tx.registration import register_with_keras

__version__ = "0.1.0"

# onnxruntime 1.29 and later sends usage events unless this is set before its import. A value set by the user
# is kept.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOMES = {
    "AdamW": "optimizers",
    "Bert": "models.bert.model",
    "BertConfig": "models.bert.model",
    "Bias": "layers",
    "BitsPerByte": "metrics",
    "CausalLMHead": "heads",
    "ClassAccuracy": "metrics",
    "ClassCrossentropy": "losses",
    "ClassToken": "layers",
    "ClassifierHead": "heads",
    "CoSENTLoss": "losses",
    "ContrastiveLoss": "losses",
    "Deberta": "models.deberta.model",
    "DebertaConfig": "models.deberta.model",
    "DistilledClassifierHead": "heads",
    "EntityF1": "metrics",
    "F1": "metrics",
    "FeedForward": "layers",
    "GPT": "models.gpt.model",
    "GPTConfig": "models.gpt.model",
    "GenerationMetrics": "training.generation_metrics",
    "GradientNorm": "training.progress",
    "ImageTransform": "processing",
    "InverseSquareRoot": "training",
    "Lamb": "optimizers",
    "MaskedLMHead": "heads",
    "MatryoshkaLoss": "losses",
    "Matthews": "metrics",
    "MultiHeadAttention": "layers",
    "MultiLabelAccuracy": "metrics",
    "MultiLabelF1": "metrics",
    "MultiLabelHead": "heads",
    "MultipleChoiceHead": "heads",
    "MultipleNegativesRankingLoss": "losses",
    "ModernBert": "models.modernbert.model",
    "ModernBertConfig": "models.modernbert.model",
    "Muon": "optimizers",
    "NearestNeighborAccuracy": "metrics",
    "NextSentenceHead": "heads",
    "PatchEmbedding": "layers",
    "Perplexity": "metrics",
    "PositionalEmbedding": "layers",
    "PretrainingHead": "heads",
    "RegressionHead": "heads",
    "RelativePositionBias": "layers",
    "SampleText": "training.text_samples",
    "ScheduleFreeAdamW": "optimizers",
    "SentenceEmbeddingHead": "heads",
    "SpanExactMatch": "metrics",
    "SpanF1": "metrics",
    "Seq2SeqLMHead": "heads",
    "SpanHead": "heads",
    "Spearman": "metrics",
    "T5": "models.t5.model",
    "T5Config": "models.t5.model",
    "TextTransform": "processing",
    "TokenAccuracy": "metrics",
    "TokenClassifierHead": "heads",
    "TokenCrossentropy": "losses",
    "TokenEmbedding": "layers",
    "TrainingLog": "training.progress",
    "TrainingProgress": "training.progress",
    "Transformer": "models.transformer.model",
    "TransformerBlock": "layers",
    "TransformerConfig": "models.transformer.model",
    "ViT": "models.vit.model",
    "ViTConfig": "models.vit.model",
    "WarmupCosine": "training",
    "WarmupLinear": "training",
    "bert": "models.bert.model",
    "bert_recipe": "training",
    "cost": "models.costs",
    "deberta": "models.deberta.model",
    "deit3_recipe": "training",
    "deit_recipe": "training",
    "few_shot": "generation",
    "finetune_recipe": "training",
    "fit_resumable": "training",
    "from_checkpoint": "models.checkpoint_loading",
    "generate": "models.generation",
    "gpt": "models.gpt.model",
    "image_batches": "data",
    "image_folder": "data",
    "image_table": "data",
    "k_shot_accuracy": "training",
    "linear_probe": "training",
    "load_adapter": "models.adapters.adapter_folder",
    "load_model": "models.keras_file",
    "lora": "models.adapters.adaptation",
    "model_parallel": "training",
    "modernbert": "models.modernbert.model",
    "muon_recipe": "training",
    "pretrain_recipe": "training",
    "question_table": "data",
    "save_adapter": "models.adapters.adapter_folder",
    "save_checkpoint": "models.checkpoint_saving",
    "t5": "models.t5.model",
    "t5_recipe": "training",
    "text_table": "data",
    "to_keras_hub": "models.keras_hub_models",
    "transformer": "models.transformer.model",
    "transformer_recipe": "training",
    "vit": "models.vit.model",
}

_EXPORT = ("ExportCallback", "export_onnx")  # the exporter has its own package

_MODULES = (
    "contract",
    "data",
    "demo",
    "errors",
    "generation",
    "heads",
    "inspect",
    "layers",
    "losses",
    "metrics",
    "models",
    "optimizers",
    "processing",
    "runtime",
    "serving",
    "training",
    "weights",
)

__all__ = [*_EXPORT, *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from keras_tx.data import image_batches, image_folder, image_table, question_table, text_table
    from keras_tx.generation import few_shot
    from keras_tx.heads import (
        CausalLMHead,
        ClassifierHead,
        DistilledClassifierHead,
        MaskedLMHead,
        MultiLabelHead,
        MultipleChoiceHead,
        NextSentenceHead,
        PretrainingHead,
        RegressionHead,
        SentenceEmbeddingHead,
        Seq2SeqLMHead,
        SpanHead,
        TokenClassifierHead,
    )
    from keras_tx.layers import (
        Bias,
        ClassToken,
        FeedForward,
        MultiHeadAttention,
        PatchEmbedding,
        PositionalEmbedding,
        RelativePositionBias,
        TokenEmbedding,
        TransformerBlock,
    )
    from keras_tx.losses import (
        ClassCrossentropy,
        ContrastiveLoss,
        CoSENTLoss,
        MatryoshkaLoss,
        MultipleNegativesRankingLoss,
        TokenCrossentropy,
    )
    from keras_tx.metrics import (
        F1,
        BitsPerByte,
        ClassAccuracy,
        EntityF1,
        Matthews,
        NearestNeighborAccuracy,
        Perplexity,
        SpanExactMatch,
        SpanF1,
        Spearman,
        TokenAccuracy,
    )
    from keras_tx.models.adapters.adaptation import lora
    from keras_tx.models.adapters.adapter_folder import load_adapter, save_adapter
    from keras_tx.models.bert.model import Bert, BertConfig, bert
    from keras_tx.models.checkpoint_loading import from_checkpoint
    from keras_tx.models.checkpoint_saving import save_checkpoint
    from keras_tx.models.costs import cost
    from keras_tx.models.deberta.model import Deberta, DebertaConfig, deberta
    from keras_tx.models.generation import generate
    from keras_tx.models.gpt.model import GPT, GPTConfig, gpt
    from keras_tx.models.keras_file import load_model
    from keras_tx.models.keras_hub_models import to_keras_hub
    from keras_tx.models.modernbert.model import ModernBert, ModernBertConfig, modernbert
    from keras_tx.models.t5.model import T5, T5Config, t5
    from keras_tx.models.transformer.model import Transformer, TransformerConfig, transformer
    from keras_tx.models.vit.model import ViT, ViTConfig, vit
    from keras_tx.optimizers import AdamW, Lamb, Muon, ScheduleFreeAdamW
    from keras_tx.processing import ImageTransform, TextTransform
    from keras_tx.training import (
        InverseSquareRoot,
        WarmupCosine,
        WarmupLinear,
        bert_recipe,
        deit3_recipe,
        deit_recipe,
        finetune_recipe,
        fit_resumable,
        k_shot_accuracy,
        linear_probe,
        model_parallel,
        muon_recipe,
        pretrain_recipe,
        t5_recipe,
        transformer_recipe,
    )
    from keras_tx.training.generation_metrics import GenerationMetrics
    from keras_tx.training.progress import GradientNorm, TrainingLog, TrainingProgress
    from keras_tx.training.text_samples import SampleText
    from keras_tx_onnx import ExportCallback, export_onnx


def __getattr__(name: str) -> Any:
    """Loads a public name or submodule on first use, so that `import keras_tx` is fast."""
    if name not in _HOMES and name not in _EXPORT and name not in _MODULES:
        raise AttributeError(f"module 'keras_tx' has no attribute {name!r}")
    home = "keras_tx_onnx" if name in _EXPORT else f"keras_tx.{_HOMES.get(name, name)}"
    try:
        module = importlib.import_module(home)
        return module if name in _MODULES else getattr(module, name)
    except ModuleNotFoundError as error:
        remedy = install_remedy(error)
        if remedy is None:
            raise
        message = f"keras_tx.{name} needs {error.name}, which is not installed. {remedy}"
        raise ModuleNotFoundError(message, name=error.name) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


_PRIVATE = (
    *("BlockWithScores", "DisentangledAttention", "DisentangledBlock", "FirstBlock", "FoldChoices"),
    *("LowRankDense", "LowRankEinsumDense", "LowRankEmbedding", "MaskToken", "RelativeEmbeddings"),
    *("RelativePositionEmbedding", "SlidingWindow", "UnfoldChoices"),
)
register_with_keras([*(name for name in _HOMES if name[0].isupper()), *_PRIVATE])

"""Makes golden/tensorflow/: tiny folders with tf_model.h5 that TensorFlow classes of transformers 4 wrote.

    pip install "transformers<5" tensorflow tf-keras
    TF_USE_LEGACY_KERAS=1 python tests/golden/make_tensorflow.py

Each is a zip archive with config.json, tf_model.h5 and example.npz, the inputs and outputs of a call.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import numpy as np
import transformers

HERE = Path(__file__).parent / "tensorflow"
ENCODER = {
    "vocab_size": 24,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 12,
}
DEBERTA = {
    **ENCODER,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 4,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
}
DISTILBERT = {
    "vocab_size": 24,
    "dim": 8,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 12,
    "max_position_embeddings": 12,
}
GPT2 = {"vocab_size": 24, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 12}
IMAGES = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "image_size": 8,
    "patch_size": 4,
    "num_labels": 3,
}
MARIAN = {
    "vocab_size": 24,
    "d_model": 8,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 12,
    "decoder_ffn_dim": 12,
    "max_position_embeddings": 16,
    "pad_token_id": 23,
    "decoder_start_token_id": 23,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
}
T5 = {"vocab_size": 24, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2}
GOLDEN = {
    "TFBertForPreTraining": ENCODER,
    "TFDebertaV2ForSequenceClassification": DEBERTA,
    "TFDistilBertForMaskedLM": DISTILBERT,
    "TFGPT2LMHeadModel": {**GPT2, "bos_token_id": 23, "eos_token_id": 23},
    "TFMarianMTModel": MARIAN,
    "TFT5ForConditionalGeneration": T5,
    "TFViTForImageClassification": IMAGES,
}


def make(name: str, folder: Path) -> None:
    random = np.random.default_rng(0)
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**GOLDEN[name]))
    model(model.dummy_inputs)
    for variable in model.weights:
        if "embed_positions" not in variable.name:  # Marian's are sines and cosines
            norm = 1.0 if "gamma" in variable.name or "layer_norm/weight" in variable.name else 0.0
            variable.assign(norm + random.normal(0, 0.3, variable.shape))
    model.save_pretrained(folder)
    feed = inputs_of(name, random)
    outputs = {key: value.numpy() for key, value in model(feed).items() if hasattr(value, "numpy")}
    example = {f"input {key}": value for key, value in feed.items()} | outputs
    np.savez(folder / "example.npz", **example)


def inputs_of(name: str, random: np.random.Generator) -> dict[str, np.ndarray]:
    if "ViT" in name:
        return {"pixel_values": random.normal(size=(2, 3, 8, 8)).astype("float32")}
    ids = np.array([[3, 5, 7, 2], [4, 6, 0, 0]], "int32")
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], "int32")
    feed = {"input_ids": ids, "attention_mask": mask}
    if name in ("TFMarianMTModel", "TFT5ForConditionalGeneration"):
        feed["decoder_input_ids"] = np.array([[0, 4, 3], [0, 7, 9]], "int32")
    return feed


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for name in GOLDEN:
        with tempfile.TemporaryDirectory() as place:
            make(name, Path(place))
            with zipfile.ZipFile(HERE / f"{name}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
                for path in sorted(Path(place).iterdir()):
                    archive.write(path, path.name)


if __name__ == "__main__":
    main()

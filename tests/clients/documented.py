"""The folders that the lines of docs/clients.md open, with the outputs of keras_tx.runtime."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.runtime import load

FOLDERS = {
    "flowers": "square",
    "reviews": "classify",
    "sentences": "embed",
    "poet": "gpt2",
    "translator": "t5",
}
REVIEW, SENTENCES, PROMPT = "A very good film.", ["A very good film.", "The cat lives in London."], "The cat"
SOURCE, TARGET_TOKENS, BEAMS = "The cat lives in London.", 12, 4
NEW_TOKENS, LENGTH = 20, 22  # added to the prompt, and altogether


def make(out: Path) -> dict[str, Any]:
    """By the headings of the page, what its blocks give; and what a block may take from us."""
    place = out / "documented"
    place.mkdir(exist_ok=True)
    for name, case in FOLDERS.items():
        (place / name).unlink(missing_ok=True)
        (place / name).symlink_to(out / case)
    shutil.copyfile(out / f"{FOLDERS['flowers']}_0.png", place / "rose.png")
    with load(out / FOLDERS["flowers"], provider="cpu") as flowers:
        seen = flowers(place / "rose.png")
        pixel_values = np.ascontiguousarray(flowers.transform([place / "rose.png"]).transpose(0, 3, 1, 2))
        logits = flowers.session.run({contract.PIXEL_VALUES: pixel_values})[contract.LOGITS].tolist()
    with load(out / FOLDERS["reviews"], provider="cpu") as reviews:
        judged = reviews(REVIEW, top_k=1)
    with load(out / FOLDERS["sentences"], provider="cpu") as sentences:
        vectors = sentences(SENTENCES).tolist()
    with load(out / FOLDERS["poet"], provider="cpu") as poet:
        written = [{"generated_text": PROMPT + poet(PROMPT, max_new_tokens=NEW_TOKENS).text}]
        count = LENGTH - len(poet.tokenizer.encode(PROMPT).ids)
        whole = PROMPT + poet(PROMPT, max_new_tokens=count).text
    with load(out / FOLDERS["translator"], provider="cpu") as translator:
        greedy, searched = (
            [
                {
                    "translation_text": translator.generate(
                        SOURCE, max_new_tokens=TARGET_TOKENS, num_beams=beams
                    ).text
                }
            ]
            for beams in (1, BEAMS)
        )
    return {
        "given": {"pixel_values": pixel_values.tolist()},
        "Optimum": [seen, judged, written, searched],
        "transformers.js": [seen, written, greedy],
        "OpenVINO": [logits],
        "onnxruntime-genai": [whole],
        "sentence-transformers": [vectors],
        "mlflow": [logits],
    }

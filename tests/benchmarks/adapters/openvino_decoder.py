"""openvino-genai: its continuous batching, on OpenVINO's form of a GPT-2."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.adapters import Adapter
from tests.benchmarks.adapters.decoders import gpt2_tensors
from tests.benchmarks.cases import MOST_STREAMS
from tests.benchmarks.machine import threads

CACHE_GB = 1  # 36,864 bytes a token in fp32: more than all streams need


class Streams(Adapter):
    """ContinuousBatchingPipeline. Option kind: fp32, int8 or int4, of the weights."""

    @property
    def folder(self) -> Path:
        return self.place / f"openvino-{self.options['kind']}"

    def prepare(self) -> None:
        if not self.folder.exists():
            write_gpt2(self.place / "huggingface", self.folder, str(self.options["kind"]))

    def load(self) -> None:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.max_num_seqs = MOST_STREAMS
        scheduler.enable_prefix_caching = False
        properties: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": threads(),
        }
        if self.options["kind"] == "fp32":  # by default, its cache is int8
            properties["KV_CACHE_PRECISION"] = "f32"
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(self.folder), scheduler, "CPU", properties
        )
        self.requests = 0

    def streams(self, prompts: list[np.ndarray], count: int) -> tuple[list[list[int]], list[float]]:
        import openvino
        import openvino_genai

        options = openvino_genai.GenerationConfig()
        options.max_new_tokens = options.min_new_tokens = count
        options.ignore_eos, options.do_sample = True, False
        options.set_eos_token_id(0)  # ignored, but there is no tokenizer that has one
        made: list[list[int]] = [[] for _ in prompts]
        first = [0.0] * len(prompts)
        start = time.perf_counter()
        handles = []
        for prompt in prompts:
            ids = openvino.Tensor(prompt[None].astype("int64"))
            handles.append(self.pipeline.add_request(self.requests, ids, options))
            self.requests += 1
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            for index, handle in enumerate(handles):
                if handle.can_read():
                    first[index] = first[index] or time.perf_counter() - start
                    for output in handle.read().values():
                        made[index] += output.generated_ids
        return made, first


def write_gpt2(source: Path, folder: Path, kind: str) -> None:
    """Writes a GPT-2 of a Hugging Face folder with a state for keys and values, as optimum-intel does."""
    import openvino

    model = gpt2(source)
    if kind != "fp32":
        import nncf

        modes = nncf.CompressWeightsMode
        options = {} if kind == "int8" else {"group_size": 128, "ratio": 1.0, "all_layers": True}
        mode = modes.INT8_SYM if kind == "int8" else modes.INT4_SYM
        model = nncf.compress_weights(model, mode=mode, **options)
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    openvino.save_model(model, unfinished / "openvino_model.xml", compress_to_fp16=False)
    (unfinished / "config.json").write_text(json.dumps({"model_type": "gpt2"}), "utf-8")
    unfinished.rename(folder)


def gpt2(source: Path) -> Any:
    """The model with the inputs and states that openvino-genai expects."""
    import openvino
    from openvino import opset13 as ops

    config = json.loads((source / "config.json").read_text("utf-8"))
    heads, size = config["n_head"], config["n_embd"] // config["n_head"]
    tensors = dict(gpt2_tensors(source, config["n_layer"]))

    def parameter(name: str, shape: list[int], kind: Any) -> Any:
        node = ops.parameter(shape, kind, name=name)
        node.output(0).get_tensor().set_names({name})
        return node

    def norm(x: Any, name: str) -> Any:
        unit = ops.mvn(x, np.array([-1]), True, config["layer_norm_epsilon"], "inside_sqrt")
        return ops.add(ops.multiply(unit, tensors[f"{name}.weight"]), tensors[f"{name}.bias"])

    def dense(x: Any, name: str) -> Any:
        return ops.add(ops.matmul(x, tensors[f"{name}.weight"], False, True), tensors[f"{name}.bias"])

    ids = parameter("input_ids", [-1, -1], np.int64)
    mask = parameter("attention_mask", [-1, -1], np.int64)
    positions = parameter("position_ids", [-1, -1], np.int64)
    beams = parameter("beam_idx", [-1], np.int32)
    embedding = ops.constant(tensors["token_embd.weight"])
    x = ops.add(ops.gather(embedding, ids, 0), ops.gather(tensors["position_embd.weight"], positions, 0))

    # A token sees those before it that are not padding.
    length = ops.gather(ops.shape_of(mask), np.array(1), 0)
    places = ops.range(np.array(0), length, np.array(1), "i64")
    seen = ops.logical_and(
        ops.less_equal(places, ops.unsqueeze(positions, 2)),
        ops.unsqueeze(ops.not_equal(mask, np.array(0, "int64")), 1),
    )
    bias = ops.unsqueeze(ops.select(seen, np.array(0, "f4"), np.array(-np.inf, "f4")), 1)

    batch = ops.gather(ops.shape_of(ids), np.array([0]), 0)
    empty = ops.broadcast(np.array(0, "f4"), ops.concat([batch, np.array([heads, 0, size], "int64")], 0))
    states = []

    def with_past(part: Any, name: str) -> Any:
        past = ops.read_value(empty, name, np.float32, openvino.PartialShape([-1, heads, -1, size]))
        whole = ops.concat([ops.gather(past, beams, 0), part], 2)
        states.append(ops.assign(whole, name))
        return whole

    for index in range(config["n_layer"]):
        block = f"blk.{index}"
        packed = dense(norm(x, f"{block}.attn_norm"), f"{block}.attn_qkv")
        query, key, value = (
            ops.transpose(ops.reshape(part, np.array([0, 0, heads, size]), True), np.array([0, 2, 1, 3]))
            for part in ops.split(packed, np.array(2), 3).outputs()
        )
        attended = ops.scaled_dot_product_attention(
            query,
            with_past(key, f"past_key_values.{index}.keypresent.{index}.key"),
            with_past(value, f"past_key_values.{index}.valuepresent.{index}.value"),
            bias,
        )
        merged = ops.reshape(
            ops.transpose(attended, np.array([0, 2, 1, 3])), np.array([0, 0, heads * size]), True
        )
        x = ops.add(x, dense(merged, f"{block}.attn_output"))
        hidden = ops.gelu(dense(norm(x, f"{block}.ffn_norm"), f"{block}.ffn_up"), "tanh")
        x = ops.add(x, dense(hidden, f"{block}.ffn_down"))

    logits = ops.matmul(norm(x, "output_norm"), embedding, False, True)
    logits.output(0).get_tensor().set_names({"logits"})
    return openvino.Model([ops.result(logits)], states, [ids, mask, positions, beams], "gpt2")

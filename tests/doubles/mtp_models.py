"""Small models with an MTP layer, whose drafts are as good as a test needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor

from .random_models import finish, write_vocabulary
from .runnable_models import N_VOCAB, weights
from .weightless_models import EXPERTS_BEHIND_DENSE, HYPER, SKETCHES, Sketch, tensors_of, write_keys

WRITES_BACK = tuple(
    f"{name}.weight"
    for name in ("attn_output", "attn_output_b", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp")
)
PARTS = ("whole", "trunk", "layer")
PATTERN, RATIOS = "attention.sliding_window_pattern", "attention.compress_ratios"
WITH_EXPERTS = replace(
    SKETCHES["glm4moe"],
    keys=EXPERTS_BEHIND_DENSE | {"expert_shared_feed_forward_length": 128},
)
WINDOWED = {"attention.sliding_window": 96, PATTERN: [False, True, True, False], "rope.freq_base_swa": 1e4}
DEEPSEEK = SKETCHES["deepseek2"]
INDEXER = {"attention.indexer.head_count": 4, "attention.indexer.key_length": 64, "attention.indexer.top_k": 64}
# without their MTP layers
TRUNKS = {
    **{
        name: SKETCHES[name]
        for name in (
            *("qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseek2", "deepseek4", "nemotron_h_moe", "bailingmoe3"),
        )
    },
    "hy_v3": replace(WITH_EXPERTS, arch="hy_v3"),
    "cohere2moe": replace(
        WITH_EXPERTS,
        arch="cohere2moe",
        keys=WITH_EXPERTS.keys | {"logit_scale": 0.5, "attention.sliding_window": 96},
    ),
    "mimo2": replace(
        WITH_EXPERTS,
        arch="mimo2",
        kv_heads=(2, 4, 4, 2),
        keys=WITH_EXPERTS.keys | WINDOWED | {"attention.value_length": 32},
    ),
    "deepseek32": replace(DEEPSEEK, arch="deepseek32", keys=DEEPSEEK.keys | INDEXER),
    "glm-dsa": replace(DEEPSEEK, arch="glm-dsa", keys=DEEPSEEK.keys | INDEXER),
    "step35": replace(WITH_EXPERTS, arch="step35", kv_heads=(2, 4, 4, 2), keys=WITH_EXPERTS.keys | WINDOWED),
}


def num_layers(architecture: str) -> int:
    """Return the number of layers that answer: the first MTP layer has this number."""
    return TRUNKS[architecture].n_layer


def sketch_trunk(architecture: str) -> Sketch:
    return replace(TRUNKS[architecture], n_vocab=N_VOCAB, n_ctx=2048)


def add_mtp(trunk: Sketch, num_mtp: int = 1) -> Sketch:
    """Return the sketch with MTP layers at its end, which have a window where others have."""
    keys = trunk.keys | {"nextn_predict_layers": num_mtp}
    if isinstance(pattern := keys.get(PATTERN), list):
        keys[PATTERN] = [*pattern, *[True] * num_mtp]
    if isinstance(ratios := keys.get(RATIOS), list):
        keys[RATIOS] = [*ratios, *[0] * num_mtp]
    return replace(
        trunk,
        n_layer=trunk.n_layer + num_mtp,
        kv_heads=trunk.kv_heads
        if isinstance(trunk.kv_heads, int)
        else (*trunk.kv_heads, *[max(trunk.kv_heads)] * num_mtp),
        n_ff=trunk.n_ff if isinstance(trunk.n_ff, int) else (*trunk.n_ff, *[128] * num_mtp),
        keys=keys,
    )


def write_mtp(
    path: Path,
    architecture: str = "qwen35",
    *,
    gain: float = 0.3,
    echoes: bool = False,
    layer_gain: float = 0.0,
    part: str = "whole",
    num_mtp: int = 1,
    wrong: int | None = None,
    random: bool = False,
    keys: dict[str, object] | None = None,
    without: str = " ",
    seed: int = 0,
) -> Path:
    """Write a model whose MTP layer predicts from a token's embedding alone, to which the other layers add little.

    They add `gain` of their usual output: at 0 drafts are always right, at 1 hardly ever. echoes: the MTP layer
    predicts from the target's state alone, which is what the target said before. layer_gain: the share of its usual
    output that the MTP layer itself adds. part: `whole`, or only the `trunk` or the `layer`. num_mtp: MTP layers, of
    which number `wrong` is never right. random: their weights are, and they predict nothing. keys: replace true ones.
    without: leave out tensors with this in their names.
    """
    trunk = sketch_trunk(architecture)
    sketch = add_mtp(trunk, num_mtp)
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), sketch.arch)
    said = trunk if part == "trunk" else sketch
    write_keys(writer, replace(said, keys=said.keys | (keys or {})))
    write_vocabulary(writer, N_VOCAB)
    output_norm = np.ones(sketch.n_embd, np.float32)
    for name, shape in tensors_of(sketch):
        values = weights(rng, name, shape[::-1], sketch)
        of_layer = name.startswith("blk.") and int(name.split(".")[1]) >= trunk.n_layer
        if not (random and of_layer):
            foreseen(name, values, trunk.n_layer, gain=gain, layer_gain=layer_gain, echoes=echoes)
        if wrong is not None and name == f"blk.{trunk.n_layer + wrong}.nextn.eh_proj.weight":
            values *= -1
        if name == "output_norm.weight":
            output_norm = values
        elif name.endswith(("nextn.shared_head_norm.weight", "layer_output_norm.weight")):
            values[:] = output_norm
        elif name == "token_embd.weight" and architecture == "nemotron_h_moe":  # whose layer subtracts the mean
            values -= values.mean(axis=1, keepdims=True)
        if without not in name and (part == "whole" or not name.startswith("blk.") or of_layer == (part == "layer")):
            writer.add_tensor(name, values)
    finish(writer)
    return path


def foreseen(
    name: str, values: np.ndarray, layer: int, *, gain: float, layer_gain: float = 0.0, echoes: bool = False
) -> None:
    """Change a tensor so that the MTP layers, from number `layer` on, predict what the model says."""
    if name.endswith(WRITES_BACK):
        values *= layer_gain if int(name.split(".")[1]) >= layer else gain
    elif name.endswith(("nextn.enorm.weight", "nextn.hnorm.weight")) or (echoes and name == "output_norm.weight"):
        values[:] = 1.0
    elif name.endswith("nextn.eh_proj.weight"):  # of the embedding, and behind it of the state
        values[:] = np.roll(np.eye(*values.shape), len(values) if echoes else 0, axis=1)
    elif echoes and ".hc_" in name and int(name.split(".")[1]) >= layer:
        keep_apart(name, values)
    elif echoes and name.startswith("output_hc_"):  # the last of the parallel states is the one that speaks
        values[:] = 30.0 * np.float32([-1, -1, -1, 1]) if "base" in name else 0.0


def keep_apart(name: str, values: np.ndarray) -> None:
    """Let an MTP layer mix none of the parallel states of a token."""
    values[:] = 0.0
    if name.endswith("base.weight"):  # what is read of each and written to each, then what is kept of it
        values[2 * HYPER :] = 30.0 * np.eye(HYPER).ravel()


# ---- Gemma 4: layers of a file of their own that read the target's cache
ASSISTANT_WIDTH, ASSISTANT_FF = 512, 256
GEMMA = replace(SKETCHES["gemma4"], n_vocab=N_VOCAB, n_ctx=2048)
WINDOWS = [True, True, False]  # of the assistant's layers; they read the target's last layers of the same kind


def write_gemma(path: Path, *, gain: float = 0.3, seed: int = 0) -> Path:
    """Write a gemma4 model whose layers add `gain` of their usual output."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), GEMMA.arch)
    write_keys(writer, GEMMA)
    write_vocabulary(writer, N_VOCAB)
    for name, shape in tensors_of(GEMMA):
        values = weights(rng, name, shape[::-1], GEMMA)
        if name.endswith(("post_attention_norm.weight", "post_ffw_norm.weight")):
            values *= gain
        elif (
            name == "output_norm.weight"
        ):  # embeddings are the output too: without signs each token would follow itself
            values *= rng.choice(np.float32([-1.0, 1.0]), len(values))
        writer.add_tensor(name, values)
    finish(writer)
    return path


def write_assistant(
    path: Path, target: Path, *, gain: float = 0.0, echoes: bool = False, kv_heads: int = 2, seed: int = 1
) -> Path:
    """Write an assistant that predicts from the token's embedding, or the state if it `echoes`; layers add `gain`."""
    rng = np.random.default_rng(seed)
    backbone, width = GEMMA.n_embd, ASSISTANT_WIDTH
    sketch = replace(
        GEMMA,
        arch="gemma4-assistant",
        n_layer=len(WINDOWS),
        n_embd=width,
        n_ff=ASSISTANT_FF,
        kv_heads=kv_heads,
        keys=GEMMA.keys
        | {
            "attention.sliding_window_pattern": WINDOWS,
            "nextn_predict_layers": len(WINDOWS),
            "embedding_length_out": backbone,
        },
    )
    header = read_header(target)
    embeddings = read_tensor(header, "token_embd.weight")
    norm = np.ones(width, np.float32)
    norm[:backbone] = 1.0 if echoes else read_tensor(header, "output_norm.weight")
    joined = np.zeros((width, 2 * backbone), np.float32)
    joined[:backbone, backbone if echoes else 0 :][:, :backbone] = np.eye(backbone)
    writer = gguf.GGUFWriter(str(path), sketch.arch)
    write_keys(writer, sketch)
    write_vocabulary(writer, N_VOCAB)
    writer.add_tensor("token_embd.weight", np.pad(embeddings, ((0, 0), (0, width - backbone))))
    writer.add_tensor("output_norm.weight", norm)
    writer.add_tensor("nextn.pre_projection.weight", joined)
    writer.add_tensor("nextn.post_projection.weight", np.eye(backbone, width, dtype=np.float32))
    writer.add_tensor("rope_freqs.weight", np.ones(sketch.head_dim // 2, np.float32))
    for layer, is_narrow in enumerate(WINDOWS):
        queries = sketch.n_head * (64 if is_narrow else sketch.head_dim)
        shapes = {
            "attn_norm": (width,),
            "attn_q": (queries, width),
            "attn_output": (width, queries),
            "attn_q_norm": (queries // sketch.n_head,),
            "post_attention_norm": (width,),
            "layer_output_scale": (1,),
            "ffn_norm": (width,),
            "ffn_gate": (ASSISTANT_FF, width),
            "ffn_up": (ASSISTANT_FF, width),
            "ffn_down": (width, ASSISTANT_FF),
            "post_ffw_norm": (width,),
        }
        for name, shape in shapes.items():
            values = weights(rng, f"{name}.weight", shape, sketch)
            if name in ("post_attention_norm", "post_ffw_norm"):
                values *= gain
            writer.add_tensor(
                f"blk.{layer}.{name}.weight", np.ones(1, np.float32) if name == "layer_output_scale" else values
            )
    finish(writer)
    return path

"""EAGLE heads as they are published: folders in every dialect, written with the real safetensors library.

Weights come from a seed, or from one of our own GGUFs, so that an import can be compared with its source. Names and
configurations follow what each trainer writes; see the table below `DIALECTS`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from safetensors import TensorSpec, serialize_file

from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_indices, read_tensor

DIALECTS = ("SafeAILab", "SpecForge", "speculators", "AngelSlim", "ModelOpt", "NeMo")
LAYER_PARTS = {
    "layer.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "layer.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "layer.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "layer.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "layer.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "layer.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "layer.mlp.down_proj.weight": "blk.0.ffn_down.weight",
    "layer.input_layernorm.weight": "blk.0.attn_norm.weight",
    "layer.hidden_norm.weight": "blk.0.attn_norm_2.weight",
    "layer.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "norm.weight": "output_norm.weight",
    "fc.weight": "fc.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A head as transformers would hold it: matrices [out, in], rotary embedding by halves of a head."""

    arrays: Mapping[str, np.ndarray]  # by common name, float32
    target_width: int
    n_vocab: int
    taps: tuple[int, ...] = (1, 2, 3)  # layer inputs
    n_head: int = 2
    n_kv_head: int = 1
    head_dim: int = 64
    eps: float = 1e-5
    theta: float = 10_000.0
    rope_scaling: Mapping[str, object] | None = None
    draft_tokens: np.ndarray | None = None  # target tokens of the output's rows
    norm_output: bool = False
    norm_before_residual: bool = False
    more: Mapping[str, object] = field(default_factory=dict)  # further keys of the configuration

    @property
    def width(self) -> int:
        return self.arrays["fc.weight"].shape[0]

    @property
    def num_layers(self) -> int:
        return 1 + sum(name.endswith("input_layernorm.weight") for name in self.arrays if name.startswith("layers."))

    @property
    def fc_norm(self) -> bool:
        return "fc_norm.0.weight" in self.arrays

    @property
    def norm_before_fc(self) -> bool:
        return "input_norm.weight" in self.arrays


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The sizes and options of a random head."""

    width: int = 128
    target_width: int = 128
    n_ff: int = 192
    n_head: int = 2
    n_kv_head: int = 1
    n_vocab: int = 300
    draft_vocab: int | None = 200
    num_taps: int = 3
    first_tap: int = 1
    num_layers: int = 1
    own_embeddings: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False
    norm_before_residual: bool = False
    rope_scaling: Mapping[str, object] | None = None
    seed: int = 5


def random_checkpoint(kind: Kind) -> Checkpoint:
    """Return a random head with matrices of about unit gain, so that a wrong norm or residual changes the logits."""
    rng = np.random.default_rng(kind.seed)
    hd = 64

    def matrix(rows: int, columns: int, scale: float | None = None) -> np.ndarray:
        return bf16(rng.normal(size=(rows, columns), scale=scale or columns**-0.5))

    def gains(size: int) -> np.ndarray:
        return bf16(rng.uniform(0.5, 1.5, size))

    def layer(name: str, width: int) -> dict[str, np.ndarray]:
        return {
            f"{name}.self_attn.q_proj.weight": matrix(kind.n_head * hd, width),
            f"{name}.self_attn.k_proj.weight": matrix(kind.n_kv_head * hd, width),
            f"{name}.self_attn.v_proj.weight": matrix(kind.n_kv_head * hd, width),
            f"{name}.self_attn.o_proj.weight": matrix(w, kind.n_head * hd),
            f"{name}.mlp.gate_proj.weight": matrix(kind.n_ff, w),
            f"{name}.mlp.up_proj.weight": matrix(kind.n_ff, w),
            f"{name}.mlp.down_proj.weight": matrix(w, kind.n_ff),
            f"{name}.input_layernorm.weight": gains(w),
            f"{name}.post_attention_layernorm.weight": gains(w),
        }

    w, pair, taps = kind.width, 2 * kind.width, kind.num_taps * kind.target_width
    arrays = {
        "fc.weight": matrix(w, taps),
        **layer("layer", pair),
        "layer.hidden_norm.weight": gains(w),
        "norm.weight": gains(w),
        "lm_head.weight": matrix(kind.draft_vocab or kind.n_vocab, w),
    }
    for number in range(1, kind.num_layers):
        arrays |= layer(f"layers.{number}", w)
    if kind.own_embeddings:
        arrays["embed_tokens.weight"] = matrix(kind.n_vocab, w, 1.0)
    if kind.fc_norm:
        arrays |= {f"fc_norm.{i}.weight": gains(kind.target_width) for i in range(kind.num_taps)}
    if kind.norm_before_fc:
        arrays["input_norm.weight"] = gains(taps)
    drafted = None
    if kind.draft_vocab is not None:
        drafted = np.sort(rng.choice(kind.n_vocab, kind.draft_vocab, replace=False)).astype(np.int64)
    return Checkpoint(
        arrays=arrays,
        target_width=kind.target_width,
        n_vocab=kind.n_vocab,
        taps=tuple(range(kind.first_tap, kind.first_tap + kind.num_taps)),
        n_head=kind.n_head,
        n_kv_head=kind.n_kv_head,
        draft_tokens=drafted,
        norm_output=kind.norm_output,
        norm_before_residual=kind.norm_before_residual,
        rope_scaling=kind.rope_scaling,
    )


def bf16(values: np.ndarray) -> np.ndarray:
    """Return values rounded (downwards) to bfloat16, as float32."""
    return (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def checkpoint_of(path: Path) -> Checkpoint:
    """Return the checkpoint of one of our GGUFs: gains that were folded into fc stay there, and fc_norms are ones."""
    header = read_header(path)
    info = EagleInfo.from_header(header)
    arrays = {common: read_tensor(header, name) for common, name in LAYER_PARTS.items() if name in header.tensors}
    arrays["fc.weight"] = arrays["fc.weight"][:, : info.tap_row.size]
    for part in "qk":
        name = f"layer.self_attn.{part}_proj.weight"
        arrays[name] = halved(arrays[name], info.head_dim)
    if info.fc_norm:
        ones = np.ones(info.target_hidden_size, np.float32)
        arrays |= {f"fc_norm.{i}.weight": ones for i in range(len(info.target_layers))}
    if info.norm_before_fc:
        arrays["input_norm.weight"] = info.tap_row.cut_gains(read_tensor(header, "enc.output_norm.weight"))
    theta = header.metadata["eagle3.rope.freq_base"]
    assert isinstance(theta, float)
    return Checkpoint(
        arrays=arrays,
        target_width=info.target_hidden_size,
        n_vocab=info.n_vocab,
        taps=info.target_layers,
        n_head=info.n_head,
        n_kv_head=info.n_kv_head,
        head_dim=info.head_dim,
        eps=info.rms_eps,
        theta=theta,
        draft_tokens=read_indices(header, "d2t") if info.draft_vocab else None,
        norm_output=info.norm_output,
        norm_before_residual=info.norm_before_residual,
    )


def halved(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Reorder a head's rows from llama.cpp's order (pairs 2i, 2i + 1) to transformers' (i, i + d/2)."""
    heads = rows.reshape(-1, head_dim // 2, 2, rows.shape[1])
    return heads.swapaxes(1, 2).reshape(rows.shape)


def write_checkpoint(folder: Path, head: Checkpoint, dialect: str, *, dtype: str = "bfloat16", shards: int = 1) -> Path:
    """Write the folder as this dialect's trainer would, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        named(name, dialect): (array, dtype if array.ndim == 2 else "float32") for name, array in head.arrays.items()
    }
    if head.draft_tokens is not None:
        tensors[prefix_of(dialect) + "d2t"] = (head.draft_tokens - np.arange(len(head.draft_tokens)), "int64")
        marked = np.zeros(head.n_vocab, bool)
        marked[head.draft_tokens] = True
        tensors[prefix_of(dialect) + "t2d"] = (marked, "bool")
    write_tensors(folder, tensors, shards)
    (folder / "config.json").write_text(json.dumps(configuration(head, dialect) | dict(head.more), indent=1))
    return folder


def write_tensors(folder: Path, tensors: Mapping[str, tuple[np.ndarray, str]], shards: int) -> None:
    names = sorted(tensors)
    files = (
        ["model.safetensors"]
        if shards == 1
        else [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    )
    parts = {file: names[i::shards] for i, file in enumerate(files)}
    for file, held in parts.items():
        raw = {name: encoded(*tensors[name]) for name in held}
        specs = {
            name: TensorSpec(
                dtype=tensors[name][1], shape=list(data.shape), data_ptr=data.ctypes.data, data_len=data.nbytes
            )
            for name, data in raw.items()
        }
        serialize_file(specs, str(folder / file), {"format": "pt"})
    if shards > 1:
        weight_map = {name: file for file, held in parts.items() for name in held}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def encoded(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(array, {"float32": "<f4", "float16": "<f2", "int64": "<i8", "bool": "?"}[dtype])


def prefix_of(dialect: str) -> str:
    return "model." if dialect == "NeMo" else ""


def named(name: str, dialect: str) -> str:
    layer = "layers.0." if dialect in ("speculators", "NeMo") else "midlayer."
    if name.startswith("layer."):
        name = layer + name.removeprefix("layer.")
    return name if name.startswith("lm_head") else prefix_of(dialect) + name


def configuration(head: Checkpoint, dialect: str) -> dict[str, object]:
    shape = {
        "model_type": "llama",
        "hidden_size": head.width,
        "intermediate_size": head.arrays["layer.mlp.up_proj.weight"].shape[0],
        "num_attention_heads": head.n_head,
        "num_key_value_heads": head.n_kv_head,
        "head_dim": head.head_dim,
        "num_hidden_layers": head.num_layers,
        "hidden_act": "silu",
        "rms_norm_eps": head.eps,
        "rope_theta": head.theta,
        "rope_scaling": head.rope_scaling,
        "max_position_embeddings": 2048,
        "vocab_size": head.n_vocab,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    drafted = head.n_vocab if head.draft_tokens is None else len(head.draft_tokens)
    flags: dict[str, object] = {"draft_vocab_size": drafted}
    if head.target_width != head.width:
        flags["target_hidden_size"] = head.target_width
    for flag in ("fc_norm", "norm_before_fc", "norm_output", "norm_before_residual"):
        if getattr(head, flag):
            flags[flag] = True
    inputs, outputs = list(head.taps), [tap - 1 for tap in head.taps]
    match dialect:
        case "speculators":
            verifier = {"algorithm": "eagle3", "verifier": {"name_or_path": "somebody/random target"}}
            said = {"norm_before_residual": head.norm_before_residual, "eagle_aux_hidden_state_layer_ids": inputs}
            return {
                "architectures": ["Eagle3Speculator"],
                "speculators_model_type": "eagle3",
                "speculators_config": verifier,
                "transformer_layer_config": shape,
                **flags,
                **said,
            }
        case "SpecForge":
            below = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": outputs}
            return {"architectures": ["LlamaForCausalLMEagle3"], **shape, **flags, "eagle_config": below}
        case "ModelOpt":
            below = {"use_mtp_layernorm": False, "eagle_aux_hidden_state_layer_ids": outputs}
            below |= {"norm_before_fc": flags.pop("norm_before_fc")} if head.norm_before_fc else {}
            return {"architectures": ["LlamaForCausalLMEagle3"], **shape, **flags, "eagle_config": below}
        case "AngelSlim":
            return {
                "architectures": ["Eagle3LlamaForCausalLM"],
                **shape,
                **flags,
                "eagle_aux_hidden_state_layer_ids": inputs,
            }
    return {"architectures": ["LlamaForCausalLM"], **shape, **flags, "eagle_aux_hidden_state_layer_ids": inputs}


def changed(head: Checkpoint, **arrays: np.ndarray) -> Checkpoint:
    """Return the head with some arrays replaced; `__` in a name is a dot."""
    return replace(head, arrays={**head.arrays, **{name.replace("__", "."): value for name, value in arrays.items()}})

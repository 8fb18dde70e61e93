"""GGUF files of any architecture and size without weights: a real header in a sparse file of the full length.

llama.cpp plans them as it would real models and even loads them (all weights zero), and they take no disk space.
Tensors are those that src/models of the pinned llama.cpp creates; it refuses a file that lacks one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import numpy as np

from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME

ALIGNMENT = 32
ALTERNATIVES, LAUREL_RANK = 4, 64  # of gemma3n, which llama.cpp does not read from the file
HYPER = 4  # states of a token at once (hyper-connections), the only number that llama.cpp runs
ID_TABLE = "ffn_gate_tid2eid.weight"
Tensor = tuple[str, tuple[int, ...]]  # name, shape in ggml's order


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """The shape of a model. kv_heads, n_ff: for all layers, or one each. keys: further ones of the architecture."""

    arch: str
    n_layer: int
    n_embd: int
    n_vocab: int
    n_head: int
    kv_heads: int | tuple[int, ...]
    n_ff: int | tuple[int, ...]
    head_dim: int = 64
    n_ctx: int = 131072
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_exp: int = 0
    type: str = "Q8_0"
    tied: bool = False
    file_type: int | None = None  # llama.cpp's number of the quantization
    keys: dict[str, object] = field(default_factory=dict)

    def kv_heads_of(self, layer: int) -> int:
        return self.kv_heads if isinstance(self.kv_heads, int) else self.kv_heads[layer]

    def n_ff_of(self, layer: int) -> int:
        return self.n_ff if isinstance(self.n_ff, int) else self.n_ff[layer]

    def number(self, key: str) -> int:
        value = self.keys[key]
        assert isinstance(value, int)
        return value


def write_sketch(path: Path, sketch: Sketch) -> Path:
    writer = gguf.GGUFWriter(str(path), sketch.arch)
    write_keys(writer, sketch)
    writer.add_tokenizer_model("no_vocab")
    offset = 0
    for name, shape in tensors_of(sketch):
        kind = GGML_TYPES_BY_NAME[type_of(name, shape, sketch.type)]
        nbytes = kind.row_bytes(shape[0]) * int(np.prod(shape[1:], dtype=np.int64))
        raw = gguf.GGMLQuantizationType(kind.id)
        writer.add_tensor_info(name, shape[::-1], np.dtype(np.float32), nbytes, raw_dtype=raw)
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(-(-path.stat().st_size // ALIGNMENT) * ALIGNMENT + offset)
    return path


def type_of(name: str, shape: tuple[int, ...], matrix_type: str) -> str:
    """Return the type of a tensor: small ones are not quantized, as in real files."""
    if name.endswith(ID_TABLE):
        return "I32"
    plain = (
        len(shape) == 1 or "conv" in name or "ssm_a" in name or "ssm_d" in name or "norm" in name or "altup_" in name
    )
    return "F32" if plain or name.endswith("bias") or "ffn_gate_inp" in name else matrix_type


def write_keys(writer: gguf.GGUFWriter, s: Sketch) -> None:
    writer.add_context_length(s.n_ctx)
    writer.add_embedding_length(s.n_embd)
    writer.add_block_count(s.n_layer)
    writer.add_feed_forward_length(s.n_ff if isinstance(s.n_ff, int) else list(s.n_ff))
    writer.add_head_count(s.n_head)
    writer.add_head_count_kv(s.kv_heads if isinstance(s.kv_heads, int) else list(s.kv_heads))
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(s.n_vocab)
    if s.n_head:
        writer.add_key_length(s.head_dim)
        writer.add_value_length(s.head_dim)
        writer.add_rope_dimension_count(s.head_dim)
    if s.n_expert:
        writer.add_expert_count(s.n_expert)
        writer.add_expert_used_count(s.n_expert_used)
        writer.add_expert_feed_forward_length(s.n_ff_exp)
    if s.file_type is not None:
        writer.add_file_type(s.file_type)
    for key, value in s.keys.items():
        _add(writer, f"{s.arch}.{key}", value)


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        assert isinstance(value, int)
        writer.add_uint32(key, value)


def tensors_of(s: Sketch) -> Iterator[Tensor]:
    yield "token_embd.weight", (s.n_embd, s.n_vocab)
    norm_name = "token_embd_norm" if s.arch == "lfm2" else "output_norm"
    yield f"{norm_name}.weight", (s.n_embd,)
    yield from _inputs_of_layers(s)
    if not s.tied:
        yield "output.weight", (s.n_embd, s.n_vocab)
    if s.arch == "gemma4":
        yield "rope_freqs.weight", (s.head_dim // 2,)
    if s.arch == "deepseek4":
        yield from _mixing("output_hc", s, num_mixes=HYPER, num_scales=1)
    for layer in range(s.n_layer):
        for name, shape in _layer(s, layer):
            yield f"blk.{layer}.{name}", shape


def _inputs_of_layers(s: Sketch) -> Iterator[Tensor]:
    """What is looked up for a token in each layer."""
    width = s.number("embedding_length_per_layer_input") if "embedding_length_per_layer_input" in s.keys else 0
    if width:
        yield "per_layer_token_embd.weight", (width * s.n_layer, s.n_vocab)
        yield "per_layer_model_proj.weight", (s.n_embd, width * s.n_layer)
        yield "per_layer_proj_norm.weight", (width,)
    if s.arch == "gemma3n":
        for name in ("altup_proj", "altup_unembd_proj"):
            yield f"{name}.weight", (s.n_embd, s.n_embd, ALTERNATIVES - 1)


def _input_of_layer(s: Sketch, layer: int) -> Iterator[Tensor]:
    width = s.number("embedding_length_per_layer_input")
    if width:
        yield "inp_gate.weight", (s.n_embd, width)
        yield "proj.weight", (width, s.n_embd)
        yield "post_norm.weight", (s.n_embd,)


def _alternatives(s: Sketch, layer: int) -> Iterator[Tensor]:
    yield "altup_correct_coef.weight", (ALTERNATIVES, ALTERNATIVES)
    yield "altup_correct_scale.weight", (s.n_embd,)
    yield "altup_predict_coef.weight", (ALTERNATIVES, ALTERNATIVES**2)
    yield "altup_router.weight", (s.n_embd, ALTERNATIVES)
    yield "altup_router_norm.weight", (s.n_embd,)
    yield "laurel_l.weight", (s.n_embd, LAUREL_RANK)
    yield "laurel_r.weight", (LAUREL_RANK, s.n_embd)
    yield "laurel_post_norm.weight", (s.n_embd,)


def _layer(s: Sketch, layer: int) -> Iterator[Tensor]:
    yield "attn_norm.weight", (s.n_embd,)
    for part in PARTS[s.arch]:
        yield from part(s, layer)


def _attention_or_mamba(s: Sketch, layer: int) -> Iterator[Tensor]:
    return _attention(s, layer) if s.kv_heads_of(layer) else _mamba2(s, layer)


def _attention_or_convolution(s: Sketch, layer: int) -> Iterator[Tensor]:
    return _attention(s, layer) if s.kv_heads_of(layer) else _convolution(s)


def _attention(s: Sketch, layer: int) -> Iterator[Tensor]:
    dim = _head_dim(s, layer)
    queries, keys = s.n_head * dim, s.kv_heads_of(layer) * dim
    gates = 2 if s.arch in ("qwen35", "qwen35moe", "qwen3next", "qwen4exp") else 1
    yield "attn_q.weight", (s.n_embd, queries * gates)
    yield "attn_k.weight", (s.n_embd, keys)
    yield "attn_v.weight", (s.n_embd, keys)
    yield "attn_output.weight", (queries, s.n_embd)
    if s.arch in ("qwen2", "qwen2vl", "gpt-oss"):
        yield "attn_q.bias", (queries,)
        yield "attn_k.bias", (keys,)
        yield "attn_v.bias", (keys,)
    if s.arch in NORMED:
        yield "attn_q_norm.weight", (dim,)
        yield "attn_k_norm.weight", (dim,)
    if s.arch in ("gemma2", "gemma3", "gemma3n", "gemma4"):
        yield "post_attention_norm.weight", (s.n_embd,)
    if s.arch == "gpt-oss":
        yield "attn_output.bias", (s.n_embd,)
        yield "attn_sinks.weight", (s.n_head,)


def _latent_attention(s: Sketch, layer: int) -> Iterator[Tensor]:
    """Keys and values are kept as one narrow row (MLA)."""
    latent, queries, turned, dim, values = (
        s.number(key)
        for key in (
            "attention.kv_lora_rank",
            "attention.q_lora_rank",
            "rope.dimension_count",
            "attention.key_length_mla",
            "attention.value_length_mla",
        )
    )
    yield "attn_q_a_norm.weight", (queries,)
    yield "attn_kv_a_norm.weight", (latent,)
    yield "attn_q_a.weight", (s.n_embd, queries)
    yield "attn_q_b.weight", (queries, s.n_head * dim)
    yield "attn_kv_a_mqa.weight", (s.n_embd, latent + turned)
    yield "attn_k_b.weight", (dim - turned, latent, s.n_head)
    yield "attn_v_b.weight", (latent, values, s.n_head)
    yield "attn_output.weight", (s.n_head * values, s.n_embd)


def _indexer(s: Sketch, layer: int) -> Iterator[Tensor]:
    """What scores earlier tokens, of which the best are attended to (DSA)."""
    heads, dim, queries = (
        s.number(f"attention.{key}") for key in ("indexer.head_count", "indexer.key_length", "q_lora_rank")
    )
    yield "indexer.k_norm.weight", (dim,)
    yield "indexer.k_norm.bias", (dim,)
    yield "indexer.proj.weight", (s.n_embd, heads)
    yield "indexer.attn_k.weight", (s.n_embd, dim)
    yield "indexer.attn_q_b.weight", (queries, heads * dim)


def _latent_attention_or_kda(s: Sketch, layer: int) -> Iterator[Tensor]:
    if s.kv_heads_of(layer):
        yield from _latent_attention(s, layer)
        yield "attn_gate.weight", (s.n_embd, s.n_head)
        return
    dim = s.number("kda.head_dim")
    inner = s.n_head * dim
    for name in "qkv":
        yield f"ssm_conv1d_{name}.weight", (s.number("ssm.conv_kernel"), 1, inner, 1)
        yield f"attn_{name}.weight", (s.n_embd, inner)
    yield "ssm_f_a.weight", (s.n_embd, inner)
    yield "ssm_g_a.weight", (s.n_embd, inner)
    yield "ssm_beta.weight", (s.n_embd, s.n_head)
    yield "ssm_a", (1, s.n_head)
    yield "ssm_dt.bias", (inner,)
    yield "ssm_norm.weight", (dim,)
    yield "attn_output.weight", (inner, s.n_embd)


def _gate_of_attention(s: Sketch, layer: int) -> Iterator[Tensor]:
    yield "attn_gate.weight", (s.n_embd, s.n_head * s.head_dim)
    yield "post_attention_norm.weight", (s.n_embd,)
    yield "post_ffw_norm.weight", (s.n_embd,)


def _is_narrow(s: Sketch, layer: int) -> bool:
    pattern = s.keys["attention.sliding_window_pattern"]
    assert isinstance(pattern, list)
    return bool(pattern[layer])


def _head_dim(s: Sketch, layer: int) -> int:
    if "attention.key_length_swa" in s.keys and _is_narrow(s, layer):
        return s.number("attention.key_length_swa")
    return s.head_dim


def _feed_forward(s: Sketch, layer: int) -> Iterator[Tensor]:
    n_ff = s.n_ff_of(layer)
    yield ("ffn_norm" if s.arch == "falcon-h1" else "ffn_norm.weight"), (s.n_embd,)
    yield "ffn_gate.weight", (s.n_embd, n_ff)
    yield "ffn_up.weight", (s.n_embd, n_ff)
    yield "ffn_down.weight", (n_ff, s.n_embd)
    if s.arch in ("gemma2", "gemma3", "gemma3n", "gemma4"):
        yield "post_ffw_norm.weight", (s.n_embd,)


def _experts(s: Sketch, layer: int) -> Iterator[Tensor]:
    if s.arch == "gpt-oss":
        yield "post_attention_norm.weight", (s.n_embd,)
        yield "ffn_gate_inp.bias", (s.n_expert,)
        for name, width in (("gate", s.n_ff_exp), ("up", s.n_ff_exp), ("down", s.n_embd)):
            yield f"ffn_{name}_exps.bias", (width, s.n_expert)
    elif s.arch == "qwen3moe":
        yield "ffn_norm.weight", (s.n_embd,)
    yield "ffn_gate_inp.weight", (s.n_embd, s.n_expert)
    yield "ffn_gate_exps.weight", (s.n_embd, s.n_ff_exp, s.n_expert)
    yield "ffn_up_exps.weight", (s.n_embd, s.n_ff_exp, s.n_expert)
    yield "ffn_down_exps.weight", (s.n_ff_exp, s.n_embd, s.n_expert)


def _experts_behind_dense(s: Sketch, layer: int) -> Iterator[Tensor]:
    """The first layers are dense, and so are MTP layers of some; behind them one expert more for every token."""
    if s.arch != "cohere2moe":
        yield "post_attention_norm.weight" if s.arch == "glm4moe" else "ffn_norm.weight", (s.n_embd,)
    if _is_ahead(s, layer):
        yield from _ahead(s)
    if layer < s.number("leading_dense_block_count") or (s.arch in DENSE_AHEAD and _is_ahead(s, layer)):
        yield from (each for each in _feed_forward(s, layer) if each[0] != "ffn_norm.weight")
        return
    yield from _experts(s, layer)
    if s.arch != "cohere2moe":
        yield "exp_probs_b" if s.arch == "hy_v3" else "exp_probs_b.bias", (s.n_expert,)
    if s.arch != "mimo2":
        yield from _shared_expert(s, s.n_ff_exp)


def _is_ahead(s: Sketch, layer: int) -> bool:
    return layer >= s.n_layer - int(str(s.keys.get("nextn_predict_layers", 0)))


def _attention_with_sinks(s: Sketch, layer: int) -> Iterator[Tensor]:
    """Values are narrower than keys, and in MTP layers all three are one matrix."""
    values, kv_heads = s.number("attention.value_length"), s.kv_heads_of(layer)
    queries, keys = s.n_head * s.head_dim, kv_heads * s.head_dim
    if _is_ahead(s, layer):
        yield "attn_qkv.weight", (s.n_embd, queries + keys + kv_heads * values)
    else:
        yield "attn_q.weight", (s.n_embd, queries)
        yield "attn_k.weight", (s.n_embd, keys)
        yield "attn_v.weight", (s.n_embd, kv_heads * values)
    yield "attn_output.weight", (s.n_head * values, s.n_embd)
    yield "attn_sinks.weight", (s.n_head,)


def _mixing(name: str, s: Sketch, *, num_mixes: int, num_scales: int) -> Iterator[Tensor]:
    """What mixes the parallel states of a token."""
    yield f"{name}_fn.weight", (HYPER * s.n_embd, num_mixes)
    yield f"{name}_base.weight", (num_mixes,)
    yield f"{name}_scale.weight", (num_scales,)


def _compressed_attention(s: Sketch, layer: int) -> Iterator[Tensor]:
    """One head of keys, which are the values too; of earlier tokens, blocks of 4 or 128 are kept as one row."""
    queries, groups, rank = (
        s.number(f"attention.{key}") for key in ("q_lora_rank", "output_group_count", "output_lora_rank")
    )
    yield "attn_sinks.weight", (s.n_head,)
    yield "attn_q_a.weight", (s.n_embd, queries)
    yield "attn_q_a_norm.weight", (queries,)
    yield "attn_q_b.weight", (queries, s.n_head * s.head_dim)
    yield "attn_kv.weight", (s.n_embd, s.head_dim)
    yield "attn_kv_a_norm.weight", (s.head_dim,)
    yield "attn_output_a.weight", (s.n_head * s.head_dim // groups, groups * rank)
    yield "attn_output_b.weight", (groups * rank, s.n_embd)
    for part in ("hc_attn", "hc_ffn"):
        yield from _mixing(part, s, num_mixes=(2 + HYPER) * HYPER, num_scales=3)
    ratios = s.keys["attention.compress_ratios"]
    assert isinstance(ratios, list)
    if ratio := ratios[layer]:
        overlap = 2 if ratio == 4 else 1
        yield from _compressor("attn", s, ratio, s.head_dim, overlap)
    if ratio == 4:
        heads, dim = (s.number(f"attention.indexer.{key}") for key in ("head_count", "key_length"))
        yield "indexer.proj.weight", (s.n_embd, heads)
        yield "indexer.attn_q_b.weight", (queries, heads * dim)
        yield from _compressor("indexer", s, ratio, dim, overlap)


def _compressor(name: str, s: Sketch, ratio: int, dim: int, overlap: int) -> Iterator[Tensor]:
    yield f"{name}_compressor_kv.weight", (s.n_embd, overlap * dim)
    yield f"{name}_compressor_gate.weight", (s.n_embd, overlap * dim)
    yield f"{name}_compressor_ape.weight", (overlap * dim, ratio)
    yield f"{name}_compressor_norm.weight", (dim,)


def _experts_by_token(s: Sketch, layer: int) -> Iterator[Tensor]:
    """In the first layers a table chooses the experts of a token."""
    yield "ffn_norm.weight", (s.n_embd,)
    if layer < s.number("hash_layer_count"):
        yield ID_TABLE, (s.n_expert_used, s.n_vocab)
    else:
        yield "exp_probs_b.bias", (s.n_expert,)
    yield from _experts(s, layer)
    yield from _shared_expert(s, s.n_ff_exp)
    if _is_ahead(s, layer):
        yield from _ahead(s)


def _gate_of_heads(s: Sketch, layer: int) -> Iterator[Tensor]:
    yield "attn_gate.weight", (s.n_embd, s.n_head)


def _shared_expert(s: Sketch, width: int) -> Iterator[Tensor]:
    yield "ffn_gate_shexp.weight", (s.n_embd, width)
    yield "ffn_up_shexp.weight", (s.n_embd, width)
    yield "ffn_down_shexp.weight", (width, s.n_embd)


def _ahead(s: Sketch) -> Iterator[Tensor]:
    yield "nextn.eh_proj.weight", (2 * s.n_embd, s.n_embd)
    yield "nextn.enorm.weight", (s.n_embd,)
    yield "nextn.hnorm.weight", (s.n_embd,)
    if s.arch in ("nemotron_h_moe", "deepseek4"):
        yield "nextn.shared_head_norm.weight", (s.n_embd,)
    if s.arch == "bailingmoe3":
        yield "layer_output_norm.weight", (s.n_embd,)


def _fused(s: Sketch, layer: int) -> Iterator[Tensor]:
    yield "attn_qkv.weight", (s.n_embd, s.n_embd + 2 * s.kv_heads_of(layer) * s.head_dim)
    yield "attn_output.weight", (s.n_embd, s.n_embd)
    yield "ffn_norm.weight", (s.n_embd,)
    yield "ffn_up.weight", (s.n_embd, 2 * s.n_ff_of(layer))
    yield "ffn_down.weight", (s.n_ff_of(layer), s.n_embd)


def _mamba(s: Sketch, layer: int) -> Iterator[Tensor]:
    kernel, inner, state, rank = (
        s.number(f"ssm.{key}") for key in ("conv_kernel", "inner_size", "state_size", "time_step_rank")
    )
    yield "ssm_in.weight", (s.n_embd, 2 * inner)
    yield "ssm_conv1d.weight", (kernel, inner)
    yield "ssm_conv1d.bias", (inner,)
    yield "ssm_x.weight", (inner, rank + 2 * state)
    yield "ssm_dt.weight", (rank, inner)
    yield "ssm_dt.bias", (inner,)
    yield "ssm_a", (state, inner)
    yield "ssm_d", (inner,)
    yield "ssm_out.weight", (inner, s.n_embd)


def _mamba2(s: Sketch, layer: int) -> Iterator[Tensor]:
    kernel, inner, state, heads, groups = (
        s.number(f"ssm.{key}") for key in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
    )
    convolved = inner + 2 * groups * state
    yield "ssm_in.weight", (s.n_embd, inner + convolved + heads)
    yield "ssm_conv1d.weight", (kernel, convolved)
    yield "ssm_conv1d.bias", (convolved,)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (1, heads)
    yield "ssm_d", (1, heads)
    yield "ssm_norm.weight", (inner // groups, groups)
    yield "ssm_out.weight", (inner, s.n_embd)


def _nemotron(s: Sketch, layer: int) -> Iterator[Tensor]:
    if _is_ahead(s, layer):  # both in one
        yield from _ahead(s)
        yield from _attention(s, layer)
        yield "post_attention_norm.weight", (s.n_embd,)
    if s.n_ff_of(layer) and s.n_expert:
        shared = s.number("expert_shared_feed_forward_length")
        yield "ffn_gate_inp.weight", (s.n_embd, s.n_expert)
        yield "exp_probs_b.bias", (s.n_expert,)
        yield "ffn_up_exps.weight", (s.n_embd, s.n_ff_exp, s.n_expert)
        yield "ffn_down_exps.weight", (s.n_ff_exp, s.n_embd, s.n_expert)
        yield "ffn_up_shexp.weight", (s.n_embd, shared)
        yield "ffn_down_shexp.weight", (shared, s.n_embd)
    elif s.n_ff_of(layer):
        yield "ffn_up.weight", (s.n_embd, s.n_ff_of(layer))
        yield "ffn_down.weight", (s.n_ff_of(layer), s.n_embd)
    else:
        yield from _attention_or_mamba(s, layer)


def _convolution(s: Sketch) -> Iterator[Tensor]:
    yield "shortconv.conv.weight", (s.number("shortconv.l_cache"), s.n_embd)
    yield "shortconv.in_proj.weight", (s.n_embd, 3 * s.n_embd)
    yield "shortconv.out_proj.weight", (s.n_embd, s.n_embd)


def _qwen35(s: Sketch, layer: int) -> Iterator[Tensor]:
    is_ahead = _is_ahead(s, layer)
    yield "post_attention_norm.weight", (s.n_embd,)
    yield from _delta_net(s) if (layer + 1) % 4 and not is_ahead else _attention(s, layer)
    if is_ahead:
        yield from _ahead(s)
    if s.n_expert:
        yield from _experts(s, layer)
        yield "ffn_gate_inp_shexp.weight", (s.n_embd,)
        yield from _shared_expert(s, s.number("expert_shared_feed_forward_length"))
    else:
        for name, shape in _feed_forward(s, layer):
            if name != "ffn_norm.weight":  # post_attention_norm is that norm
                yield name, shape


def _delta_net(s: Sketch) -> Iterator[Tensor]:
    kernel, inner, state, heads, groups = (
        s.number(f"ssm.{key}") for key in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
    )
    convolved = inner + 2 * groups * state
    yield "attn_qkv.weight", (s.n_embd, convolved)
    yield "attn_gate.weight", (s.n_embd, inner)
    yield "ssm_conv1d.weight", (kernel, convolved)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (heads,)
    if s.arch == "qwen3next":
        yield "ssm_ba.weight", (s.n_embd, 2 * heads)
    else:
        yield "ssm_beta.weight", (s.n_embd, heads)
        yield "ssm_alpha.weight", (s.n_embd, heads)
    yield "ssm_norm.weight", (state,)
    yield "ssm_out.weight", (inner, s.n_embd)


# norms of queries and keys
NORMED = {
    *(
        "gemma3",
        "gemma3n",
        "gemma4",
        "hy_v3",
        "lfm2",
        "muse-glimmer",
        "qwen3",
        "qwen35",
        "qwen35moe",
        "qwen3moe",
        "qwen3next",
        "qwen3vl",
        "qwen4exp",
        "step35",
    )
}
DENSE_AHEAD = ("mimo2", "step35")  # whose MTP layers have no experts
PARTS: dict[str, tuple[Callable[[Sketch, int], Iterator[Tensor]], ...]] = {
    **dict.fromkeys(
        ("llama", "mistral3", "qwen2", "qwen2vl", "qwen3", "qwen3vl", "gemma2", "gemma3"), (_attention, _feed_forward)
    ),
    "muse-glimmer": (_attention, _gate_of_attention, _feed_forward),
    "deepseek2": (_latent_attention, _experts_behind_dense),
    **dict.fromkeys(("deepseek32", "glm-dsa"), (_latent_attention, _indexer, _experts_behind_dense)),
    "bailingmoe3": (_latent_attention_or_kda, _experts_behind_dense),
    "deepseek4": (_compressed_attention, _experts_by_token),
    **dict.fromkeys(("glm4moe", "hy_v3", "cohere2moe"), (_attention, _experts_behind_dense)),
    "mimo2": (_attention_with_sinks, _experts_behind_dense),
    "step35": (_attention, _gate_of_heads, _experts_behind_dense),
    "gemma3n": (_attention, _feed_forward, _input_of_layer, _alternatives),
    "gemma4": (_attention, _feed_forward, _input_of_layer),
    **dict.fromkeys(("qwen3moe", "gpt-oss"), (_attention, _experts)),
    **dict.fromkeys(("qwen35", "qwen35moe", "qwen3next"), (_qwen35,)),
    "phi3": (_fused,),
    "mamba": (_mamba,),
    "mamba2": (_mamba2,),
    "granitehybrid": (_attention_or_mamba, _feed_forward),
    "falcon-h1": (_mamba2, _attention, _feed_forward),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), (_nemotron,)),
    "lfm2": (_attention_or_convolution, _feed_forward),
}

MAMBA = {"ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 64, "ssm.time_step_rank": 8}
MAMBA2 = MAMBA | {"ssm.group_count": 1}
DELTA_NET = MAMBA | {"ssm.group_count": 4, "rope.dimension_sections": [11, 11, 10, 0]}
EXPERTS_BEHIND_DENSE: dict[str, object] = {
    "leading_dense_block_count": 1,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "expert_weights_scale": 1.8,
}
LATENT: dict[str, object] = {
    "attention.q_lora_rank": 96,
    "attention.kv_lora_rank": 128,
    "attention.value_length": 128,
    "attention.key_length_mla": 96,
    "attention.value_length_mla": 64,
    "rope.dimension_count": 32,
}
TINY = Sketch(arch="llama", n_layer=4, n_embd=256, n_vocab=1000, n_head=4, kv_heads=2, n_ff=512)

# a small one of each kind
SKETCHES = {
    "llama": TINY,
    "qwen2": replace(TINY, arch="qwen2", tied=True),
    "qwen3": replace(TINY, arch="qwen3", head_dim=128),
    "qwen3moe": replace(TINY, arch="qwen3moe", n_expert=8, n_expert_used=2, n_ff_exp=128),
    "gemma2": replace(TINY, arch="gemma2", tied=True, keys={"attention.sliding_window": 256}),
    "gemma3": replace(
        TINY, arch="gemma3", tied=True, n_layer=8, keys={"attention.sliding_window": 512, "rope.freq_base_swa": 1e4}
    ),
    "gemma4": replace(
        TINY,
        arch="gemma4",
        tied=True,
        head_dim=128,
        n_layer=6,
        keys={
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": [True, True, False, True, True, False],
            "attention.key_length_swa": 64,
            "attention.value_length_swa": 64,
            "rope.dimension_count_swa": 64,
            "embedding_length_per_layer_input": 0,
            "rope.freq_base_swa": 1e4,
        },
    ),
    "gemma4 with inputs of layers": replace(
        TINY,
        arch="gemma4",
        tied=True,
        head_dim=128,
        n_layer=6,
        keys={
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": [True, True, False, True, True, False],
            "attention.key_length_swa": 64,
            "attention.value_length_swa": 64,
            "rope.dimension_count_swa": 64,
            "embedding_length_per_layer_input": 64,
            "attention.shared_kv_layers": 3,
            "rope.freq_base_swa": 1e4,
        },
    ),
    "gemma3n": replace(
        TINY,
        arch="gemma3n",
        tied=True,
        n_layer=25,
        keys={
            "attention.sliding_window": 512,
            "embedding_length_per_layer_input": 256,
            "rope.freq_base_swa": 1e4,
        },
    ),
    "gpt-oss": replace(
        TINY, arch="gpt-oss", n_expert=8, n_expert_used=4, n_ff_exp=256, keys={"attention.sliding_window": 128}
    ),
    "phi3": replace(TINY, arch="phi3", keys={"attention.sliding_window": 2048}),
    "qwen35": replace(TINY, arch="qwen35", n_layer=8, keys=DELTA_NET),
    "qwen35moe": replace(
        TINY,
        arch="qwen35moe",
        n_layer=8,
        n_expert=8,
        n_expert_used=2,
        n_ff_exp=128,
        keys=DELTA_NET | {"expert_shared_feed_forward_length": 128},
    ),
    "qwen3next": replace(
        TINY,
        arch="qwen3next",
        n_layer=8,
        n_expert=8,
        n_expert_used=2,
        n_ff_exp=128,
        keys=MAMBA | {"ssm.group_count": 4, "expert_shared_feed_forward_length": 128},
    ),
    "mistral3": replace(TINY, arch="mistral3", head_dim=128),
    "muse-glimmer": replace(
        TINY,
        arch="muse-glimmer",
        n_layer=8,
        keys={
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": 4,
            "logit_scale": 0.25,
            "final_logit_softcapping": 20.0,
        },
    ),
    "deepseek2": replace(
        TINY,
        arch="deepseek2",
        kv_heads=1,
        head_dim=160,
        n_expert=8,
        n_expert_used=2,
        n_ff_exp=128,
        keys=EXPERTS_BEHIND_DENSE | LATENT,
    ),
    "glm4moe": replace(
        TINY,
        arch="glm4moe",
        n_expert=8,
        n_expert_used=2,
        n_ff_exp=128,
        keys=EXPERTS_BEHIND_DENSE,
    ),
    "nemotron_h_moe": replace(
        TINY,
        arch="nemotron_h_moe",
        n_layer=5,
        kv_heads=(0, 0, 2, 0, 0),
        n_ff=(0, 128, 0, 128, 0),
        n_expert=8,
        n_expert_used=2,
        n_ff_exp=128,
        keys=MAMBA2
        | {
            "attention.layer_norm_epsilon": 1e-5,
            "expert_shared_feed_forward_length": 256,
            "expert_shared_count": 1,
            "expert_weights_scale": 2.5,
        },
    ),
    "bailingmoe3": replace(
        TINY,
        arch="bailingmoe3",
        kv_heads=(0, 0, 0, 1),
        head_dim=160,
        n_expert=8,
        n_expert_used=2,
        n_ff_exp=128,
        keys=EXPERTS_BEHIND_DENSE | LATENT | {"kda.head_dim": 64, "kda.gate_lower_bound": -5.0, "ssm.conv_kernel": 4},
    ),
    "deepseek4": replace(
        TINY,
        arch="deepseek4",
        kv_heads=1,
        head_dim=128,
        n_expert=8,
        n_expert_used=2,
        n_ff_exp=128,
        keys={
            "rope.dimension_count": 32,
            "attention.q_lora_rank": 96,
            "attention.output_group_count": 2,
            "attention.output_lora_rank": 64,
            "attention.sliding_window": 96,
            "attention.compress_ratios": [0, 4, 128, 4],
            "attention.compress_rope_freq_base": 4e4,
            "attention.indexer.head_count": 4,
            "attention.indexer.key_length": 64,
            "attention.indexer.top_k": 32,
            "hyper_connection.count": HYPER,
            "hyper_connection.sinkhorn_iterations": 4,
            "hyper_connection.epsilon": 1e-6,
            "hash_layer_count": 1,
            "expert_shared_count": 1,
            "expert_gating_func": 4,
            "expert_weights_scale": 1.5,
            "expert_weights_norm": True,
            "swiglu_clamp_exp": 7.0,
        },
    ),
    "granitehybrid": replace(TINY, arch="granitehybrid", kv_heads=(0, 2, 0, 0), keys=MAMBA2),
    "falcon-h1": replace(TINY, arch="falcon-h1", keys=MAMBA2),
    "nemotron_h": replace(
        TINY,
        arch="nemotron_h",
        n_layer=5,
        kv_heads=(0, 0, 2, 0, 0),
        n_ff=(0, 512, 0, 512, 0),
        keys=MAMBA2 | {"attention.layer_norm_epsilon": 1e-5},
    ),
    "lfm2": replace(TINY, arch="lfm2", kv_heads=(0, 4, 0, 4), keys={"shortconv.l_cache": 3}),
    "mamba": replace(TINY, arch="mamba", n_head=0, kv_heads=0, n_ff=0, keys=MAMBA),
    "mamba2": replace(TINY, arch="mamba2", n_head=0, kv_heads=0, n_ff=0, keys=MAMBA2),
}

QWEN35_27B = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 6144,
    "ssm.state_size": 128,
    "ssm.time_step_rank": 48,
    "ssm.group_count": 16,
    "rope.dimension_sections": [11, 11, 10, 0],
}

NEMOTRON_3_NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"  # Mamba, experts, attention

# real ones, as their makers state them; quantized to one type
REAL = {
    "llama-3.1-8b": Sketch(
        arch="llama", n_layer=32, n_embd=4096, n_vocab=128256, n_head=32, kv_heads=8, n_ff=14336, head_dim=128
    ),
    "llama-3.3-70b": Sketch(
        arch="llama", n_layer=80, n_embd=8192, n_vocab=128256, n_head=64, kv_heads=8, n_ff=28672, head_dim=128
    ),
    "qwen3-0.6b": Sketch(
        arch="qwen3", n_layer=28, n_embd=1024, n_vocab=151936, n_head=16, kv_heads=8, n_ff=3072, head_dim=128, tied=True
    ),
    "qwen3-8b": Sketch(
        arch="qwen3", n_layer=36, n_embd=4096, n_vocab=151936, n_head=32, kv_heads=8, n_ff=12288, head_dim=128
    ),
    "qwen2.5-7b": Sketch(
        arch="qwen2", n_layer=28, n_embd=3584, n_vocab=152064, n_head=28, kv_heads=4, n_ff=18944, head_dim=128
    ),
    "qwen3-30b-a3b": Sketch(
        arch="qwen3moe",
        n_layer=48,
        n_embd=2048,
        n_vocab=151936,
        n_head=32,
        kv_heads=4,
        n_ff=6144,
        head_dim=128,
        n_expert=128,
        n_expert_used=8,
        n_ff_exp=768,
    ),
    "gemma-3-27b": Sketch(
        arch="gemma3",
        n_layer=62,
        n_embd=5376,
        n_vocab=262208,
        n_head=32,
        kv_heads=16,
        n_ff=21504,
        head_dim=128,
        tied=True,
        keys={"attention.sliding_window": 1024, "rope.freq_base_swa": 1e4},
    ),
    "gemma-4-e4b": Sketch(
        arch="gemma4",
        n_layer=42,
        n_embd=2560,
        n_vocab=262144,
        n_head=8,
        kv_heads=2,
        n_ff=10240,
        head_dim=512,
        tied=True,
        keys={
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": [True, True, True, True, True, False] * 7,
            "attention.key_length_swa": 256,
            "attention.value_length_swa": 256,
            "attention.shared_kv_layers": 18,
            "rope.dimension_count_swa": 256,
            "embedding_length_per_layer_input": 256,
            "rope.freq_base_swa": 1e4,
        },
    ),
    "gemma-3n-e4b": Sketch(
        arch="gemma3n",
        n_layer=35,
        n_embd=2048,
        n_vocab=262400,
        n_head=8,
        kv_heads=2,
        n_ff=16384,
        head_dim=256,
        tied=True,
        keys={
            "attention.sliding_window": 512,
            "embedding_length_per_layer_input": 256,
            "rope.freq_base_swa": 1e4,
        },
    ),
    "gpt-oss-20b": Sketch(
        arch="gpt-oss",
        n_layer=24,
        n_embd=2880,
        n_vocab=201088,
        n_head=64,
        kv_heads=8,
        n_ff=2880,
        n_expert=32,
        n_expert_used=4,
        n_ff_exp=2880,
        keys={"attention.sliding_window": 128},
    ),
    "phi-4": Sketch(
        arch="phi3", n_layer=40, n_embd=5120, n_vocab=100352, n_head=40, kv_heads=10, n_ff=17920, head_dim=128
    ),
    "qwen3.6-27b": Sketch(
        arch="qwen35",
        n_layer=64,
        n_embd=5120,
        n_vocab=248320,
        n_head=24,
        kv_heads=4,
        n_ff=17408,
        head_dim=256,
        keys=QWEN35_27B,
    ),
    "muse-glimmer-30b": Sketch(
        arch="muse-glimmer",
        n_layer=52,
        n_embd=6656,
        n_vocab=202048,
        n_head=32,
        kv_heads=2,
        n_ff=19968,
        head_dim=128,
        keys={
            "attention.sliding_window": 2048,
            "attention.sliding_window_pattern": 4,
            "logit_scale": 0.1961,
            "final_logit_softcapping": 20.0,
        },
    ),
    "glm-4.7-flash": Sketch(
        arch="deepseek2",
        n_layer=47,
        n_embd=2048,
        n_vocab=154880,
        n_head=20,
        kv_heads=1,
        n_ff=10240,
        head_dim=576,
        n_expert=64,
        n_expert_used=4,
        n_ff_exp=1536,
        keys=EXPERTS_BEHIND_DENSE
        | {
            "attention.q_lora_rank": 768,
            "attention.kv_lora_rank": 512,
            "attention.value_length": 512,
            "attention.key_length_mla": 256,
            "attention.value_length_mla": 256,
            "rope.dimension_count": 64,
        },
    ),
    "nemotron-3-nano-30b-a3b": Sketch(
        arch="nemotron_h_moe",
        n_layer=52,
        n_embd=2688,
        n_vocab=131072,
        n_head=32,
        kv_heads=tuple(2 * (kind == "*") for kind in NEMOTRON_3_NANO),
        n_ff=tuple(1856 * (kind == "E") for kind in NEMOTRON_3_NANO),
        head_dim=128,
        n_expert=128,
        n_expert_used=6,
        n_ff_exp=1856,
        keys={
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 4096,
            "ssm.state_size": 128,
            "ssm.time_step_rank": 64,
            "ssm.group_count": 8,
            "attention.layer_norm_epsilon": 1e-5,
            "expert_shared_feed_forward_length": 3712,
            "expert_shared_count": 1,
            "expert_weights_scale": 2.5,
        },
    ),
}

"""A Llama of a GGUF as a folder with config.json, safetensors and tokenizer.json, as vLLM and transformers read it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from safetensors.numpy import save_file

from eaglelocal.gguf.header import Header
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor

NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
OTHERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def write_llama_folder(path: Path, folder: Path) -> Path:
    """Write the model of a GGUF in float32; its rotary pairs are neighbours there, and halves of a head here."""
    header = read_header(path)
    folder.mkdir()
    tensors = {rename(name): pair_halves(read_tensor(header, name), name, header) for name in header.tensors}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(describe(header)))
    fields = GGUFReader(path).fields
    tokens, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    (folder / "tokenizer.json").write_text(json.dumps(describe_tokenizer(tokens, merges)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def rename(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"
    return f"{OTHERS[parts[0]]}.weight"


def pair_halves(values: np.ndarray, name: str, header: Header) -> np.ndarray:
    values = np.ascontiguousarray(values, np.float32)
    heads = {"attn_q": "head_count", "attn_k": "head_count_kv"}.get(name.split(".")[-2])
    if heads is None:
        return values
    count = int(header.metadata[f"llama.attention.{heads}"])  # type: ignore[call-overload]
    width = values.shape[0] // count
    pairs = values.reshape(count, width // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def describe(header: Header) -> dict[str, object]:
    own = {key.removeprefix("llama."): value for key, value in header.metadata.items() if key.startswith("llama.")}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": own["embedding_length"],
        "intermediate_size": own["feed_forward_length"],
        "num_hidden_layers": own["block_count"],
        "num_attention_heads": own["attention.head_count"],
        "num_key_value_heads": own["attention.head_count_kv"],
        "head_dim": own["attention.key_length"],
        "rms_norm_eps": own["attention.layer_norm_rms_epsilon"],
        "rope_theta": own["rope.freq_base"],
        "max_position_embeddings": own["context_length"],
        "vocab_size": own["vocab_size"],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "hidden_act": "silu",
        "torch_dtype": "float32",
    }


def describe_tokenizer(tokens: list[str], merges: list[str]) -> dict[str, object]:
    """Return a byte-level tokenizer; tests ask with token ids, so that its split into words does not matter."""
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [pair.split(" ") for pair in merges],
        },
    }

"""Real GGUF files with random weights: small llama targets and EAGLE heads of every dialect that we run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np

from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor

HEAD_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class TargetShape:
    n_embd: int = 128
    n_layer: int = 4
    n_ff: int = 256
    n_vocab: int = 300
    n_ctx: int = 2048
    seed: int = 0
    type: str = "F32"  # of the matrices: F32, BF16, Q8_0, Q4_0
    layer_gain: float = 1.0  # what layers add to the residual stream; near 0 the last token alone decides
    arch: str = "llama"
    tokenizer: str = "gpt2"  # byte-level BPE; or "llama", SentencePiece with a token for each byte
    controls: tuple[str, ...] = ()  # control tokens besides the one that ends (byte-level BPE)
    end: str = "<|end|>"  # that one
    template: str = ""
    temperature: float | None = None  # that its makers recommend
    splitter: str = "qwen2"  # of texts into words (byte-level BPE)


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    width: int = 128
    n_ff: int = 192
    taps: tuple[int, ...] = (1, 2, 3)
    draft_vocab: int | None = None
    own_embeddings: bool = False
    own_output: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    num_depths: int | None = None  # of a P-EAGLE head
    mask_width: int | None = None  # of its mask, if that is a wrong one
    seed: int = 1


def vocabulary(n_vocab: int, controls: tuple[str, ...] = (), end: str = "<|end|>") -> tuple[list[str], list[int]]:
    """Return 256 bytes, then made-up words, control tokens, and an end token, with types: a byte-level BPE."""
    taken = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
    letters, extra = [], 0
    for byte in range(256):
        letters.append(chr(byte) if byte in taken else chr(256 + extra))
        extra += byte not in taken
    words = [f"w{i}" for i in range(n_vocab - 257 - len(controls))]
    kinds = [1] * (n_vocab - 1 - len(controls)) + [3] * (1 + len(controls))
    return [*letters, *words, *controls, end], kinds


def write_target(path: Path, shape: TargetShape | None = None, *, pooling: int | None = None) -> Path:
    """Write a random target. pooling: llama_pooling_type, for an embedding model."""
    s = shape or TargetShape()
    rng = np.random.default_rng(s.seed)
    writer = gguf.GGUFWriter(str(path), s.arch)
    heads = s.n_embd // HEAD_SIZE
    write_shape(writer, n_embd=s.n_embd, n_layer=s.n_layer, n_ff=s.n_ff, heads=heads, n_ctx=s.n_ctx)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))
    if s.tokenizer == "llama":
        write_sentencepiece(writer, s.n_vocab)
    else:
        write_vocabulary(writer, s.n_vocab, s.controls, s.splitter, s.end)
    if s.template:
        writer.add_chat_template(s.template)
    if s.temperature is not None:
        writer.add_float32("general.sampling.temp", s.temperature)
    matrix = Matrices(writer, rng, s.type)
    matrix("token_embd.weight", s.n_vocab, s.n_embd, scale=1.0)
    matrix("output.weight", s.n_vocab, s.n_embd)
    writer.add_tensor("output_norm.weight", norm(rng, s.n_embd))
    for i in range(s.n_layer):
        layer(writer, matrix, rng, prefix=f"blk.{i}.", widths=(s.n_embd, s.n_ff, s.n_embd), gain=s.layer_gain)
    finish(writer)
    return path


def write_head(path: Path, shape: HeadShape | None = None, target: TargetShape | None = None) -> Path:
    s, t = shape or HeadShape(), target or TargetShape()
    rng = np.random.default_rng(s.seed)
    writer = gguf.GGUFWriter(str(path), "eagle3")
    write_shape(writer, n_embd=s.width, n_layer=1, n_ff=s.n_ff, heads=s.width // HEAD_SIZE, n_ctx=t.n_ctx)
    write_vocabulary(writer, t.n_vocab, t.controls)
    writer.add_array("eagle3.target_layers", list(s.taps))
    writer.add_uint32("eagle3.target_hidden_size", t.n_embd)
    for key in ("norm_before_fc", "norm_before_residual"):
        writer.add_bool(f"eagle3.{key}", getattr(s, key))
    for key in ("fc_norm", "norm_output"):
        writer.add_bool(f"eaglelocal.{key}", getattr(s, key))
    if s.num_depths is not None:
        write_mask(writer, s.num_depths, rng.normal(size=s.mask_width or 3 * t.n_embd))
    matrix = Matrices(writer, rng)
    matrix("fc.weight", s.width, 3 * t.n_embd)
    if s.norm_before_fc:
        writer.add_tensor("enc.output_norm.weight", norm(rng, 3 * t.n_embd))
    if s.own_embeddings:
        matrix("token_embd.weight", t.n_vocab, s.width, scale=1.0)
    if s.own_output:
        matrix("output.weight", s.draft_vocab or t.n_vocab, s.width)
    if s.draft_vocab is not None:
        ids = np.sort(rng.choice(t.n_vocab, s.draft_vocab, replace=False)).astype(np.int64)
        writer.add_tensor("d2t", ids)
    writer.add_tensor("output_norm.weight", norm(rng, s.width))
    layer(writer, matrix, rng, prefix="blk.0.", widths=(s.width, s.n_ff, 2 * s.width))
    writer.add_tensor("blk.0.attn_norm_2.weight", norm(rng, s.width))
    finish(writer)
    return path


def write_mask(writer: gguf.GGUFWriter, num_depths: int, hidden: np.ndarray) -> None:
    """Write the keys that make a head one of P-EAGLE's kind."""
    writer.add_uint32("eaglelocal.mask_token", 9)
    writer.add_uint32("eaglelocal.num_depths", num_depths)
    writer.add_array("eaglelocal.mask_hidden", hidden.tolist())


def write_agreeing_head(path: Path, target: Path, shape: TargetShape, *, num_depths: int | None = None) -> Path:
    """Write a head that predicts as the target would from the last token alone; a P-EAGLE head if num_depths is given.

    Its attention sees only its own row, passes on the token's embedding, and removes the fed-back state
    (the embedding of the token before) from the residual stream; fc and ffn add nothing.
    The smaller the target's layer_gain, the more often target and head agree. Rows of masks predict what follows the
    mask token, whatever stands before them: only the first token of a P-EAGLE head's draft is good.
    """
    writer = gguf.GGUFWriter(str(path), "eagle3")
    width = shape.n_embd
    heads = width // HEAD_SIZE
    write_shape(writer, n_embd=width, n_layer=1, n_ff=shape.n_ff, heads=heads, n_ctx=shape.n_ctx)
    write_vocabulary(writer, shape.n_vocab, shape.controls)
    writer.add_array("eagle3.target_layers", [1, 2, 3])
    writer.add_uint32("eagle3.target_hidden_size", width)
    if num_depths is not None:
        write_mask(writer, num_depths, np.ones(3 * width))
    token_half = np.eye(width, 2 * width, dtype=np.float32)
    tensors = {
        "fc.weight": np.zeros((width, 3 * width)),
        "output_norm.weight": read_tensor(read_header(target), "output_norm.weight"),
        "blk.0.attn_q.weight": 2 * token_half,  # sharp: a row sees itself far above all others
        "blk.0.attn_k.weight": 2 * token_half,
        "blk.0.attn_v.weight": token_half - np.eye(width, 2 * width, k=width),
        "blk.0.attn_output.weight": np.eye(width),
        "blk.0.ffn_gate.weight": np.zeros((shape.n_ff, width)),
        "blk.0.ffn_up.weight": np.zeros((shape.n_ff, width)),
        "blk.0.ffn_down.weight": np.zeros((width, shape.n_ff)),
    }
    for norm_name in ("attn_norm", "attn_norm_2", "ffn_norm"):
        tensors[f"blk.0.{norm_name}.weight"] = np.ones(width)
    for name, values in tensors.items():
        writer.add_tensor(name, np.asarray(values, np.float32))
    finish(writer)
    return path


def write_agreeing_pairs(folder: Path, types: Iterable[str], shape: TargetShape) -> None:
    """Write TYPE.gguf and TYPE-head.gguf: the same target in several types, each with a head that often agrees."""
    for name in types:
        target = write_target(folder / f"{name}.gguf", replace(shape, type=name))
        write_agreeing_head(folder / f"{name}-head.gguf", target, shape)


class Matrices:
    """A writer of random matrices [rows, columns] of about unit gain, quantized if asked."""

    def __init__(self, writer: gguf.GGUFWriter, rng: np.random.Generator, type_name: str = "F32") -> None:
        self._writer, self._rng, self._type = writer, rng, gguf.GGMLQuantizationType[type_name]

    def __call__(self, name: str, rows: int, columns: int, *, scale: float | None = None) -> None:
        values = self._rng.normal(size=(rows, columns), scale=scale or columns**-0.5).astype(np.float32)
        self._writer.add_tensor(name, gguf.quants.quantize(values, self._type), raw_dtype=self._type)


def norm(rng: np.random.Generator, width: int) -> np.ndarray:
    return rng.uniform(0.5, 1.5, width).astype(np.float32)


def layer(
    writer: gguf.GGUFWriter,
    matrix: Matrices,
    rng: np.random.Generator,
    *,
    prefix: str,
    widths: tuple[int, int, int],
    gain: float = 1.0,
) -> None:
    """Write a layer. widths: of the residual stream, of the feed-forward network, of the input of attention."""
    width, n_ff, inputs = widths
    matrix(f"{prefix}attn_q.weight", width, inputs)
    matrix(f"{prefix}attn_k.weight", width, inputs)
    matrix(f"{prefix}attn_v.weight", width, inputs)
    matrix(f"{prefix}attn_output.weight", width, width, scale=gain * width**-0.5)
    matrix(f"{prefix}ffn_gate.weight", n_ff, width)
    matrix(f"{prefix}ffn_up.weight", n_ff, width)
    matrix(f"{prefix}ffn_down.weight", width, n_ff, scale=gain * n_ff**-0.5)
    writer.add_tensor(f"{prefix}attn_norm.weight", norm(rng, width))
    writer.add_tensor(f"{prefix}ffn_norm.weight", norm(rng, width))


def write_shape(
    writer: gguf.GGUFWriter, *, n_embd: int, n_layer: int, n_ff: int, heads: int | list[int], n_ctx: int
) -> None:
    """Write the keys of a shape. heads: number of KV heads, of all layers or of each; as many query heads."""
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(heads if isinstance(heads, int) else max(heads))
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)


def write_vocabulary(
    writer: gguf.GGUFWriter,
    n_vocab: int,
    controls: tuple[str, ...] = (),
    splitter: str = "qwen2",
    end: str = "<|end|>",
) -> None:
    tokens, types = vocabulary(n_vocab, controls, end)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitter)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(n_vocab - 1)
    writer.add_add_bos_token(False)


def write_sentencepiece(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    words = [f"w{i}" for i in range(n_vocab - 259)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words])
    writer.add_token_scores([0.0] * n_vocab)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(words)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

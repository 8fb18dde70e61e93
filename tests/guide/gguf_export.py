"""Export of target and head to GGUF files that llama.cpp runs: BF16 matrices, F32 norms, the tokenizer in both.

What llama.cpp's `eagle3` has no key for is folded or flagged: fc_norm's gains go into fc's columns (the host divides
by the RMS), and `eaglelocal.fc_norm` / `eaglelocal.norm_output` are flags for the engine. It defines the names and keys
of the two architectures; training is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from eaglelocal.core.atomic_file import SHARED, flush_and_rename, make_folder
from eaglelocal.training.eagle_head import HEAD_NAMES, EagleHead, HeadShape, fold_fc
from guide.llama_target import LlamaTarget, TargetShape
from guide.tokenizer import GuideTokenizer, add_tokenizer_keys

MatrixType = gguf.GGMLQuantizationType
FILE_TYPES = {MatrixType.BF16: gguf.LlamaFileType.MOSTLY_BF16, MatrixType.F32: gguf.LlamaFileType.ALL_F32}

BLOCK_NAMES = {
    "attention_norm.weight": "attn_norm",
    "attention.q.weight": "attn_q",
    "attention.k.weight": "attn_k",
    "attention.v.weight": "attn_v",
    "attention.o.weight": "attn_output",
    "ffn_norm.weight": "ffn_norm",
    "ffn.gate.weight": "ffn_gate",
    "ffn.up.weight": "ffn_up",
    "ffn.down.weight": "ffn_down",
}


@torch.no_grad()
def round_to_bfloat16(module: nn.Module) -> None:
    """Round all matrices to the file's precision, so that what is trained on their outputs fits the file."""
    for parameter in module.parameters():
        if parameter.ndim == 2:
            parameter.copy_(parameter.bfloat16())


def export_target(
    target: LlamaTarget, tokenizer: GuideTokenizer, path: Path, *, name: str, matrix_type: MatrixType = MatrixType.BF16
) -> None:
    with _open_writer(path, "llama") as writer:
        shape, file_type = target.shape, FILE_TYPES[matrix_type]
        _add_model_keys(writer, shape, file_type, name=name, num_layers=shape.num_layers, vocab=shape.vocab)
        add_tokenizer_keys(writer, tokenizer)
        _add(writer, "token_embd", target.embedding.weight, matrix_type)
        for index, block in enumerate(target.blocks):
            for inner, outer in BLOCK_NAMES.items():
                _add(writer, f"blk.{index}.{outer}", block.get_parameter(inner), matrix_type)
        _add(writer, "output_norm", target.norm.weight, matrix_type)


def export_head(
    head: EagleHead, tokenizer: GuideTokenizer, path: Path, *, name: str, matrix_type: MatrixType = MatrixType.BF16
) -> None:
    shape = head.shape
    with _open_writer(path, "eagle3") as writer:
        file_type = FILE_TYPES[matrix_type]
        _add_model_keys(writer, shape, file_type, name=name, num_layers=1, vocab=tokenizer.num_tokens)
        writer.add_array("eagle3.target_layers", list(shape.taps))
        writer.add_uint32("eagle3.target_hidden_size", shape.tap_width)
        writer.add_bool("eagle3.norm_before_residual", True)
        writer.add_bool("eagle3.norm_before_fc", False)
        writer.add_bool("eaglelocal.fc_norm", True)
        writer.add_bool("eaglelocal.norm_output", True)
        add_tokenizer_keys(writer, tokenizer)
        _add(writer, "fc", fold_fc(head), matrix_type)
        for inner, outer in HEAD_NAMES.items():
            _add(writer, outer, head.get_parameter(inner), matrix_type)


def _add_model_keys(
    writer: gguf.GGUFWriter,
    shape: TargetShape | HeadShape,
    file_type: gguf.LlamaFileType,
    *,
    name: str,
    num_layers: int,
    vocab: int,
) -> None:
    writer.add_name(name)
    writer.add_context_length(shape.max_context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(num_layers)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_vocab_size(vocab)
    writer.add_file_type(file_type)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_feed_forward_length(shape.ffn)


def _add(writer: gguf.GGUFWriter, name: str, weight: Tensor, matrix_type: MatrixType) -> None:
    array: npt.NDArray[np.float32] = weight.detach().float().numpy()
    kind = matrix_type if array.ndim == 2 else MatrixType.F32
    writer.add_tensor(f"{name}.weight", gguf.quants.quantize(array, kind), raw_dtype=kind)


@contextmanager
def _open_writer(path: Path, architecture: str) -> Iterator[gguf.GGUFWriter]:
    """Open a writer whose file appears under its name only when complete."""
    partial = path.with_suffix(".partial")
    make_folder(path.parent, SHARED)
    writer = gguf.GGUFWriter(partial, architecture)
    yield writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    flush_and_rename(partial, path)

"""Reading of target and tokenizer from the GGUF files that `export` wrote, so that training can continue from them.

Matrices have the values of their bfloat16 in the file. (Heads: draft_head.py.)
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from guide.gguf_export import BLOCK_NAMES
from guide.llama_target import LlamaTarget
from guide.tokenizer import GuideTokenizer, build_tokenizer


def read_tokenizer(path: Path) -> GuideTokenizer:
    """Read the tokenizer. Raises KeyError where the file has none that `export` wrote."""
    fields = gguf.GGUFReader(path).fields
    return build_tokenizer(fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.merges"].contents())


@torch.no_grad()
def fill_target(target: LlamaTarget, path: Path) -> None:
    """Load the file's weights into the target. Raises KeyError or RuntimeError where the file is of another shape."""
    weights = read_weights(path)
    target.embedding.weight.copy_(weights["token_embd"])
    target.norm.weight.copy_(weights["output_norm"])
    for index, block in enumerate(target.blocks):
        for inner, outer in BLOCK_NAMES.items():
            block.get_parameter(inner).copy_(weights[f"blk.{index}.{outer}"])


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read every tensor as float32, by its name without `.weight`."""
    return {
        tensor.name.removesuffix(".weight"): torch.from_numpy(
            np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        )
        for tensor in gguf.GGUFReader(path).tensors
    }

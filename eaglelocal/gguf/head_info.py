"""The shared part of all draft heads: the fields of their headers, and the checks that a head fits a target.

A head reads rows of target layers and may have a reduced vocabulary. eagle_info.py and block_info.py add what one
method needs.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from eaglelocal.core.records import dataclass
from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.architectures import ArchitectureKeys
from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.gguf.hazards import check_hazards
from eaglelocal.gguf.header import Header, TensorInfo, read_index_range
from eaglelocal.gguf.model_info import ModelInfo, vocabulary_size
from eaglelocal.gguf.upper_layers import DRAFT_TOKENS_KEY, count_layers

HINT = "--draft none"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftHeadInfo(ABC):
    """A draft head as its header describes it.

    target_layers  layers of the target whose inputs it reads
    draft_vocab    rows of d2t; None: it drafts over the whole vocabulary
    d2t_range      smallest and largest target token in d2t; None without d2t
    """

    name: str
    target_layers: tuple[int, ...]
    width: int
    n_layer: int
    n_head: int
    n_kv_head: int
    head_dim: int
    value_dim: int
    n_ff: int
    n_vocab: int
    draft_vocab: int | None
    d2t_range: tuple[int, int] | None
    has_own_embeddings: bool
    has_own_output: bool
    header: Header = dataclasses.field(compare=False, repr=False)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self.header.tensors

    @abstractmethod
    def find_problems(self, target: ModelInfo) -> Iterator[str]:
        """Yield the reasons, with figures, why the head cannot draft for `target`."""


def check_head(head: DraftHeadInfo, target: ModelInfo) -> None:
    """Check that `head` can draft for `target`. Raises IncompatibleError with the first problem."""
    for problem in head.find_problems(target):
        raise IncompatibleError(f"the head {head.name} does not fit {target.name}: {problem}", hint=HINT)


def read_widths(keys: ArchitectureKeys) -> tuple[int, int, int]:
    """Return the hidden size, the number of heads, and the width of one head's keys."""
    width, n_head = keys.count("embedding_length"), first_count(keys, "attention.head_count")
    return width, n_head, keys.optional_count("attention.key_length") or width // max(n_head, 1)


def read_shared_fields(keys: ArchitectureKeys, *, usual_value_dim: int | None = None) -> dict[str, Any]:
    """Return the fields of DraftHeadInfo. Raises ModelFileError on what llama.cpp needs, or what would end it.

    usual_value_dim  width of a head's values where the file does not state it; None: that of its keys
    """
    header, (width, n_head, head_dim) = keys.header, read_widths(keys)
    usual = head_dim if usual_value_dim is None else usual_value_dim
    value_dim = keys.optional_count("attention.value_length") or usual
    check_hazards(keys, head_dim=head_dim, value_dim=value_dim)
    return {
        "name": keys.model_name,
        "target_layers": _read_target_layers(keys),
        "width": width,
        "n_layer": max(keys.count("block_count"), count_layers(header.metadata)),
        "n_head": n_head,
        "n_kv_head": first_count(keys, "attention.head_count_kv", default=n_head),
        "head_dim": head_dim,
        "value_dim": value_dim,
        "n_ff": first_count(keys, "feed_forward_length"),
        "n_vocab": vocabulary_size(keys),
        "draft_vocab": _count_draft_tokens(header),
        "d2t_range": _read_d2t_range(header),
        "has_own_embeddings": "token_embd.weight" in header.tensors,
        "has_own_output": "output.weight" in header.tensors,
        "header": header,
    }


def first_count(keys: ArchitectureKeys, key: str, *, default: int | None = None) -> int:
    """Return a count; if there is one per layer, the first layer's."""
    values = keys.counts(key)
    if values is not None:
        return values[0]
    return keys.count(key) if default is None else default


def _read_target_layers(keys: ArchitectureKeys) -> tuple[int, ...]:
    name = f"{keys.prefix}.target_layers"
    layers = keys.header.array(name)
    if layers is None:
        raise keys.error(f"lacks the list {name}")
    ids = tuple(layer for layer in layers if isinstance(layer, int))
    if len(ids) != len(layers):
        raise keys.error(f"{name} is {layers}, not layer ids")
    return ids


def _count_draft_tokens(header: Header) -> int | None:
    if "d2t" in header.tensors:
        return header.tensors["d2t"].num_elements
    return header.array_count(DRAFT_TOKENS_KEY)


def _read_d2t_range(header: Header) -> tuple[int, int] | None:
    """Return the smallest and largest target token of d2t; None without d2t.

    It is read now, because llama.cpp aborts in the middle of an answer on an id out of range.
    """
    if "d2t" not in header.tensors:
        tokens = [token for token in header.array(DRAFT_TOKENS_KEY) or () if isinstance(token, int)]
        if len(tokens) != (header.array_count(DRAFT_TOKENS_KEY) or 0):
            raise malformed_error(header.path.name, f"{DRAFT_TOKENS_KEY} is no list of tokens")
        return (min(tokens), max(tokens)) if tokens else None
    return read_index_range(header, "d2t")


def layer_inputs_problem(target: ModelInfo) -> str:
    """Return why no head can read this target's layers; empty if one can."""
    if target.gives_layer_inputs:
        return ""
    return f"llama.cpp gives no layer inputs for the architecture {target.architecture}"


def target_problems(head: DraftHeadInfo, target: ModelInfo, *, hidden_size: int) -> Iterator[str]:
    """Yield mismatches between the target and the head's taps, hidden size and vocabulary."""
    if problem := layer_inputs_problem(target):
        yield problem
    if hidden_size != target.n_embd:
        yield f"it was made for hidden size {hidden_size}, the target has {target.n_embd}"
    for layer in head.target_layers:
        if not 0 <= layer <= target.n_layer:
            yield f"it taps layer {layer}, the target has layers 0 to {target.n_layer - 1}"
        if layer == target.n_layer and target.final_state is None:
            yield f"it taps layer {layer}, the final state, which llama.cpp does not give for {target.architecture}"
    yield from vocabulary_problems(head, target)


def vocabulary_problems(head: DraftHeadInfo, target: ModelInfo) -> Iterator[str]:
    """Yield differences between the head's and the target's numbers of tokens."""
    if head.n_vocab != target.n_vocab:
        yield f"its vocabulary has {head.n_vocab} tokens, the target's {target.n_vocab}"
    if head.d2t_range is not None and not 0 <= head.d2t_range[0] <= head.d2t_range[1] < target.n_vocab:
        yield f"its d2t names tokens {head.d2t_range[0]} to {head.d2t_range[1]} of {target.n_vocab}"
    if "d2t" in head.tensors and head.tensors["d2t"].type.name != "I64":
        yield f"its d2t is {head.tensors['d2t'].type.name}, llama.cpp expects I64"
    if head.draft_vocab is not None and not head.has_own_output and head.draft_vocab != target.n_vocab:
        yield f"it drafts over {head.draft_vocab} tokens with the target's output over {target.n_vocab}"


def attention_problems(head: DraftHeadInfo) -> Iterator[str]:
    if not head.n_head or not head.n_kv_head or head.n_head % head.n_kv_head:
        yield f"its {head.n_head} heads do not divide among {head.n_kv_head} key heads"
    if head.head_dim != head.value_dim:
        yield f"its keys are {head.head_dim} wide and its values {head.value_dim}"


def tensor_problems(head: DraftHeadInfo, required: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Yield the required tensors that are missing, or of another shape or type. Shapes are in ggml order."""
    for name, shape in required.items():
        found = head.tensors.get(name)
        if found is None:
            yield f"its file lacks the tensor {name} {shape}"
        elif found.shape != shape:
            yield f"its tensor {name} is {found.shape}, expected {shape}"
        elif found.type.name != "F32" and (name.endswith("_conv_base") or (len(shape) == 1 and name != "d2t")):
            yield f"its tensor {name} is {found.type.name}, expected F32"


def layer_tensors(head: DraftHeadInfo, layer: int, *, input_width: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors that a layer of any head has, with shapes; attention reads rows of `input_width`."""
    width, queries, keys = head.width, head.n_head * head.head_dim, head.n_kv_head * head.head_dim
    return {
        f"blk.{layer}.attn_norm.weight": (width,),
        f"blk.{layer}.attn_q.weight": (input_width, queries),
        f"blk.{layer}.attn_k.weight": (input_width, keys),
        f"blk.{layer}.attn_output.weight": (queries, width),
        f"blk.{layer}.ffn_norm.weight": (width,),
        f"blk.{layer}.ffn_gate.weight": (width, head.n_ff),
        f"blk.{layer}.ffn_up.weight": (width, head.n_ff),
        f"blk.{layer}.ffn_down.weight": (head.n_ff, width),
    }


def graph_tensors(head: DraftHeadInfo, *, input_width: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of llama.cpp's `eagle3` graph, with shapes; its encoder reads rows of `input_width`."""
    width, pair = head.width, 2 * head.width
    return {
        "fc.weight": (input_width, width),
        **layer_tensors(head, 0, input_width=pair),
        "blk.0.attn_norm_2.weight": (width,),
        "blk.0.attn_v.weight": (pair, head.n_kv_head * head.head_dim),
        "output_norm.weight": (width,),
    }

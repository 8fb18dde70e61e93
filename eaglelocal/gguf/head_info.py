"""Checks and readers shared by draft heads, which read rows of target layers and may have a reduced vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from eaglelocal.gguf.arch_keys import ArchitectureKeys
from eaglelocal.gguf.header import Header, TensorInfo
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.tensors import read_indices


class DraftHeadInfo(Protocol):
    """A draft head as its header describes it. `draft_vocab`: rows of d2t; None: the whole vocabulary."""

    @property
    def target_layers(self) -> tuple[int, ...]: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def draft_vocab(self) -> int | None: ...
    @property
    def d2t_range(self) -> tuple[int, int] | None: ...
    @property
    def has_own_output(self) -> bool: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...


def single(keys: ArchitectureKeys, key: str, *, default: int | None = None) -> int:
    values = keys.counts(key)
    if values is not None:
        return values[0]
    return keys.count(key) if default is None else default


def target_layers_of(keys: ArchitectureKeys) -> tuple[int, ...]:
    name = f"{keys.prefix}.target_layers"
    layers = keys.header.array(name)
    if layers is None:
        raise keys.error(f"lacks the list {name}")
    ids = tuple(layer for layer in layers if isinstance(layer, int))
    if len(ids) != len(layers):
        raise keys.error(f"{name} is {layers}, not layer ids")
    return ids


def draft_vocabulary(header: Header) -> int | None:
    d2t = header.tensors.get("d2t")
    return None if d2t is None else d2t.num_elements


def d2t_range_of(header: Header) -> tuple[int, int] | None:
    """Return the smallest and largest target token of d2t; None without d2t.

    It is read now, because llama.cpp aborts in the middle of an answer on an id out of range.
    """
    if "d2t" not in header.tensors:
        return None
    ids = read_indices(header.path, header, "d2t")
    return int(ids.min()), int(ids.max())


def taps_problem(target: ModelInfo) -> str:
    """Return why no head can read this target's layers; empty where one can."""
    if target.gives_layer_inputs:
        return ""
    return f"llama.cpp gives no layer inputs for the architecture {target.architecture}"


def layer_problems(head: DraftHeadInfo, target: ModelInfo) -> Iterator[str]:
    for layer in head.target_layers:
        if not 0 <= layer <= target.n_layer:
            yield f"it taps layer {layer}, the target has layers 0 to {target.n_layer - 1}"
        if layer == target.n_layer and target.final_state is None:
            yield f"it taps layer {layer}, the final state, which llama.cpp does not give for {target.architecture}"


def vocabulary_problems(head: DraftHeadInfo, target: ModelInfo) -> Iterator[str]:
    if head.n_vocab != target.n_vocab:
        yield f"its vocabulary has {head.n_vocab} tokens, the target's {target.n_vocab}"
    if head.d2t_range is not None and not 0 <= head.d2t_range[0] <= head.d2t_range[1] < target.n_vocab:
        yield f"its d2t names tokens {head.d2t_range[0]} to {head.d2t_range[1]} of {target.n_vocab}"
    if head.draft_vocab is not None and head.tensors["d2t"].type.name != "I64":
        yield f"its d2t is {head.tensors['d2t'].type.name}, llama.cpp wants I64"
    if head.draft_vocab is not None and not head.has_own_output and head.draft_vocab != target.n_vocab:
        yield f"it drafts over {head.draft_vocab} tokens with the target's output over {target.n_vocab}"

"""A typed view of a head that drafts a block at a time (DFlash, DFlash2, DSpark), and a check that it fits a target.

The head keeps the target's features in its cache as keys and values, reads the root and the masks after it in one
pass, and predicts a token at each. The check covers, from the headers, what llama.cpp would abort on or silently run
wrong (src/models/dflash.cpp and `draft-dflash` in common/speculative.cpp of the pinned version). DFlash is arXiv
2602.06036.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.arch_keys import ArchitectureKeys
from eaglelocal.gguf.hazards import check_hazards
from eaglelocal.gguf.head_info import (
    d2t_range_of,
    draft_vocabulary,
    layer_problems,
    single,
    taps_problem,
    target_layers_of,
    vocabulary_problems,
)
from eaglelocal.gguf.header import Header, TensorInfo
from eaglelocal.gguf.model_info import ModelInfo, architecture_of, vocabulary_size
from eaglelocal.gguf.sliding_window import windows_of

ARCHITECTURE = "dflash"
MASK_KEY = "tokenizer.ggml.mask_token_id"
MARKOV = "markov_w1.weight"  # present in DSpark: each token also depends on the one before
SELECTOR = "selector_hidden.weight"  # present in DFlash2: candidates are scored given those before them
DEEPSEEK_KEY = "hyper_connection_count"
DEFAULT_BLOCK = 16  # llama.cpp's, for graphs that do not depend on it
MAX_BLOCK = 64
HINT = "choose another head, or `--draft none`"


@dataclass(frozen=True, slots=True)
class Lattice:
    """Sizes of what DFlash2 adds: short convolutions over a block, and a selector among the best tokens of each row."""

    num_candidates: int
    rank: int
    kernel: int
    group: int

    @classmethod
    def read(cls, keys: ArchitectureKeys) -> Lattice:
        names = ("selector_top_k", "selector_rank", "conv_kernel_size", "conv_group_size")
        return cls(*(keys.count(name) for name in names))


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """A block head as its header describes it. `width` is the target's hidden size too: llama.cpp has one for both.

    block_size  rows of a block in training, the root's included
    skips_root  the root's row predicts nothing
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
    is_dspark: bool
    block_size: int
    mask: int | None
    skips_root: bool
    is_causal: bool
    is_deepseek: bool
    windows: tuple[int | None, ...]
    lattice: Lattice | None
    tensors: Mapping[str, TensorInfo]

    @classmethod
    def from_header(cls, header: Header) -> BlockInfo:
        """Read a head's header.

        Raises ModelFileError where the file is no such head or lacks a key that llama.cpp needs.
        """
        keys = ArchitectureKeys(header, architecture_of(header))
        if keys.prefix != ARCHITECTURE:
            raise keys.error(f"is a {keys.prefix} model, not a {ARCHITECTURE} head")
        width, n_head = keys.count("embedding_length"), single(keys, "attention.head_count")
        head_dim = keys.optional_count("attention.key_length") or width // max(n_head, 1)
        value_dim = keys.optional_count("attention.value_length") or width // max(n_head, 1)  # as llama.cpp has it
        check_hazards(keys, head_dim=head_dim, value_dim=value_dim)
        is_dspark = MARKOV in header.tensors
        return cls(
            name=keys.text("general.name") or header.path.stem,
            target_layers=target_layers_of(keys),
            width=width,
            n_layer=keys.count("block_count"),
            n_head=n_head,
            n_kv_head=single(keys, "attention.head_count_kv", default=n_head),
            head_dim=head_dim,
            value_dim=value_dim,
            n_ff=single(keys, "feed_forward_length"),
            n_vocab=vocabulary_size(keys),
            draft_vocab=draft_vocabulary(header),
            d2t_range=d2t_range_of(header),
            has_own_embeddings="token_embd.weight" in header.tensors,
            has_own_output="output.weight" in header.tensors or "token_embd.weight" in header.tensors,
            is_dspark=is_dspark,
            block_size=_block_size(keys, is_needed=is_dspark or SELECTOR in header.tensors),
            mask=keys.whole(MASK_KEY),
            skips_root=not is_dspark or not flag(keys, "dflash.sample_from_anchor", default=True),
            is_causal=keys.flag("dflash.attention.causal"),
            is_deepseek=bool(keys.optional_count(DEEPSEEK_KEY)),
            windows=windows_of(keys, keys.count("block_count")),
            lattice=Lattice.read(keys) if SELECTOR in header.tensors else None,
            tensors=header.tensors,
        )

    @property
    def kind(self) -> str:
        """The method's name, to be shown."""
        return "DSpark" if self.is_dspark else "DFlash2" if self.lattice else "DFlash"

    @property
    def max_draft(self) -> int:
        """The number of tokens that a block drafts."""
        return self.block_size - self.skips_root


def _block_size(keys: ArchitectureKeys, *, is_needed: bool) -> int:
    """Return `block_size`. Raises ModelFileError if it is needed and missing: llama.cpp builds some graphs by it."""
    size = keys.optional_count("block_size")
    if is_needed and not size:
        raise keys.error(f"lacks the key {keys.prefix}.block_size")
    return size or DEFAULT_BLOCK


def flag(keys: ArchitectureKeys, name: str, *, default: bool) -> bool:
    return keys.flag(name) if name in keys.header.metadata else default


def check_block(head: BlockInfo, target: ModelInfo) -> None:
    """Check that `head` can draft for `target`. Raises IncompatibleError with the figures where it cannot."""
    for problem in _problems(head, target):
        raise IncompatibleError(f"the head {head.name} does not fit {target.name}: {problem}", hint=HINT)


def _problems(head: BlockInfo, target: ModelInfo) -> Iterator[str]:
    if head.is_deepseek:
        yield "heads of DeepSeek's shape are not run yet"
    yield from _target_problems(head, target)
    yield from vocabulary_problems(head, target)
    if head.max_draft < 2 or head.block_size > MAX_BLOCK:
        yield f"its blocks have {head.block_size} rows; up to {MAX_BLOCK} can be, of which two must say something"
    if head.mask is None or not 0 <= head.mask < head.n_vocab:
        yield f"its mask is the token {head.mask} of {head.n_vocab}"
    if head.head_dim != head.value_dim:
        yield f"its keys are {head.head_dim} wide and its values {head.value_dim}"
    if not head.n_head or not head.n_kv_head or head.n_head % head.n_kv_head:
        yield f"its {head.n_head} heads do not divide among {head.n_kv_head} key heads"
    if head.lattice is not None:
        yield from _lattice_problems(head.lattice, head)
    yield from _tensor_problems(head)


def _lattice_problems(lattice: Lattice, head: BlockInfo) -> Iterator[str]:
    if min(lattice.num_candidates, lattice.rank, lattice.kernel, lattice.group) < 1:
        yield f"its selector and convolutions are of sizes {lattice}"
    elif head.width % lattice.group:
        yield f"its width {head.width} is no multiple of {lattice.group}, the group of its convolutions"
    elif head.width < lattice.num_candidates * (lattice.num_candidates + 1):
        yield f"{lattice.num_candidates} candidates do not fit its width {head.width}"
    if head.is_dspark:
        yield "it has both a selector and a Markov head"


def _target_problems(head: BlockInfo, target: ModelInfo) -> Iterator[str]:
    if problem := taps_problem(target):
        yield problem
    if head.width != target.n_embd:
        yield f"it was made for hidden size {head.width}, the target has {target.n_embd}"
    if not head.target_layers:
        yield "it taps no layers"
    yield from layer_problems(head, target)


def _tensor_problems(head: BlockInfo) -> Iterator[str]:
    for name, shape in _required_tensors(head).items():
        found = head.tensors.get(name)
        if found is None:
            yield f"its file lacks the tensor {name} {shape}"
        elif found.shape != shape:
            yield f"its tensor {name} is {found.shape} where {shape} is due"
        elif name.endswith("_conv_base") and found.type.name != "F32":
            yield f"its tensor {name} is {found.type.name} where F32 is due"


def _required_tensors(head: BlockInfo) -> dict[str, tuple[int, ...]]:
    """Return the tensors that must be there, by name, with shapes in ggml order; llama.cpp checks the others itself."""
    width, queries, keys = head.width, head.n_head * head.head_dim, head.n_kv_head * head.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (len(head.target_layers) * width, width),
        "enc.output_norm.weight": (width,),
        "output_norm.weight": (width,),
    }
    for layer in range(head.n_layer):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (width,),
            f"blk.{layer}.attn_q.weight": (width, queries),
            f"blk.{layer}.attn_k.weight": (width, keys),
            f"blk.{layer}.attn_output.weight": (queries, width),
            f"blk.{layer}.attn_q_norm.weight": (head.head_dim,),
            f"blk.{layer}.attn_k_norm.weight": (head.head_dim,),
            f"blk.{layer}.ffn_norm.weight": (width,),
            f"blk.{layer}.ffn_gate.weight": (width, head.n_ff),
            f"blk.{layer}.ffn_up.weight": (width, head.n_ff),
            f"blk.{layer}.ffn_down.weight": (head.n_ff, width),
        }
    return shapes | (_lattice_tensors(head.lattice, head) if head.lattice else {})


def _lattice_tensors(lattice: Lattice, head: BlockInfo) -> dict[str, tuple[int, ...]]:
    projected = 2 * lattice.kernel * (head.width // max(lattice.group, 1))
    shapes: dict[str, tuple[int, ...]] = {SELECTOR: (head.width, lattice.rank)}
    for name in ("predecessor", "successor"):
        shapes[f"selector_{name}.weight"] = (lattice.rank, head.n_vocab)
    for layer in range(head.n_layer):
        for part in ("attn", "ffn"):
            shapes[f"blk.{layer}.{part}_conv_base"] = (head.width, lattice.kernel, 2)
            shapes[f"blk.{layer}.{part}_conv_proj.weight"] = (head.width, projected)
    return shapes

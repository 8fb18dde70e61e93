"""A typed view of a head that drafts a block at a time (DFlash, DFlash2, DSpark), and a check that it fits a target.

The head keeps the target's features in its cache as keys and values, reads the root and the masks after it in one
pass, and predicts a token at each. The check covers, from the headers, what llama.cpp would abort on or silently run
wrong (src/models/dflash.cpp and `draft-dflash` in common/speculative.cpp of the pinned version). DFlash is arXiv
2602.06036.
"""

from __future__ import annotations

from collections.abc import Iterator

from eaglelocal.core.records import dataclass
from eaglelocal.gguf import head_info
from eaglelocal.gguf.architectures import BLOCK, ArchitectureKeys
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.layer_caches import read_windows
from eaglelocal.gguf.model_info import ModelInfo

ANCHOR_KEY = "dflash.sample_from_anchor"  # missing: true
MASK_KEY = "tokenizer.ggml.mask_token_id"
MARKOV = "markov_w1.weight"  # present in DSpark: each token also depends on the one before
SELECTOR = "selector_hidden.weight"  # present in DFlash2: candidates are scored given those before them
DEEPSEEK_KEY = "hyper_connection.count"
DEEPSEEK_SHAPE = "heads of DeepSeek's shape are not supported yet"
DEFAULT_BLOCK_SIZE = 16  # llama.cpp's, for graphs that do not depend on it
MAX_BLOCK_SIZE = 64


@dataclass(frozen=True, slots=True)
class Lattice:
    """Sizes of DFlash2's additions: convolutions over a block, and a selector among the best tokens of a row."""

    num_candidates: int
    rank: int
    kernel: int
    group: int

    @classmethod
    def read(cls, keys: ArchitectureKeys) -> Lattice:
        names = ("selector_top_k", "selector_rank", "conv_kernel_size", "conv_group_size")
        return cls(*(keys.count(name) for name in names))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInfo(head_info.DraftHeadInfo):
    """A block head as its header describes it. `width` is the target's hidden size too: llama.cpp has one for both.

    block_size  rows of a block in training, the root's included
    mask        the token that stands for unknown ones; None: the file names none
    skips_root  the root's row predicts nothing
    """

    is_dspark: bool
    block_size: int
    mask: int | None
    skips_root: bool
    is_causal: bool
    is_deepseek: bool
    windows: tuple[int | None, ...]
    lattice: Lattice | None

    @classmethod
    def from_header(cls, header: Header) -> BlockInfo:
        """Read a head's header.

        Raises ModelFileError if the file is not such a head or lacks a key that llama.cpp needs.
        """
        keys = ArchitectureKeys(header, header.architecture)
        if keys.prefix != BLOCK:
            raise keys.error(f"is a {keys.prefix} model, not a {BLOCK} head")
        width, n_head, _ = head_info.read_widths(keys)
        shared = head_info.read_shared_fields(keys, usual_value_dim=width // max(n_head, 1))  # as llama.cpp has it
        shared["has_own_output"] |= shared["has_own_embeddings"]  # which are its output then
        is_dspark = MARKOV in header.tensors
        return cls(
            **shared,
            is_dspark=is_dspark,
            block_size=_read_block_size(keys, is_needed=is_dspark or SELECTOR in header.tensors),
            mask=keys.count_by_name(MASK_KEY),
            skips_root=not is_dspark or (ANCHOR_KEY in header.metadata and not keys.flag(ANCHOR_KEY)),
            is_causal=keys.flag("dflash.attention.causal"),
            is_deepseek=bool(keys.optional_count(DEEPSEEK_KEY)),
            windows=read_windows(keys, keys.count("block_count")),
            lattice=Lattice.read(keys) if SELECTOR in header.tensors else None,
        )

    @property
    def kind(self) -> str:
        """The method's name, to be shown."""
        return "DSpark" if self.is_dspark else "DFlash2" if self.lattice else "DFlash"

    @property
    def max_draft(self) -> int:
        """The number of tokens that a block drafts."""
        return self.block_size - self.skips_root

    def find_problems(self, target: ModelInfo) -> Iterator[str]:
        if self.is_deepseek:
            yield DEEPSEEK_SHAPE
        yield from head_info.target_problems(self, target, hidden_size=self.width)
        if not self.target_layers:
            yield "it taps no layers"
        if self.max_draft < 2 or self.block_size > MAX_BLOCK_SIZE:
            yield f"its blocks have {self.block_size} rows; they need two that predict, and {MAX_BLOCK_SIZE} at most"
        if self.mask is None or not 0 <= self.mask < self.n_vocab:
            yield f"its mask is the token {self.mask} of {self.n_vocab}"
        yield from head_info.attention_problems(self)
        if self.lattice is not None:
            yield from _lattice_problems(self.lattice, self)
        yield from head_info.tensor_problems(self, _required_tensors(self))


def _read_block_size(keys: ArchitectureKeys, *, is_needed: bool) -> int:
    """Return `block_size`. Raises ModelFileError if it is needed and missing: llama.cpp builds some graphs by it."""
    size = keys.optional_count("block_size")
    if is_needed and not size:
        raise keys.error(f"lacks the key {keys.prefix}.block_size")
    return size or DEFAULT_BLOCK_SIZE


def _lattice_problems(lattice: Lattice, head: BlockInfo) -> Iterator[str]:
    if min(lattice.num_candidates, lattice.rank, lattice.kernel, lattice.group) < 1:
        yield f"its selector and convolutions are of sizes {lattice}"
    elif head.width % lattice.group:
        yield f"its width {head.width} is no multiple of {lattice.group}, the group of its convolutions"
    elif head.width < lattice.num_candidates * (lattice.num_candidates + 1):
        yield f"{lattice.num_candidates} candidates do not fit its width {head.width}"
    if head.is_dspark:
        yield "it has both a selector and a Markov head"


def _required_tensors(head: BlockInfo) -> dict[str, tuple[int, ...]]:
    """Return the tensors that must be there, by name, with shapes in ggml order; llama.cpp checks the others itself."""
    width = head.width
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (len(head.target_layers) * width, width),
        "enc.output_norm.weight": (width,),
        "output_norm.weight": (width,),
    }
    for layer in range(head.n_layer):
        shapes |= head_info.layer_tensors(head, layer, input_width=width)
        shapes |= {f"blk.{layer}.attn_{part}_norm.weight": (head.head_dim,) for part in ("q", "k")}
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

"""A draft as profiles/drafts/*.toml describes it: a head, an MTP layer, a small model, or an n-gram lookup.

`sizes` is empty for a head whose size is not known; `Catalog.drafts_for` computes it. `acceptance_lengths` are
published figures, (drafted tokens, mean acceptance length), those for chat if there are several benchmarks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from types import MappingProxyType

from eaglelocal.catalog.target_entries import EntryShape
from eaglelocal.catalog.toml_table import TomlTable, Value, limits
from eaglelocal.core.records import dataclass
from eaglelocal.gguf.architectures import (
    HYBRID_ARCHITECTURES,
    HYPER_CONNECTED_ARCHITECTURES,
    LAYER_INPUT_ARCHITECTURES,
    MTP_ARCHITECTURES,
    RECURRENT_ARCHITECTURES,
    ROLLBACK_ARCHITECTURES,
)
from eaglelocal.gguf.block_info import DEEPSEEK_SHAPE
from eaglelocal.gguf.mtp import describe_unused
from eaglelocal.gguf.tap_row import GRAPH_TAPS, MAX_TAPS

EAGLE, MTP, DRAFT_MODEL, NGRAM = "eagle3", "mtp", "draft_model", "ngram"
DSPARK = "dspark"
BLOCKS = ("dflash", DSPARK)
KINDS = (EAGLE, *BLOCKS, MTP, DRAFT_MODEL, NGRAM)
EVERY_TARGET = "*"
MAX_DRAFTED = 64  # upper limit on the tokens of a draft
MAX_KV_BYTES = 1 << 30  # upper limit, per token


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftEntry:
    """A draft of the catalog."""

    id: str
    kind: str  # one of KINDS
    targets: tuple[str, ...]
    repo: str | None  # of the original weights
    source_repo: str | None  # of the original weights, where `repo` has none
    source_revision: str | None  # the commit of the original weights; None: the newest
    gguf_repo: str | None
    file: str | None  # in gguf_repo
    needs_import: bool  # no GGUF is published
    dialect: str | None  # the project that wrote the checkpoint, and its model class
    num_draft_tokens: int = field(metadata=limits(maximum=MAX_DRAFTED))  # the initial draft length
    sizes: Mapping[str, int]  # bytes by type: bf16, q8_0, q4_k; `file` where there is one file
    kv_bytes_per_token: int | None = field(metadata=limits(maximum=MAX_KV_BYTES))  # in f16
    parameters_m: float | None  # in 10^6
    has_computed_size: bool = False  # sizes and cache follow from the target's shape; a file does not state this
    draft_vocab: int | None
    own_embeddings: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    num_taps: int = field(metadata=limits(maximum=MAX_TAPS), default=GRAPH_TAPS)
    drafts_in_parallel: bool  # a P-EAGLE head: all tokens in one pass through four layers
    keeps_state: bool  # a model with recurrent state of its own
    acceptance_lengths: tuple[tuple[int, float], ...]
    acceptance_text: str = ""  # the kind of text that they were reported for; empty: many kinds, or not stated
    reported: Mapping[str, Value]
    status: str = ""  # of llama.cpp's support for it
    license: str | None
    gated: bool
    notes: str = ""
    source: str
    confidence: str

    @property
    def is_in_target(self) -> bool:
        """True if the draft is a layer in the target's own file, so that nothing else is downloaded."""
        return self.kind == MTP and self.file is None

    @property
    def weights_repo(self) -> str | None:
        """The repository of the original weights in safetensors; None: not known, or the target's own weights."""
        return self.source_repo or (self.repo if self.repo != self.gguf_repo else None)

    def is_like(self, other: DraftEntry) -> bool:
        """Return whether both draft in the same way, so that one tells what to expect of the other."""
        ways = [(one.kind in BLOCKS or one.kind, one.is_in_target, one.drafts_in_parallel) for one in (self, other)]
        return ways[0] == ways[1]

    def serves(self, target_id: str) -> bool:
        return target_id in self.targets or EVERY_TARGET in self.targets


def read_draft(id: str, table: TomlTable) -> DraftEntry:
    """Read and check an entry. Raises UsageError that names file and key."""
    targets = tuple(target.lower() for target in table.texts("targets") or ())
    entry = table.read(
        DraftEntry, id=id, targets=targets, sizes=_read_sizes(table.table("sizes")), has_computed_size=False
    )
    if entry.kind not in KINDS:
        raise table.error(f"{id}.kind must be one of {', '.join(KINDS)}, not {entry.kind!r}")
    for drafted, tokens in entry.acceptance_lengths:
        if drafted > MAX_DRAFTED:
            raise table.error(
                f"{id}.acceptance_lengths: {drafted} drafted tokens are more than the limit of {MAX_DRAFTED}"
            )
        if not 1 <= tokens <= drafted + 1:
            raise table.error(f"{id}.acceptance_lengths: {drafted} drafted tokens cannot give a length of {tokens}")
    return entry


def find_better_known(draft: DraftEntry, others: Iterable[DraftEntry]) -> str:
    """Return the id of a draft of the same kind whose acceptance is reported, where this one's is not; else empty.

    Only such a draft is chosen unasked, as an assumed acceptance would often beat a reported one.
    """
    if draft.acceptance_lengths:
        return ""
    return next((other.id for other in others if other.kind == draft.kind and other.acceptance_lengths), "")


def _read_sizes(table: TomlTable | None) -> Mapping[str, int]:
    if table is None:
        return MappingProxyType({})
    sizes = {key: table.count(key, minimum=1) for key in ("bf16", "f16", "q8_0", "q4_k", "file")}
    table.close()
    return MappingProxyType({key: size for key, size in sizes.items() if size is not None})


# ---- unsupported drafts: reasons why the engine cannot use a draft of the catalog for a target
#
# Compares only kinds and architectures; gguf/draft_pairing.py checks whether one file fits another.
def find_unsupported_reason(draft: DraftEntry, target: EntryShape) -> str:
    """Return why the draft cannot be used with this target; empty if it can."""
    if draft.kind == MTP and target.architecture not in MTP_ARCHITECTURES:
        return describe_unused(target.architecture)
    keeps_state = bool(target.state_bytes) or target.architecture in HYBRID_ARCHITECTURES | RECURRENT_ARCHITECTURES
    if keeps_state and target.architecture not in ROLLBACK_ARCHITECTURES:
        return f"{target.architecture} has recurrent state, which cannot be rolled back yet"
    if draft.keeps_state:
        return "the draft has recurrent state, which cannot be rolled back"
    if draft.kind in BLOCKS and draft.gguf_repo is None:
        return "no GGUF of it is published, and heads that draft blocks are not imported"
    if draft.kind == DSPARK and target.architecture in HYPER_CONNECTED_ARCHITECTURES:
        return DEEPSEEK_SHAPE
    if draft.kind in (EAGLE, *BLOCKS) and target.architecture not in LAYER_INPUT_ARCHITECTURES:
        return f"llama.cpp does not give the layer inputs of {target.architecture}, which heads need"
    return ""

"""A target as profiles/targets/ID.toml describes it: its repositories, its quantizations and its shape.

Figures have a source and a confidence (`page`: seen on a public page or in a source file, `inferred`: computed or
recalled). A GGUF's own header is exact and overrides all of this: `shape` is for planning before anything is
downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType

from eaglelocal.catalog.toml_table import TomlTable, Value, limits
from eaglelocal.core.records import dataclass

# limits on figures: above every known model, and low enough for quick planning
MAX_LAYERS, MAX_HEADS, MAX_EXPERTS = 1000, 4096, 4096
MAX_WIDTH, MAX_VOCAB, MAX_CONTEXT = 1 << 20, 1 << 24, 1 << 30
MIN_PARAMETERS_B, MAX_PARAMETERS_B = 0.001, 100_000.0  # parameters, in 10^9
MIN_BITS, MAX_BITS = 0.5, 40.0  # per parameter, in any file
MAX_STATE_BYTES, MAX_TABLE_BYTES = 1 << 36, 1 << 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """A target in one quantization."""

    name: str  # such as Q4_K_M
    num_bytes: int = field(metadata=limits(1, key="bytes"))
    confidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Layers with a KV cache, all alike. `window`: tokens of their sliding window; None: full attention."""

    num_layers: int = field(metadata=limits(maximum=MAX_LAYERS, key="layers"))
    kv_heads: int = field(metadata=limits(1, MAX_HEADS))
    head_dim: int = field(metadata=limits(1, MAX_WIDTH))
    value_dim: int  # 0: values are a part of the keys (MLA)
    window: int | None = None
    index_dim: int = field(default=0, metadata=limits(maximum=MAX_WIDTH))  # of a token, by which an indexer chooses it


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of a mixture."""

    count: int
    used: int
    n_ff: int = field(metadata=limits(1, MAX_WIDTH))  # of one expert
    num_layers: int  # with experts
    num_matrices: int = field(default=3, metadata=limits(2, 3, key="matrices"))  # gate, up and down; 2 without a gate


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryShape:
    """The shape of a target as far as public pages state it."""

    architecture: str
    parameters_b: float = field(metadata=limits(MIN_PARAMETERS_B, MAX_PARAMETERS_B))  # in 10^9
    active_parameters_b: float = field(metadata=limits(MIN_PARAMETERS_B, MAX_PARAMETERS_B))  # used for one token
    n_layer: int
    n_embd: int = field(metadata=limits(1, MAX_WIDTH))
    n_head: int = field(metadata=limits(1, MAX_HEADS))
    n_ff: int = field(metadata=limits(maximum=MAX_WIDTH))
    n_vocab: int = field(metadata=limits(1, MAX_VOCAB))
    max_context: int = field(metadata=limits(256, MAX_CONTEXT))
    ties_embeddings: bool
    full: Layers
    windowed: Layers | None
    experts: Experts | None
    state_bytes: int  # of one slot's recurrent state; 0: none
    # of a table of n-gram embeddings in each file, which is read by rows; it counts in no other figure of the shape
    table_bytes: int = field(default=0, metadata=limits(maximum=MAX_TABLE_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEntry:
    """A target of the catalog. In `files`, `{Q}` stands for the quantization, `{q}` for it in lower case."""

    id: str
    name: str
    family: str
    released: str  # YYYY-MM; empty: unknown
    outline: EntryShape
    quantizations: Mapping[str, Quantization]
    drafts: tuple[str, ...]  # ids, the preferred first
    repos: tuple[str, ...]  # with GGUF files
    files: tuple[str, ...]
    source_repo: str | None  # of the original weights
    source_revision: str | None  # its commit; None: the newest
    license: str
    gated: bool
    chat_template: str = ""
    by_name: str = ""  # why it is offered by name only, such as "made for code"; empty: the planner may choose it
    notes: str = ""
    source: str
    confidence: str
    field_confidence: Mapping[str, Value]

    def quantization(self, name: str) -> Quantization | None:
        """Return the quantization of this name, ignoring case; None if there is none."""
        return next((q for q in self.quantizations.values() if q.name.lower() == name.lower()), None)


def read_target(id: str, table: TomlTable) -> TargetEntry:
    """Read and check an entry. Raises UsageError that names file and key."""
    target = table.read(
        TargetEntry,
        id=id,
        released=table.month("released") or "",
        outline=_read_shape(table.require("shape", table.table("shape"))),
        quantizations=_read_quantizations(table.require("quants", table.table("quants"))),
        drafts=tuple(draft.lower() for draft in table.texts("drafts") or ()),
    )
    _check_sizes(target, table)
    return target


def _check_sizes(target: TargetEntry, table: TomlTable) -> None:
    """Raise UsageError if the bits per parameter are implausible, or the embeddings exceed all parameters."""
    outline = target.outline
    for each in target.quantizations.values():
        bits = 8.0 * (each.num_bytes - outline.table_bytes) / (outline.parameters_b * 1e9)
        if not MIN_BITS <= bits <= MAX_BITS:
            raise table.error(
                f"quants.{each.name}: {each.num_bytes} bytes for {outline.parameters_b:g} B parameters "
                f"are {bits:.2g} bits each"
            )
    embeddings = outline.n_vocab * outline.n_embd
    if embeddings > outline.parameters_b * 1e9:
        raise table.error(
            f"shape: {embeddings / 1e9:.2g} B embeddings are more than {outline.parameters_b:g} B parameters"
        )


def _read_quantizations(table: TomlTable) -> Mapping[str, Quantization]:
    found = {name: entry.read(Quantization, name=name) for name, entry in table.tables()}
    if not found:
        raise table.error("quants has no quantization")
    return MappingProxyType(found)


def _read_shape(table: TomlTable) -> EntryShape:
    full, windowed = table.require("full_attention", table.table("full_attention")), table.table("window_attention")
    experts, recurrent = table.table("experts"), table.table("recurrent")
    n_layer = table.require("n_layer", table.count("n_layer", minimum=1, maximum=MAX_LAYERS))
    outline = table.read(
        EntryShape,
        n_layer=n_layer,
        full=_read_layers(full, is_windowed=False),
        windowed=_read_layers(windowed, is_windowed=True) if windowed else None,
        experts=_read_experts(experts, n_layer=n_layer) if experts else None,
        state_bytes=_read_state_bytes(recurrent) if recurrent else 0,
    )
    kept = outline.full.num_layers + (outline.windowed.num_layers if outline.windowed else 0)
    if not 1 <= kept <= outline.n_layer:
        raise table.error(f"shape: {kept} of {outline.n_layer} layers keep keys and values")
    if outline.active_parameters_b > outline.parameters_b:
        raise table.error(f"shape: {outline.active_parameters_b:g} of {outline.parameters_b:g} B parameters are active")
    return outline


def _read_layers(table: TomlTable, *, is_windowed: bool) -> Layers:
    window = table.require("window", table.count("window", minimum=1, maximum=MAX_CONTEXT)) if is_windowed else None
    value_dim = table.count("value_dim", maximum=MAX_WIDTH)
    layers = table.read(Layers, window=window, value_dim=value_dim)
    return replace(layers, value_dim=layers.head_dim) if value_dim is None else layers


def _read_experts(table: TomlTable, *, n_layer: int) -> Experts:
    count = table.require("count", table.count("count", minimum=1, maximum=MAX_EXPERTS))
    used = table.require("used", table.count("used", minimum=1, maximum=count))
    num_layers = table.count("layers", minimum=1, maximum=n_layer) or n_layer
    return table.read(Experts, count=count, used=used, num_layers=num_layers)


def _read_state_bytes(table: TomlTable) -> int:
    num_bytes = table.require("state_bytes", table.count("state_bytes", maximum=MAX_STATE_BYTES))
    table.close()
    return num_bytes


# ---- quantizations: the loss of quality by each quantization, from profiles/quants.toml: measured on Llama-3-8B
#
# `kld` is the mean Kullback-Leibler divergence of the next token's distribution from that of f16.
@dataclass(frozen=True, slots=True, kw_only=True)
class QuantLoss:
    """The measured loss of a quantization."""

    name: str
    bits_per_weight: float
    kld: float | None  # with an importance matrix if that figure exists
    source: str
    confidence: str


def read_quant(name: str, table: TomlTable) -> QuantLoss:
    """Read an entry. Raises UsageError that names file and key."""
    plain, with_matrix = table.number("kld"), table.number("kld_imatrix")
    return table.read(QuantLoss, name=name, kld=plain if with_matrix is None else with_matrix)

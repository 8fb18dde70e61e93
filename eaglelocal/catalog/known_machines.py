"""A machine as profiles/machines/*.toml describes it, so that one can plan for another machine.

States the whole memory, not what is free: on a real machine other processes and the screen use some of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from eaglelocal.catalog.toml_table import TomlTable, Value
from eaglelocal.core.byte_sizes import GIB, MIB
from eaglelocal.core.records import dataclass

CUDA, VULKAN, METAL, CPU = "cuda", "vulkan", "metal", "cpu"
KINDS = (CUDA, VULKAN, METAL, CPU)
MAX_MIB, MAX_GB_S, MAX_GPUS = 1 << 30, 1e6, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMachine:
    """A machine of the catalog. `memory_bytes`: of one card if there are cards, else main memory."""

    id: str
    name: str
    aliases: tuple[str, ...]
    kind: str  # one of KINDS
    num_gpus: int  # cards
    memory_bytes: int
    gpu_limit_bytes: int | None  # the part of unified memory that the GPU may use
    bandwidth_gb_s: float  # 10^9 bytes per second, of the memory in `memory_bytes`
    reached_share: float  # of that bandwidth, beside what kernels of its kind usually reach: HBM and double chips less
    fp16_tflops: float | None
    capability: str | None
    ram_bytes: int  # main memory; equals memory_bytes if it is shared
    host_bandwidth_gb_s: float
    reported_tok_s: Mapping[str, Value]
    notes: str
    source: str
    confidence: str
    field_confidence: Mapping[str, Value]

    @property
    def has_gpu(self) -> bool:
        return self.kind != CPU

    @property
    def shares_memory(self) -> bool:
        """True if its GPU uses main memory."""
        return self.has_gpu and not self.num_gpus


def read_machine(id: str, table: TomlTable) -> KnownMachine:
    """Read and check an entry. Raises UsageError that names file and key."""
    kind = table.text("kind")
    memory = table.count("memory_mib", minimum=1, maximum=MAX_MIB) * MIB
    bandwidth = table.number("bandwidth_gb_s", minimum=0.1, maximum=MAX_GB_S)
    limit = table.optional_count("gpu_limit_mib", minimum=1, maximum=memory // MIB)
    is_discrete = kind in (CUDA, VULKAN) and limit is None  # only shared memory has one
    num_gpus = table.optional_count("num_gpus", minimum=0 if not is_discrete else 1, maximum=MAX_GPUS)
    ram_gib, host_bandwidth = _read_host(table, is_discrete=is_discrete)
    machine = KnownMachine(
        id=id,
        name=table.text("name"),
        aliases=table.texts("aliases"),
        kind=kind,
        num_gpus=(num_gpus or 1) if is_discrete else 0,
        memory_bytes=memory,
        gpu_limit_bytes=limit * MIB if limit is not None else None,
        bandwidth_gb_s=bandwidth,
        reached_share=table.optional_number("reached_share", minimum=0.1, maximum=1.5) or 1.0,
        fp16_tflops=table.optional_number("fp16_tflops", minimum=0.1),
        capability=table.optional_text("capability"),
        ram_bytes=round(ram_gib * GIB) if ram_gib is not None else memory,
        host_bandwidth_gb_s=bandwidth if host_bandwidth is None else host_bandwidth,
        reported_tok_s=MappingProxyType(dict(table.values("reported_tok_s"))),
        notes=table.optional_text("notes") or "",
        source=table.optional_text("source") or "",
        confidence=table.optional_text("confidence") or "",
        field_confidence=MappingProxyType(dict(table.values("field_confidence"))),
    )
    table.close()
    if kind not in KINDS:
        raise table.error(f"{id}.kind must be one of {', '.join(KINDS)}, not {kind!r}")
    return machine


def _read_host(table: TomlTable, *, is_discrete: bool) -> tuple[float | None, float | None]:
    """Return GiB and bandwidth (10^9 bytes per second) of main memory; machines with cards must state both."""
    bounds = {"ram_gib": MAX_MIB / 1024, "host_bandwidth_gb_s": MAX_GB_S}
    read = table.number if is_discrete else table.optional_number
    ram_gib, bandwidth = (read(key, minimum=0.1, maximum=maximum) for key, maximum in bounds.items())
    return ram_gib, bandwidth

"""The catalog: targets, drafts, quantizations and machines that are known before anything is downloaded.

Reads `profiles/`, then folders of the same names in the user's config folder; the user's entries replace shipped ones
of the same id. `quants.toml` is only read as shipped. Uses no network and imports nothing heavy.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, cast

from eaglelocal import locations
from eaglelocal.catalog.draft_entries import EVERY_TARGET, DraftEntry, read_draft
from eaglelocal.catalog.estimated_shapes import compute_draft_sizes
from eaglelocal.catalog.near_names import count_left_out, split_count, squeeze
from eaglelocal.catalog.reference import Profile, is_ollama_tag, parse_reference, split_entry
from eaglelocal.catalog.target_entries import MAX_PARAMETERS_B, QuantLoss, TargetEntry, read_quant, read_target
from eaglelocal.catalog.toml_table import TomlTable, Value, limits
from eaglelocal.core.amounts import GIB, MIB
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.json_text import read_json
from eaglelocal.core.own_files import read_own
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import NONE, list_draft_words
from eaglelocal.errors import UsageError

Entry = TypeVar("Entry")
MUCH_LARGER = 4  # times the parameters of the model that was asked for
TARGETS, DRAFTS, MACHINES, QUANTS = "targets", "drafts", "machines", "quants.toml"


@dataclass(frozen=True, slots=True)
class Catalog:
    """The entries of each kind, by id."""

    targets: Mapping[str, TargetEntry]
    drafts: Mapping[str, DraftEntry]
    machines: Mapping[str, KnownMachine]
    quants: Mapping[str, QuantLoss]

    def find_target(self, id: str) -> TargetEntry | None:
        """Return the target of this id, however it is spelt; None if there is none, or several are spelt so."""
        alike = [target for target in self.targets.values() if squeeze(target.id) == squeeze(id)]
        return self.targets.get(id.lower()) or (alike[0] if len(alike) == 1 else None)

    def target(self, id: str, quant: str | None = None) -> TargetEntry:
        """Return the target of this id, however it is spelt. Raises UsageError with the nearest names, `quant` kept."""
        found = self.find_target(id)
        if found is None:
            word, suffix = split_entry(id, quant)
            near = [self.name_with_type(name, suffix) for name in self._find_near_targets(word)]
            is_part = any(word.lower() in name for name in self.targets)
            other = f"eaglelocal search {word}" if is_part else "eaglelocal search"
            hint = f"did you mean {' or '.join(near)}?" if near else other
            raise UsageError(describe_unknown_target(id, quant), hint=hint)
        return found

    def _find_near_targets(self, word: str) -> list[str]:
        """Return the ids that are near, without those of models that are much larger than the one of that name."""
        size = re.search(r"(?<!\d)\d{1,4}(?:\.\d{1,3})?(?=b\b)", word.lower())
        most_b = MUCH_LARGER * float(size[0]) if size else MAX_PARAMETERS_B
        return _find_near(
            word, {id: target for id, target in self.targets.items() if target.outline.parameters_b <= most_b}
        )

    def name_with_type(self, id: str, suffix: str) -> str:
        """Return the id of an entry with `:TYPE`, without it if the entry has no such quantization."""
        entry = self.targets.get(id)
        lacks = entry is not None and entry.quantization(suffix.removeprefix(":")) is None
        return id if lacks else f"{id}{suffix}"

    def machine(self, name: str) -> KnownMachine:
        """Return the machine that `name` means: an entry, several of its cards (`2x-rtx-3090`), or several joined by +.

        Raises UsageError with the nearest names, or on joined machines that are not all graphics cards.
        """
        written = name.split("+")
        if len(written) > 1 and not all(map(str.strip, written)):
            raise UsageError(f"--machine {name}: a machine is missing beside a +", hint=f"--machine {EXAMPLE_JOINED}")
        parts = [self._find_machine(part) for part in written]
        return parts[0] if len(parts) == 1 else join_machines(parts)

    def _find_machine(self, written: str) -> KnownMachine:
        for name, count in ((written, 1), split_count(written)):
            if found := find_machine(name, self.machines.values()):
                return multiply_cards(found, count)
        near = [f"{count}x-{each}" if count > 1 else each for each in _find_near(_normalize(name), self.machines)]
        known = f"`eaglelocal plan --machine list` shows all, such as {', '.join(EXAMPLE_MACHINES)}"
        own = f"describe your own in {locations.config_dir() / MACHINES}/*.toml"
        hint = f"did you mean {' or '.join(near)}?" if near else f"{known}; {own}"
        raise UsageError(f"unknown machine {written!r}", hint=hint)

    def drafts_for(self, target: TargetEntry) -> tuple[DraftEntry, ...]:
        """Return the drafts that the target lists, in its order, then all others that serve it, heads with sizes."""
        named = [self.drafts[id] for id in target.drafts]
        others = [draft for draft in self.drafts.values() if draft.serves(target.id) and draft not in named]
        return tuple(compute_draft_sizes(draft, target.outline) for draft in (*named, *others))


def load_catalog(*, user_folder: Path | None = None) -> Catalog:
    """Load the shipped and the user's entries. Raises UsageError with file and key.

    user_folder  None: the config folder
    """
    folders = _folders(user_folder)
    quants = TomlTable.of_file(folders[0] / QUANTS)
    catalog = Catalog(
        targets=_read_entries(folders, TARGETS, read_target, is_one_per_file=True),
        drafts=_read_entries(folders, DRAFTS, read_draft, is_one_per_file=False),
        machines=load_machines(user_folder=user_folder),
        quants=MappingProxyType({name: read_quant(name, table) for name, table in quants.tables()}),
    )
    _check_names(catalog)
    return catalog


def load_machines(*, user_folder: Path | None = None) -> Mapping[str, KnownMachine]:
    """Load the shipped and the user's entries of machines alone. Raises as `load_catalog` does."""
    return _read_entries(_folders(user_folder), MACHINES, read_machine, is_one_per_file=False)


def _folders(user_folder: Path | None) -> tuple[Path, Path]:
    return locations.profiles_dir(), locations.config_dir() if user_folder is None else user_folder


def _read_entries(
    folders: tuple[Path, ...], folder_name: str, read: Callable[[str, TomlTable], Entry], *, is_one_per_file: bool
) -> Mapping[str, Entry]:
    """Return the entries of all files in the folders of this name. The only entry of a file has the file's name."""
    versions = tuple(map(_identify_version, _list_files(folders, folder_name)))
    return cast(Mapping[str, Entry], _read_versions(versions, read, is_one_per_file))


def _identify_version(path: Path) -> FileVersion:
    try:
        status = path.stat()
    except OSError:  # reading it reports the reason
        return path, 0, 0
    return path, status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=8)
def _read_versions(
    versions: tuple[FileVersion, ...], read: Callable[[str, TomlTable], object], is_one_per_file: bool
) -> Mapping[str, object]:
    """Return the entries of these files; files that have not changed since are not parsed again."""
    found: dict[str, object] = {}
    for (path, _mtime_ns, _num_bytes), content in zip(versions, read_tables(versions), strict=True):
        for name, table in [(path.stem, content)] if is_one_per_file else content.tables():
            id = _check_id(name, table)
            found[id] = read(id, table)
    return MappingProxyType(found)


def _check_id(name: str, table: TomlTable) -> str:
    """Return the id in lower case, for lookups. Raises UsageError if a reference cannot name it."""
    id = name.lower()
    try:
        can_be_named = parse_reference(id, exists=lambda path: False) == Profile(id)
    except UsageError:
        can_be_named = False
    if can_be_named and id not in list_draft_words():
        return id
    raise table.error(
        f"{name!r} cannot be the name of an entry",
        hint=f"use letters, digits, dots and dashes, and not demo, {', '.join(list_draft_words()[:-1])} or {NONE}",
    )


def _check_names(catalog: Catalog) -> None:
    """Raise UsageError if an entry names a draft or a target that does not exist."""
    for target in catalog.targets.values():
        for id in target.drafts:
            if id not in catalog.drafts:
                raise _unknown_entry(f"target {target.id}", "draft", id, catalog.drafts)
    for draft in catalog.drafts.values():
        for id in draft.targets:
            if id != EVERY_TARGET and id not in catalog.targets:
                raise _unknown_entry(f"draft {draft.id}", "target", id, catalog.targets)


def _unknown_entry(who: str, what: str, id: str, known: Mapping[str, object]) -> UsageError:
    near = _find_near(id, known)
    hint = f"did you mean {' or '.join(near)}?" if near else "see profiles/"
    return UsageError(f"unknown {what} {id!r} in the catalog's {who}", hint=hint)


def _normalize(name: str) -> str:
    """Return a machine's name in the form of an id: lower case, with dashes for spaces and underscores."""
    return name.strip().lower().replace(" ", "-").replace("_", "-")


def _list_files(folders: tuple[Path, ...], folder_name: str) -> Iterator[Path]:
    """Yield the shipped files first, so that the user's entries replace them."""
    for folder in folders:
        yield from sorted((folder / folder_name).glob("*.toml"))


def _find_near(word: str, known: Mapping[str, object]) -> list[str]:
    return [word] if word in known else difflib.get_close_matches(word, known, n=3, cutoff=0.5)


# ---- parsed files: the contents of TOML files, kept as JSON in the cache: parsing them takes longer than all else
# that a plan needs
#
# The cache is valid only for exactly these files, as they are now; it is always safe to delete.
FileVersion = tuple[Path, int, int]  # file, time of its last change in ns, bytes


def read_tables(versions: Sequence[FileVersion]) -> list[TomlTable]:
    """Return the content of each file. Raises UsageError for one that cannot be read or is not TOML."""
    described = [[str(path), mtime_ns, num_bytes] for path, mtime_ns, num_bytes in versions]
    kept = find_kept(versions)
    contents = read_kept(kept, described)
    if contents is not None:
        return [TomlTable(content, path=path) for content, (path, _, _) in zip(contents, versions, strict=True)]
    tables = [TomlTable.of_file(path) for path, _, _ in versions]
    keep = {"files": described, "contents": [table.content for table in tables]}
    with suppress(OSError, TypeError, ValueError):  # dates cannot be JSON; a cache that cannot be written is skipped
        write_atomically(kept, json.dumps(keep, allow_nan=False))
    return tables


def find_kept(versions: Sequence[FileVersion]) -> Path:
    """Return the cache file for the contents of these folders' files."""
    folders = sorted({str(path.parent) for path, _, _ in versions})
    name = hashlib.blake2b("\n".join(folders).encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return locations.parsed_profiles_dir() / f"{name}.json"


def read_kept(path: Path, described: list[list[object]]) -> list[dict[str, object]] | None:
    """Return the cached contents of exactly these files; None if they are not cached."""
    try:
        kept = read_json(read_own(path))
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict) or kept.get("files") != described:
        return None
    contents = kept.get("contents")
    if not isinstance(contents, list) or len(contents) != len(described):
        return None
    return contents if all(isinstance(one, dict) for one in contents) else None


# ---- unknown target: the message for a target that neither the catalog nor the disk has, with more details for a name
# that looks like Ollama's
def describe_unknown_target(id: str, tag: str | None) -> str:
    """Return `unknown target 'ID:TAG'`; for a name like Ollama's also where it was looked for, and how to get it."""
    written = f"{id}:{tag}" if tag else id
    if not is_ollama_tag(tag):
        return f"unknown target {written!r}"
    stores = ", ".join(map(_name_store, locations.ollama_store_paths()))
    return (
        f"unknown target {written!r}: it is neither in the catalog nor among the models of Ollama, "
        f"looked for in {stores}; `ollama pull {written}` puts it there, "
        "because eaglelocal downloads from Hugging Face only"
    )


def _name_store(path: Path) -> str:
    home = locations.find_home()
    name = f"~/{path.relative_to(home)}" if home and path.is_relative_to(home) else str(path)
    return name if path.is_dir() else f"{name} (missing)"


# ---- known machines: a machine as profiles/machines/*.toml describes it, so that one can plan for another machine
#
# An entry states the whole memory: on a real machine other processes and the screen use some of it.
CUDA, VULKAN, METAL, CPU = "cuda", "vulkan", "metal", "cpu"
KINDS = (CUDA, VULKAN, METAL, CPU)
MAX_MIB, MAX_GB_S, MAX_GPUS = 1 << 30, 1e6, 64
SEVERAL_CARDS_RAM = 64 * GIB  # at least, assumed beside several cards
EXAMPLE_JOINED = "rtx-3090+rtx-3060"
JOINED = " + "  # between the names of joined machines
EXAMPLE_MACHINES = (
    *("rtx-3090", "2x-rtx-3090", EXAMPLE_JOINED, "rx-7900-xtx", "strix-halo", "cuda-12gb", "m2-max-32gb"),
    "cpu-16gb",
)


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
    bandwidth_gb_s: float = field(metadata=limits(0.1, MAX_GB_S))  # 10^9 bytes per second, of `memory_bytes`
    # relative to the share that such kernels usually reach; lower for HBM and double chips
    reached_share: float = field(default=1.0, metadata=limits(0.1, 1.5))
    fp16_tflops: float | None = field(metadata=limits(0.1))
    capability: str | None
    ram_bytes: int  # main memory; equals memory_bytes if it is shared
    host_bandwidth_gb_s: float
    notes: str = ""
    source: str = ""
    confidence: str = ""
    field_confidence: Mapping[str, Value]
    is_own: bool = False  # described by the user
    others: tuple[KnownMachine, ...] = ()  # whose cards are in it too

    @property
    def has_gpu(self) -> bool:
        return self.kind != CPU

    @property
    def shares_memory(self) -> bool:
        """True if its GPU uses main memory."""
        return self.has_gpu and not self.num_gpus


def read_machine(id: str, table: TomlTable) -> KnownMachine:
    """Read and check an entry. Raises UsageError that names file and key."""
    kind = table.require("kind", table.text("kind"))
    memory_mib = table.require("memory_mib", table.count("memory_mib", minimum=1, maximum=MAX_MIB))
    limit_mib = table.count("gpu_limit_mib", minimum=1, maximum=memory_mib)
    has_cards = kind in (CUDA, VULKAN) and limit_mib is None  # only shared memory has a limit
    num_gpus = table.count("num_gpus", minimum=1 if has_cards else 0, maximum=MAX_GPUS)
    ram_gib = table.number("ram_gib", minimum=0.1, maximum=MAX_MIB / 1024)
    host_bandwidth = table.number("host_bandwidth_gb_s", minimum=0.1, maximum=MAX_GB_S)
    if has_cards:
        table.require("ram_gib", ram_gib)
        table.require("host_bandwidth_gb_s", host_bandwidth)
    machine = table.read(
        KnownMachine,
        id=id,
        kind=kind,
        num_gpus=(num_gpus or 1) if has_cards else 0,
        memory_bytes=memory_mib * MIB,
        gpu_limit_bytes=None if limit_mib is None else limit_mib * MIB,
        ram_bytes=memory_mib * MIB if ram_gib is None else round(ram_gib * GIB),
        host_bandwidth_gb_s=host_bandwidth,
        is_own=not table.path.is_relative_to(locations.profiles_dir()),
    )
    if kind not in KINDS:
        raise table.error(f"{id}.kind must be one of {', '.join(KINDS)}, not {kind!r}")
    return machine if host_bandwidth else replace(machine, host_bandwidth_gb_s=machine.bandwidth_gb_s)


# ---- machines by name: an entry however it is spelt, and machines of several cards, made of entries
def find_machine(name: str, machines: Iterable[KnownMachine]) -> KnownMachine | None:
    """Return the machine of this id, alias or name; None if there is none.

    Of those that differ in what was left out, the smallest: what it runs, the others run too.
    """
    wanted = _normalize(name)
    found: list[tuple[int, int, KnownMachine]] = []
    for machine in machines:
        if wanted in map(_normalize, (machine.id, *machine.aliases)):
            return machine
        size = round(machine.memory_bytes / GIB)
        for each in (machine.id, *machine.aliases, machine.name):
            if (left_out := count_left_out(name, each, size)) is not None:
                found.append((left_out, machine.memory_bytes, machine))
    return min(found, key=lambda each: each[:2])[-1] if found else None


def multiply_cards(machine: KnownMachine, count: int) -> KnownMachine:
    """Return a machine with `count` times the entry's cards. Raises UsageError if it has no cards, or too many."""
    num_gpus = count * machine.num_gpus
    if count == 1:
        return machine
    if not 0 < num_gpus <= MAX_GPUS:
        problem = f"at most {MAX_GPUS} cards are planned for" if num_gpus else _explain_no_cards(machine)
        raise UsageError(f"--machine {count}x-{machine.id}: {problem}", hint="--machine 2x-rtx-3090")
    return replace(
        machine,
        id=f"{count}x-{machine.id}",
        name=f"{count}x {machine.name}",
        aliases=(),
        num_gpus=num_gpus,
        ram_bytes=max(machine.ram_bytes, SEVERAL_CARDS_RAM),
    )


def join_machines(parts: Sequence[KnownMachine]) -> KnownMachine:
    """Return a machine with the cards of all, and the most RAM of one.

    The fastest card comes first, as CUDA orders them, whatever the order of the parts.
    Raises UsageError if one has no cards, or all together have too many.
    """
    for part in parts:
        if not part.num_gpus:
            raise UsageError(_explain_no_cards(part), hint=f"--machine {EXAMPLE_JOINED}")
    if sum(part.num_gpus for part in parts) > MAX_GPUS:
        written = "+".join(part.id for part in parts)
        raise UsageError(
            f"--machine {written}: at most {MAX_GPUS} cards are planned for", hint=f"--machine {EXAMPLE_JOINED}"
        )
    parts = sorted(parts, key=lambda part: (-part.bandwidth_gb_s, part.id))
    first, *others = parts
    return replace(
        first,
        id="+".join(part.id for part in parts),
        name=JOINED.join(part.name for part in parts),
        aliases=(),
        notes=" ".join(dict.fromkeys(f"{part.name}: {part.notes}" for part in parts if part.notes)),
        ram_bytes=max(SEVERAL_CARDS_RAM, *(part.ram_bytes for part in parts)),
        others=tuple(others),
    )


def _explain_no_cards(machine: KnownMachine) -> str:
    if machine.shares_memory:
        return f"the GPU of {machine.name} works in main memory and cannot be joined to others"
    return f"{machine.name} has no graphics card that could be joined to others"

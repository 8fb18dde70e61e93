"""The catalog: targets, drafts, quantizations and machines that are known before anything is downloaded.

Reads `profiles/`, then folders of the same names in the user's config folder; the user's entries replace shipped ones
of the same id. `quants.toml` is only read as shipped. Uses no network and imports nothing heavy.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, cast

from eaglelocal import locations
from eaglelocal.catalog.draft_entries import EVERY_TARGET, DraftEntry, read_draft
from eaglelocal.catalog.known_machines import KnownMachine, read_machine
from eaglelocal.catalog.quantizations import QuantLoss, read_quant
from eaglelocal.catalog.reference import Profile, parse_reference, split_entry
from eaglelocal.catalog.target_entries import TargetEntry, read_target
from eaglelocal.catalog.toml_table import TomlTable
from eaglelocal.catalog.unknown_target import describe_unknown_target
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.json_text import read_json
from eaglelocal.core.own_files import read_own
from eaglelocal.core.records import dataclass
from eaglelocal.errors import UsageError

Entry = TypeVar("Entry")
DRAFT_WORDS = ("auto", "ngram", "lookahead", "mtp", "none")  # values of --draft that are not references
TARGETS, DRAFTS, MACHINES, QUANTS = "targets", "drafts", "machines", "quants.toml"


@dataclass(frozen=True, slots=True)
class Catalog:
    """The entries of each kind, by id."""

    targets: Mapping[str, TargetEntry]
    drafts: Mapping[str, DraftEntry]
    machines: Mapping[str, KnownMachine]
    quants: Mapping[str, QuantLoss]

    def target(self, id: str, quant: str | None = None) -> TargetEntry:
        """Return the target of this id, ignoring case. Raises UsageError with the nearest names, `quant` kept."""
        found = self.targets.get(id.lower())
        if found is None:
            word, suffix = split_entry(id, quant)
            near = [self.name_with_type(name, suffix) for name in _find_near(word, self.targets)]
            hint = f"did you mean {' or '.join(near)}?" if near else "eaglelocal plan --all"
            raise UsageError(describe_unknown_target(id, quant), hint=hint)
        return found

    def name_with_type(self, id: str, suffix: str) -> str:
        """Return the id of an entry with `:TYPE`, without it if the entry has no such quantization."""
        entry = self.targets.get(id)
        lacks = entry is not None and entry.quantization(suffix.removeprefix(":")) is None
        return id if lacks else f"{id}{suffix}"

    def machine(self, name: str) -> KnownMachine:
        """Return the machine of this id or alias. Raises UsageError with the nearest name."""
        wanted = _normalize(name)
        names = {_normalize(name): one for one in self.machines.values() for name in (one.id, *one.aliases)}
        found = names.get(wanted)
        if found is None:
            known = (
                "known are rtx-3090, 2x-rtx-3090, rx-7900-xtx, strix-halo, cuda-12gb, m2-max-32gb, cpu-16gb and more"
            )
            own = f"describe your own in {locations.config_dir() / MACHINES}/*.toml"
            raise UsageError(f"unknown machine {name!r}", hint=_suggest(wanted, names, otherwise=f"{known}; {own}"))
        return found

    @property
    def median_release(self) -> str:
        """The median of the targets' release months (`YYYY-MM`); empty if none is known."""
        known = sorted(target.released for target in self.targets.values() if target.released)
        return known[len(known) // 2] if known else ""

    def drafts_for(self, target: TargetEntry) -> tuple[DraftEntry, ...]:
        """Return the drafts that the target lists, in its order, then all others that serve it."""
        named = [self.drafts[id] for id in target.drafts]
        others = [draft for draft in self.drafts.values() if draft.serves(target.id) and draft not in named]
        return (*named, *others)


def load_catalog(*, user_folder: Path | None = None) -> Catalog:
    """Load the shipped and the user's entries. Raises UsageError with file and key.

    user_folder  None: the config folder
    """
    folders = _folders(user_folder)
    catalog = Catalog(
        targets=_read_entries(folders, TARGETS, read_target, is_one_per_file=True),
        drafts=_read_entries(folders, DRAFTS, read_draft, is_one_per_file=False),
        machines=load_machines(user_folder=user_folder),
        quants=_read_quants(folders[0]),
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
    """Return the entries of all files in the folders of this name. One per file is named as the file."""
    versions = tuple(map(_identify_version, _list_files(folders, folder_name)))
    return cast(Mapping[str, Entry], _read_versions(versions, read, is_one_per_file))


def _identify_version(path: Path) -> FileVersion:
    try:
        status = path.stat()
    except OSError:  # reading it reports why
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
    """Return the id in lower case, as it is looked up. Raises UsageError if a reference cannot name it."""
    id = name.lower()
    try:
        can_be_named = parse_reference(id, exists=lambda path: False) == Profile(id)
    except UsageError:
        can_be_named = False
    if can_be_named and id not in DRAFT_WORDS:
        return id
    raise table.error(
        f"{name!r} cannot be the name of an entry",
        hint="use letters, digits, dots and dashes, and not demo, auto, ngram, lookahead, mtp or none",
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
    return UsageError(
        f"unknown {what} {id!r} in the catalog's {who}", hint=_suggest(id, known, otherwise="see profiles/")
    )


def _normalize(name: str) -> str:
    """Return a machine's name in the form of an id: lower case, with dashes for spaces and underscores."""
    return name.strip().lower().replace(" ", "-").replace("_", "-")


def _list_files(folders: tuple[Path, ...], folder_name: str) -> Iterator[Path]:
    """Yield the shipped files first, so that the user's entries replace them."""
    for folder in folders:
        yield from sorted((folder / folder_name).glob("*.toml"))


def _read_quants(profiles: Path) -> Mapping[str, QuantLoss]:
    return MappingProxyType(
        {name: read_quant(name, table) for name, table in TomlTable.of_file(profiles / QUANTS).tables()}
    )


def _suggest(word: str, known: Mapping[str, object], *, otherwise: str) -> str:
    near = _find_near(word, known)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def _find_near(word: str, known: Mapping[str, object]) -> list[str]:
    return [word] if word in known else difflib.get_close_matches(word, known, n=3, cutoff=0.5)


# ---- parsed files: the contents of TOML files, kept as JSON in the cache: parsing them takes longer than all else
# that a plan needs
#
# What is kept counts only for exactly these files, as they are now; it is always safe to delete.
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
    with suppress(OSError, TypeError, ValueError):  # dates are no JSON; a cache that cannot be written is none
        write_atomically(kept, json.dumps(keep, allow_nan=False))
    return tables


def find_kept(versions: Sequence[FileVersion]) -> Path:
    """Return where the contents of files in these folders are kept."""
    folders = sorted({str(path.parent) for path, _, _ in versions})
    name = hashlib.blake2b("\n".join(folders).encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return locations.parsed_profiles_dir() / f"{name}.json"


def read_kept(path: Path, described: list[list[object]]) -> list[dict[str, object]] | None:
    """Return the contents of exactly these files; None if they are not kept."""
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

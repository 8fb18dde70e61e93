"""Everything that is known before anything is downloaded: targets, drafts, quantizations, machines.

Reads `profiles/` and, over it, the folders of the same names in the user's config folder: an entry with a known id
takes the place of ours. No network, nothing heavy.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from eaglelocal import locations
from eaglelocal.catalog.drafts import DraftEntry, read_draft
from eaglelocal.catalog.machines import KnownMachine, read_machine
from eaglelocal.catalog.quants import QuantLoss, read_quant
from eaglelocal.catalog.table import Table
from eaglelocal.catalog.targets import Target, read_target
from eaglelocal.errors import UsageError

Entry = TypeVar("Entry")
TARGETS, DRAFTS, MACHINES, QUANTS = "targets", "drafts", "machines", "quants.toml"


@dataclass(frozen=True, slots=True)
class Catalog:
    """Each by its id."""

    targets: Mapping[str, Target]
    drafts: Mapping[str, DraftEntry]
    machines: Mapping[str, KnownMachine]
    quants: Mapping[str, QuantLoss]

    def target(self, id: str) -> Target:
        """Raises UsageError with the nearest name."""
        found = self.targets.get(id) or self.targets.get(id.lower())
        if found is None:
            raise UsageError(f"no target is called {id!r}", hint=_hint(id, self.targets, "`eaglelocal plan --all`"))
        return found

    def machine(self, name: str) -> KnownMachine:
        """By its id or another name of it. Raises UsageError with the nearest name."""
        wanted = name.strip().lower().replace(" ", "-").replace("_", "-")
        names = {alias: machine for machine in self.machines.values() for alias in (machine.id, *machine.aliases)}
        found = names.get(wanted)
        if found is None:
            known = "rtx-3090, 2x-rtx-3090, a6000, cuda-12gb, m2-max-32gb, cpu-16gb"
            raise UsageError(f"no machine is called {name!r}", hint=_hint(wanted, names, f"there are {known} and more"))
        return found

    def drafts_for(self, target: Target) -> tuple[DraftEntry, ...]:
        """Those that the target names first, then every other that was made for it."""
        named = [self.drafts[id] for id in target.drafts if id in self.drafts]
        others = [draft for draft in self.drafts.values() if draft.serves(target.id) and draft not in named]
        return (*named, *others)


def load(*, user_folder: Path | None = None) -> Catalog:
    """Ours and the user's (None: where locations.py says). Raises UsageError that names file and key."""
    folders = (locations.profiles_dir(), locations.config_dir() if user_folder is None else user_folder)
    return Catalog(
        targets=_one_a_file(folders, TARGETS, read_target),
        drafts=_many_a_file(folders, DRAFTS, read_draft),
        machines=_many_a_file(folders, MACHINES, read_machine),
        quants=_quants(folders[0]),
    )


def load_machines(*, user_folder: Path | None = None) -> Mapping[str, KnownMachine]:
    """The machines alone."""
    folders = (locations.profiles_dir(), locations.config_dir() if user_folder is None else user_folder)
    return _many_a_file(folders, MACHINES, read_machine)


def _one_a_file(folders: tuple[Path, ...], room: str, read: Callable[[str, Table], Entry]) -> Mapping[str, Entry]:
    return MappingProxyType({path.stem: read(path.stem, Table.of_file(path)) for path in _files(folders, room)})


def _many_a_file(folders: tuple[Path, ...], room: str, read: Callable[[str, Table], Entry]) -> Mapping[str, Entry]:
    found: dict[str, Entry] = {}
    for path in _files(folders, room):
        found.update({id: read(id, table) for id, table in Table.of_file(path).tables()})
    return MappingProxyType(found)


def _files(folders: tuple[Path, ...], room: str) -> Iterator[Path]:
    """Ours first, so that the user's entries come over them."""
    for folder in folders:
        yield from sorted((folder / room).glob("*.toml"))


def _quants(profiles: Path) -> Mapping[str, QuantLoss]:
    return MappingProxyType(
        {name: read_quant(name, table) for name, table in Table.of_file(profiles / QUANTS).tables()}
    )


def _hint(word: str, known: Mapping[str, object], otherwise: str) -> str:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else otherwise

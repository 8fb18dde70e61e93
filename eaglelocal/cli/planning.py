"""What `eaglelocal plan` plans for: the options that a TARGET means, and the machine. Reads headers, runs nothing.

A file is planned from its header, a demo that was not written yet from its proportions, everything else from the
catalogue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.reference import Embedded, File, Profile, Repo, parse_reference
from eaglelocal.catalog.targets import Target
from eaglelocal.errors import UsageError
from eaglelocal.hub.wish import Wish
from eaglelocal.options_here import as_wished, demo_option, found_option, names_draft
from eaglelocal.planner.options import Option, options_of

if TYPE_CHECKING:
    from eaglelocal.core.costs import MeasuredCosts
    from eaglelocal.gguf.header import Header
    from eaglelocal.probe.machine import Machine


SHOWN_DRAFTS = 4


@dataclass(frozen=True, slots=True)
class Candidates:
    """`headers`: of the targets that are on disk, by reference."""

    options: tuple[Option, ...]
    headers: Mapping[str, Header]


def candidates(wish: Wish, catalog: Catalog) -> Candidates:
    """Of its target, or the whole catalogue. Raises UsageError, ModelFileError or IncompatibleError."""
    text = wish.target
    if text is None:
        every = [option for target in catalog.targets.values() for option in options_of(target, catalog)]
        return Candidates(_with_drafts(every, wish), {})
    match parse_reference(text):
        case Embedded():
            return _embedded(text, wish, catalog)
        case File():
            return _file(text, wish, catalog)
        case Profile(id=id, quant=quant):
            return Candidates(_of_entry(catalog.target(id), quant, wish, catalog), {})
        case Repo(name=name, quant=quant):
            entry = _entry_with(name, catalog)
            if entry is None:
                return _file(text, wish, catalog)
            return Candidates(_of_entry(entry, quant, wish, catalog), {})


def _of_entry(target: Target, quant: str | None, wish: Wish, catalog: Catalog) -> tuple[Option, ...]:
    if quant is not None and target.quantization(quant) is None:
        known = ", ".join(target.quantizations)
        raise UsageError(f"the catalogue has no {target.id} in {quant}", hint=f"it has {known}")
    return _with_drafts(options_of(target, catalog, quant=quant), wish)


def _with_drafts(options: Iterable[Option], wish: Wish) -> tuple[Option, ...]:
    """With the drafts that the wish leaves to them. Raises UsageError on a name that is no draft of any."""
    options = tuple(options)
    if not names_draft(wish):
        return tuple(as_wished(option, wish) for option in options)
    named = [(option, [way for way in option.drafts if way.id == wish.draft]) for option in options]
    found = tuple(dataclasses.replace(option, drafts=tuple(ways)) for option, ways in named if ways)
    if not found:
        known = dict.fromkeys(way.id for option in options for way in option.drafts if way.shape)
        raise UsageError(
            f"the catalogue has no draft {wish.draft} that can be planned here",
            hint=f"`--draft auto`, or one of: {', '.join(list(known)[:SHOWN_DRAFTS])}",
        )
    return found


def _entry_with(repo: str, catalog: Catalog) -> Target | None:
    for target in catalog.targets.values():
        if repo.lower() in (each.lower() for each in target.repos):
            return target
    return None


def _file(reference: str, wish: Wish, catalog: Catalog) -> Candidates:
    """A file, or what is on disk of a repository that the catalogue does not know, with the draft that chat would take.

    Raises ModelFileError where nothing is there.
    """
    from eaglelocal.hub.targets import find_target

    found = find_target(reference, on_progress=lambda fraction, what: None)
    return Candidates((found_option(found, reference, wish, catalog),), {reference: found.header})


def _embedded(reference: str, wish: Wish, catalog: Catalog) -> Candidates:
    option, header = demo_option(reference, wish, catalog)
    return Candidates((option,), {} if header is None else {reference: header})


def measured_costs(headers: Mapping[str, Header], machine: Machine) -> Mapping[str, MeasuredCosts]:
    """What engines learnt of these files on this machine, by reference."""
    from eaglelocal.backend.library import BUILD
    from eaglelocal.calibrations import newest_costs
    from eaglelocal.speculation.costs import StepCosts

    found = {}
    for reference, header in headers.items():
        costs, state = StepCosts(), newest_costs(machine, header, BUILD)
        if state is not None and costs.restore(state):
            found[reference] = costs.measured()
    return found

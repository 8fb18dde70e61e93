"""What `eaglelocal plan` plans for: the options that a TARGET means, and the machine. Reads headers, runs nothing.

A file is planned from its header, also where the catalogue knows it, a demo that was not written yet from its
proportions, everything else from the catalogue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.drafts import MTP
from eaglelocal.catalog.reference import Embedded, File, Profile, Repo, parse_reference
from eaglelocal.catalog.targets import Target
from eaglelocal.errors import UsageError
from eaglelocal.fetched import entry_options
from eaglelocal.hub.wish import Wish
from eaglelocal.options_here import as_wished, demo_option, found_option, names_draft, with_wished_projector
from eaglelocal.planner.options import Option

SHOWN_DRAFTS = 4


def candidates(wish: Wish, catalog: Catalog) -> tuple[Option, ...]:
    """Of its target, or the whole catalogue. Raises UsageError, ModelFileError or IncompatibleError."""
    text = wish.target
    if text is None:
        every = [option for target in catalog.targets.values() for option in entry_options(target, catalog)]
        return _with_drafts(every, wish)
    match parse_reference(text):
        case Embedded():
            return (demo_option(text, wish, catalog),)
        case File():
            return _file(text, wish, catalog)
        case Profile(id=id, quant=quant):
            return _of_entry(catalog.target(id), quant, wish, catalog)
        case Repo(name=name, quant=quant):
            entry = _entry_with(name, catalog)
            if entry is None:
                return _file(text, wish, catalog)
            return _of_entry(entry, quant, wish, catalog)


def _of_entry(target: Target, quant: str | None, wish: Wish, catalog: Catalog) -> tuple[Option, ...]:
    found = list(entry_options(target, catalog, quant=quant))
    if not found:
        known = ", ".join(target.quantizations)
        raise UsageError(f"the catalogue has no {target.id} in {quant}", hint=f"it has {known}")
    return _with_drafts(found, wish)


def _with_drafts(options: Iterable[Option], wish: Wish) -> tuple[Option, ...]:
    """With the drafts that the wish leaves to them. Raises UsageError on a name that is no draft of any."""
    options = tuple(with_wished_projector(option, wish) for option in options)
    if not names_draft(wish):
        return tuple(as_wished(option, wish) for option in options)
    named = [
        (option, [way for way in option.drafts if wish.draft == way.id or wish.draft == MTP == way.kind])
        for option in options
    ]
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


def _file(reference: str, wish: Wish, catalog: Catalog) -> tuple[Option, ...]:
    """A file, or what is on disk of a repository that the catalogue does not know, with the draft that chat would take.

    Raises ModelFileError where nothing is there.
    """
    from eaglelocal.hub.targets import find_target

    found = find_target(reference, on_progress=lambda fraction, what: None)
    return (found_option(found, reference, wish, catalog),)

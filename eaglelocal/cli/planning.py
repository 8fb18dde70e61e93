"""What `eaglelocal plan` plans for: the options that a TARGET means, and the machine. Reads headers, runs nothing.

A file is planned from its header, also where the catalogue knows it, a demo that was not written yet from its
proportions, everything else from the catalogue.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal import locations
from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.reference import Embedded, File, Profile, Repo, parse_reference
from eaglelocal.catalog.targets import Target
from eaglelocal.errors import UsageError
from eaglelocal.fetched import entry_options
from eaglelocal.planner.acceptance import Acceptance
from eaglelocal.planner.options import FileDraft, OnDisk, Option, option_of_file, option_on_disk

if TYPE_CHECKING:
    from eaglelocal.hub.sizes import DemoSize

DEMO_HEAD = "its own EAGLE-3.1 head"
DEMO_ACCEPTANCE = ((5, 3.41), (7, 3.8))  # of the embedded head, on held-out prompts


def candidates(text: str | None, catalog: Catalog) -> tuple[Option, ...]:
    """None: the whole catalogue. Raises UsageError, ModelFileError or IncompatibleError."""
    if text is None:
        return tuple(option for target in catalog.targets.values() for option in entry_options(target, catalog))
    match parse_reference(text):
        case Embedded(text=demo):
            return _embedded(demo, catalog)
        case File():
            return _file(text, catalog)
        case Profile(id=id, quant=quant):
            return _of_entry(catalog.target(id), quant, catalog)
        case Repo(name=name, quant=quant):
            entry = _entry_with(name, catalog)
            return _file(text, catalog) if entry is None else _of_entry(entry, quant, catalog)


def _of_entry(target: Target, quant: str | None, catalog: Catalog) -> tuple[Option, ...]:
    found = tuple(entry_options(target, catalog, quant=quant))
    if not found:
        known = ", ".join(target.quantizations)
        raise UsageError(f"the catalogue has no {target.id} in {quant}", hint=f"it has {known}")
    return found


def _entry_with(repo: str, catalog: Catalog) -> Target | None:
    for target in catalog.targets.values():
        if repo.lower() in (each.lower() for each in target.repos):
            return target
    return None


def _file(reference: str, catalog: Catalog) -> tuple[Option, ...]:
    """A file, or what is on disk of a repository that the catalogue does not know, with the draft that chat would take.

    Raises ModelFileError where nothing is there.
    """
    from eaglelocal.as_planned import option_of
    from eaglelocal.hub.targets import find_target
    from eaglelocal.hub.wish import Wish

    found = find_target(reference, on_progress=lambda fraction, what: None)
    return (option_of(found, reference, Wish(target=reference), catalog),)


def _embedded(reference: str, catalog: Catalog) -> tuple[Option, ...]:
    """From the files if they were written, else from the proportions that they will have."""
    from eaglelocal.gguf.reader import read_header
    from eaglelocal.hub.inflate import inflated_paths, parse_demo_reference
    from eaglelocal.hub.targets import NATIVE, demo_sources

    target, head = demo_sources()
    if reference != NATIVE:
        size = parse_demo_reference(reference)
        paths = inflated_paths(size, source_target=target, source_head=head, folder=locations.generated_models_dir())
        if not paths.complete:
            return (option_on_disk(_sketched(reference, size, target, head), catalog),)
        target, head = paths.target, paths.head
    header = read_header(target)
    draft = FileDraft(DEMO_HEAD, read_header(head), Acceptance.of(DEMO_ACCEPTANCE, default=0.0))
    return (option_of_file(header, reference=reference, label=reference, catalog=catalog, draft=draft),)


def _sketched(reference: str, size: DemoSize, target: Path, head: Path) -> OnDisk:
    from eaglelocal.hub.sketch import sketch

    drawn = sketch(size, target, head)
    return OnDisk(
        reference=reference,
        label=reference,
        quant=size.type.upper(),
        shape=drawn.target,
        parameters=drawn.num_parameters,
        active=drawn.num_parameters,
        draft=drawn.head,
        draft_label=DEMO_HEAD,
        acceptance=Acceptance.of(DEMO_ACCEPTANCE, default=0.0),
    )

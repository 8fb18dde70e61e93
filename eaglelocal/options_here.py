"""What is on this disk, or can be written to it, as options that the planner weighs. Reads headers, loads nothing.

An option's drafts are those that may be loaded for it: where a wish names one, there is no other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from eaglelocal import locations
from eaglelocal.catalog.catalog import Catalog
from eaglelocal.core.request import parse_spec
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.lighter import light_type, lightened
from eaglelocal.gguf.projector import Projector
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.cache import all_models
from eaglelocal.hub.drafts import FoundDraft, find_draft
from eaglelocal.hub.files import existing_file
from eaglelocal.hub.inflate import inflated_paths, parse_demo_reference
from eaglelocal.hub.inventory import described
from eaglelocal.hub.projectors import AUTO_HINT, find_projector, projector_at
from eaglelocal.hub.sizes import DemoSize
from eaglelocal.hub.sketch import sketch
from eaglelocal.hub.targets import NATIVE, FoundTarget, demo_sources, find_target
from eaglelocal.hub.wish import Wish
from eaglelocal.planner.acceptance import Acceptance
from eaglelocal.planner.options import DraftWay, FileDraft, OnDisk, Option, option_of_file, option_on_disk

AUTO, NONE, LOOKUP = "auto", "none", "ngram"
DEMO_HEAD = "its own EAGLE-3.1 head"
DEMO_ACCEPTANCE = Acceptance.of(((5, 3.41), (7, 3.8)), default=0.0)  # of the embedded head, on held-out prompts
NO_DRAFT = DraftWay(id=NONE, kind=NONE)


def names_draft(wish: Wish) -> bool:
    """Is it a certain model that is to draft?"""
    return wish.draft not in (AUTO, NONE, LOOKUP)


def pulled_options(wish: Wish, catalog: Catalog) -> Iterator[Option]:
    """Models from hubs that can answer; what cannot be read is passed over, `eaglelocal ls` names it."""
    for model in all_models(locations.hub_cache_dir()):
        if described(model.path).kind != "model":
            continue
        try:
            target = find_target(model.reference, on_progress=lambda fraction, what: None)
            yield found_option(target, model.reference, wish, catalog)
        except EagleLocalError:
            continue


def found_option(target: FoundTarget, reference: str, wish: Wish, catalog: Catalog) -> Option:
    """With the draft and the projector that would be used. Raises what finding them raises."""
    draft = find_draft(wish.draft, target) if parse_spec(wish.spec).max_draft else FoundDraft()
    beside = FileDraft(draft.label, head_header(draft.path, wish), kind=draft.kind) if draft.path else None
    option = option_of_file(target.header, reference=reference, label=target.label, catalog=catalog, draft=beside)
    option = dataclasses.replace(option, projector=find_projector(wish.mmproj, target).projector)
    return as_wished(option, wish) if draft.kind != NONE else dataclasses.replace(option, drafts=(NO_DRAFT,))


def head_header(path: Path, wish: Wish) -> Header:
    """Of a draft as it will be loaded: a head in fewer bits than its file has."""
    return lightened(read_header(path), light_type(wish.draft_type))


def as_wished(option: Option, wish: Wish) -> Option:
    """The option with no more drafts than the wish leaves to it."""
    if wish.draft == NONE or not parse_spec(wish.spec).max_draft:
        return dataclasses.replace(option, drafts=(NO_DRAFT,))
    if wish.draft == AUTO:
        return option
    named = tuple(draft for draft in option.drafts if (draft.shape is not None) == names_draft(wish))
    return dataclasses.replace(option, drafts=named or option.drafts)


def with_wished_projector(option: Option, wish: Wish) -> Option:
    """Raises ModelFileError or IncompatibleError where a file is named that does not fit what is on disk."""
    if wish.mmproj == AUTO:
        return option
    if wish.mmproj == NONE:
        return dataclasses.replace(option, projector=None)
    path = existing_file(wish.mmproj, hint=AUTO_HINT)
    named = projector_at(path, option.header) if option.header else Projector.from_header(read_header(path))
    return dataclasses.replace(option, projector=named)


def demo_option(reference: str, wish: Wish, catalog: Catalog) -> Option:
    """The embedded model: from its files if they were written, else from the proportions that they will have.

    Raises UsageError on a size that cannot be.
    """
    target, head = demo_sources()
    if reference != NATIVE:
        size = parse_demo_reference(reference)
        paths = inflated_paths(size, source_target=target, source_head=head, folder=locations.generated_models_dir())
        if not paths.complete:
            return as_wished(option_on_disk(_sketched(reference, size, target, head), catalog), wish)
        target, head = paths.target, paths.head
    draft = FileDraft(DEMO_HEAD, head_header(head, wish), DEMO_ACCEPTANCE)
    header = read_header(target)
    option = option_of_file(header, reference=reference, label=reference, catalog=catalog, draft=draft)
    return as_wished(option, wish)


def _sketched(reference: str, size: DemoSize, target: Path, head: Path) -> OnDisk:
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
        acceptance=DEMO_ACCEPTANCE,
    )

"""Choose quantization and draft for this machine if a catalogue entry was named without a quantization."""

from __future__ import annotations

from dataclasses import dataclass, replace

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.catalog.reference import Profile, parse_reference
from eaglelocal.cli.plan import options_for, planned
from eaglelocal.errors import UsageError

GOAL = "balanced"


@dataclass(frozen=True, slots=True)
class ChosenBuild:
    """The planner's choice. `draft`: a catalogue id, or `none` for a lookup or no draft; `problem`: why none fits."""

    quant: str | None = None
    draft: str = "none"
    problem: str = ""


def planned_for_here(target: str, *, draft: str = "auto") -> ChosenBuild | None:
    """Plan a catalogue entry with the settings that `chat` will have; no draft if `draft` or they say none.

    None if the target is no catalogue entry, or has a quantization: then there is nothing to choose.
    Raises UsageError with the nearest name if the catalogue has no such entry.
    """
    parsed = parse_reference(target)
    if not isinstance(parsed, Profile) or parsed.quant:
        return None
    catalog = load_catalog()
    catalog.target(parsed.id)
    options = options_for(target, {}, goal=GOAL, is_elsewhere=False)
    wanted = "none" if "none" in (draft, options.draft) else "auto"
    try:
        outcome = planned(replace(options, draft=wanted), None)
    except UsageError as problem:  # e.g. the settings name a missing GPU: the model can be fetched all the same
        return ChosenBuild(problem=problem.message)
    if outcome.chosen is None:
        reason = outcome.rejected[0].reason if outcome.rejected else "nothing of it is known to fit"
        return ChosenBuild(problem=reason)
    way = outcome.chosen.way
    return ChosenBuild(way.option.quant, way.draft.id if way.draft.id in catalog.drafts and way.draft.shape else "none")

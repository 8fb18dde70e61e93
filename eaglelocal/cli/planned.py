"""What the planner would take of a catalogue entry for this machine, where a person named only the entry."""

from __future__ import annotations

from dataclasses import dataclass, replace

from eaglelocal.catalog.catalog import load
from eaglelocal.catalog.reference import Profile, parse_reference
from eaglelocal.cli.plan import options_for, planned
from eaglelocal.errors import UsageError

GOAL = "balanced"


@dataclass(frozen=True, slots=True)
class Planned:
    """`draft`: an id of the catalogue; none where a lookup does, or nothing. `problem`: why nothing was chosen."""

    quant: str | None = None
    draft: str = "none"
    problem: str = ""


def planned_for_here(target: str, *, draft: str = "auto") -> Planned | None:
    """None where the target is no catalogue entry without a quantization: then there is nothing to choose.

    Planned with the settings that `chat` will have, and without a draft where none is wanted.
    Raises UsageError with the nearest name where the catalogue has no such entry.
    """
    parsed = parse_reference(target)
    if not isinstance(parsed, Profile) or parsed.quant:
        return None
    catalog = load()
    catalog.target(parsed.id)
    options = options_for(target, {}, goal=GOAL, is_elsewhere=False)
    wanted = "none" if "none" in (draft, options.draft) else "auto"
    try:
        outcome = planned(replace(options, draft=wanted), None)
    except UsageError as problem:  # a GPU in the settings that is not here: no reason to fetch nothing
        return Planned(problem=problem.message)
    if outcome.chosen is None:
        reason = outcome.rejected[0].reason if outcome.rejected else "nothing of it is known to fit"
        return Planned(problem=reason)
    way = outcome.chosen.way
    return Planned(way.option.quant, way.draft.id if way.draft.id in catalog.drafts and way.draft.shape else "none")

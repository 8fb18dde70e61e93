"""What the planner would take of a catalogue entry for this machine, where a person named only the entry."""

from __future__ import annotations

from dataclasses import dataclass

from eaglelocal.catalog.reference import Profile, parse_reference

GOAL = "balanced"


@dataclass(frozen=True, slots=True)
class Planned:
    """`draft`: an id of the catalogue; none where a lookup does, or nothing. `problem`: why nothing was chosen."""

    quant: str | None = None
    draft: str = "none"
    problem: str = ""


def planned_for_here(target: str) -> Planned | None:
    """None where the target is no catalogue entry without a quantization: then there is nothing to choose.

    Raises UsageError with the nearest name where the catalogue has no such entry.
    """
    parsed = parse_reference(target)
    if not isinstance(parsed, Profile) or parsed.quant:
        return None
    from eaglelocal.catalog.catalog import load
    from eaglelocal.planner.asked import Asked
    from eaglelocal.planner.goals import GOALS
    from eaglelocal.planner.machine import rig_of
    from eaglelocal.planner.options import options_of
    from eaglelocal.planner.plan import plan
    from eaglelocal.probe.probe import probe

    catalog = load()
    options = tuple(options_of(catalog.target(parsed.id), catalog))
    outcome = plan(options, rig_of(probe(), catalog.machines), Asked(goal=GOALS[GOAL]))
    if outcome.chosen is None:
        reason = outcome.rejected[0].reason if outcome.rejected else "nothing of it is known to fit"
        return Planned(problem=reason)
    way = outcome.chosen.way
    return Planned(way.option.quant, way.draft.id if way.draft.kind in ("eagle3", "draft_model") else "none")

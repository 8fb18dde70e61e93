"""Choose the quantization and the draft for this machine, for a catalog entry that was named without them."""

from __future__ import annotations

from dataclasses import replace

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.catalog.reference import Profile, parse_reference
from eaglelocal.cli.plan import options_for
from eaglelocal.core.records import dataclass
from eaglelocal.errors import UsageError
from eaglelocal.planning.plan_models import plan_models

GOAL = "balanced"


@dataclass(frozen=True, slots=True)
class ChosenBuild:
    """The planner's choice. `draft`: a catalog id, or `none` for a lookup or no draft; `problem`: why none fits."""

    quant: str | None = None
    draft: str = "none"
    problem: str = ""


def choose_build(target: str, *, draft: str = "auto") -> ChosenBuild | None:
    """Plan a catalog entry with the settings that `chat` will have; no draft if `draft` or the settings say none.

    Returns None if the target is no catalog entry, or has a quantization: then there is nothing to choose.
    Raises UsageError with the closest name if the catalog has no such entry.
    """
    parsed = parse_reference(target)
    if not isinstance(parsed, Profile) or parsed.quant:
        return None
    catalog = load_catalog()
    catalog.target(parsed.id, parsed.quant)
    options = options_for(target, {}, goal=GOAL, is_elsewhere=False)
    drafts = "none" if "none" in (draft, options.draft) else "auto"
    try:
        outcome = plan_models(replace(options, draft=drafts))
    except UsageError as error:  # e.g. the settings name a missing GPU: the model can be fetched all the same
        return ChosenBuild(problem=error.message)
    if outcome.chosen is None:
        reason = outcome.rejected[0].reason if outcome.rejected else "nothing of it is known to fit"
        return ChosenBuild(problem=reason)
    best = outcome.chosen.candidate
    is_known = best.draft.id in catalog.drafts and best.draft.shape is not None
    return ChosenBuild(best.option.quant, best.draft.id if is_known else "none")

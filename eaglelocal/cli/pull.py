"""`eaglelocal pull`: fetch a model and its draft after one question, check them, and say how to run them.

The files are chosen first, from the hub's listings; nothing is fetched before they are shown and confirmed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from eaglelocal.catalog.reference import DEMO, Profile, parse_reference
from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_target
from eaglelocal.cli.flags import argument, flag
from eaglelocal.cli.output import standard_output
from eaglelocal.cli.plan import options_for
from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import AUTO, NGRAM, NONE, parse_draft
from eaglelocal.errors import UsageError

if TYPE_CHECKING:
    from eaglelocal.hub.pull_plan import PullPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PullFlags:
    """The argument and flags of `pull`."""

    target: str = argument("TARGET", "Model: qwen3-8b, qwen3-8b:Q5_K_M, user/repo:Q4_K_M.", complete_target)
    draft: str = flag(AUTO, "REF|auto|mtp|none", "Draft: user/repo; auto: as in the catalog.")
    mmproj: str = flag(AUTO, "NAME|auto|none", "Projector for images, from the same repository.")
    quant: str | None = flag(None, "Q", "Quantization, such as Q4_K_M or Q8_0.")
    verify: bool = flag(False, "", "Check the hashes of files on disk; fetch damaged ones again.")
    yes: flags.Yes = False


@flags.takes()
def pull(given: PullFlags) -> None:
    """Download a model, its draft and its projector for images.

    \b
    eaglelocal pull qwen3-8b
    eaglelocal pull user/repo-GGUF:Q4_K_M --draft none
    eaglelocal pull qwen3-8b --quant Q5_K_M --yes
    eaglelocal pull qwen3-8b --verify
    """
    from eaglelocal.hub.client_settings import prepare_client

    output = standard_output()
    plan = plan_here(given.target, given.draft, given.quant, output)
    if plan is None:
        return output.message(f"{DEMO} is embedded: there is nothing to download")
    prepare_client()
    from eaglelocal.cli.pull_files import check_files, discard_damaged, fetch_all, look_up_orders, verify_on_disk

    orders = look_up_orders(plan, given.mmproj, output)
    if not orders:
        return verify_on_disk(plan, output) if given.verify else None
    is_agreed = given.verify and discard_damaged(orders, output, yes=given.yes)
    fetch_all(orders, output, yes=given.yes or is_agreed, is_verified=given.verify)
    return check_files(plan, orders, output)


def pull_for_chat(target: str, output: MessageOutput) -> None:
    """Fetch a model and its draft without a question, and check them. Raises DownloadError, or as `pull`."""
    from eaglelocal.hub.client_settings import prepare_client

    plan = plan_here(target, AUTO, None, output)
    if plan is None:
        return
    prepare_client()
    from eaglelocal.cli.pull_files import check_model, fetch_files, look_up_orders

    orders = look_up_orders(plan, AUTO, output)
    if orders:
        fetch_files(orders, output)
        check_model(plan, orders, output)


def plan_here(target: str, draft: str, quant: str | None, output: MessageOutput) -> PullPlan | None:
    """Return what to fetch; for a catalog entry the planner fills in quantization and draft if they are open.

    draft  as --draft, of which only a model is fetched

    None for the embedded model. Raises UsageError.
    """
    from eaglelocal.hub.pull_plan import plan_pull

    model = parse_draft(draft).model
    draft = NONE if model == NGRAM else model
    planned = choose_build(target, draft=draft) if quant is None else None
    if planned is None:
        return plan_pull(target, draft=draft, quant=quant)
    if planned.problem:
        output.message(f"{target} does not fit this machine: {planned.problem}")
        return plan_pull(target, draft=draft)
    output.message(f"planned for this machine: {target}:{planned.quant}; `eaglelocal plan {target}` shows why")
    plan = plan_pull(target, draft=planned.draft if draft == AUTO else draft, quant=planned.quant)
    is_named = draft not in (AUTO, NONE)
    return plan if plan is None else replace(plan, quant_is_asked_for=False, draft_is_asked_for=is_named)


@dataclass(frozen=True, slots=True)
class ChosenBuild:
    """The planner's choice. `problem`: why none fits.

    draft  a catalog id; auto: a part of the target; none: a lookup or no draft
    """

    quant: str | None = None
    draft: str = NONE
    problem: str = ""


def choose_build(target: str, *, draft: str = AUTO) -> ChosenBuild | None:
    """Plan a catalog entry with the settings that `chat` will have; no draft if `draft` or the settings say none.

    Returns None if the target is no catalog entry, or has a quantization: then there is nothing to choose.
    Raises UsageError with the closest name if the catalog has no such entry.
    """
    from eaglelocal.catalog.catalog import load_catalog
    from eaglelocal.preparation.autoplan import plan_target

    parsed = parse_reference(target)
    if not isinstance(parsed, Profile) or parsed.quant:
        return None
    catalog = load_catalog()
    catalog.target(parsed.id, parsed.quant)
    options = options_for(target, {}, goal="balanced", is_elsewhere=False)
    try:
        outcome = plan_target(replace(options, draft=NONE if NONE in (draft, options.draft) else AUTO))
    except UsageError as error:  # e.g. the settings name a missing GPU: the model can be fetched all the same
        return ChosenBuild(problem=error.message)
    if outcome.chosen is None:
        reason = outcome.rejected[0].reason if outcome.rejected else "nothing of it is known to fit"
        return ChosenBuild(problem=reason)
    best = outcome.chosen
    entry = catalog.drafts.get(best.draft.id) if best.draft.shape is not None else None
    if entry is None:
        return ChosenBuild(best.option.quant)
    return ChosenBuild(best.option.quant, AUTO if entry.is_in_target else best.draft.id)

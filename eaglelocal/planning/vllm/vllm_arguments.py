"""Write the arguments of `vllm serve` of a planned pair, as a list and as a command line. Pure."""

from __future__ import annotations

import json
import shlex

from eaglelocal.core.records import dataclass
from eaglelocal.planning.vllm.draft_schedule import Range, make_batch_costs, make_schedule
from eaglelocal.planning.vllm.served_pair import DFLASH, SUFFIX, ServedPair
from eaglelocal.planning.vllm.speculative_config import SUFFIX_TOKENS, make_speculative_config
from eaglelocal.planning.vllm.vllm_memory import ServingFit

VLLM_VERSION = "0.32.0"  # whose fields these are
CONTINUED = " \\\n  "  # between the lines of a shell command


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPlan:
    """Values that every export writes. `schedule`: empty without drafts."""

    pair: ServedPair
    fit: ServingFit
    schedule: tuple[Range, ...]
    notes: tuple[str, ...]

    @property
    def speculative_config(self) -> dict[str, object] | None:
        if self.pair.draft is None or not self.schedule:
            return None
        return make_speculative_config(self.pair.draft, self.schedule, self.fit.num_cards)


def plan_vllm(pair: ServedPair, fit: ServingFit) -> VllmPlan:
    """Return the plan of a pair that fits: the draft lengths, and notes on what they rest on."""
    draft = pair.draft
    if draft is None:
        return VllmPlan(pair=pair, fit=fit, schedule=(), notes=pair.notes)
    if draft.method == SUFFIX:
        schedule: tuple[Range, ...] = ((1, fit.max_num_seqs, SUFFIX_TOKENS),)
        return VllmPlan(pair=pair, fit=fit, schedule=schedule, notes=(*pair.notes, "suffix needs arctic-inference"))
    schedule = make_schedule(make_batch_costs(pair.target, draft, fit.device), fit.max_num_seqs)
    if schedule[0][2]:
        return VllmPlan(pair=pair, fit=fit, schedule=schedule, notes=pair.notes)
    if pair.is_named:
        note = f"{draft.id} is not predicted to pay here, but it was named: one token each"
        return VllmPlan(pair=pair, fit=fit, schedule=((1, fit.max_num_seqs, 1),), notes=(*pair.notes, note))
    return VllmPlan(pair=pair, fit=fit, schedule=(), notes=(*pair.notes, f"{draft.id} is not predicted to pay here"))


def list_arguments(plan: VllmPlan) -> list[str]:
    """Return the arguments after `vllm serve`."""
    return [plan.pair.target.pin.repo, *list_pins(plan), *list_sizes(plan), *list_extra_arguments(plan)]


def list_pins(plan: VllmPlan) -> list[str]:
    """Return the commit of target and tokenizer; of a folder none."""
    revision = plan.pair.target.pin.revision
    return ["--revision", revision, "--tokenizer-revision", revision] if revision else []


def list_sizes(plan: VllmPlan) -> list[str]:
    fit = plan.fit
    share = ["--gpu-memory-utilization", f"{fit.utilization:.2f}"] if fit.num_cards else []
    cards = ["--tensor-parallel-size", str(fit.num_cards)] if fit.num_cards > 1 else []
    return ["--max-model-len", str(fit.n_ctx), "--max-num-seqs", str(fit.max_num_seqs), *share, *cards]


def list_extra_arguments(plan: VllmPlan) -> list[str]:
    """Return the arguments for which the Helm chart has no key."""
    config = plan.speculative_config
    if config is None:
        return []
    drafting = ["--speculative-config", json.dumps(config, separators=(",", ":"))]
    is_block = plan.pair.draft is not None and plan.pair.draft.method == DFLASH
    return [*drafting, *(["--attention-backend", "flash_attn"] if is_block and plan.fit.num_cards else [])]


def make_command(plan: VllmPlan) -> str:
    """Return a command for a shell, with each flag on a line of its own."""
    before = [] if plan.fit.num_cards else [f"VLLM_CPU_KVCACHE_SPACE={plan.fit.cache_gib}"]  # GiB
    target, *arguments = list_arguments(plan)
    lines = [" ".join([*before, "vllm serve", shlex.quote(target)])]
    for word in arguments:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return CONTINUED.join(lines)

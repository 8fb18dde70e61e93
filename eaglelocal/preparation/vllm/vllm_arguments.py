"""Write the arguments of `vllm serve` of a planned pair, as a list and as a command line. Pure."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from eaglelocal.core.records import dataclass
from eaglelocal.preparation.vllm.served_pair import (
    DFLASH,
    SUFFIX,
    SUFFIX_TOKENS,
    Range,
    ServedPair,
    make_batch_costs,
    make_schedule,
    make_speculative_config,
)
from eaglelocal.preparation.vllm.vllm_memory import ServingFit

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


# ---- compose file: write a compose file that serves a planned pair with vLLM's own image. Pure
IMAGE, TAG = "vllm/vllm-openai", f"v{VLLM_VERSION}"
PORT = 8000
HEADS = "/heads"  # of heads of this machine, in the container


def make_compose_file(plan: VllmPlan, head_folder: Path | None = None) -> dict[str, object]:
    """Return the compose file. `head_folder`: of an exported head on the host, mounted where the plan names it."""
    draft = plan.pair.draft
    volumes: list[object] = ["models:/root/.cache/huggingface"]
    if head_folder is not None and draft is not None and draft.pin is not None:
        volumes.append(make_mount(head_folder, draft.pin.repo))
    part = plan.fit.slice
    cards = (
        {"device_ids": ["${MIG_DEVICE:?the UUID of a slice of " + part.name + "}"]}
        if part
        else {"count": plan.fit.num_cards}
    )
    service = {
        "image": f"{IMAGE}:{TAG}",
        "command": [_escape(word) for word in list_arguments(plan)],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}"},
        "ports": [f"127.0.0.1:{PORT}:{PORT}"],
        "volumes": volumes,
        "ipc": "host",
        "restart": "unless-stopped",
        "healthcheck": {
            "test": ["CMD", "curl", "-fsS", f"http://127.0.0.1:{PORT}/health"],
            "interval": "30s",
            "timeout": "5s",
            "retries": 3,
            "start_period": "30m",
        },
        "deploy": {
            "resources": {"reservations": {"devices": [{"driver": "nvidia", **cards, "capabilities": ["gpu"]}]}}
        },
    }
    return {"services": {"vllm": service}, "volumes": {"models": {}}}


def make_mount(folder: Path, place: str) -> dict[str, object]:
    """Return the mount of a folder of the host in compose's long form: the short one is cut at each colon of a path."""
    return {"type": "bind", "source": _escape(str(folder)), "target": _escape(place), "read_only": True}


def _escape(text: str) -> str:
    """Double each `$`, which compose would take for a variable."""
    return text.replace("$", "$$")

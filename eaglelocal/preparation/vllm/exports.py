"""Write what starts vLLM with a planned pair, and check Helm values: a command, a compose file, or values. Pure.

Values are for vLLM's production-stack. Target and draft stand in one entry of `modelSpec`, so one commit changes both.
The annotation PAIR is a digest of both pins; values in which one was changed without the other are refused. The
annotation TARGET says for which target of the catalog the draft was chosen.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from eaglelocal.catalog.catalog import Catalog
from eaglelocal.core.amounts import GIB
from eaglelocal.core.json_text import read_object
from eaglelocal.core.records import dataclass
from eaglelocal.hub.hub_api import is_commit
from eaglelocal.preparation.vllm.served_pair import (
    DFLASH,
    DRAFT_MODEL,
    DSPARK,
    EAGLE3,
    METHODS,
    NGRAM,
    PEAGLE,
    SUFFIX,
    Range,
    ServedPair,
    ServingFit,
    VllmDraft,
    make_batch_costs,
    make_schedule,
)

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
    """Return the plan of a pair that fits: the draft lengths, and notes on their evidence."""
    draft, schedule, notes = pair.draft, tuple[Range, ...](), pair.notes
    if draft is not None and draft.method == SUFFIX:
        schedule, notes = ((1, fit.max_num_seqs, SUFFIX_TOKENS),), (*notes, "suffix needs arctic-inference")
    elif draft is not None:
        schedule = make_schedule(make_batch_costs(pair.target, draft, fit.device), fit.max_num_seqs)
        note = f"{draft.id} is not predicted to pay here"
        if not schedule[0][2] and pair.is_named:
            schedule, notes = ((1, fit.max_num_seqs, 1),), (*notes, f"{note}, but it was named: one token each")
        elif not schedule[0][2]:
            schedule, notes = (), (*notes, note)
    return VllmPlan(pair=pair, fit=fit, schedule=schedule, notes=notes)


def list_arguments(plan: VllmPlan) -> list[str]:
    """Return the arguments after `vllm serve`."""
    fit = plan.fit
    share = ["--gpu-memory-utilization", f"{fit.utilization:.2f}"] if fit.num_cards else []
    cards = ["--tensor-parallel-size", str(fit.num_cards)] if fit.num_cards > 1 else []
    sizes = ["--max-model-len", str(fit.n_ctx), "--max-num-seqs", str(fit.max_num_seqs), *share, *cards]
    return [plan.pair.target.pin.repo, *list_pins(plan), *sizes, *list_extra_arguments(plan)]


def list_pins(plan: VllmPlan) -> list[str]:
    """Return the commit of target and tokenizer; of a folder none."""
    revision = plan.pair.target.pin.revision
    return ["--revision", revision, "--tokenizer-revision", revision] if revision else []


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


# ---- speculative config: write the value of --speculative-config as vLLM 0.32 reads it. Pure
#
# The method is always stated: vLLM guesses a missing one from the name of the folder, and may fail at the first
# request. What a head needs besides (EAGLE-3.1's flags, mask tokens) vLLM reads from the head's own configuration.
SCHEDULE = "num_speculative_tokens_per_batch_size"
SUFFIX_TOKENS = 32  # the longest draft of a suffix tree, vLLM's own default
METHOD_KEYS: Mapping[str, Mapping[str, object]] = {  # besides model, revision and lengths
    PEAGLE: {"parallel_drafting": True},
    NGRAM: {"prompt_lookup_min": 2, "prompt_lookup_max": 5},
    SUFFIX: {
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_cached_requests": 10000,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
    },
    DSPARK: {"draft_sample_method": "probabilistic", "enable_adaptive_verification": True},
}


def make_speculative_config(draft: VllmDraft, schedule: Sequence[Range], num_cards: int) -> dict[str, object]:
    """Return the configuration of a draft.

    schedule   draft lengths by number of sequences; the longest is the draft's
    num_cards  of the target: a draft model is split over as many, a head lies on one
    """
    config: dict[str, object] = {"method": EAGLE3 if draft.method == PEAGLE else draft.method}
    if draft.pin is not None:
        config["model"] = draft.pin.repo
        if draft.pin.revision:
            config["revision"] = draft.pin.revision
        if num_cards > 1:
            config["draft_tensor_parallel_size"] = num_cards if draft.method == DRAFT_MODEL else 1
    if not draft.shares_vocab:  # vLLM refuses a model with another size unless it may map the tokens
        config["use_heterogeneous_vocab"] = True
    config["num_speculative_tokens"] = max(length for _, _, length in schedule)
    if draft.method not in (SUFFIX, DSPARK):  # those choose the length of each draft themselves
        config[SCHEDULE] = [list(each) for each in schedule]
    return {**config, **METHOD_KEYS.get(draft.method, {})}


# ---- compose file: write a compose file that serves a planned pair with vLLM's own image. Pure
IMAGE, TAG = "vllm/vllm-openai", f"v{VLLM_VERSION}"
PORT = 8000
HEADS = "/heads"  # of heads of this machine, in the container


def make_compose_file(plan: VllmPlan, head_folder: Path | None = None) -> dict[str, object]:
    """Return the compose file. `head_folder`: of an exported head on the host, mounted where the plan names it."""
    draft = plan.pair.draft
    volumes: list[object] = ["models:/root/.cache/huggingface"]
    if head_folder is not None and draft is not None and draft.pin is not None:
        place = {"source": _escape(str(head_folder)), "target": _escape(draft.pin.repo)}
        volumes.append({"type": "bind", **place, "read_only": True})  # the short form is cut at each colon of a path
    cards: dict[str, object] = {"count": plan.fit.num_cards}
    if plan.fit.slice:
        cards = {"device_ids": ["${MIG_DEVICE:?the UUID of a slice of " + plan.fit.slice + "}"]}
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


def _escape(text: str) -> str:
    """Double each `$`, which compose would take for a variable."""
    return text.replace("$", "$$")


# ---- helm values
PAIR = "eaglelocal/pair"
TARGET = "eaglelocal/target"  # the catalog's id, which a mirror's name does not say
QUEUE = "kueue.x-k8s.io/queue-name"
HOST_GIB = 8  # of RAM beside a copy of the weights while they are loaded. Assumed
NUM_CPUS = 4


def make_helm_values(plan: VllmPlan, queue: str) -> dict[str, object]:
    """Return the values. `queue`: the name of the Kueue queue that admits the pods."""
    return {"servingEngineSpec": {"modelSpec": [make_model_spec(plan, queue)]}}


def make_model_spec(plan: VllmPlan, queue: str) -> dict[str, object]:
    """Return the entry of `modelSpec` for the pair."""
    target, fit, draft = plan.pair.target, plan.fit, plan.pair.draft
    pins = [target.pin.repo, target.pin.revision]
    if plan.speculative_config is not None and draft is not None and draft.pin is not None:
        pins += [draft.pin.repo, draft.pin.revision]
    weights_gib = math.ceil((fit.weights_bytes + fit.draft_bytes) / GIB)
    is_gated = target.is_gated or (draft is not None and draft.is_gated)
    secret = {"hf_token": {"secretName": "huggingface", "secretKey": "token"}} if is_gated else {}
    return {
        "name": make_name(target.id),
        "repository": IMAGE,
        "tag": TAG,
        "modelURL": target.pin.repo,
        "modelRevision": target.pin.revision,
        "replicaCount": 1,
        "requestCPU": NUM_CPUS,
        "requestMemory": f"{weights_gib + HOST_GIB}Gi",
        "requestGPU": fit.num_cards,
        **({"requestGPUType": f"nvidia.com/mig-{fit.slice}"} if fit.slice else {}),
        "pvcStorage": f"{math.ceil(weights_gib * 1.2) + 2}Gi",
        "labels": {QUEUE: queue},
        "podLabels": {QUEUE: queue},
        "podAnnotations": {PAIR: digest_pins(pins), TARGET: target.id},
        **secret,
        "vllmConfig": {
            "enablePrefixCaching": True,  # the chart switches it off where it is not stated
            "maxModelLen": fit.n_ctx,
            "maxNumSeqs": fit.max_num_seqs,
            "tensorParallelSize": fit.num_cards,
            "gpuMemoryUtilization": fit.utilization,
            # some versions of the chart ignore modelRevision, so the commit stands here too
            "extraArgs": [*list_pins(plan), *list_extra_arguments(plan)],
        },
    }


def make_name(id: str) -> str:
    """Return the name of a deployment: lower case, digits and dashes, as Kubernetes wants it."""
    return re.sub(r"[^a-z0-9]+", "-", id.lower()).strip("-")[:40].strip("-") or "model"


def digest_pins(pins: list[str]) -> str:
    """Return a digest of repositories and commits of target and draft, in this order."""
    return hashlib.sha256("\n".join(pins).encode()).hexdigest()[:16]


# ---- helm check: check Helm values for vLLM's production-stack: pins, whether target and draft belong together, and
# old flags. Pure
#
# Values come from outside, so no value is trusted to have a type.
OLD_FLAGS = (
    *("--speculative-model", "--num-speculative-tokens", "--speculative-disable-by-batch-size"),
    *("--speculative-draft-tensor-parallel-size", "--speculative-max-model-len", "--speculative-model-quantization"),
    *("--ngram-prompt-lookup-max", "--ngram-prompt-lookup-min", "--spec-decoding-acceptance-method"),
    *("--use-v2-block-manager", "--typical-acceptance-sampler-posterior-threshold"),
)
SPECULATIVE = "--speculative-config"
REVISION_FLAGS = ("--revision", "--tokenizer-revision")  # with modelRevision's commit; some charts ignore that one
REFUSED_FLAGS = ("--model", "--tokenizer", "--hf-config-path", "--code-revision")
SHORT_FLAGS = {"-sc": SPECULATIVE}
OLD_KEYS = ("disable_by_batch_size", "speculative_disable_by_batch_size", "acceptance_method", "disable_logprobs")
VLLM_METHODS = (*METHODS, "ngram_gpu")


def list_problems(values: object, catalog: Catalog) -> Iterator[str]:
    """Yield the problems of the values, each with the name of its model."""
    specs = get_field(values, "servingEngineSpec", "modelSpec")
    if not isinstance(specs, Sequence) or isinstance(specs, str) or not specs:
        yield "servingEngineSpec.modelSpec has no model"
        return
    for number, spec in enumerate(specs):
        name = get_field(spec, "name")
        label = name if isinstance(name, str) else f"modelSpec[{number}]"
        yield from (f"{label}: {problem}" for problem in list_spec_problems(spec, catalog))


def list_spec_problems(spec: object, catalog: Catalog) -> Iterator[str]:
    """Yield the problems of one entry of modelSpec."""
    target, revision = get_field(spec, "modelURL"), get_field(spec, "modelRevision")
    if not isinstance(target, str) or not target:
        yield "modelURL is missing"
        return
    if not isinstance(revision, str) or not is_commit(revision):
        yield f"modelRevision must be a commit of {target}, not {revision!r}"
    words = get_field(spec, "vllmConfig", "extraArgs")
    if words is not None and not isinstance(words, list):
        yield f"extraArgs must be a list, not {type(words).__name__}"
    arguments = [str(word) for word in words] if isinstance(words, list) else []
    yield from _list_flag_problems(arguments)
    for flag in REVISION_FLAGS:
        if (found := _find_value(arguments, flag)) != revision:
            what = f"is {found}" if found is not None else "is missing in extraArgs"
            yield f"{flag} {what}, modelRevision {revision}"
    pins, text = [target, str(revision)], _find_value(arguments, SPECULATIVE)
    if text is not None:
        try:
            config = read_object(text)
        except ValueError:
            yield "--speculative-config is not a JSON object"
            return
        yield from _list_config_problems(config, target, get_field(spec, "podAnnotations", TARGET), catalog)
        if isinstance(config.get("model"), str):
            pins += [str(config["model"]), str(config.get("revision"))]
    stated = get_field(spec, "podAnnotations", PAIR)
    if stated != digest_pins(pins):
        what = "is missing" if stated is None else "is of other pins: target or draft was changed alone"
        yield f"the annotation {PAIR} {what}"


def _list_flag_problems(arguments: Sequence[str]) -> Iterator[str]:
    """Yield flags of an old vLLM, and flags of which vLLM would take another value than is checked here."""
    for flag in filter(OLD_FLAGS.__contains__, map(_normalize, arguments)):
        yield f"{flag} is of an old vLLM; --speculative-config has replaced it"
    names = [_normalize(word) for word in arguments if word.startswith("-")]
    for name in dict.fromkeys(names):
        flag = SHORT_FLAGS.get(name, name)
        if flag in REFUSED_FLAGS:
            yield f"{name} sets another model than modelURL"
        elif name in SHORT_FLAGS:
            yield f"{name} must be written {flag}"
        elif flag.partition(".")[0] == SPECULATIVE and flag != SPECULATIVE:
            yield f"{name} changes a part of {SPECULATIVE}, which must be written whole"
        elif flag in (SPECULATIVE, *REVISION_FLAGS) and names.count(name) > 1:
            yield f"{name} is given more than once"


def _normalize(word: str) -> str:
    return word.partition("=")[0].replace("_", "-")


def _list_config_problems(
    config: Mapping[str, object], target: str, target_id: object, catalog: Catalog
) -> Iterator[str]:
    for key in OLD_KEYS:
        if key in config:
            yield f"{key} is of an old vLLM; {SCHEDULE} has replaced it"
    method, model = config.get("method"), config.get("model")
    if method not in VLLM_METHODS:
        yield f"method must be one of {', '.join(VLLM_METHODS)}, not {method!r}"
    if isinstance(model, str):
        if not is_commit(str(config.get("revision"))):
            yield f"revision must be a commit of {model}, not {config.get('revision')!r}"
        yield from _list_pair_problems(model, target, target_id, catalog)
    elif method not in ("ngram", "ngram_gpu", "suffix", "mtp"):
        yield f"the method {method} needs a model"
    yield from _list_schedule_problems(config)


def _list_pair_problems(draft: str, target: str, target_id: object, catalog: Catalog) -> Iterator[str]:
    """Yield that the catalog knows the draft as one of other targets.

    target_id  the annotation: of a mirror, whose name the catalog does not know, only this says what it is
    """
    stated = catalog.targets.get(target_id) if isinstance(target_id, str) else None
    of_repo = [one for one in catalog.targets.values() if one.source_repo == target]
    if stated is not None and of_repo and stated not in of_repo:
        yield f"the annotation {TARGET} is {target_id}, but {target} is {of_repo[0].id}"
    entries = [entry for entry in catalog.drafts.values() if entry.weights_repo == draft]
    served = [each for each in catalog.targets.values() if any(entry.serves(each.id) for entry in entries)]
    known = sorted({each.source_repo for each in served if each.source_repo})
    is_served = target in known or (not of_repo and stated in served)
    if known and not is_served:
        yield f"{draft} drafts for {', '.join(known)}, not for {target}"


def _list_schedule_problems(config: Mapping[str, object]) -> Iterator[str]:
    most, schedule = config.get("num_speculative_tokens"), config.get(SCHEDULE)
    if not isinstance(most, int) or most < 1:
        yield f"num_speculative_tokens must be at least 1, not {most!r}"
        return
    if schedule is None:
        return
    if not isinstance(schedule, list) or not schedule or not all(_is_range(each) for each in schedule):
        yield f"{SCHEDULE} must be a list of [first, last, tokens]"
        return
    if schedule[0][0] != 1 or any(after[0] != before[1] + 1 for before, after in pairwise(schedule)):
        yield f"{SCHEDULE} must begin at 1 and leave no gap"
    if max(each[2] for each in schedule) > most:
        yield f"{SCHEDULE} has more than num_speculative_tokens, {most}"


def _is_range(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 3 or not all(type(part) is int for part in value):
        return False
    return bool(1 <= value[0] <= value[1] and value[2] >= 0)


def _find_value(arguments: Sequence[str], flag: str) -> str | None:
    """Return the value of a flag, `FLAG VALUE` or `FLAG=VALUE`; None if it is not there."""
    for number, word in enumerate(arguments):
        _, equals, value = word.partition("=")
        if _normalize(word) == flag:
            return value if equals else next(iter(arguments[number + 1 : number + 2]), "")
    return None


def get_field(value: object, *keys: str) -> object:
    """Return what these keys lead to in nested mappings; None if there is nothing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value

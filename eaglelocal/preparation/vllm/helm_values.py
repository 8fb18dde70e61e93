"""Write Helm values for vLLM's production-stack that serve a planned pair. Pure.

Target and draft stand in one entry of `modelSpec`, so one commit changes both. The annotation PAIR is a digest of both
pins; helm_values.py refuses values in which one was changed without the other. The annotation TARGET says for which
target of the catalog the draft was chosen.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from eaglelocal.catalog.catalog import Catalog
from eaglelocal.core.byte_sizes import GIB
from eaglelocal.core.json_text import read_json
from eaglelocal.hub.hub_api import is_commit
from eaglelocal.preparation.vllm.served_pair import METHODS, SCHEDULE
from eaglelocal.preparation.vllm.vllm_arguments import IMAGE, TAG, VllmPlan, list_extra_arguments, list_pins

PAIR = "eaglelocal/pair"
TARGET = "eaglelocal/target"  # the catalog's id, which a mirror's name does not say
QUEUE = "kueue.x-k8s.io/queue-name"
HOST_GIB = 8  # of RAM beside a copy of the weights while they are loaded. Assumed
NUM_CPUS = 4


def make_helm_values(plan: VllmPlan, queue: str) -> dict[str, object]:
    """Return the values. `queue`: the name of the Kueue queue that admits the pods."""
    target, fit, draft = plan.pair.target, plan.fit, plan.pair.draft
    pins = [target.pin.repo, target.pin.revision]
    if plan.speculative_config is not None and draft is not None and draft.pin is not None:
        pins += [draft.pin.repo, draft.pin.revision]
    weights_gib = math.ceil((fit.weights_bytes + fit.draft_bytes) / GIB)
    secret = {"hf_token": {"secretName": "huggingface", "secretKey": "token"}} if _is_gated(plan) else {}
    spec = {
        "name": make_name(target.id),
        "repository": IMAGE,
        "tag": TAG,
        "modelURL": target.pin.repo,
        "modelRevision": target.pin.revision,
        "replicaCount": 1,
        "requestCPU": NUM_CPUS,
        "requestMemory": f"{weights_gib + HOST_GIB}Gi",
        "requestGPU": fit.num_cards,
        **({"requestGPUType": f"nvidia.com/mig-{fit.slice.name}"} if fit.slice else {}),
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
    return {"servingEngineSpec": {"modelSpec": [spec]}}


def _is_gated(plan: VllmPlan) -> bool:
    return plan.pair.target.is_gated or (plan.pair.draft is not None and plan.pair.draft.is_gated)


def make_name(id: str) -> str:
    """Return the name of a deployment: lower case, digits and dashes, as Kubernetes wants it."""
    return re.sub(r"[^a-z0-9]+", "-", id.lower()).strip("-")[:40] or "model"


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
    specs = _get(values, "servingEngineSpec", "modelSpec")
    if not isinstance(specs, Sequence) or isinstance(specs, str) or not specs:
        yield "servingEngineSpec.modelSpec has no model"
        return
    for number, spec in enumerate(specs):
        name = _get(spec, "name")
        label = name if isinstance(name, str) else f"modelSpec[{number}]"
        yield from (f"{label}: {problem}" for problem in list_spec_problems(spec, catalog))


def list_spec_problems(spec: object, catalog: Catalog) -> Iterator[str]:
    """Yield the problems of one entry of modelSpec."""
    target, revision = _get(spec, "modelURL"), _get(spec, "modelRevision")
    if not isinstance(target, str) or not target:
        yield "modelURL is missing"
        return
    if not isinstance(revision, str) or not is_commit(revision):
        yield f"modelRevision must be a commit of {target}, not {revision!r}"
    words = _get(spec, "vllmConfig", "extraArgs")
    if words is not None and not isinstance(words, list):
        yield f"extraArgs must be a list, not {type(words).__name__}"
    arguments = [str(word) for word in words] if isinstance(words, list) else []
    yield from _list_old_flags(arguments)
    yield from _list_hidden_flags(arguments)
    for flag in REVISION_FLAGS:
        if (found := _find_value(arguments, flag)) != revision:
            what = f"is {found}" if found is not None else "is missing in extraArgs"
            yield f"{flag} {what}, modelRevision {revision}"
    pins, text = [target, str(revision)], _find_value(arguments, SPECULATIVE)
    if text is not None:
        config = _read_config(text)
        if config is None:
            yield "--speculative-config is not a JSON object"
            return
        yield from _list_config_problems(config, target, _get(spec, "podAnnotations", TARGET), catalog)
        if isinstance(config.get("model"), str):
            pins += [str(config["model"]), str(config.get("revision"))]
    stated = _get(spec, "podAnnotations", PAIR)
    if stated != digest_pins(pins):
        what = "is missing" if stated is None else "is of other pins: target or draft was changed alone"
        yield f"the annotation {PAIR} {what}"


def _list_old_flags(arguments: Sequence[str]) -> Iterator[str]:
    for word in arguments:
        flag = _normalize(word)
        if flag in OLD_FLAGS:
            yield f"{flag} is of an old vLLM; --speculative-config has replaced it"


def _list_hidden_flags(arguments: Sequence[str]) -> Iterator[str]:
    """Yield flags of which vLLM would take another value than is checked here."""
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


def _read_config(text: str) -> Mapping[str, object] | None:
    try:
        config = read_json(text)
    except ValueError:
        return None
    return config if isinstance(config, dict) else None


def _find_value(arguments: Sequence[str], flag: str) -> str | None:
    """Return the value of a flag, `FLAG VALUE` or `FLAG=VALUE`; None if it is not there."""
    for number, word in enumerate(arguments):
        _, equals, value = word.partition("=")
        if _normalize(word) == flag:
            return value if equals else next(iter(arguments[number + 1 : number + 2]), "")
    return None


def _get(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value

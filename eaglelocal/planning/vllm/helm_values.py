"""Write Helm values for vLLM's production-stack that serve a planned pair. Pure.

Target and draft stand in one entry of `modelSpec`, so one commit changes both. The annotation PAIR is a digest of both
pins; helm_check.py refuses values in which one was changed without the other. The annotation TARGET says for which
target of the catalog the draft was chosen.
"""

from __future__ import annotations

import hashlib
import math
import re

from eaglelocal.core.byte_sizes import GIB
from eaglelocal.planning.vllm.compose_file import IMAGE, TAG
from eaglelocal.planning.vllm.vllm_arguments import VllmPlan, list_extra_arguments, list_pins

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

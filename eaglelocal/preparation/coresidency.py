"""Plan several models of one server to fit into memory together if that costs little, and choose which to unload.

What a model needs is computed, not measured, because a loaded model's weights are mapped and count as free memory. They
count in full although the system could evict them: a model that is read from disk for each token is too slow to use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from eaglelocal.catalog.catalog import load_machines
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.plan import Plan
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.lora_adapter import read_adapter_tensors
from eaglelocal.gguf.model_shape import read_shape
from eaglelocal.gguf.projector import Projector
from eaglelocal.gguf.reader import read_header
from eaglelocal.memory.budget import RAM, Buffer, FreeMemory, MemoryKind, Needs, device_load, subtract_margins
from eaglelocal.memory.contexts import logits_bytes
from eaglelocal.memory.estimate import estimate
from eaglelocal.memory.placement import choose_gpus
from eaglelocal.preparation.autoplan import CTX_KEPT, costs_little, replan
from eaglelocal.preparation.decision import Decision, choose_ctx
from eaglelocal.preparation.machines import this_machine


# ---- before anything is loaded
def plan_together(
    first: Decision, others: Mapping[str, Decision], *, most: int | None = None
) -> tuple[Decision, dict[str, Decision]]:
    """Return the decisions for the first model and for the others; each was planned alone before.

    The first leaves room for as many others, smallest first, as it can at little cost. Each other is planned beside it,
    or alone if that would cost it much: then they are loaded in turn.

    most   the most models loaded at once; None: as many as fit
    """
    if not others:
        return first, {}
    free_memory = this_machine(load_machines()).free_memory
    least = {name: needs for name, other in others.items() if (needs := estimate_minimum_needs(other, free_memory))}
    chosen = first
    kept: dict[str, Needs] = {}  # the needs of others that fit beside the first
    for name, needs in sorted(least.items(), key=lambda item: sum(buffer.num_bytes for buffer in item[1])):
        if most is not None and len(kept) + 1 >= most:
            break
        if closer := replan_beside(first, [*chain(*kept.values()), *needs]):
            chosen, kept[name] = closer, needs
    held = chosen.needs or estimate_minimum_needs(first, free_memory)
    decisions = {}
    for name, alone in others.items():
        beside = list(chain(held, *(needs for other, needs in kept.items() if other != name)))
        closer = replan_beside(alone, beside) if beside and most != 1 else None
        decisions[name] = closer or alone
        if name in kept:
            kept[name] = decisions[name].needs or kept[name]
    return chosen, decisions


def replan_beside(alone: Decision, beside: Needs) -> Decision | None:
    """Return the decision with other models in memory; None if that costs the model more than little.

    Losing its projector is never little. Window caches stay as small as planned: memory that is free when the model is
    loaded is for the others.
    """
    closer = replan(alone, other_needs=beside)
    if closer.candidate is None or alone.candidate is None or closer.without_projector != alone.without_projector:
        return None
    if not costs_little(closer.candidate, alone.candidate):
        return None
    return closer if closer.candidate.setup.swa_full else dataclasses.replace(closer, swa_full=False)


def estimate_minimum_needs(decision: Decision, free_memory: Sequence[FreeMemory]) -> Needs:
    """Return the memory that a model needs to be of use; empty: unknown, as for the embedded model of any size.

    Raises UsageError where more context is asked for than the model was trained for.
    """
    files, options = decision.files, decision.options
    if files is None:
        return ()
    if files.task is not ModelTask.TEXT:
        n_ctx = choose_ctx(decision, files.target)
        return estimate_embedding_needs(files.target.header, n_ctx, free_memory, gpu_layers=options.gpu_layers)
    if decision.candidate is None or decision.candidate.setup.n_ctx <= CTX_KEPT or options.ctx is not None:
        return decision.needs
    return replan(dataclasses.replace(decision, options=dataclasses.replace(options, ctx=CTX_KEPT))).needs


# ---- while the server runs
class EvictionPolicy:
    """Chooses the models to unload for another, by memory and by the limit on their number.

    plans  by the reference of the model; made before anything is loaded, when all memory is free
    most   the most models loaded at once; None: as many as fit

    Raises as `estimate_needs`.
    """

    def __init__(self, plans: Mapping[str, Plan], *, most: int | None = None) -> None:
        self._most = most
        # with one model, nothing is ever unloaded for another
        free_memory = this_machine(load_machines()).free_memory if len(plans) > 1 else ()
        self._rooms = subtract_margins(free_memory)
        self._needs = {name: estimate_needs(plan, free_memory) for name, plan in plans.items() if free_memory}

    def victims(self, name: str, others: Sequence[str]) -> list[str]:
        """Return the models to unload before `name` is loaded. `others`: the loaded ones, first to unload in front."""
        num_over = 0 if self._most is None else max(len(others) + 1 - self._most, 0)
        over, stay = list(others[:num_over]), others[num_over:]
        return over + choose_victims(self._needs[name], {other: self._needs[other] for other in stay}, self._rooms)


def fit(needs: Iterable[Needs], free_memory: Sequence[FreeMemory]) -> bool:
    """Return whether these models fit into the devices' memory together."""
    buffers = list(chain(*needs))
    return all(device_load(room, buffers, free_memory).missing_bytes <= 0 for room in free_memory)


def choose_victims(needed: Needs, held: Mapping[str, Needs], free_memory: Sequence[FreeMemory]) -> list[str]:
    """Return the loaded models to unload so that `needed` fits: no more than necessary, or all if nothing suffices.

    held  the needs of each loaded model by name, the first to unload first
    """
    gone: list[str] = []
    for name in held:
        if fit([needed, *(held[other] for other in held if other not in gone)], free_memory):
            break
        gone.append(name)
    for name in reversed(gone):  # keep models that can stay because a larger one after them is unloaded
        stay = [held[other] for other in held if other not in gone or other == name]
        if fit([needed, *stay], free_memory):
            gone.remove(name)
    return gone


def estimate_needs(plan: Plan, free_memory: Sequence[FreeMemory]) -> Needs:
    """Return the buffers of a plan with its files on disk. Raises ModelFileError and IncompatibleError."""
    if plan.task is not ModelTask.TEXT:
        return estimate_embedding_needs(read_header(plan.target), plan.n_ctx, free_memory, gpu_layers=plan.gpu_layers)
    from eaglelocal.loading.context_parts import read_models  # imports the backend
    from eaglelocal.loading.fit import decide_open_settings

    target, *draft = models = read_models(plan)
    plan = decide_open_settings(plan, models, free_memory)
    projector = None if plan.projector is None else Projector.from_header(read_header(plan.projector))
    adapters = read_adapter_tensors(adapter.path for adapter in plan.adapters)
    return estimate(plan, target.shape, draft[0].shape if draft else None, free_memory, projector, adapters)


def estimate_embedding_needs(
    header: Header, n_ctx: int, free_memory: Sequence[FreeMemory], *, gpu_layers: int | None
) -> Needs:
    """Return the buffers of an embedding model: a pass has the rows of a whole text.

    llama.cpp computes logits of all rows for a decoder, though nothing reads them.
    """
    shape = read_shape(header)
    plan = Plan(
        target=header.path, target_label="", n_ctx=n_ctx, n_batch=n_ctx, gpu_layers=gpu_layers, unified=True
    )  # fmt: skip
    is_encoder = header.metadata.get(f"{shape.architecture}.attention.causal") is False
    gpus = [] if gpu_layers == 0 else choose_gpus(free_memory, device=None, split="layer")
    device = gpus[0].device if gpus else RAM
    logits = Buffer(device, MemoryKind.BUFFERS, 0 if is_encoder else logits_bytes(n_ctx, shape.n_vocab))
    return (*estimate(plan, shape, None, free_memory), logits)

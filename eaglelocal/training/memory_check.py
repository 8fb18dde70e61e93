"""Checks for the memory and the disk to train a head for a target, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from eaglelocal.catalog.catalog import load_machines
from eaglelocal.core.plan import Plan
from eaglelocal.gguf.model_shape import read_shape
from eaglelocal.memory.budget import subtract_margins
from eaglelocal.memory.estimate import estimate
from eaglelocal.planning import autoplan
from eaglelocal.probe.probe import free_bytes
from eaglelocal.training.batches import Unrolling, make_unrolling
from eaglelocal.training.draft_head import HeadSource
from eaglelocal.training.training_memory import check_disk, check_memory, estimate_need


def check_memory_and_disk(
    source: HeadSource,
    plan: Plan,
    folder: Path,
    device: str,
    *,
    unrolling: Unrolling | None = None,
    draft_vocab: int | None = None,
) -> None:
    """Raise ResourceError, with the numbers, if memory or disk do not suffice.

    plan       loads the target alone, with the most tokens of a text as n_ctx
    folder     where checkpoints are written
    unrolling  None: the usual one of the head's kind
    """
    unrolling = unrolling or make_unrolling(source)
    need = estimate_need(source, unrolling, max_tokens=plan.n_ctx, device=device, draft_vocab=draft_vocab)
    check_disk(need, folder, free_bytes(folder))
    memories = autoplan.this_machine(load_machines()).free_memory
    target_buffers = estimate(plan, read_shape(source.target), None, memories)
    check_memory(need, target_buffers, subtract_margins(memories), device)

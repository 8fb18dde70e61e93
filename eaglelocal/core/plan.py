"""A plan: exactly what the engine process should load and how. Plain, frozen, explainable.

Made of a wish (hub/resolve.py), in which the planner settled what was open (as_planned.py). What `auto` still leaves to
the machine that loads it, fitting.py settles there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eaglelocal.core.request import AUTO, MAX_DRAFT_TOKENS, Spec
from eaglelocal.core.task import Task

NO_ROOM_FOR_IMAGES = "no images, for want of memory (--mmproj FILE insists)"
MAX_SLOTS = 16
MAX_UNIFIED_SLOTS_ON_GPU = 2
MAX_BRANCHES = 4  # of a slot's tree: second choices that are verified beside its chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Paths and figures; every field is settled, nothing means "choose for me" but None where said."""

    target: Path
    target_label: str
    projector: Path | None = None  # what makes images readable for the target (llama.cpp's mmproj file)
    projector_is_asked: bool = False  # else the target is loaded without it where that is what it takes
    projector_note: str = ""  # why what lies beside the target is not taken
    draft_kind: str = "none"  # none, ngram, eagle3, mtp, draft_model
    draft: Path | None = None  # of an MTP layer: mostly the target itself
    draft_origin: Path | None = None  # the head that `draft` is a copy of: it drafts where the copy is gone
    draft_label: str = "none"
    draft_note: str = ""  # what came otherwise than people may think
    draft_reason: str = ""  # why there is no draft
    spec: Spec = AUTO  # of requests that wish nothing else
    n_ctx: int = 2048  # positions per slot
    num_slots: int = 1
    threads: int | None = None  # None: the physical cores this process may use
    n_batch: int = 512  # rows a decode may have; also the prefill chunk
    gpu_layers: int | None = None  # None: all of them
    n_cpu_moe: int = 0  # of the first so many layers the experts stay in main memory, wherever the rest lies
    kv_type: str = "f16"
    flash_attention: str = "auto"
    unified: bool | None = None  # one cache for all slots; None until fitting.py says: only where there is one slot
    device: str | None = None
    split: str = "layer"
    shares: tuple[float, ...] = ()  # of each GPU; empty: by what is free there
    draft_gpu_layers: int | None = None  # None: all of them, where the target has any on a GPU
    # layers with a sliding window keep all positions, so that any prefix can be used again; None: where that fits
    whole_windows: bool | None = None
    binds_answers: bool = False  # what it takes to bind answers is made ready with the model, not at the first of them
    is_brief: bool = False  # loaded for one answer, so that the load counts as much as the speed
    cache_ram: int | None = 0  # MiB of main memory for conversations whose slot others need; None: by what is free
    task: Task = Task.TEXT
    rollback: int | None = None  # drafted rows that can be taken back, where each needs a copy of the state; None: all

    @property
    def speculates(self) -> bool:
        return self.draft_kind != "none" and self.spec.max_draft > 0

    @property
    def layers_of_draft(self) -> int | None:
        """The draft's layers on the GPU; None: all of them."""
        return 0 if self.draft_gpu_layers is None and self.gpu_layers == 0 else self.draft_gpu_layers

    @property
    def is_unified(self) -> bool:
        return self.num_slots == 1 if self.unified is None else self.unified

    @property
    def num_branches(self) -> int:
        """Branches of a slot's trees, where the target can branch: one cache, and a drafter that has second choices.

        llama.cpp wants room for as many rows as there are sequences.
        """
        if not (self.is_unified and self.speculates and self.draft_kind != "ngram"):
            return 0
        return max(min(MAX_BRANCHES, self.n_batch // self.num_slots - 1), 0)

    @property
    def max_draft(self) -> int:
        """Drafted rows of a slot that memory is set aside for: requests may wish another spec than the plan's."""
        if not self.speculates:
            return 0
        return MAX_DRAFT_TOKENS if self.rollback is None else min(self.rollback, MAX_DRAFT_TOKENS)


def shares_cache(num_slots: int, *, on_gpu: bool) -> bool:
    """Whether all slots are best kept in one cache: drafts can then be trees, and every row pays for the cells of all.

    On two cores a cache for each of two slots was 6 and 9 % faster (tests/measures/trees.py). Of GPUs nothing is
    measured; rows are cheap there, so that trees may pay.
    """
    return num_slots <= (MAX_UNIFIED_SLOTS_ON_GPU if on_gpu else 1)

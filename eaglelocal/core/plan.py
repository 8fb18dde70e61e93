"""A plan: exactly what the engine process should load, and how. Plain, frozen, explainable.

preparation/autoplan.py decides what the options leave open, and preparation/decision.py makes the plan. Settings that
are still `auto` depend on the machine that loads the plan; fit.py decides them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from eaglelocal.core.adapters import AdapterFile
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AUTO_SPEC, MAX_DRAFT_TOKENS, Spec
from eaglelocal.core.tensor_overrides import TensorOverride
from eaglelocal.core.thinking import USUAL, Thinking

NO_ROOM_FOR_IMAGES = "no images: not enough memory (--mmproj FILE loads the projector anyway)"
MAX_SLOTS = 64
PIECES = (512, 256, 128)  # rows of a prompt that are computed at once: the usual number, and those that save memory
MAX_UNIFIED_SLOTS_ON_GPU = 2
MAX_BRANCHES = 8  # of a slot's tree: siblings that are verified besides its trunk, whether or not more follows them


@dataclass(frozen=True, slots=True)
class Owners:
    """The marks that keep the holders of keys apart, and the texts that they share.

    names            (owner, digest of the key): the names of owners on disk. Files outlive the key file, in which
                     another key may get the same owner's name later
    shared_prefixes  beginnings of system prompts, whose cells all of them reuse
    thinking         of requests that set none: templates may write it before the system prompt
    """

    names: tuple[tuple[str, str], ...] = ()
    shared_prefixes: tuple[str, ...] = ()
    thinking: Thinking = USUAL


NO_OWNERS = Owners()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Files and sizes of an engine. Every field is decided; None means "choose for me" only where noted."""

    target: Path
    target_label: str
    projector: Path | None = None  # llama.cpp's mmproj file, which lets the target read images
    is_projector_required: bool = False  # else it is left out if memory is short
    projector_note: str = ""  # why the projector beside the target is not used
    draft_kind: str = "none"  # none, ngram (no model), eagle3, mtp, draft_model
    lookups: tuple[str, ...] = ("ngram",)  # drafters without a model, beside the draft's model or alone
    draft: Path | None = None  # for an MTP layer mostly the target itself
    draft_origin: Path | None = None  # the head that `draft` is a copy of: used if the copy is gone
    draft_base: Path | None = None  # the head that `draft` was learned from, if any: used if `draft` is gone
    draft_version: int = 0  # number of the learned version; 0: none
    draft_label: str = "none"
    draft_note: str = ""  # for people: something unexpected about the draft
    draft_reason: str = ""  # why there is no draft
    spec: Spec = AUTO_SPEC  # of requests that have none of their own
    n_ctx: int = 2048  # positions per slot; planning always sets it
    num_slots: int = 1
    threads: int | None = None  # None: the physical cores this process may use
    n_batch: int = PIECES[0]  # rows a decode may have; also the prefill chunk
    gpu_layers: int | None = None  # None: all of them
    n_cpu_moe: int = 0  # the experts of the first so many layers stay in RAM, wherever the rest lies
    overrides: tuple[TensorOverride, ...] = ()  # the target's tensors that lie elsewhere than their layer
    kv_type: str = "f16"
    flash_attn: str = "auto"
    unified: bool | None = None  # one cache for all slots; None: until fit.py decides, only with one slot
    device: str | None = None
    split: str = "layer"
    rpc: tuple[str, ...] = ()  # rpc-servers whose devices hold layers
    shares: tuple[float, ...] = ()  # of each GPU; empty: in proportion to free memory
    draft_gpu_layers: int | None = None  # None: all of them, if the target has any on a GPU
    # layers with a sliding window keep all positions, so that any prefix can be reused; None: if that fits
    swa_full: bool | None = None
    binds_answers: bool = False  # prepare constraints while loading, not at the first one
    is_brief: bool = False  # loaded for one answer, so loading time matters as much as speed
    cache_ram: int | None = 0  # MiB of RAM for conversations evicted from their slot; None: by free memory
    lookup_memory: int = 0  # tokens of each owner's texts that are kept on disk, to draft from
    cache_disk: float = 0.0  # GB on disk for the caches of conversations; 0: they are not kept
    owners: Owners = NO_OWNERS
    adapters: tuple[AdapterFile, ...] = ()  # LoRA adapters of the target, by id
    task: ModelTask = ModelTask.TEXT
    takes_tools: bool = False  # the target's own chat template describes tools to it
    thinks: bool = False  # the target's own chat template has a form of reasoning
    rollback: int | None = None  # drafted rows that can be rolled back, if each needs a copy of the state; None: all

    def with_head(self, path: Path, version: int) -> Plan:
        """Return the plan with another head: a learned version, or with version 0 the base head."""
        before, after = describe_version(self.draft_version), describe_version(version)
        label = self.draft_label.replace(before, after) if before else self.draft_label + after
        base = self.base_head if version else None
        return replace(self, draft=path, draft_origin=None, draft_base=base, draft_version=version, draft_label=label)

    @property
    def base_head(self) -> Path | None:
        """The original head that learning starts from, in a file of its own; never a quantized copy."""
        return self.draft_base or self.draft_origin or self.draft

    @property
    def speculates(self) -> bool:
        return self.draft_kind != "none" and self.spec.max_draft > 0

    @property
    def num_draft_gpu_layers(self) -> int | None:
        """The draft's layers on the GPU; None: all of them."""
        return 0 if self.draft_gpu_layers is None and self.gpu_layers == 0 else self.draft_gpu_layers

    @property
    def is_unified(self) -> bool:
        return self.num_slots == 1 if self.unified is None else self.unified

    @property
    def num_branches(self) -> int:
        """The branches of a slot's trees; 0 unless there is one cache and a drafter that proposes siblings.

        llama.cpp needs memory for as many rows as there are sequences.
        """
        if not (self.is_unified and self.speculates and self.draft_kind != "ngram"):
            return 0
        return max(min(MAX_BRANCHES, self.max_draft, self.n_batch // self.num_slots - 1), 0)

    @property
    def max_draft(self) -> int:
        """The drafted rows per slot that memory is reserved for: requests may have another spec than the plan's."""
        if not self.speculates:
            return 0
        return MAX_DRAFT_TOKENS if self.rollback is None else min(self.rollback, MAX_DRAFT_TOKENS)


def describe_version(version: int) -> str:
    """Return the suffix of a head's label if it was learned here; empty for the base head."""
    return f", learned version {version}" if version else ""


def shares_cache(num_slots: int, *, on_gpu: bool, is_quantized: bool) -> bool:
    """Return whether one cache for all slots is best: drafts can then be trees, but every row pays for all cells.

    Rows are cheap on GPUs, so trees may pay off there. A tree leaves cells out of order, and attention sums them in
    that order, which can flip near-ties. On a CPU with quantized weights (`is_quantized`) trees gained nothing, and
    most types there round the same way for any number of rows, so one cache is not worth that.
    """
    if on_gpu:
        return num_slots <= MAX_UNIFIED_SLOTS_ON_GPU
    return num_slots == 1 and not is_quantized

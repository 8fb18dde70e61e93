"""A plan: exactly what the engine process should load and how. Plain, frozen, explainable.

For now it is filled from the command line and the machine; the planner room computes it later.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MAX_DRAFT_TOKENS = 16
MAX_SLOTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Paths and figures; every field is settled, nothing means "choose for me" but None where said."""

    target: Path
    target_label: str
    draft_kind: str = "none"  # none, eagle3, draft_model
    draft: Path | None = None
    draft_label: str = "none"
    draft_reason: str = ""  # why there is no draft
    num_draft_tokens: int = 0  # 0: speculation off
    n_ctx: int = 2048  # positions per slot
    num_slots: int = 1
    threads: int | None = None  # None: the physical cores this process may use
    n_batch: int = 512  # rows a decode may have; also the prefill chunk
    gpu_layers: int | None = None  # None: all of them
    kv_type: str = "f16"
    flash_attention: str = "auto"
    device: str | None = None
    split: str = "layer"

    @property
    def speculates(self) -> bool:
        return self.draft_kind != "none" and self.num_draft_tokens > 0

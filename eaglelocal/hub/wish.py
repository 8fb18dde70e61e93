"""What is wished for: a target, a draft and a few figures, each None where nothing was said.

Plain values, so that whoever keeps settings can convert them without this room knowing settings.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A target and draft as a person writes them, and what goes into the plan beside them."""

    target: str | None = None  # None: the embedded model, or what as_planned.py finds
    mmproj: str = "auto"  # what makes images readable: auto, none, or the path of a projector
    draft: str = "auto"  # auto, ngram, mtp, none, or the path of a .gguf
    draft_type: str = "auto"  # of a head's weights: auto, q4_0, q8_0, or as in its file
    draft_reason: str = ""  # why it is this one and no better, where that was decided for the person
    spec: str | int = "auto"  # auto, off, pid, or the number of draft tokens
    ctx: int | None = None
    parallel: int = 1
    threads: int | None = None
    gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    device: str | None = None
    split: str = "layer"
    kv_type: str | None = None
    flash_attn: str = "auto"
    whole_windows: bool | None = None  # of layers with a window, as in core/plan.py; nobody is asked

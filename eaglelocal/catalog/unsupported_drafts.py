"""Reasons why the engine cannot use a draft of the catalogue for a target; the supported pairs are decided here.

Looks at kinds and architectures only; gguf/draft_pairing.py checks whether one file fits another.
"""

from __future__ import annotations

from eaglelocal.catalog.draft_entries import BLOCKS, EAGLE, MTP, DraftEntry
from eaglelocal.catalog.target_entries import EntryShape
from eaglelocal.gguf.architectures import (
    HYBRID_ARCHITECTURES,
    LAYER_INPUT_ARCHITECTURES,
    MTP_ARCHITECTURES,
    RECURRENT_ARCHITECTURES,
    ROLLBACK_ARCHITECTURES,
)


def is_stuck(target: EntryShape) -> bool:
    """Return whether the target keeps recurrent state that cannot be rolled back behind a rejected token."""
    keeps_state = bool(target.state_bytes) or target.architecture in HYBRID_ARCHITECTURES | RECURRENT_ARCHITECTURES
    return keeps_state and target.architecture not in ROLLBACK_ARCHITECTURES


def unsupported_reason(draft: DraftEntry, target: EntryShape) -> str:
    """Return why the draft cannot be run with this target; empty if it can."""
    if draft.kind == MTP and target.architecture not in MTP_ARCHITECTURES:
        return f"MTP drafting for {target.architecture} is not run yet"
    if is_stuck(target):
        return f"{target.architecture} keeps recurrent state, which is not taken back yet"
    if draft.keeps_state:
        return "it keeps recurrent state itself, which drafting cannot cut"
    if draft.kind in (EAGLE, *BLOCKS) and target.architecture not in LAYER_INPUT_ARCHITECTURES:
        return f"llama.cpp gives no layer inputs for {target.architecture}, which heads need"
    if draft.kind == EAGLE and draft.taps_more_layers:
        return "it taps more than three layers, which llama.cpp does not give a head"
    return ""

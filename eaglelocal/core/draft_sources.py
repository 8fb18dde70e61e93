"""The values of `--draft`: a model or head, and drafters without a model beside it. Pure.

auto, mtp, none, REF    a model, found or named, with a lookup beside it (none: nothing)
ngram, lookahead        drafters without a model
REF,lookahead           several, by commas: exactly these, and at most one of them is a model
"""

from __future__ import annotations

from typing import NamedTuple

from eaglelocal.core.run_options import NGRAM, NONE
from eaglelocal.errors import UsageError

LOOKAHEAD = "lookahead"
LOOKUPS = (NGRAM, LOOKAHEAD)  # drafters without a model


class DraftSources(NamedTuple):
    """The drafters of a run.

    model    auto, mtp, none, or a reference; ngram: no model. With commas it names several, or is a path with commas:
             hub/draft_resolver.py finds out
    lookups  names of drafters without a model, of LOOKUPS
    """

    model: str
    lookups: tuple[str, ...]


def parse_draft(text: str) -> DraftSources:
    """Parse a value of `--draft`. Raises UsageError if `none` is combined with others.

    parse_draft("lookahead,ngram") is ("ngram", ("lookahead", "ngram")), parse_draft("./h.gguf") is that and a lookup.
    """
    names = [name.strip() for name in text.split(",")]
    lookups = tuple(dict.fromkeys(name for name in names if name in LOOKUPS))
    models = [name for name in names if name not in LOOKUPS]
    if not models:
        return DraftSources(NGRAM, lookups)
    if NONE in models and len(names) > 1:
        raise UsageError(f"--draft {text} is contradictory: `none` means no draft at all", hint="--draft none")
    return DraftSources(",".join(models), lookups or (NGRAM,))

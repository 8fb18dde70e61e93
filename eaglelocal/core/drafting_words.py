"""The state of drafting in words, the same on every screen and in every report. Pure.

States and reasons come from the engine or a server; this module only words them.
"""

from __future__ import annotations

from collections.abc import Sequence

from eaglelocal.core.plurals import count_noun

SWITCHED_OFF = "switched off"  # reason of the state `off` that the user chose
MEASURING = "measuring whether drafting pays"  # reason of the state `asleep` during a probe
NOT_REPORTED = "not reported by the server"
LOOKUP = "lookup in the text so far"  # the name of drafting without a model, whose flag is `--draft ngram`

LOOKUP_WORDS = {"ngram": LOOKUP, "lookahead": "lookahead"}  # by the names of drafters without a model


def describe_draft(model: str, lookups: Sequence[str]) -> str:
    """Return what drafts in words: the model's label ("": no model), and drafters that are not there in any case.

    describe_draft("EAGLE-3 head x", ["ngram"]) is the label alone: a lookup drafts beside every model.
    """
    if not model:
        return " and ".join(LOOKUP_WORDS[name] for name in lookups)
    return " and ".join([model, *(LOOKUP_WORDS[name] for name in lookups if name != "ngram")])


def describe_cut_length(asked: int, most: int) -> str:
    """Return that fewer tokens are drafted than were asked for; "" if as many are, or nobody knows (`most` 0)."""
    if not 0 < most < asked:
        return ""
    return f"at most {count_noun(most, 'token')} can be drafted here, not {asked}"


def describe_drafting(state: str, reason: str) -> str:
    """Return the state in words, such as `drafting paused: it would be slower (0.68x)`; "" if it is unknown."""
    match state:
        case _ if reason == NOT_REPORTED:
            return ""
        case "on":
            return "drafting"
        case "asleep" if reason == MEASURING:
            return MEASURING
        case "asleep":
            return f"drafting paused: {reason}" if reason else "drafting paused"
        case "off" if reason == SWITCHED_OFF:
            return "drafting off (your setting)"
        case "off":
            return f"drafting off: {reason}" if reason else "drafting off"
        case _:
            return ""

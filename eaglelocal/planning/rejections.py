"""Explain why a way to run was rejected, from the terms of its score. Pure.

The score of a way that was never weighed is a bound, as if everything fitted; its figures are given as "at best".
"""

from __future__ import annotations

from eaglelocal.core.byte_sizes import format_memory
from eaglelocal.planning.candidate import Candidate, offload_text
from eaglelocal.planning.candidate_evaluation import CandidateMemory
from eaglelocal.planning.goals import Goal, Term

TELLING = 0.005  # difference of a term of the score from which on it is mentioned
MAX_TOLD = 2
CLEARLY = 1.05  # factor above the plan's speed or size from which on it is mentioned


def explain_missing_memory(candidate: Candidate, memory: CandidateMemory) -> str:
    """Return the device that lacks most, what it would hold, and what is free there, in words."""
    load = memory.worst
    setup = f"{candidate.setup.n_ctx} tokens in {candidate.setup.kv_type}"
    return (
        f"{format_memory(load.total)} on {load.device} even with {setup}"
        f"{lies_text(candidate, 'and')}, {format_memory(load.free_bytes or 0)} to use"
    )


def lies_text(candidate: Candidate, joint: str) -> str:
    """Return `offload_text` after `joint`, to append to a sentence; empty if nothing is split."""
    text = offload_text(candidate)
    return f" {joint} {text}" if text else ""


def explain_lower_score(candidate: Candidate, chosen: Candidate, goal: Goal, *, is_bound: bool) -> str:
    """Return in which terms a way scores below the chosen one, the largest first. `is_bound`: it was not weighed."""
    lost = {term: chosen.terms[term] - candidate.terms[term] for term in Term}
    telling = sorted((term for term in Term if lost[term] > TELLING), key=lambda term: -lost[term])[:MAX_TOLD]
    if Term.SPEED in telling:  # whose clause says how many layers are on the GPU
        telling = [term for term in telling if term is not Term.HOST]
    if not telling:
        return f"as good as the plan{draft_text(candidate, chosen)}, which comes first"
    text = ", ".join(term_text(term, candidate, chosen, is_bound=is_bound) for term in telling)
    advantage = advantage_text(telling, candidate, chosen, is_bound=is_bound)
    return f"{text}{pace_text(telling, candidate, chosen, goal)}{advantage}"


def draft_text(candidate: Candidate, chosen: Candidate) -> str:
    return f" with {chosen.draft.id}" if candidate.option is chosen.option else ""


def term_text(term: Term, candidate: Candidate, chosen: Candidate, *, is_bound: bool) -> str:
    """Return one term of the score in words: the figure of this way (or its bound) and that of the plan."""
    best = "at best " if is_bound else ""
    match term:
        case Term.QUALITY:
            what = "lower quality" if candidate.option.answers_b < chosen.option.answers_b else "smaller"
            return f"{what}: {quality_text(candidate, chosen)}"
        case Term.AGE:
            return f"older: {release_text(candidate)}, the plan {release_text(chosen)}"
        case Term.SPEED:
            slow, plan = format_distinct(candidate.prediction.spec_tok_s, chosen.prediction.spec_tok_s)
            return f"slower: {best}{slow} tokens/s{lies_text(candidate, 'with')}, the plan {plan}"
        case Term.CONTEXT:
            return f"less context: {best}{candidate.setup.n_ctx} tokens, the plan {chosen.setup.n_ctx}"
        case Term.CACHE:
            return f"a cache of {candidate.setup.kv_type}, the plan's is {chosen.setup.kv_type}"
        case Term.WINDOWS:
            return "its cache keeps windows only"
        case Term.HOST:
            return f"does not fit the GPU whole: {best}{offload_text(candidate)}"
        case Term.UNSEEN:
            return "the size of its file is not confirmed"
        case Term.BY_NAME:
            return f"offered by name only, {candidate.option.by_name}"


def quality_text(candidate: Candidate, chosen: Candidate) -> str:
    return f"rated {candidate.option.quality_b:.1f} B, the plan {chosen.option.quality_b:.1f} B"


def release_text(candidate: Candidate) -> str:
    return candidate.option.age.released or "no known date"


def pace_text(telling: list[Term], candidate: Candidate, chosen: Candidate, goal: Goal) -> str:
    misses = candidate.prediction.spec_tok_s < goal.pace <= chosen.prediction.spec_tok_s
    return f"; --goal {goal.name} wants {goal.pace:.0f}" if Term.SPEED in telling and misses else ""


def advantage_text(telling: list[Term], candidate: Candidate, chosen: Candidate, *, is_bound: bool) -> str:
    """Return in what the way is better than the plan, in words; empty if in nothing."""
    speed, best = candidate.prediction.spec_tok_s, chosen.prediction.spec_tok_s
    more = []
    if Term.AGE in telling and candidate.option.quality_b > CLEARLY * chosen.option.quality_b:
        more.append(quality_text(candidate, chosen))
    if Term.SPEED not in telling and speed > CLEARLY * best:
        more.append(f"{'at best ' if is_bound else ''}{speed:.1f} tokens/s, the plan {best:.1f}")
    return f" (though {', '.join(more)})" if more else ""


def format_distinct(left: float, right: float) -> tuple[str, str]:
    """Return both numbers with as many digits, up to three, as it takes to show that they differ.

    >>> apart(2.42, 2.44)
    ('2.42', '2.44')
    """
    for digits in (1, 2, 3):
        texts = f"{left:.{digits}f}", f"{right:.{digits}f}"
        if texts[0] != texts[1]:
            break
    return texts

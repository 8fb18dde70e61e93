"""Why a way to run was rejected, from the terms of its score. Pure.

A way that was never weighed has a bound for a score: what it would be if everything fitted. Of such a one only what it
could be at best is said.
"""

from __future__ import annotations

from collections.abc import Iterator

from eaglelocal.planner.goals import Goal, Term
from eaglelocal.planner.way import Way, gib
from eaglelocal.planner.weighing import Weighed

TELLING = 0.005  # of a score: below it two ways are as good as each other
MAX_TOLD = 2
FASTER = 1.05  # than the plan, from which on it is said


def why_not_fits(way: Way, weighed: Weighed) -> str:
    """The room that lacks most, with its sum."""
    load = weighed.worst
    return (
        f"{gib(load.total)} on {load.room.device} even with {way.setup.n_ctx} tokens in {way.setup.kv_type}"
        f"{layers_text(way)}, {gib(load.room.free_bytes or 0)} to use"
    )


def layers_text(way: Way) -> str:
    if way.gpu_layers is None:
        return ""
    return f" and {way.gpu_layers} of {way.option.shape.n_layer + 1} layers on the GPU"


def why_lower(way: Way, chosen: Way, goal: Goal, *, is_bound: bool) -> str:
    """What it lacks beside the chosen one, the weightiest first. `is_bound`: it was not weighed."""
    lost = {term: chosen.terms[term] - way.terms[term] for term in Term}
    telling = sorted((term for term in Term if lost[term] > TELLING), key=lambda term: -lost[term])[:MAX_TOLD]
    if Term.SPEED in telling:  # which says how many layers are on the host
        telling = [term for term in telling if term is not Term.HOST]
    if not telling:
        return f"as good as the plan{beside(way, chosen)}, which comes first"
    text = ", ".join(clause(term, way, chosen, is_bound=is_bound) for term in telling)
    return f"{text}{''.join(asides(telling, way, chosen, goal, is_bound=is_bound))}"


def beside(way: Way, chosen: Way) -> str:
    return f" with {chosen.draft.id}" if way.option is chosen.option else ""


def clause(term: Term, way: Way, chosen: Way, *, is_bound: bool) -> str:
    """One term of the score in words: of what it has, or could have at best, and of what the plan has."""
    best = "at best " if is_bound else ""
    match term:
        case Term.QUALITY:
            return f"lesser answers: as {way.option.quality_b:.1f} B, the plan as {chosen.option.quality_b:.1f} B"
        case Term.SPEED:
            slow, plan = apart(way.prediction.spec_tok_s, chosen.prediction.spec_tok_s)
            return f"slower: {best}{slow} tokens/s{with_layers(way)}, the plan {plan}"
        case Term.CONTEXT:
            return f"less context: {best}{way.setup.n_ctx} tokens, the plan {chosen.setup.n_ctx}"
        case Term.CACHE:
            return f"a cache of {way.setup.kv_type}, the plan's is {chosen.setup.kv_type}"
        case Term.WINDOWS:
            return "its cache keeps windows only"
        case Term.HOST:
            return f"not all layers fit the GPU: {best}{way.gpu_layers} of {way.option.shape.n_layer + 1}"
        case Term.UNSEEN:
            return "nobody has seen its file"


def asides(telling: list[Term], way: Way, chosen: Way, goal: Goal, *, is_bound: bool) -> Iterator[str]:
    speed, best = way.prediction.spec_tok_s, chosen.prediction.spec_tok_s
    if Term.SPEED in telling and speed < goal.pace <= best:
        yield f"; --goal {goal.name} wants {goal.pace:.0f}"
    if Term.SPEED not in telling and speed > FASTER * best:
        yield f" (though {'at best ' if is_bound else ''}{speed:.1f} tokens/s, the plan {best:.1f})"


def apart(left: float, right: float) -> tuple[str, str]:
    """Both with as many digits as it takes to see that they differ.

    >>> apart(2.42, 2.44)
    ('2.42', '2.44')
    """
    for digits in (1, 2, 3):
        texts = f"{left:.{digits}f}", f"{right:.{digits}f}"
        if texts[0] != texts[1]:
            break
    return texts


def with_layers(way: Way) -> str:
    if way.gpu_layers is None:
        return ""
    return f" with {way.gpu_layers} of {way.option.shape.n_layer + 1} layers on the GPU"

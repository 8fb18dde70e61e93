"""Limits of thinking as values of a chat template's variables, and as budgets where it has none.

Templates differ in their words for an effort: some raise on any other, some ignore it, to some `low` means not to
think. So a template is asked, once: what it renders with each word shows what the word means to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eaglelocal.core.thinking import EFFORT_BUDGETS, EFFORTS, LIMITS, OFF_EFFORT, USUAL_EFFORT, Efforts, Thinking

VARIABLES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
SWITCHES = ("enable_thinking", "thinking")  # of the families that have one
BUDGET = "thinking_budget"  # Seed-OSS tells its model
OFF_WORDS = (OFF_EFFORT, "no_think")
NO_WORD = "unheard-of"
LEAST = ("minimal", "low")  # instead of a word for not thinking
USUAL_WORDS = ("low", "medium", "high")  # of a template that writes any word into the prompt

Render = Callable[[Mapping[str, object]], str | None]  # with these variables; None if the template raises


def find_efforts(template: str, render: Render, ends_after_reasoning: Callable[[str], bool]) -> Efforts:
    """Return the efforts that a template knows, as its prompts show them."""
    variable = next((name for name in VARIABLES if name in template), "")
    if not variable:
        return Efforts()
    switched_on = dict.fromkeys(SWITCHES, True)  # some templates look at efforts only then
    usual, unheard = render({}), render({**switched_on, variable: NO_WORD})
    prompts = {word: render({**switched_on, variable: word}) for word in (*OFF_WORDS, *EFFORTS[1:])}
    off = [word for word, prompt in prompts.items() if prompt is not None and ends_after_reasoning(prompt)]
    is_free = unheard is not None and NO_WORD in unheard
    known = USUAL_WORDS if is_free else [w for w in EFFORTS[1:] if prompts[w] not in (None, unheard)]
    words = tuple(word for word in known if word not in off)
    thinks = usual is None or not ends_after_reasoning(usual)  # one that raises needs a word
    return Efforts(variable, words, next(iter(off), ""), unheard is None, thinks)


def choose_word(effort: str, efforts: Efforts) -> str:
    """Return the template's word for an effort: the nearest where it refuses all others, of two the one that thinks
    more; "" if it has none.
    """
    if effort in efforts.words or not (effort and efforts.is_closed and efforts.words):
        return effort if effort in efforts.words else ""
    wanted = EFFORTS.index(effort)
    return min(efforts.words, key=lambda word: (abs(EFFORTS.index(word) - wanted), -EFFORTS.index(word)))


def usual_effort(efforts: Efforts) -> str:
    """Return the effort of a request that sets none; "": as the template has it, which may be not to think."""
    return USUAL_EFFORT if USUAL_EFFORT in efforts.words and efforts.thinks else ""


def fill_values(thinking: Thinking, given: Mapping[str, object], template: str, efforts: Efforts) -> dict[str, object]:
    """Return the template's variables: those that were given, and for the others what the limit of thinking says."""
    switch = given.get("enable_thinking")
    values: dict[str, object] = {}
    word = choose_word(thinking.effort, efforts) if thinking.effort and not thinking.is_off else usual_effort(efforts)
    if thinking.is_off or switch is False:
        word = efforts.off or next((word for word in efforts.words if word in LEAST), "")
    elif switch is True and not (word or efforts.thinks):
        word = choose_word(USUAL_EFFORT, efforts)
    if word:
        values[efforts.variable] = word
    if thinking.is_off or thinking.effort:
        values |= dict.fromkeys(SWITCHES, not thinking.is_off)
    if switch is not None:
        values["thinking"] = switch  # the same switch in another family
    if thinking.budget is not None and BUDGET in template:
        values[BUDGET] = thinking.budget
    return values | dict(given)


def choose_budget(thinking: Thinking, efforts: Efforts, room: int) -> int | None:
    """Return how many tokens of reasoning an answer may have; None if only its own length limits it.

    room  tokens that the answer may have: an effort leaves half of them to the text after the reasoning
    """
    if thinking.is_off:
        return 0
    if thinking.budget is not None:
        return thinking.budget
    tokens = EFFORT_BUDGETS.get(thinking.effort)
    return None if tokens is None or thinking.effort in efforts.words else min(tokens, room // 2)


def describe_efforts(efforts: Efforts) -> str:
    """Return the note about the usual effort of a model; "" if its template has none."""
    if not usual_effort(efforts):
        return ""
    return f"it thinks with {USUAL_EFFORT} effort; --thinking-budget or /think sets another: {LIMITS}"


def describe_thinking(thinking: Thinking, efforts: Efforts, room: int) -> str:
    """Return a limit in words; room as for `choose_budget`."""
    if thinking.is_off:
        return "off"
    effort = choose_word(thinking.effort, efforts) or thinking.effort or usual_effort(efforts)
    budget, closing = choose_budget(thinking, efforts, room), " and the words that end them" if thinking.message else ""
    parts = [f"{effort} effort"] if effort else []
    parts += [] if budget is None else [f"at most {budget} tokens{closing}"]
    return ", ".join(parts) or "as long as the model likes"

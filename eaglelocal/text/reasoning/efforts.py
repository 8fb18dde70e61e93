"""Limits of thinking as values of a chat template's variables, and as budgets where it has none.

Templates differ in the words that they know, and some raise on any other; so the nearest word of theirs is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from eaglelocal.core.thinking import EFFORT_BUDGETS, EFFORTS, MAX_BUDGET, USUAL_EFFORT, Thinking
from eaglelocal.text.reasoning.model_families import detect_family

VARIABLE = "reasoning_effort"
OFF_WORDS = ("none", "no_think")
SWITCHES = ("enable_thinking", "thinking")  # of the families that have one
BUDGET = "thinking_budget"  # Seed-OSS tells its model
USUAL_WORDS = ("low", "medium", "high")  # of a template that compares with none
_VALUES = r"([\[(][^\])]{0,200}[\])]|'\w{0,20}'|\"\w{0,20}\")"  # bounded: the template is anybody's
_COMPARED = re.compile(rf"{VARIABLE}\s{{0,8}}(?:==|!=|(?:not )?in)\s{{0,8}}{_VALUES}")
_WORD = re.compile(r"['\"](\w+)['\"]")


def list_efforts(template: str) -> tuple[str, ...]:
    """Return the efforts that a template knows, least first; none if it has no variable for them."""
    if VARIABLE not in template:
        return ()
    compared = {word for found in _COMPARED.findall(template) for word in _WORD.findall(found)}
    off = tuple(word for word in OFF_WORDS if word in compared)
    words = tuple(word for word in EFFORTS if word in compared and word not in OFF_WORDS)
    return off + (words if len(words) > 1 else USUAL_WORDS)


def usual_effort(template: str) -> str:
    """Return the effort of a request that sets none; "": as the template has it, which may be not to think."""
    is_known = VARIABLE in template and USUAL_EFFORT in _WORD.findall(template)
    return USUAL_EFFORT if is_known else ""


def describe_efforts(template: str) -> str:
    """Return the note about the usual effort of a model; "" if its template has none."""
    words = [word for word in list_efforts(template) if word not in OFF_WORDS]
    if not usual_effort(template):
        return ""
    known = ", ".join([*words, "a number of tokens"])
    return f"it thinks with {USUAL_EFFORT} effort unless set, by /think or --thinking-budget: {known} or off"


def nearest_effort(effort: str, words: tuple[str, ...]) -> str:
    """Return the word of a template that is nearest to an effort; of two, the one that thinks more."""
    known = [word for word in words if word in EFFORTS and word not in OFF_WORDS]
    wanted = EFFORTS.index(effort)
    return min(known, key=lambda word: (abs(EFFORTS.index(word) - wanted), -EFFORTS.index(word)))


def fill_values(thinking: Thinking, given: Mapping[str, object], template: str) -> dict[str, object]:
    """Return the template's variables: those that were given, and for the others what the limit of thinking says."""
    words = list_efforts(template)
    values: dict[str, object] = {}
    if thinking.is_off:
        values = dict.fromkeys(SWITCHES, False)
        if words:
            values[VARIABLE] = words[0]  # `none`, or the least there is
    elif thinking.effort:
        values = dict.fromkeys(SWITCHES, True)
        if words:
            values[VARIABLE] = nearest_effort(thinking.effort, words)
    elif usual := usual_effort(template):
        values[VARIABLE] = usual
    if thinking.budget is not None and BUDGET in template:
        values[BUDGET] = thinking.budget
    if "enable_thinking" in given:
        values["thinking"] = given["enable_thinking"]  # the same switch in another family
    return values | dict(given)


def choose_budget(thinking: Thinking, template: str, room: int) -> int | None:
    """Return how many tokens of reasoning an answer may have; None if only its own length limits it.

    room  tokens that the answer may have: an effort leaves half of them to the text after the reasoning
    """
    if thinking.is_off:
        return 0
    if thinking.budget is not None:
        return thinking.budget
    tokens = EFFORT_BUDGETS.get(thinking.effort)
    return None if tokens is None or list_efforts(template) else min(tokens, room // 2)


def describe_thinking(thinking: Thinking, template: str) -> str:
    """Return a limit in words. `template`: of the model; "": not known."""
    if template and not detect_family(template).thinks:
        return "this model does not think"
    if thinking.is_off:
        return "off"
    words, usual = list_efforts(template), usual_effort(template)
    effort = thinking.effort if not words or not thinking.effort else nearest_effort(thinking.effort, words)
    budget = choose_budget(thinking, template, MAX_BUDGET) if template else thinking.budget
    parts = [f"{effort or usual} effort"] if effort or usual else []
    parts += [] if budget is None else [f"at most {budget} tokens"]
    return ", ".join(parts) or "as long as the model likes"

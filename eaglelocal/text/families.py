"""Families of models, told by their chat templates: how each writes tool calls and thoughts.

An explicit table. A template whose calls are in no form known here is not given tools at all: they are described
in a system message in Hermes form instead (turns.py), and the answer is read as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from eaglelocal.core.tools import CallForm, Split
from eaglelocal.text import harmony
from eaglelocal.text.tool_calls import ARGS, CALL_ID, CALLS, CLOSE, OPEN, PYTHON_TAG

# the first row whose texts all stand in the template
FORMS: tuple[tuple[tuple[str, ...], CallForm | None], ...] = (
    (("<|channel|>", "<|message|>"), CallForm.HARMONY),
    (("<arg_key>",), None),  # GLM: <tool_call> with a body of its own
    (("<tool_call>", "<function="), CallForm.CODER),
    (("<tool_call>",), CallForm.HERMES),
    (("[TOOL_CALLS]", "[ARGS]"), CallForm.MISTRAL_ARGS),
    (("[TOOL_CALLS]",), CallForm.MISTRAL),
    (("<|python_tag|>",), CallForm.LLAMA),
    (("<|start_header_id|>", '"parameters"'), CallForm.LLAMA),
)
THOUGHTS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
MARKERS: dict[CallForm, tuple[str, ...]] = {
    CallForm.HERMES: (OPEN, CLOSE),
    CallForm.CODER: (OPEN, CLOSE),
    CallForm.LLAMA: (PYTHON_TAG,),
    CallForm.MISTRAL: (CALLS, ARGS, CALL_ID),
    CallForm.MISTRAL_ARGS: (CALLS, ARGS, CALL_ID),
    CallForm.HARMONY: harmony.MARKERS,
}


@dataclass(frozen=True, slots=True)
class Family:
    """What a template says about its model's answers.

    form     of its calls; for a template that takes no tools, or in a form not known here, the stand-in's
    takes_tools  the template itself tells the model about tools
    thought  markers around thoughts, where they are not the form's own
    """

    form: CallForm
    takes_tools: bool
    thought: tuple[str, str] | None


def family_of(template: str) -> Family:
    form = next((form for texts, form in FORMS if all(text in template for text in texts)), None)
    if form is CallForm.HARMONY:
        return Family(form, takes_tools=True, thought=None)
    takes_tools = form is not None and re.search(r"\btools\b", template) is not None
    thought = next((markers for markers in THOUGHTS if markers[0] in template or markers[1] in template), None)
    return Family(form if form and takes_tools else CallForm.HERMES, takes_tools, thought)


def markers_of(split: Split) -> tuple[str, ...]:
    """In the order that gives each its control character."""
    if split.form is CallForm.HARMONY:
        return harmony.MARKERS
    calls = MARKERS[split.form] if split.form and split.tools else ()
    return (*(split.thought or ()), *calls)


def is_spelled(split: Split) -> bool:
    """May markers be written out as text? Harmony's are always control tokens."""
    return split.form is not CallForm.HARMONY

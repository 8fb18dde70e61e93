"""Families of models, told by their chat templates: how each writes tool calls and thoughts.

An explicit table. A template whose calls are in no form known here is not given tools at all: they are described
in a system message in Hermes form instead (turns.py), and the answer is read as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from eaglelocal.core.tools import CallForm, Notation, Split
from eaglelocal.text import call_forms as forms
from eaglelocal.text import harmony

# the first row whose texts all stand in the template; None: calls of a form of its own that is not read here
FORMS: tuple[tuple[tuple[str, ...], CallForm | None], ...] = (
    (("<|channel|>", "<|message|>"), forms.HARMONY),
    (("]<]minimax[>[",), None),
    (("<arg_key>",), forms.GLM),
    (("<minimax:tool_call>",), forms.MINIMAX),
    (("<seed:tool_call>",), forms.SEED),
    (("｜DSML｜", "function_calls"), forms.DSML),
    (("｜DSML｜", "tool_calls"), forms.DSML_TOOLS),
    (("<tool_calls>[",), forms.LISTED),
    (("<tool_call>", "<function="), forms.CODER),
    (("<tool_call>",), forms.HERMES),
    (("<|tool_call>", "<tool_call|>"), forms.GEMMA),
    (("[TOOL_CALLS]", "[CALL_ID]"), forms.MISTRAL_IDS),
    (("[TOOL_CALLS]", "[ARGS]"), forms.MISTRAL_ARGS),
    (("[TOOL_CALLS]",), forms.MISTRAL),
    (("<｜tool▁call▁begin｜>", "```json"), forms.DEEPSEEK),
    (("<｜tool▁call▁begin｜>",), forms.DEEPSEEK_31),
    (("<|tool_calls_section_begin|>",), forms.KIMI),
    (("<|tool_call:begin|>",), forms.SOLAR),
    (("<|START_ACTION|>",), forms.COMMAND),
    (("<TOOLCALL>",), forms.NEMOTRON),
    (("<|tool_call|>", "<|/tool_call|>"), forms.PHI),
    (("<|tool|>", "<|/tool|>"), forms.PHI),
    (("<|tool_call|>",), forms.GRANITE),
    (("<|tool_call_start|>",), forms.LFM),
    (("<|tool_list_start|>",), forms.LFM),
    (("List of tools: [",), forms.LFM),
    (("<function_calls>",), forms.OLMO),
    (("<|function_call|>",), forms.GIGACHAT),
    (("<function=", "<|start_header_id|>"), forms.FUNCTIONARY),
    (("<|python_tag|>",), forms.LLAMA),
    (("<|start_header_id|>", '"parameters"'), forms.LLAMA),
    (("<|header_start|>", '"parameters"'), forms.LLAMA_4),
    (("<|header_start|>", "(param1=value1"), forms.LLAMA_4_PYTHON),
)


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Markers around thoughts, a word behind the first of them, and markers around what is said."""

    begin: str
    end: str
    label: str = ""
    said: tuple[str, str] = ("", "")


# the first row one of whose markers stands in the template
THOUGHTS = (
    Thoughts("<think>", "</think>", said=("<response>", "</response>")),
    Thoughts("[THINK]", "[/THINK]"),
    Thoughts("<seed:think>", "</seed:think>"),
    Thoughts("<|channel>", "<channel|>", label="thought"),
    Thoughts("<|START_THINKING|>", "<|END_THINKING|>", said=("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    Thoughts("<mm:think>", "</mm:think>"),
    Thoughts("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", said=("", "[END FINAL RESPONSE]")),
)


@dataclass(frozen=True, slots=True)
class Family:
    """What a template says about its model's answers.

    form     of its calls; for a template that takes no tools, or in a form not known here, the stand-in's
    takes_tools  the template itself tells the model about tools
    thoughts     how they are marked, where that is not the form's own; None: there are none
    """

    form: CallForm
    takes_tools: bool
    thoughts: Thoughts | None

    def split(self) -> Split:
        if self.thoughts is None:
            return Split(form=self.form)
        return Split(
            form=self.form,
            thought=(self.thoughts.begin, self.thoughts.end),
            thought_label=self.thoughts.label,
            said=self.thoughts.said,
        )

    def has_begun(self, rendered: str) -> bool:
        """The prompt ends inside a thought."""
        if self.thoughts is None:
            return False
        begun = f"{self.thoughts.begin}{self.thoughts.label}"
        return rendered.rstrip().endswith(begun)


def family_of(template: str) -> Family:
    form = next((form for texts, form in FORMS if all(text in template for text in texts)), None)
    if form is forms.HARMONY:
        return Family(form, takes_tools=True, thoughts=None)
    takes_tools = form is not None and re.search(r"\btools\b", template) is not None
    thoughts = next((row for row in THOUGHTS if row.begin in template or row.end in template), None)
    if thoughts is not None and thoughts.said[1] not in template:
        thoughts = Thoughts(thoughts.begin, thoughts.end, thoughts.label)
    return Family(form if form and takes_tools else forms.HERMES, takes_tools, thoughts)


def markers_of(split: Split) -> tuple[str, ...]:
    """In the order that gives each its control character."""
    if is_harmony(split):
        return harmony.MARKERS
    calls = split.form.markers if split.form and split.tools else ()
    return tuple(dict.fromkeys(filter(None, (*(split.thought or ()), *split.said, *calls))))


def is_spelled(split: Split) -> bool:
    """May markers be written out as text? Harmony's are always control tokens."""
    return not is_harmony(split)


def is_harmony(split: Split) -> bool:
    return split.form is not None and split.form.notation is Notation.HARMONY

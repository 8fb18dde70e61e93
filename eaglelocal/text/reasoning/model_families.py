"""Model families, recognised by their chat templates: how each writes tool calls and reasoning.

An explicit table. A template whose form of calls is not in it is not given tools at all: they are described
in a system message in Hermes form instead (template_messages.py), and the answer is read as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from eaglelocal.core.tools import CallForm, Notation, Split, Turns
from eaglelocal.text.reasoning import harmony
from eaglelocal.text.tool_calls import call_forms as forms

MAX_TEMPLATE_BYTES = 256 * 1024
_SUFFIX = re.compile(r"\bHYTK = '(:\w{1,32})'")  # inserted in many places
_MARKER = re.compile(r"<\|[^|]+\|>")
# the first row whose texts are all in the template counts; None: a form of calls that is not read here
FORMS: tuple[tuple[tuple[str, ...], CallForm | None], ...] = (
    (("<|channel|>", "<|message|>"), forms.HARMONY),
    (("]<]minimax[>[",), None),
    (("<arg_key:opensource>", "<tool_sep:opensource>"), forms.HY),
    (("<arg_key>",), forms.GLM),
    (("<atem:function_calls>", "<|eom|>"), forms.MUSE),
    (('<function name="', '<param name="'), forms.MINICPM),
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
    (("<|tools_prefix|>", "<|tools_suffix|>"), forms.APERTUS),
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
    """Markers around reasoning, a word after the opening one, and markers around the text that follows."""

    begin: str
    end: str
    label: str = ""
    said: tuple[str, str] = ("", "")


# the first row with a marker in the template counts, preferably one whose markers around text are in it too
THOUGHTS = (
    Thoughts("<think>", "</think>", said=("<response>", "</response>")),
    Thoughts("[THINK]", "[/THINK]"),
    Thoughts("<seed:think>", "</seed:think>"),
    Thoughts("<|channel>", "<channel|>", label="thought"),
    Thoughts("<|START_THINKING|>", "<|END_THINKING|>", said=("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    Thoughts("<|START_THINKING|>", "<|END_THINKING|>", said=("<|START_TEXT|>", "<|END_TEXT|>")),
    Thoughts("<think:opensource>", "</think:opensource>"),
    Thoughts("<|inner_prefix|>", "<|inner_suffix|>"),
    Thoughts("<mm:think>", "</mm:think>"),
    Thoughts("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", said=("", "[END FINAL RESPONSE]")),
)


@dataclass(frozen=True, slots=True)
class Family:
    """A model family, as its template shows it.

    form         of its calls; Hermes', for a template that takes no tools or has an unknown form
    takes_tools  the template itself describes tools to the model
    thoughts     markers of reasoning, where they are not the form's own; None: there are none
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
        """Return whether the prompt ends inside a thought."""
        if self.thoughts is None:
            return False
        begun = f"{self.thoughts.begin}{self.thoughts.label}"
        return rendered.rstrip().endswith(begun)


def family_of(template: str) -> Family:
    template = _with_suffixes(template)
    form = next((form for texts, form in FORMS if all(text in template for text in texts)), None)
    takes_tools = form is forms.HARMONY or (form is not None and re.search(r"\btools\b", template) is not None)
    if form is not None and form.turns is not None and takes_tools:
        return Family(form, takes_tools=True, thoughts=None)
    return Family(form if form and takes_tools else forms.HERMES, takes_tools, _thoughts_of(template))


def _with_suffixes(template: str) -> str:
    """Put Hy3's suffix into its tags, which its template writes as '<think{}>'.format(HYTK)."""
    found = _SUFFIX.search(template)
    return template.replace("{}", found[1]) if found else template


def _thoughts_of(template: str) -> Thoughts | None:
    rows = [row for row in THOUGHTS if row.begin in template or row.end in template]
    framed = next((row for row in rows if row.said[1] and row.said[1] in template), None)
    if framed is not None and framed.begin == rows[0].begin:
        return framed
    return Thoughts(rows[0].begin, rows[0].end, rows[0].label) if rows else None


def list_markers(split: Split) -> tuple[str, ...]:
    """Return the markers of a split, in the order of their control characters."""
    if is_harmony(split):
        return harmony.MARKERS
    turns = split.form.turns if split.form else None
    calls = split.form.markers if split.form and split.tools else ()
    around = markers_of_turns(turns) if turns else ()
    return tuple(dict.fromkeys(filter(None, (*around, *(split.thought or ()), *split.said, *calls))))


def markers_of_turns(turns: Turns) -> tuple[str, ...]:
    found = _MARKER.findall(turns.thought + turns.said + turns.aside + turns.onward)
    return tuple(dict.fromkeys((*found, *turns.ends)))


def is_spelled(split: Split) -> bool:
    """Return whether markers may be written as text. Harmony's are always control tokens."""
    return not is_harmony(split)


def is_harmony(split: Split) -> bool:
    return split.form is not None and split.form.notation is Notation.HARMONY

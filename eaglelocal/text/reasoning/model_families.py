"""Model families, recognized by their chat templates: how each writes tool calls and reasoning.

The tables list the forms. A template whose form of calls is not in them is not given tools: a system message describes
them in Hermes form instead (template_messages.py), and the answer is read in that form.
"""

from __future__ import annotations

import re

from eaglelocal.core.records import dataclass
from eaglelocal.core.tools import CallForm, MessageHeaders, Notation, Split
from eaglelocal.text.reasoning import harmony_parser as harmony
from eaglelocal.text.tool_calls import call_forms as forms

MAX_TEMPLATE_BYTES = 256 * 1024
_SUFFIX = re.compile(r"\bHYTK = '(:\w{1,32})'")  # inserted in many places
_MARKER = re.compile(r"<\|[^|]+\|>")
# the first row with all its texts in the template counts; None: no parser reads this form of calls
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
class ReasoningMarkers:
    """Markers around reasoning, a word after the opening one, and markers around the text that follows."""

    begin: str
    end: str
    label: str = ""
    text: tuple[str, str] = ("", "")


# the first row with a marker in the template counts, preferably one whose markers around text are in it too
REASONING_MARKERS = (
    ReasoningMarkers("<think>", "</think>", text=("<response>", "</response>")),
    ReasoningMarkers("[THINK]", "[/THINK]"),
    ReasoningMarkers("<seed:think>", "</seed:think>"),
    ReasoningMarkers("<|channel>", "<channel|>", label="thought"),
    ReasoningMarkers("<|START_THINKING|>", "<|END_THINKING|>", text=("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    ReasoningMarkers("<|START_THINKING|>", "<|END_THINKING|>", text=("<|START_TEXT|>", "<|END_TEXT|>")),
    ReasoningMarkers("<think:opensource>", "</think:opensource>"),
    ReasoningMarkers("<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningMarkers("<mm:think>", "</mm:think>"),
    ReasoningMarkers("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", text=("", "[END FINAL RESPONSE]")),
)


@dataclass(frozen=True, slots=True)
class Family:
    """A model family, as its template shows it.

    form         of its calls; Hermes', for a template that takes no tools or has an unknown form
    takes_tools  the template itself describes tools to the model
    reasoning    markers of reasoning, where they are not the form's own; None: there are none
    """

    form: CallForm
    takes_tools: bool
    reasoning: ReasoningMarkers | None

    @property
    def thinks(self) -> bool:
        """Return whether answers may begin with reasoning."""
        return self.reasoning is not None or (self.form.headers is not None and bool(self.form.headers.reasoning))

    def make_split(self) -> Split:
        if self.reasoning is None:
            return Split(form=self.form)
        return Split(
            form=self.form,
            reasoning_markers=(self.reasoning.begin, self.reasoning.end),
            reasoning_label=self.reasoning.label,
            text_markers=self.reasoning.text,
        )

    def list_closings(self, message: str, *, may_call: bool) -> tuple[tuple[str, str], ...]:
        """Return words and markers that end reasoning: the first time, and if it begins again or they do not fit.

        may_call  the answer may go on with a call: where answers are several messages, the model begins the next one
        """
        headers = self.form.headers
        if headers is None:
            return ((message, self.reasoning.end), ("", self.reasoning.end)) if self.reasoning else ()
        to_text = headers.next_header + headers.text
        return (message, headers.next_header if may_call else to_text), ("", to_text)

    def ends_in_reasoning(self, rendered: str) -> bool:
        """Return whether the prompt ends inside reasoning."""
        if self.reasoning is None:
            return False
        return rendered.rstrip().endswith(f"{self.reasoning.begin}{self.reasoning.label}")

    def ends_after_reasoning(self, rendered: str) -> bool:
        """Return whether the prompt ends with closed reasoning, as templates write it when thinking is off."""
        if self.form.headers is not None:
            return rendered.endswith(self.form.headers.reasoning + self.form.headers.next_header)
        return self.reasoning is not None and rendered.rstrip().endswith(self.reasoning.end)


@dataclass(frozen=True, slots=True)
class TemplateFeatures:
    """The abilities of a chat template: it describes tools to the model, and has a form of reasoning."""

    takes_tools: bool = False
    thinks: bool = False


def read_template_features(template: str | None) -> TemplateFeatures:
    """Return the features of a file's chat template; none without a template."""
    if not template:
        return TemplateFeatures()
    family = detect_family(template[:MAX_TEMPLATE_BYTES])
    return TemplateFeatures(family.takes_tools, family.thinks)


def detect_family(template: str) -> Family:
    """Return the family whose forms a chat template writes."""
    template = _insert_suffix(template)
    form = next((form for texts, form in FORMS if all(text in template for text in texts)), None)
    takes_tools = form is forms.HARMONY or (form is not None and re.search(r"\btools\b", template) is not None)
    if form is not None and form.headers is not None and takes_tools:
        return Family(form, takes_tools=True, reasoning=None)
    return Family(form if form and takes_tools else forms.HERMES, takes_tools, _find_reasoning_markers(template))


def _insert_suffix(template: str) -> str:
    """Put Hy3's suffix into its tags, which its template writes as '<think{}>'.format(HYTK)."""
    found = _SUFFIX.search(template)
    return template.replace("{}", found[1]) if found else template


def _find_reasoning_markers(template: str) -> ReasoningMarkers | None:
    rows = [row for row in REASONING_MARKERS if row.begin in template or row.end in template]
    framed = next((row for row in rows if row.text[1] and row.text[1] in template), None)
    if framed is not None and framed.begin == rows[0].begin:
        return framed
    return ReasoningMarkers(rows[0].begin, rows[0].end, rows[0].label) if rows else None


def list_markers(split: Split) -> tuple[str, ...]:
    """Return the markers of a split, in the order of their control characters."""
    if is_harmony(split):
        return harmony.MARKERS
    headers = split.form.headers if split.form else None
    calls = split.form.markers if split.form and split.tools else ()
    around = list_header_markers(headers) if headers else ()
    return tuple(dict.fromkeys(filter(None, (*around, *(split.reasoning_markers or ()), *split.text_markers, *calls))))


def list_header_markers(headers: MessageHeaders) -> tuple[str, ...]:
    found = _MARKER.findall(headers.reasoning + headers.text + headers.preamble + headers.next_header)
    return tuple(dict.fromkeys((*found, *headers.ends)))


def is_harmony(split: Split) -> bool:
    return split.form is not None and split.form.notation is Notation.HARMONY

"""Grammars for answers that must call a tool, or where reasoning or a call may precede a constrained text.

They are in llguidance's dialect of Lark, in the form that the family's parser reads; arguments fit the tool's schema.
Where both a constrained text and calls are possible, `@answer` stands for the text. Where a strict tool may be called
but need not be, any text that does not open a call is allowed. The backend compiles the grammars.

    required, Hermes   start: calls
                       calls: call (GAP? call){0,15}
                       call: <[151657]> "\\n{\\"name\\": \\"f\\", \\"arguments\\": " args_0 "}\\n" <[151658]>
    strict, Hermes     start: (PLAIN_TEXT? calls?)
                       PLAIN_TEXT: /(.|\\n)+/ & ~/(.|\\n)*<tool_call>(.|\\n)*/
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.json_text import read_object
from eaglelocal.core.tools import CallForm, MessageHeaders, Notation, Split, Tool, ToolChoice, ToolUse
from eaglelocal.errors import RequestError
from eaglelocal.text.reasoning.harmony_parser import CHANNEL, CONSTRAIN, MESSAGE
from eaglelocal.text.reasoning.model_families import is_harmony, list_markers
from eaglelocal.text.tool_calls.argument_rules import argument_rules, escape_regex, json_rule, list_terminals, quote
from eaglelocal.text.tool_calls.call_forms import ARGS, ID, INDEX, MAYBE_ID, NAME, SHORT_ID
from eaglelocal.text.tool_calls.tool_schemas import drop_definitions, keep_definitions, read_bindable_schema

MAX_CALLS = 16  # most calls in one answer, where calls are required: a weak model would not stop
_FIELDS = {
    INDEX: "/[0-9]{1,3}/",
    ID: "/[A-Za-z0-9_-]{1,40}/",
    SHORT_ID: "/[A-Za-z0-9]{9}/",
    MAYBE_ID: '(", \\"id\\": \\"" /[A-Za-z0-9]{9}/ "\\"")?',
}
_FIELD = re.compile(f"({'|'.join((ARGS, *_FIELDS))})")
_BREAK = re.compile(r"((?:(?<! ) +)?\n *)")  # white space that models may leave out


class Alternative(Enum):
    """The text that an answer may have instead of calls."""

    NOTHING = "nothing"
    ANSWER = "answer"  # a constrained text
    TEXT = "text"  # any text, also before calls


def make_constraint(
    split: Split, choice: ToolChoice, answer: Constraint | None, *, tokens: Mapping[str, int], is_split: bool
) -> Constraint | None:
    """Return the constraint of the whole answer; None if there is none.

    A required call admits calls only; `answer` admits a text that fits it, or calls; a strict tool admits any text, and
    calls that fit their tools. Reasoning may precede each. A required call overrides `answer`.

    tokens     ids of the markers that are one token each
    is_split   reasoning is separated from text; else `answer` constrains the whole text
    """
    if choice.use is ToolUse.REQUIRED:
        return _GrammarBuilder(split, choice, tokens, Alternative.NOTHING).build_constraint()
    if not is_split:
        return answer
    if answer is not None:
        frame = _GrammarBuilder(split, choice, tokens, Alternative.ANSWER).build_constraint()
        return replace(answer, frame=frame.source, unbound=(*answer.unbound, *frame.unbound))
    if any(tool.is_strict for tool in split.tools) and can_bind_with_text(split):
        return _GrammarBuilder(split, choice, tokens, Alternative.TEXT).build_constraint()
    return None


def can_bind_with_text(split: Split) -> bool:
    """Return whether a grammar can admit any text besides calls: a marker must show where a call begins.

    Llama's calls have none. Where an answer is several messages, the prompt must not have begun its text.
    """
    if get_headers(split) is not None:
        return not split.in_text
    return split.form is not None and bool(split.form.opening)


def get_headers(split: Split) -> MessageHeaders | None:
    return split.form.headers if split.form else None


def list_callable_tools(tools: Sequence[Tool], choice: ToolChoice) -> tuple[Tool, ...]:
    """Return the tools that the answer may call. Raises RequestError for a choice that cannot be met."""
    if choice.use is ToolUse.NONE:
        return ()
    if choice.name:
        tools = [tool for tool in tools if tool.name == choice.name]
        if not tools:
            raise RequestError(f"there is no tool {choice.name}", parameter="tool_choice")
    if choice.use is ToolUse.REQUIRED and not tools:
        raise RequestError("a call is required, but there are no tools", parameter="tool_choice")
    return tuple(tools)


class _GrammarBuilder:
    """A builder of one grammar, rule by rule."""

    def __init__(self, split: Split, choice: ToolChoice, tokens: Mapping[str, int], alternative: Alternative) -> None:
        self._split, self._parallel, self._tokens = split, choice.parallel, tokens
        self._has_calls, self._alternative = bool(split.tools) and split.form is not None, alternative
        self._headers = get_headers(split)
        marked = split.form if alternative is Alternative.TEXT and self._headers is None else None
        self._opening = marked.opening if marked else ""
        names = sorted(list_markers(split), key=len, reverse=True)
        self._markers = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else re.compile("(?!)")
        self._unbound: set[str] = set()  # keywords of the tools' schemas

    def build_constraint(self) -> Constraint:
        rules = [f"start: {self._reasoning()} ({self._body()})", "GAP: /[ \\n]{1,6}/", *self._reasoning_rules()]
        rules += self._text_rules()
        rules += self._call_rules() if self._has_calls else []
        return Constraint(Syntax.LARK, "\n".join(rules), unbound=tuple(sorted(self._unbound)))

    def _body(self) -> str:
        calls = ["calls"] if self._has_calls else []
        match self._alternative:
            case Alternative.NOTHING:
                return "calls"
            case Alternative.ANSWER:
                return " | ".join([*calls, self._answer("@answer")])
        if self._headers is not None:
            before = f"({self._write(self._headers.preamble)} PLAIN_TEXT {self._write(self._headers.next_header)})?"
            return f"{self._answer('PLAIN_TEXT?')} | {before} calls"
        if self._opens_with_text:
            return "plain_text? | text_before_call calls"
        return "plain_text? | plain_text? calls"

    @property
    def _opens_with_text(self) -> bool:
        """True if the opening marker is text: rule `text_before_call` then includes the marker."""
        return bool(self._opening) and self._opening not in self._tokens

    def _text_rules(self) -> list[str]:
        """Return the rules for free text that opens no call."""
        if self._alternative is not Alternative.TEXT:
            return []
        if self._headers is not None:
            return ["PLAIN_TEXT: /(.|\\n)+/"]
        free, anything, split = "", "(.|\\n)*", self._split
        if split.reasoning_markers is not None and not split.in_reasoning and not split.in_text:
            free = f" & ~/{escape_regex(split.reasoning_markers[0])}{anything}/"  # reasoning would match as text
        begin, end = (f"{self._mark(name)}?" if name else "" for name in split.text_markers)
        rules = [f"PLAIN_TEXT: /(.|\\n)+/{free} & ~/{anything}{escape_regex(self._opening)}{anything}/"]
        rules.append(f"plain_text: {begin} PLAIN_TEXT {end}")
        if self._opens_with_text:
            rules += [
                f"ANY_TEXT: /{anything}/{free}",
                f"text_before_call[suffix={json.dumps(self._opening)}]: ANY_TEXT",
            ]
        return rules

    # ---- reasoning and text
    def _reasoning(self) -> str:
        if self._split.in_text or self._split.after_reasoning:
            return ""
        if self._headers is not None:
            return f"({self._write(self._headers.reasoning)} REASONING {self._write(self._headers.next_header)})?"
        if self._split.reasoning_markers is None:
            return ""
        opening, _ = self._split.reasoning_markers
        gap = "" if self._alternative is Alternative.TEXT else "GAP?"  # text may begin with white space
        return f"reasoning {gap}" if self._split.in_reasoning else f"({self._mark(opening)} reasoning {gap})?"

    def _reasoning_rules(self) -> list[str]:
        """Return the rules for free text up to the closing marker, which is a token or text."""
        if self._headers is not None:
            return ["REASONING: /(.|\\n)*/"]
        if self._split.reasoning_markers is None:
            return []
        _, closing = self._split.reasoning_markers
        if closing in self._tokens:
            return [f"reasoning: REASONING {self._mark(closing)}", "REASONING: /(.|\\n)*/"]
        return [f"reasoning[suffix={json.dumps(closing)}]: /(.|\\n)*/"]

    def _answer(self, text: str) -> str:
        return text if self._headers is None else f"{self._write(self._headers.text)} {text}"

    # ---- calls
    def _call_rules(self) -> list[str]:
        form, tools = self._split.form, self._split.tools
        assert form is not None
        rules = [self._calls(), self._one_of("call"), *list_terminals(form)]
        rules += [self._one_of("first")] if self._first_lacks_opening else []
        for index, tool in enumerate(tools):
            if is_json_call(form):
                rules.append(f"call_{index}: {json_call(form, tool)}")
                continue
            rules.append(f"call_{index}: {self._call(form.call, tool, f'args_{index}')}")
            if self._first_lacks_opening:
                rest = form.call.removeprefix(self._opening)
                rules.append(f"first_{index}: {self._call(rest, tool, f'args_{index}')}")
            of_arguments, unbound = argument_rules(form, tool, f"args_{index}", self._write, self._tokens)
            rules += of_arguments
            self._unbound |= unbound
        return rules

    def _one_of(self, name: str) -> str:
        return f"{name}: {' | '.join(f'{name}_{index}' for index in range(len(self._split.tools)))}"

    @property
    def _first_lacks_opening(self) -> bool:
        """True if the rule for the text before the first call includes that call's opening marker."""
        return self._opens_with_text and self._split.form is not None and not self._split.form.around[0]

    def _calls(self) -> str:
        form = self._split.form
        assert form is not None
        first, joint, last = form.around
        is_one = form.is_one_call or not self._parallel
        between = self._write(joint) if joint.strip() else ("GAP? " if joint else "")
        name = "first" if self._first_lacks_opening else "call"
        calls = name if is_one else f"{name} ({between} call){{0,{MAX_CALLS - 1}}}"
        if self._opens_with_text:
            first = first.removeprefix(self._opening)
        return f"calls: {self._write(first)} {calls} {self._write(last)}"

    def _call(self, template: str, tool: Tool, arguments: str) -> str:
        """Return an expression for a call of this tool; `arguments` is the name of the rule for its arguments."""
        if is_harmony(self._split):
            return self._harmony_call(tool, arguments)
        fields = {ARGS: arguments, **_FIELDS}
        parts = _FIELD.split(template.replace(NAME, tool.name))
        return " ".join(fields.get(part) or self._write(part) for part in parts if part)

    def _harmony_call(self, tool: Tool, arguments: str) -> str:
        """Return an expression for a harmony call, with the recipient after the channel or before it."""
        to = f"to=functions.{tool.name}"
        kind = f'(" "? {self._mark(CONSTRAIN)} "json" | " json")?'  # apart from a name before it
        after = f"{self._mark(CHANNEL)} {quote(f'commentary {to}')} {kind}"
        before = f'{quote(f" {to}")} {self._mark(CHANNEL)} "commentary" {kind}'
        return f'({after} | {before}) " "? {self._mark(MESSAGE)} {arguments}'

    def _write(self, text: str) -> str:
        parts: list[str] = []
        for part in self._markers.split(text):
            if self._markers.fullmatch(part):
                parts.append(self._mark(part))
            else:
                parts += ["GAP?" if one.isspace() else quote(one) for one in _BREAK.split(part) if one]
        return " ".join(parts)

    def _mark(self, name: str) -> str:
        """Return a marker as its token if it is a single token, else as text."""
        token = self._tokens.get(name)
        return quote(name) if token is None else f"<[{token}]>"


def is_json_call(form: CallForm) -> bool:
    """Return whether the whole call is a JSON object without markers."""
    return form.notation is Notation.BARE and form.call.startswith("{")


def json_call(form: CallForm, tool: Tool) -> str:
    """Return a rule body for the whole call as JSON of one schema, not as literal text.

    An answer in JSON may begin in the same way, and both must stay possible.
    """
    schema = read_bindable_schema(tool)
    fields = read_object(form.call.replace(NAME, tool.name).replace(ARGS, json.dumps(ARGS)))
    properties = {
        key: {"type": "object", **drop_definitions(schema)} if value == ARGS else {"const": value}
        for key, value in fields.items()
    }
    whole = {"type": "object", "properties": properties, "required": list(fields), "additionalProperties": False}
    return json_rule({**whole, **keep_definitions(schema)}, is_strict=tool.is_strict)

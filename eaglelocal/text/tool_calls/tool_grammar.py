"""Grammars for answers that must call a tool, or where reasoning or a call may precede a bound text.

They are in llguidance's dialect of Lark, in the form that the family's parser reads; arguments fit the tool's schema.
Where both a bound text and calls are possible, `@answer` stands for the text. Where a strict tool may be called but
need not be, any text is allowed that opens no call. Does not compile them.

    required, Hermes   start: calls
                       calls: call (GAP? call){0,15}
                       call: <[151657]> "\\n{\\"name\\": \\"f\\", \\"arguments\\": " args_0 "}\\n" <[151658]>
    strict, Hermes     start: (SAID? calls?)
                       SAID: /(.|\\n)+/ & ~/(.|\\n)*<tool_call>(.|\\n)*/
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.json_text import read_object
from eaglelocal.core.tools import CallForm, Notation, Split, Tool, ToolChoice, ToolUse, Turns
from eaglelocal.errors import RequestError
from eaglelocal.text.reasoning.harmony import CHANNEL, CONSTRAIN, MESSAGE
from eaglelocal.text.reasoning.model_families import is_harmony, list_markers
from eaglelocal.text.tool_calls.argument_rules import argument_rules, json_rule, quoted, shared_rules
from eaglelocal.text.tool_calls.call_forms import ARGS, ID, INDEX, MAYBE_ID, NAME, SHORT_ID
from eaglelocal.text.tool_calls.tool_schemas import bound_schema, definitions_of, without_definitions

MAX_CALLS = 16  # in one answer, where calls are required: a weak model would not stop
_FIELDS = {
    INDEX: "/[0-9]{1,3}/",
    ID: "/[A-Za-z0-9_-]{1,40}/",
    SHORT_ID: "/[A-Za-z0-9]{9}/",
    MAYBE_ID: '(", \\"id\\": \\"" /[A-Za-z0-9]{9}/ "\\"")?',
}
_FIELD = re.compile(f"({'|'.join((ARGS, *_FIELDS))})")
_BREAK = re.compile(r"((?:(?<! ) +)?\n *)")  # white space that models may leave out


class Beside(Enum):
    """The alternatives to calls in an answer."""

    NOTHING = "nothing"
    ANSWER = "answer"  # a bound text
    TEXT = "text"  # any text, also before calls


def make_constraint(
    split: Split, choice: ToolChoice, wanted: Constraint | None, *, tokens: Mapping[str, int], is_split: bool
) -> Constraint | None:
    """Return the constraint that binds the answer; None: nothing does.

    A required call binds it to calls, `wanted` to a text or calls instead of it, a strict tool to any text and to calls
    that fit their tools; each after reasoning. A required call overrides `wanted`.

    tokens     ids of the markers that are one token each
    is_split   the reader separates reasoning from text; else `wanted` binds the whole text
    """
    if choice.use is ToolUse.REQUIRED:
        return Constraint(Syntax.LARK, _Frame(split, choice, tokens, Beside.NOTHING).text())
    if not is_split:
        return wanted
    if wanted is not None:
        return replace(wanted, frame=_Frame(split, choice, tokens, Beside.ANSWER).text())
    if any(tool.is_strict for tool in split.tools) and can_bind_beside_text(split):
        return Constraint(Syntax.LARK, _Frame(split, choice, tokens, Beside.TEXT).text())
    return None


def can_bind_beside_text(split: Split) -> bool:
    """Return whether a marker shows where a call begins.

    Llama's calls have none; where an answer is several messages, the prompt must not have begun its text.
    """
    if turns_of(split) is not None:
        return not split.in_said
    return split.form is not None and bool(opening_of(split))


def opening_of(split: Split) -> str:
    """Return the marker that calls begin with; "" where there is none."""
    assert split.form is not None
    first = split.form.around[0] or split.form.call
    return max((name for name in list_markers(split) if first.startswith(name)), key=len, default="")


def turns_of(split: Split) -> Turns | None:
    return split.form.turns if split.form else None


def callable_tools(tools: Sequence[Tool], choice: ToolChoice) -> tuple[Tool, ...]:
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


class _Frame:
    """A builder of one grammar, rule by rule."""

    def __init__(self, split: Split, choice: ToolChoice, tokens: Mapping[str, int], beside: Beside) -> None:
        self._split, self._parallel, self._tokens = split, choice.parallel, tokens
        self._has_calls, self._beside = bool(split.tools) and split.form is not None, beside
        self._turns = turns_of(split)
        self._opening = opening_of(split) if beside is Beside.TEXT and self._turns is None else ""
        names = sorted(list_markers(split), key=len, reverse=True)
        self._markers = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else re.compile("(?!)")

    def text(self) -> str:
        rules = [f"start: {self._thought()} ({self._body()})", "GAP: /[ \\n]{1,6}/", *self._thought_rules()]
        rules += self._text_rules()
        return "\n".join([*rules, *(self._call_rules() if self._has_calls else [])])

    def _body(self) -> str:
        """Return the expression for what follows the reasoning."""
        calls = ["calls"] if self._has_calls else []
        match self._beside:
            case Beside.NOTHING:
                return "calls"
            case Beside.ANSWER:
                return " | ".join([*calls, self._answer("@answer")])
        if self._turns is not None:
            before = f"({self._written(self._turns.aside)} SAID {self._written(self._turns.onward)})?"
            return f"{self._answer('SAID?')} | {before} calls"
        if self._is_spelled:
            return "told? | spoken calls"
        return "told? | told? calls"

    @property
    def _is_spelled(self) -> bool:
        """True if the opening marker is text: free text ends where it begins (rule `spoken`, marker included)."""
        return bool(self._opening) and self._opening not in self._tokens

    def _text_rules(self) -> list[str]:
        """Return the rules for free text in which no call is opened."""
        if self._beside is not Beside.TEXT:
            return []
        if self._turns is not None:
            return ["SAID: /(.|\\n)+/"]
        free, anything = self._no_thought(), "(.|\\n)*"
        begin, end = (f"{self._mark(name)}?" if name else "" for name in self._split.said)
        rules = [f"SAID: /(.|\\n)+/{free} & ~/{anything}{in_regex(self._opening)}{anything}/"]
        rules.append(f"told: {begin} SAID {end}")
        if self._is_spelled:
            rules += [f"FREE: /{anything}/{free}", f"spoken[suffix={json.dumps(self._opening)}]: FREE"]
        return rules

    def _no_thought(self) -> str:
        """Return a condition that text does not begin like reasoning, for the reasoning would be matched as text."""
        if self._split.thought is None or self._split.in_thought or self._split.in_said:
            return ""
        return f" & ~/{in_regex(self._split.thought[0])}(.|\\n)*/"

    # ---- reasoning and text
    def _thought(self) -> str:
        if self._turns is not None:
            return f"({self._written(self._turns.thought)} THOUGHT {self._written(self._turns.onward)})?"
        if self._split.thought is None or self._split.in_said:
            return ""
        opening, _ = self._split.thought
        gap = "" if self._beside is Beside.TEXT else "GAP?"  # text may begin with white space
        return f"thought {gap}" if self._split.in_thought else f"({self._mark(opening)} thought {gap})?"

    def _thought_rules(self) -> list[str]:
        """Return the rules for free text up to the closing marker, which is a token or text."""
        if self._turns is not None:
            return ["THOUGHT: /(.|\\n)*/"]
        if self._split.thought is None:
            return []
        _, closing = self._split.thought
        if closing in self._tokens:
            return [f"thought: THOUGHT {self._mark(closing)}", "THOUGHT: /(.|\\n)*/"]
        return [f"thought[suffix={json.dumps(closing)}]: /(.|\\n)*/"]

    def _answer(self, text: str) -> str:
        return text if self._turns is None else f"{self._written(self._turns.said)} {text}"

    # ---- calls
    def _call_rules(self) -> list[str]:
        form, tools = self._split.form, self._split.tools
        assert form is not None
        rules = [self._calls(), self._one_of("call"), *shared_rules(form)]
        rules += [self._one_of("first")] if self._is_first_cut else []
        for index, tool in enumerate(tools):
            if is_json_call(form):
                rules.append(f"call_{index}: {json_call(form, tool)}")
                continue
            rules.append(f"call_{index}: {self._call(form.call, tool, f'args_{index}')}")
            if self._is_first_cut:
                rest = form.call.removeprefix(self._opening)
                rules.append(f"first_{index}: {self._call(rest, tool, f'args_{index}')}")
            rules += argument_rules(form, tool, f"args_{index}", self._written, self._tokens)
        return rules

    def _one_of(self, name: str) -> str:
        """Return a rule for the call of any tool."""
        return f"{name}: {' | '.join(f'{name}_{index}' for index in range(len(self._split.tools)))}"

    @property
    def _is_first_cut(self) -> bool:
        """True if the rule for the text before the first call includes that call's opening marker."""
        return self._is_spelled and self._split.form is not None and not self._split.form.around[0]

    def _calls(self) -> str:
        form = self._split.form
        assert form is not None
        first, joint, last = form.around
        is_one = form.is_one_call or not self._parallel
        between = self._written(joint) if joint.strip() else ("GAP? " if joint else "")
        name = "first" if self._is_first_cut else "call"
        calls = name if is_one else f"{name} ({between} call){{0,{MAX_CALLS - 1}}}"
        if self._is_spelled:
            first = first.removeprefix(self._opening)
        return f"calls: {self._written(first)} {calls} {self._written(last)}"

    def _call(self, written: str, tool: Tool, arguments: str) -> str:
        """Return an expression for a call of this tool; `arguments` is the name of their rule."""
        if is_harmony(self._split):
            return self._harmony_call(tool, arguments)
        fields = {ARGS: arguments, **_FIELDS}
        parts = _FIELD.split(written.replace(NAME, tool.name))
        return " ".join(fields.get(part) or self._written(part) for part in parts if part)

    def _harmony_call(self, tool: Tool, arguments: str) -> str:
        """Return an expression for a harmony call, with the recipient after the channel or before it."""
        to = f"to=functions.{tool.name}"
        kind = f'(" "? {self._mark(CONSTRAIN)}? "json")?'
        behind = f"{self._mark(CHANNEL)} {quoted(f'commentary {to}')} {kind}"
        before = f'{quoted(f" {to}")} {self._mark(CHANNEL)} "commentary" {kind}'
        return f'({behind} | {before}) " "? {self._mark(MESSAGE)} {arguments}'

    def _written(self, text: str) -> str:
        """Return an expression for a text with markers in it."""
        parts = [one for part in self._markers.split(text) for one in self._plain(part)]
        return " ".join(parts)

    def _plain(self, part: str) -> list[str]:
        if self._markers.fullmatch(part):
            return [self._mark(part)]
        return ["GAP?" if one.isspace() else quoted(one) for one in _BREAK.split(part) if one]

    def _mark(self, name: str) -> str:
        """Return a marker as its token, if it is one, else as text."""
        token = self._tokens.get(name)
        return quoted(name) if token is None else f"<[{token}]>"


def in_regex(text: str) -> str:
    """Return a text escaped for a regular expression between slashes."""
    return re.escape(text).replace("/", "\\/")


def is_json_call(form: CallForm) -> bool:
    """Return whether the whole call is a JSON object without markers."""
    return form.notation is Notation.BARE and form.call.startswith("{")


def json_call(form: CallForm, tool: Tool) -> str:
    """Return a rule body for the whole call as JSON of one schema, not as literal text.

    An answer in JSON may begin in the same way, and both must stay possible.
    """
    schema = bound_schema(tool)
    fields = read_object(form.call.replace(NAME, tool.name).replace(ARGS, json.dumps(ARGS)))
    properties = {
        key: {"type": "object", **without_definitions(schema)} if value == ARGS else {"const": value}
        for key, value in fields.items()
    }
    whole = {"type": "object", "properties": properties, "required": list(fields), "additionalProperties": False}
    return json_rule({**whole, **definitions_of(schema)}, is_strict=tool.is_strict)

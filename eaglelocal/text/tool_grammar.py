"""What an answer is bound to when a call is required, or when a thought or a call may stand before a bound text.

Grammars in llguidance's dialect of Lark, in the form that the family's parser reads; arguments fit the tool's schema.
Where both a bound text and calls may come, `@answer` stands for the text. Does not compile.

    required, Hermes   start: calls
                       calls: call (GAP? call){0,15}
                       call: <[151657]> "\\n{\\"name\\": \\"f\\", \\"arguments\\": " args_0 "}\\n" <[151658]>
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.tools import Notation, Split, Tool, ToolChoice, ToolUse
from eaglelocal.errors import RequestError
from eaglelocal.text.argument_rules import argument_rules, quoted, shared_rules
from eaglelocal.text.call_forms import ARGS, ID, INDEX, MAYBE_ID, NAME, SHORT_ID
from eaglelocal.text.families import is_harmony, markers_of
from eaglelocal.text.harmony import CHANNEL, CONSTRAIN, ENDS, MESSAGE, START

MAX_CALLS = 16  # that an answer must make up: a weak model would find no end
_FIELDS = {
    INDEX: "/[0-9]{1,3}/",
    ID: "/[A-Za-z0-9_-]{1,40}/",
    SHORT_ID: "/[A-Za-z0-9]{9}/",
    MAYBE_ID: '(", \\"id\\": \\"" /[A-Za-z0-9]{9}/ "\\"")?',
}
_FIELD = re.compile(f"({'|'.join((ARGS, *_FIELDS))})")
_BREAK = re.compile(r"( *\n *)")  # white space that models write or not


def constraint_of(
    split: Split, choice: ToolChoice, wanted: Constraint | None, *, tokens: Mapping[str, int], is_split: bool
) -> Constraint | None:
    """What binds the answer, all things considered.

    tokens     of the markers that are one token each
    required   calls and nothing else, behind a thought; `wanted` says nothing then
    otherwise  `wanted`, behind a thought, or calls instead of it
    is_split   the reader tells thoughts from text; else the whole text is bound
    """
    if choice.use is ToolUse.REQUIRED:
        frame = _Frame(split, choice, tokens, has_calls=True, has_answer=False)
        return Constraint(Syntax.LARK, frame.text())
    if wanted is None or not is_split:
        return wanted
    # a call of Llama's looks like an answer in JSON: where an answer is bound there are no calls
    has_calls = bool(split.tools) and split.form is not None and split.form.notation is not Notation.BARE
    frame = _Frame(split, choice, tokens, has_calls=has_calls, has_answer=True)
    return Constraint(wanted.syntax, wanted.source, frame.text())


def callable_tools(tools: Sequence[Tool], choice: ToolChoice) -> tuple[Tool, ...]:
    """Those that the answer may call. Raises RequestError for a choice that cannot be met."""
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
    """One grammar, rule by rule."""

    def __init__(
        self, split: Split, choice: ToolChoice, tokens: Mapping[str, int], *, has_calls: bool, has_answer: bool
    ) -> None:
        self._split, self._parallel, self._tokens = split, choice.parallel, tokens
        self._has_calls, self._has_answer = has_calls, has_answer
        names = sorted(markers_of(split), key=len, reverse=True)
        self._markers = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else re.compile("(?!)")

    def text(self) -> str:
        bodies = ["calls"] if self._has_calls else []
        bodies += [self._answer()] if self._has_answer else []
        rules = [f"start: {self._thought()} ({' | '.join(bodies)})", "GAP: /[ \\n]{1,6}/"]
        return "\n".join([*rules, *self._thought_rules(), *(self._call_rules() if self._has_calls else [])])

    # ---- what is free
    def _thought(self) -> str:
        if is_harmony(self._split):
            begin = f'{self._mark(CHANNEL)} "analysis" {self._mark(MESSAGE)}'
            return f'({begin} THOUGHT {self._mark(ENDS[0])} {self._mark(START)} "assistant")?'
        if self._split.thought is None:
            return ""
        opening, _ = self._split.thought
        return "thought GAP?" if self._split.in_thought else f"({self._mark(opening)} thought GAP?)?"

    def _thought_rules(self) -> list[str]:
        """Free text up to the closing marker, whether that is a token or spelled."""
        if is_harmony(self._split):
            return ["THOUGHT: /(.|\\n)*/"]
        if self._split.thought is None:
            return []
        _, closing = self._split.thought
        if closing in self._tokens:
            return [f"thought: THOUGHT {self._mark(closing)}", "THOUGHT: /(.|\\n)*/"]
        return [f"thought[suffix={json.dumps(closing)}]: /(.|\\n)*/"]

    def _answer(self) -> str:
        if is_harmony(self._split):
            return f'{self._mark(CHANNEL)} "final" {self._mark(MESSAGE)} @answer'
        return "@answer"

    # ---- calls
    def _call_rules(self) -> list[str]:
        form, tools = self._split.form, self._split.tools
        assert form is not None
        ways = " | ".join(f"call_{index}" for index in range(len(tools)))
        rules = [self._calls(), f"call: {ways}", *shared_rules(form)]
        for index, tool in enumerate(tools):
            rules.append(f"call_{index}: {self._call(form.call, tool, f'args_{index}')}")
            rules += argument_rules(form, tool, f"args_{index}", self._written, self._tokens)
        return rules

    def _calls(self) -> str:
        form = self._split.form
        assert form is not None
        first, joint, last = form.around
        is_one = form.is_one_call or not self._parallel
        between = self._written(joint) if joint.strip() else ("GAP? " if joint else "")
        calls = "call" if is_one else f"call ({between} call){{0,{MAX_CALLS - 1}}}"
        return f"calls: {self._written(first)} {calls} {self._written(last)}"

    def _call(self, written: str, tool: Tool, arguments: str) -> str:
        """A call of this tool; `arguments` is the name of their rule."""
        if is_harmony(self._split):
            return self._harmony_call(tool, arguments)
        fields = {ARGS: arguments, **_FIELDS}
        parts = _FIELD.split(written.replace(NAME, tool.name))
        return " ".join(fields.get(part) or self._written(part) for part in parts if part)

    def _harmony_call(self, tool: Tool, arguments: str) -> str:
        """The recipient behind the channel or before it, as the model likes."""
        to = f"to=functions.{tool.name}"
        kind = f'(" "? {self._mark(CONSTRAIN)}? "json")?'
        behind = f"{self._mark(CHANNEL)} {quoted(f'commentary {to}')} {kind}"
        before = f'{quoted(f" {to}")} {self._mark(CHANNEL)} "commentary" {kind}'
        return f'({behind} | {before}) " "? {self._mark(MESSAGE)} {arguments}'

    def _written(self, text: str) -> str:
        """A text with markers in it."""
        parts = [one for part in self._markers.split(text) for one in self._plain(part)]
        return " ".join(parts)

    def _plain(self, part: str) -> list[str]:
        if self._markers.fullmatch(part):
            return [self._mark(part)]
        return ["GAP?" if one.isspace() else quoted(one) for one in _BREAK.split(part) if one]

    def _mark(self, name: str) -> str:
        """A marker as its token, where it is one, else spelled."""
        token = self._tokens.get(name)
        return quoted(name) if token is None else f"<[{token}]>"

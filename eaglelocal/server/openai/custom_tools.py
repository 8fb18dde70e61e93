"""Custom tools, whose input is a text: offered to models as functions with one argument, and answered as they are.

A regular expression binds the text as a string's `pattern` does (see STRICT in routes.py). A grammar in Lark cannot be
bound inside a JSON string, character by character: the model is shown it, and the request gets a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from eaglelocal.core.json_text import read_json
from eaglelocal.core.records import dataclass
from eaglelocal.core.tools import Tool
from eaglelocal.server.openai.field_types import Body, Text, ToolName
from eaglelocal.server.request_record import current_record

INPUT = "input"
MAX_NAMED = 8  # tools in a warning
FORMATS = "regex binds the text; lark is only shown to the model"
HOW_TO_CALL = f"Call this tool with one argument, `{INPUT}`: the whole text, as a string."
_CONTROL = re.compile(r"[\x00-\x1f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
# What of a JSON string is complete: not half an escape, nor half of a pair of surrogates.
_WHOLE = re.compile(
    r'(?:[^"\\]|\\(?:["\\/bfnrt]|u(?![dD][89abAB])[0-9a-fA-F]{4}|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))*'
)


class Grammar(Body):
    syntax: Annotated[Literal["lark", "regex"], Field(description=FORMATS)]
    definition: Text


class CustomFormat(Body):
    """The format of a custom tool's text. A grammar is in `grammar`, or beside it, as in /v1/responses."""

    type: Literal["text", "grammar"]
    grammar: Grammar | None = None
    syntax: Literal["lark", "regex"] | None = None
    definition: Text | None = None

    @property
    def rules(self) -> tuple[str, str]:
        """Return the syntax and the definition of the grammar; empty if there is none."""
        given = self.grammar or self
        return given.syntax or "", given.definition or ""


class CustomGiven(Body):
    """A tool of the client that takes a text."""

    name: ToolName
    description: Text | None = None
    format: CustomFormat | None = None


def read_custom_tool(given: CustomGiven) -> Tool:
    """Return the tool as a function with one argument."""
    syntax, definition = given.format.rules if given.format else ("", "")
    pattern = {"pattern": f"^(?:{definition})$"} if syntax == "regex" else {}
    schema = {
        "type": "object",
        "properties": {INPUT: {"type": "string", **pattern}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    shown = f"The text must match this grammar in Lark:\n{definition}" if syntax == "lark" else ""
    description = "\n\n".join(filter(None, (given.description, HOW_TO_CALL, shown)))
    return Tool(given.name, description, json.dumps(schema), is_strict=bool(pattern))


def warn_of_unbound(tools: Iterable[CustomGiven]) -> None:
    """Add a warning to the request's record if there are grammars that do not bind the text."""
    names = [tool.name for tool in tools if tool.format and tool.format.rules[0] == "lark"]
    if names:
        shown = f"{', '.join(names[:MAX_NAMED])}{', ...' if len(names) > MAX_NAMED else ''}"
        warning = f"grammars in lark do not bind what the model writes, it is only shown them (custom tools: {shown})"
        current_record().warnings.append(warning)


@dataclass(slots=True)
class CustomInput:
    """The text in a custom tool's call, from pieces of its arguments: `{"input": "a\\nb"}` becomes two lines."""

    arguments: list[str] = field(default_factory=list)
    text: str = ""  # so far
    _left: str = ""  # of the arguments, not read yet
    _is_open: bool = False  # within the text
    _is_closed: bool = False

    def add(self, arguments: str) -> str:
        """Return what the text gains by a piece of the arguments."""
        self.arguments.append(arguments)
        if self._is_closed:
            return ""
        self._left += arguments
        if not self._is_open:
            begin = _BEGIN.match(self._left)
            if begin is None:
                return ""
            self._is_open, self._left = True, self._left[begin.end() :]
        whole = _WHOLE.match(self._left)
        assert whole is not None
        self._left = self._left[whole.end() :]
        self._is_closed = self._left.startswith('"')
        escaped = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", whole.group())  # a model may forget to
        return self._gain(str(read_json(f'"{escaped}"')))

    def end(self) -> str:
        """Return what the text gains when the call is over: of other arguments than the expected ones, all of them."""
        arguments = "".join(self.arguments)
        try:
            value = read_json(arguments)
        except ValueError:  # it was cut off
            return self._gain("" if self._is_open else arguments)
        found = value.get(INPUT) if isinstance(value, dict) else None
        text = mend_surrogates(found) if isinstance(found, str) else arguments
        return self._gain(text.removeprefix(self.text)) if text.startswith(self.text) else ""

    def _gain(self, text: str) -> str:
        gained = mend_surrogates(text)
        self.text += gained
        return gained


def mend_surrogates(text: str) -> str:
    """Return the text with U+FFFD for half surrogates, which JSON can escape, but nobody can send."""
    return _SURROGATE.sub("\ufffd", text)


def read_input(arguments: str) -> str:
    """Return the text in the arguments of a whole call."""
    given = CustomInput()
    given.add(arguments)
    given.end()
    return given.text

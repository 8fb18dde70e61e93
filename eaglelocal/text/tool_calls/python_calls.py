"""A reader of calls as Python writes them: [look_up(word="owl"), add(a=1)]. Nothing runs.

Names may have characters that Python does not allow (get-time, server/tool, from). Calls may also stand on a line
each.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Mapping

from eaglelocal.core.tools import Tool, ToolCall
from eaglelocal.text.tool_calls.argument_shape import find_tool_name
from eaglelocal.text.tool_calls.json_spans import skip_space
from eaglelocal.text.tool_calls.lenient_literals import Style, UnreadableCall
from eaglelocal.text.tool_calls.lenient_values import LenientText, read_only_meaning

_NAME = re.compile(r"(?P<name>\w[\w./:-]*+)\s*+\(")
_LIST = {"[": "]", "(": ")"}
_JOINT = re.compile(r"\s*[,;]\s*|\s*\n\s*")


def read_python_calls(text: str, tools: Mapping[str, Tool]) -> list[ToolCall]:
    """Return the calls, without ids. Raises UnreadableCall if the text holds no calls."""
    return read_only_meaning(_blank_comments(text), Style.PYTHON, lambda reader: _read_list(reader, tools))


def _read_list(reader: LenientText, tools: Mapping[str, Tool]) -> list[ToolCall]:
    text = reader.text
    at = skip_space(text, 0)
    close = _LIST.get(text[at : at + 1], "")
    at = skip_space(text, at + len(close))
    calls: list[ToolCall] = []
    while (opening := _NAME.match(text, at)) is not None:
        name = find_tool_name(opening["name"], tools)
        arguments, at = reader.read_arguments(opening.end(), tools.get(name), ")")
        calls.append(ToolCall("", name, arguments))
        joint = _JOINT.match(text, at)
        if joint is None:
            break
        at = joint.end()
    if not calls:
        raise UnreadableCall("")
    at = skip_space(text, at)
    reader.finish(reader.skip_end(at, close) if close else at)
    return calls


def _blank_comments(text: str) -> str:
    """Replace a text's comments by blanks, if it is correct Python; otherwise comments cannot be recognized safely."""
    if "#" not in text:
        return text
    lines = io.StringIO(text).readlines()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes, which would be written to stderr
            ast.parse(text.strip())
        for token in tokenize.generate_tokens(iter(lines[:]).__next__):
            if token.type == tokenize.COMMENT:
                row, begin, end = token.start[0] - 1, token.start[1], token.end[1]
                if lines[row][:begin].rstrip().endswith(("=", ":")):  # perhaps a value without quotes
                    return text
                lines[row] = lines[row][:begin] + " " * (end - begin) + lines[row][end:]
    except (SyntaxError, ValueError, MemoryError, RecursionError, tokenize.TokenError):
        return text
    return "".join(lines)

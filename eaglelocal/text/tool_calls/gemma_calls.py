"""A reader of calls as Gemma 4 writes them: JSON with bare keys, and a token of its own around strings.

call:look_up{limit:3,word:<|"|>owl<|"|>}     -> look_up {"limit": 3, "word": "owl"}
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from eaglelocal.core.tools import Tool, ToolCall
from eaglelocal.text.tool_calls.argument_shape import find_tool_name
from eaglelocal.text.tool_calls.lenient_literals import Style, UnreadableCall
from eaglelocal.text.tool_calls.lenient_values import LenientText, read_only_meaning

_BEGIN = re.compile(r"\s*call:\s*(?P<name>[\w./:-]+)\s*\{")


class GemmaCalls:
    """A reader of one call. `problem` says why the last text that begins like a call is none."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools, self.problem = tools, ""

    def __call__(self, text: str) -> list[ToolCall] | None:
        """Return the call, without an id; None if the text is no call."""
        try:
            return [read_only_meaning(text, Style.GEMMA, self._parse)]
        except UnreadableCall as error:
            self.problem = str(error)
            return None

    def _parse(self, reader: LenientText) -> ToolCall:
        opening = _BEGIN.match(reader.text)
        if opening is None:
            raise UnreadableCall("")
        name = find_tool_name(opening["name"], self._tools)
        arguments, at = reader.read_arguments(opening.end(), self._tools.get(name))
        reader.finish(at)
        return ToolCall("", name, arguments)

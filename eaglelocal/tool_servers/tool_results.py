"""Read what servers send into plain records: their tools, and the results of calls as text.

All of it is untrusted: control characters are replaced, and long texts are cut before anything else reads them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eaglelocal.core.amounts import count_noun
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import clean_line, clean_text, join_surrogates

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock, Tool

MAX_RESULT_CHARS = 200_000  # kept of a result; how much of it fits the context is decided later
MAX_DESCRIPTION_CHARS = 1000
MAX_LINE_CHARS = 200
NO_PARAMETERS = '{"type":"object","properties":{}}'


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool of a server. `parameters`: the JSON schema of its arguments."""

    server: str
    name: str
    description: str = ""
    parameters: str = NO_PARAMETERS

    @property
    def label(self) -> str:
        """The name that people see and type: `time.get_current_time`."""
        return clean_line(f"{self.server}.{self.name}")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call. `num_chars`: of the whole text, of which `text` may be the beginning."""

    text: str
    is_error: bool = False
    num_chars: int = 0


def fail_call(text: str) -> ToolResult:
    return ToolResult(text, is_error=True, num_chars=len(text))


def read_tool(server: str, tool: Tool) -> ServerTool:
    """Return a server's tool; a schema that is no JSON object of ours counts as one without parameters."""
    description = join_surrogates(tool.description or tool.title or "")[:MAX_DESCRIPTION_CHARS]
    schema = json.dumps(tool.input_schema, ensure_ascii=False, separators=(",", ":"))
    return ServerTool(server, tool.name, clean_text(description), clean_text(join_surrogates(schema)))


def read_result(result: CallToolResult) -> ToolResult:
    """Return the result of a call as text. Images, sounds and files are only named: the model does not get them."""
    texts = [_read_block(block) for block in result.content]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    kept = _join_begin(texts)
    num_cut = sum(map(len, texts)) + max(len(texts) - 1, 0) - len(kept)
    cleaned = clean_text(join_surrogates(kept))
    return ToolResult(cleaned, bool(result.is_error), len(cleaned) + num_cut)


def _join_begin(texts: Sequence[str]) -> str:
    """Join the texts by lines as far as MAX_RESULT_CHARS reach."""
    parts, room = list[str](), MAX_RESULT_CHARS
    for text in texts:
        if room <= 0:
            break
        parts.append(text[:room])
        room -= len(text) + 1
    return "\n".join(parts)


def _read_block(block: ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return _name_bytes(block.type, block.mime_type, len(block.data) * 3 // 4)
        case "resource_link":
            return f"[a link to {block.name}: {block.uri}]"
        case _:
            resource = block.resource
            text = getattr(resource, "text", None)
            if isinstance(text, str):
                return text
            return _name_bytes("file", resource.mime_type or "", len(getattr(resource, "blob", "")) * 3 // 4)


def _name_bytes(kind: str, media_type: str, num_bytes: int) -> str:
    about = ", ".join(filter(None, [clean_line(media_type)[:MAX_LINE_CHARS], count_noun(num_bytes, "byte")]))
    return f"[{kind}: {about}; only text is shown to the model]"

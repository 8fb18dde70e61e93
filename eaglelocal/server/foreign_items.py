"""Translate items of /v1/responses and blocks of /v1/messages that only other servers produce: calls of their own
tools, and the results.

So a session that began at another server, or with other tools, can continue: an item that the model can use becomes a
call, a result or a text; any other becomes an empty reasoning item, which is skipped. The input is untrusted. Pure.

    custom_tool_call {"name": "apply_patch", "input": "x", "call_id": "c"}
        -> function_call {"name": "apply_patch", "arguments": '{"input": "x"}', "call_id": "c"}
    web_search_call {"action": {"query": "owls"}}
        -> message of the assistant, "[web_search_call: {"action": {"query": "owls"}}]"
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]

MAX_TEXT_CHARS = 16_384  # of an item rendered as text
SKIPPED_TYPES = frozenset(("compaction", "compaction_summary", "context_compaction", "mcp_list_tools", "item_metadata"))
APPROVAL_TYPES = frozenset(("mcp_approval_request", "mcp_approval_response"))
ARGUMENT_FIELDS = {  # calls whose results are separate items: the field with the arguments
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "computer_call": "action",
}
ENCRYPTED_FIELDS = ("encrypted_content", "encrypted_index")
SKIPPED_FIELDS = frozenset(
    ("type", "id", "status", "cache_control", *ENCRYPTED_FIELDS, "created_by", "acknowledged_safety_checks")
)
SERVER_TOOL_TYPES = (
    "server_tool_use",
    "mcp_tool_use",
    "container_upload",
    "search_result",
    "compaction",
)  # Anthropic's
BASE64_FIELDS = ("result", "image_url", "partial_image_b64", "data")  # base64, which a model cannot read
PART_TYPES = ("input_text", "output_text", "text", "input_image", "input_file")
_SCREENSHOT_TYPE = "computer_screenshot"


def is_foreign_item(type: object) -> bool:
    if not isinstance(type, str) or type in ("function_call", "function_call_output"):
        return False
    return type in SKIPPED_TYPES or type in APPROVAL_TYPES or type.endswith(("_call", "_output"))


def translate_item(item: Values) -> dict[str, Any]:
    """Convert the item to a type that this server knows."""
    kind: str = item["type"]
    if kind in SKIPPED_TYPES:
        return {"type": "reasoning"}
    if kind.endswith("_output"):
        if not item.get("call_id"):  # it does not belong to a call of the model
            return _translate_to_text(kind, item)
        result = {"type": "function_call_output", "call_id": item.get("call_id")}
        return result | {"output": _translate_output(item.get("output", item.get("tools")))}
    if kind in ARGUMENT_FIELDS and (item.get("call_id") or kind == "custom_tool_call"):
        return _translate_call(kind, item)
    return _translate_to_text(kind, item)


# ---- Anthropic's blocks
def is_server_tool_block(type: object) -> bool:
    """Return whether a block belongs to a tool that Anthropic runs, from a session begun there."""
    if not isinstance(type, str) or type == "tool_result":
        return False
    return type in SERVER_TOOL_TYPES or type.endswith("_tool_result")


def translate_block(block: Values) -> dict[str, Any]:
    return {"type": "text", "text": _describe(block["type"], block)}


# ---- for both
def _translate_call(kind: str, item: Values) -> dict[str, Any]:
    value = item.get(ARGUMENT_FIELDS[kind])
    arguments = value if isinstance(value, dict) else {ARGUMENT_FIELDS[kind]: value}
    name = item.get("name") if kind == "custom_tool_call" else kind.removesuffix("_call")
    call = {"type": "function_call", "call_id": item.get("call_id"), "name": name, "arguments": _to_json(arguments)}
    return call | ({"namespace": item["namespace"]} if "namespace" in item else {})


def _translate_output(output: object) -> object:
    """Return a text, or parts that function results may have, unchanged; anything else as JSON."""
    if output is None or isinstance(output, str):
        return output or ""
    if isinstance(output, dict) and output.get("type") == _SCREENSHOT_TYPE:
        return [{"type": "input_image", "image_url": output.get("image_url")}]
    parts = output if isinstance(output, list) else [None]
    is_supported = all(isinstance(one, dict) and one.get("type") in PART_TYPES for one in parts)
    return output if is_supported else _to_json(_drop_unreadable(output))


def _translate_to_text(kind: str, item: Values) -> dict[str, Any]:
    role = "user" if kind == "mcp_approval_response" else "assistant"
    return {"type": "message", "role": role, "content": _describe(kind, item)}


def _describe(kind: str, item: Values) -> str:
    fields = {
        name: value for name, value in item.items() if name not in SKIPPED_FIELDS and value not in (None, "", [], {})
    }
    return f"[{kind}: {_to_json(_drop_unreadable(fields))[:MAX_TEXT_CHARS]}]" if fields else f"[{kind}]"


def _drop_unreadable(value: object) -> object:
    """Remove encrypted fields, and replace base64 files by "...", at any depth."""
    if isinstance(value, list):
        return [_drop_unreadable(one) for one in value]
    if not isinstance(value, dict):
        return value
    read = {name: one for name, one in value.items() if name not in ENCRYPTED_FIELDS}
    return {
        name: "..." if name in BASE64_FIELDS and isinstance(one, str) else _drop_unreadable(one)
        for name, one in read.items()
    }


def _to_json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (RecursionError, ValueError):
        return "..."

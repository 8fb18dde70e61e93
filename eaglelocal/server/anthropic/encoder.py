"""Format answers for /v1/messages: blocks of thinking, text and tool use, each with a start, deltas and a stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eaglelocal.core.json_text import read_json
from eaglelocal.core.tools import ToolCall
from eaglelocal.server.answer_encoder import (
    AnswerEncoder,
    dump_json,
    encode_named_event,
    encode_statistics,
    encode_timings,
)
from eaglelocal.server.answer_state import AnswerState, DeltaPart, ReasoningRun, TextRun
from eaglelocal.server.http_errors import Problem

REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
FIELDS = {"thinking": ("thinking", "thinking_delta"), "text": ("text", "text_delta")}


class AnthropicEncoder(AnswerEncoder):
    """Formats answers for /v1/messages. The first choice is the only one.

    has_thinking  include thinking blocks; clients that did not request them do not know them
    """

    def __init__(self, call_id: str, model: str, *, has_thinking: bool) -> None:
        self._id, self._model, self._has_thinking = call_id, model, has_thinking
        self._open = ""  # kind of the block that is open
        self._index = -1  # of the newest block

    def encode_whole(self, choices: Sequence[AnswerState]) -> Mapping[str, object]:
        choice, content = choices[0], list[dict[str, Any]]()
        delta = choice.take_delta()
        reasoning, text, calls = delta.reasoning, delta.text, delta.calls
        if reasoning and self._has_thinking:
            content.append({"type": "thinking", "thinking": reasoning, "signature": ""})
        if text or not calls:
            content.append({"type": "text", "text": text})
        content += [tool_use_block(call, parse_arguments(call)) for call in calls]
        return {**self._encode_message(choice, content), **stop_fields(choice), **encode_statistics(choice)}

    def encode_start(self, choices: Sequence[AnswerState]) -> str:
        message = {**self._encode_message(choices[0], []), "stop_reason": None, "stop_sequence": None}
        return encode_named_event({"type": "message_start", "message": message})

    def encode_part(self, choice: AnswerState, part: DeltaPart) -> str:
        match part:
            case ReasoningRun():
                return self._add("thinking", part.text if self._has_thinking else "")
            case TextRun():
                return self._add("text", part.text)
        opened = ""
        if part.name:
            opened = self._close() + self._begin("tool_use", tool_use_block(ToolCall(part.id, part.name, ""), {}))
        fill = self._fill({"type": "input_json_delta", "partial_json": part.arguments}) if part.arguments else ""
        return opened + fill

    def encode_choice_end(self, choice: AnswerState) -> str:
        return self._close()

    def encode_end(self, choices: Sequence[AnswerState]) -> str:
        choice = choices[0]
        end = {
            "type": "message_delta",
            "delta": stop_fields(choice),
            "usage": encode_usage(choice),
            "timings": encode_timings(choice),
        }
        return encode_named_event(end) + encode_named_event({"type": "message_stop"})

    def encode_ping(self) -> str:
        return encode_named_event({"type": "ping"})

    def encode_failure(self, problem: Problem) -> str:
        return encode_named_event(problem.anthropic_body())

    # ---- blocks
    def _add(self, kind: str, text: str) -> str:
        if not text:
            return ""
        field, delta = FIELDS[kind]
        opened = ""
        if self._open != kind:
            empty = {"type": kind, field: ""} | ({"signature": ""} if kind == "thinking" else {})
            opened = self._close() + self._begin(kind, empty)
        return opened + self._fill({"type": delta, field: text})

    def _begin(self, kind: str, block: dict[str, Any]) -> str:
        self._open, self._index = kind, self._index + 1
        return encode_named_event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _fill(self, delta: dict[str, Any]) -> str:
        return encode_named_event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close(self) -> str:
        """End the open block. One of thinking gets a signature first, as clients expect: ours is empty."""
        kind, self._open = self._open, ""
        signed = self._fill({"type": "signature_delta", "signature": ""}) if kind == "thinking" else ""
        return signed + encode_named_event({"type": "content_block_stop", "index": self._index}) if kind else ""

    def _encode_message(self, choice: AnswerState, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "usage": encode_usage(choice),
        }


def stop_fields(choice: AnswerState) -> dict[str, Any]:
    finished = choice.finished
    if finished is not None and finished.reason == "stop" and finished.stop in choice.params.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": finished.stop}
    return {"stop_reason": REASONS.get(choice.finish_reason, "end_turn"), "stop_sequence": None}


def encode_usage(choice: AnswerState) -> dict[str, object]:
    """Return the usage. In this API, input tokens exclude those from the cache."""
    return {
        "input_tokens": choice.prompt_tokens - choice.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": choice.cached_tokens,
        "output_tokens": choice.num_tokens,
        "output_tokens_details": {"thinking_tokens": choice.reasoning_tokens},
    }


def tool_use_block(call: ToolCall, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def parse_arguments(call: ToolCall) -> dict[str, Any]:
    """Return the arguments as an object; invalid JSON is put into `arguments` as text."""
    try:
        value = read_json(call.arguments, is_finite=True)
        dump_json(value).encode()
    except ValueError:  # also raised for an escaped lone surrogate, which cannot be sent
        value = None
    return value if isinstance(value, dict) else {"arguments": call.arguments}

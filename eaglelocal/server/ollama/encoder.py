"""Format answers for Ollama's API: one JSON object, or a stream of them, one a line.

Durations are in nanoseconds. A tool call is sent as a whole, because its arguments are a JSON object here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from eaglelocal.core.tools import CallPart, ToolCall, join_calls
from eaglelocal.server.answer_encoder import (
    AnswerEncoder,
    dump_json,
    encode_logprobs,
    encode_statistics,
    is_json_object,
)
from eaglelocal.server.answer_state import AnswerState, Delta, DeltaPart, ReasoningRun, TextRun
from eaglelocal.server.anthropic.encoder import parse_arguments
from eaglelocal.server.http_errors import Problem

NDJSON = "application/x-ndjson"
ReplyFields = Callable[[str, str, Sequence[ToolCall]], dict[str, Any]]  # text, reasoning and calls as fields of a reply


def message_fields(text: str, thinking: str = "", calls: Sequence[ToolCall] = ()) -> dict[str, Any]:
    """Return the reply fields of /api/chat."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = [encode_call(call, i) for i, call in enumerate(calls)]
    return {"message": message}


def response_fields(text: str, thinking: str = "", calls: Sequence[ToolCall] = ()) -> dict[str, Any]:
    """Return the reply fields of /api/generate, which has no tool calls."""
    return {"response": text} | ({"thinking": thinking} if thinking else {})


class OllamaEncoder(AnswerEncoder):
    """Formats answers for Ollama's API. The first choice is the only one."""

    def __init__(self, model: str, reply_fields: ReplyFields, *, has_thinking: bool) -> None:
        """`model` is the name in the request."""
        self._model, self._reply_fields, self._has_thinking = model, reply_fields, has_thinking
        self._calls: list[CallPart] = []  # kept until they are complete

    def encode_whole(self, choices: Sequence[AnswerState]) -> Mapping[str, object]:
        choice = choices[0]
        delta = choice.take_delta()
        thinking = delta.reasoning if self._has_thinking else ""
        reply = self._reply_fields(delta.text, thinking, whole_calls(choice, delta.calls))
        return head(self._model) | reply | logprob_fields(choice, delta) | end_fields(choice)

    def encode_part(self, choice: AnswerState, part: DeltaPart) -> str:
        match part:
            case ReasoningRun():
                return self._line(self._reply_fields("", part.text, ())) if self._has_thinking else ""
            case CallPart():
                self._calls.append(part)
                return ""
        if not part.text and not part.sampled:
            return ""
        return self._line(self._reply_fields(part.text, "", ()) | logprob_fields(choice, part))

    def encode_choice_end(self, choice: AnswerState) -> str:
        calls = whole_calls(choice, join_calls(self._calls))
        return self._line(self._reply_fields("", "", calls)) if calls else ""

    def encode_end(self, choices: Sequence[AnswerState]) -> str:
        return encode_line(head(self._model) | self._reply_fields("", "", ()) | end_fields(choices[0]))

    def encode_ping(self) -> str:
        """Return an empty message, because clients parse every line as JSON."""
        return self._line(self._reply_fields("", "", ()))

    def encode_failure(self, problem: Problem) -> str:
        return encode_line(problem.ollama_body())

    def _line(self, reply: Mapping[str, object]) -> str:
        return encode_line({**head(self._model), **reply, "done": False})


def head(model: str) -> dict[str, object]:
    return {"model": model, "created_at": timestamp(datetime.now(UTC))}


def timestamp(time: datetime) -> str:
    """Return a time in UTC in the format of RFC 3339."""
    return time.isoformat().replace("+00:00", "Z")


def encode_line(event: Mapping[str, object]) -> str:
    return f"{dump_json(event)}\n"


def whole_calls(choice: AnswerState, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
    """Drop a last call whose arguments were cut off: clients would run it."""
    return calls[:-1] if choice.is_cut_off and calls and not is_json_object(calls[-1].arguments) else calls


def encode_call(call: ToolCall, index: int) -> dict[str, object]:
    return {"id": call.id, "function": {"index": index, "name": call.name, "arguments": parse_arguments(call)}}


def logprob_fields(choice: AnswerState, text: TextRun | Delta) -> dict[str, object]:
    found = encode_logprobs(choice, text.sampled)
    return {"logprobs": found["content"]} if found else {}


def end_fields(choice: AnswerState) -> dict[str, object]:
    """Return the fields of the last message. `load_duration` is the time until the engine got the request."""
    timing, total_s = choice.timings, choice.ended_at - choice.requested_at
    return {
        "done": True,
        "done_reason": "length" if choice.is_cut_off else "stop",
        "total_duration": nanoseconds(total_s),
        "load_duration": nanoseconds(total_s - timing.ttft_s - timing.decode_s),
        "prompt_eval_count": choice.prompt_tokens,
        "prompt_eval_duration": nanoseconds(timing.prefill_s),
        "eval_count": choice.num_tokens,
        "eval_duration": nanoseconds(timing.decode_s),
        **encode_statistics(choice),
    }


def nanoseconds(seconds: float) -> int:
    return round(max(seconds, 0.0) * 1e9)

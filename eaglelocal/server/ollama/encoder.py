"""Format answers for Ollama's API: one JSON object, or a stream of them, one a line.

Durations are in nanoseconds. A tool call is sent as a whole, because its arguments are a JSON object here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from eaglelocal.core.tools import CallPart, ToolCall, join_calls
from eaglelocal.server.answer_encoder import compact, is_object
from eaglelocal.server.answer_state import AnswerState, Delta, News, ReasoningRun, TextRun
from eaglelocal.server.anthropic.encoder import input_of
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.openai.chat_encoder import logprobs_of
from eaglelocal.server.usage import speculation, stats_of, timings, timings_of

NDJSON = "application/x-ndjson"
Shape = Callable[[str, str, Sequence[ToolCall]], dict[str, Any]]  # text, reasoning and calls as fields of a reply


def as_message(text: str, thought: str = "", calls: Sequence[ToolCall] = ()) -> dict[str, Any]:
    """Return the reply fields of /api/chat."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        message["thinking"] = thought
    if calls:
        message["tool_calls"] = [call_of(call, i) for i, call in enumerate(calls)]
    return {"message": message}


def as_response(text: str, thought: str = "", calls: Sequence[ToolCall] = ()) -> dict[str, Any]:
    """Return the reply fields of /api/generate, which has no tool calls."""
    return {"response": text} | ({"thinking": thought} if thought else {})


class OllamaEncoder:
    """A Teller for Ollama's API. The first choice is the only one."""

    def __init__(self, model: str, shape: Shape, *, tells_thoughts: bool) -> None:
        """Create a teller. `model`: the name in the request."""
        self._model, self._shape, self._tells_thoughts = model, shape, tells_thoughts
        self._calls: list[CallPart] = []  # until they are complete

    def whole(self, choices: Sequence[AnswerState]) -> Mapping[str, object]:
        choice = choices[0]
        new = choice.news()
        told = self._shape(new.text, new.reasoning if self._tells_thoughts else "", whole_calls(choice, new.calls))
        return head(self._model) | told | logprobs(choice, new) | end_of(choice)

    def opening(self, choices: Sequence[AnswerState]) -> str:
        return ""

    def delta(self, choice: AnswerState, new: Delta) -> str:
        return "".join(self._part(choice, part) for part in new.parts)

    def _part(self, choice: AnswerState, part: News) -> str:
        match part:
            case ReasoningRun():
                return self._line(self._shape("", part.text, ())) if self._tells_thoughts else ""
            case CallPart():
                self._calls.append(part)
                return ""
        return self._line(self._shape(part.text, "", ()) | logprobs(choice, part)) if part.text or part.sampled else ""

    def ending(self, choice: AnswerState) -> str:
        calls = whole_calls(choice, join_calls(self._calls))
        return self._line(self._shape("", "", calls)) if calls else ""

    def closing(self, choices: Sequence[AnswerState]) -> str:
        return line(head(self._model) | self._shape("", "", ()) | end_of(choices[0]))

    def ping(self) -> str:
        """Return an empty message, because clients parse every line as JSON."""
        return self._line(self._shape("", "", ()))

    def breaking(self, problem: Problem) -> str:
        return line(problem.ollama_body())

    def refusal(self, problem: Problem) -> Mapping[str, object]:
        return problem.ollama_body()

    def _line(self, told: Mapping[str, object]) -> str:
        return line({**head(self._model), **told, "done": False})


def head(model: str) -> dict[str, object]:
    return {"model": model, "created_at": timestamp(datetime.now(UTC))}


def timestamp(time: datetime) -> str:
    """Return a time in UTC in the format of RFC 3339."""
    return time.isoformat().replace("+00:00", "Z")


def line(event: Mapping[str, object]) -> str:
    return f"{compact(event)}\n"


def whole_calls(choice: AnswerState, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
    """Leave out a last call whose arguments were cut off: nothing would mark it, and clients would run it."""
    return calls[:-1] if choice.was_cut and calls and not is_object(calls[-1].arguments) else calls


def call_of(call: ToolCall, index: int) -> dict[str, object]:
    return {"id": call.id, "function": {"index": index, "name": call.name, "arguments": input_of(call)}}


def logprobs(choice: AnswerState, said: TextRun | Delta) -> dict[str, object]:
    told = logprobs_of(choice, said.sampled)
    return {"logprobs": told["content"]} if told else {}


def end_of(choice: AnswerState) -> dict[str, object]:
    """Return the fields of the last message. `load_duration`: the time until the engine got the request."""
    reason = choice.finished.reason if choice.finished else "stop"
    of, total_s = timings_of(choice), choice.ended_at - choice.asked_at
    return {
        "done": True,
        "done_reason": "length" if reason == "length" else "stop",
        "total_duration": nanoseconds(total_s),
        "load_duration": nanoseconds(total_s - of.ttft_s - of.decode_s),
        "prompt_eval_count": choice.prompt_tokens,
        "prompt_eval_duration": nanoseconds(of.prefill_s),
        "eval_count": choice.num_tokens,
        "eval_duration": nanoseconds(of.decode_s),
        "timings": timings(choice),
        "speculation": speculation(stats_of(choice)),
    }


def nanoseconds(seconds: float) -> int:
    return round(max(seconds, 0.0) * 1e9)

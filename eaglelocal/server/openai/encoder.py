"""Format answers for /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from eaglelocal.core.sampling import Sampled
from eaglelocal.core.tools import CallPart, ToolCall
from eaglelocal.server.answer_encoder import (
    DONE,
    AnswerEncoder,
    CustomInput,
    decode_piece,
    encode_event,
    encode_logprobs,
    encode_statistics,
    encode_usage,
    read_input,
)
from eaglelocal.server.answer_state import AnswerState, Delta, DeltaPart, ReasoningRun, TextRun


class ChatEncoder(AnswerEncoder):
    """Formats answers for /v1/chat/completions."""

    stream_end = DONE

    def __init__(
        self,
        call_id: str,
        model: str,
        *,
        has_usage: bool = False,
        has_drafted_flags: bool = False,
        custom_tools: Collection[str] = (),
    ) -> None:
        """Take the parameters of one call.

        custom_tools  names of the tools whose calls carry a text
        """
        self._has_usage, self._has_drafted_flags, self._custom_tools = has_usage, has_drafted_flags, custom_tools
        self._inputs: dict[tuple[int, int], CustomInput] = {}  # of calls being streamed, by choice and call
        self._head = {"id": f"chatcmpl-{call_id}", "created": int(time.time()), "model": model}

    def encode_whole(self, choices: Sequence[AnswerState]) -> Mapping[str, object]:
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(choice, choice.take_delta()) for choice in choices],
            "usage": encode_usage(choices),
            **encode_statistics(*choices),
        }

    def encode_start(self, choices: Sequence[AnswerState]) -> str:
        return "".join(self._chunk(choice.index, {"role": "assistant", "content": ""}) for choice in choices)

    def encode_part(self, choice: AnswerState, part: DeltaPart) -> str:
        """Return a chunk for each reasoning, text and call: some clients read only one of them from a chunk."""
        match part:
            case ReasoningRun():
                return self._chunk(choice.index, {"reasoning_content": part.text})
            case CallPart():
                return self._encode_call_part(choice, part)
        if not part.text and not part.sampled:
            return ""
        if self._has_drafted_flags and not part.sampled:
            return self._encode_runs(choice, part)
        return self._chunk(choice.index, {"content": part.text}, logprobs=encode_logprobs(choice, part.sampled))

    def _encode_call_part(self, choice: AnswerState, part: CallPart) -> str:
        if part.name in self._custom_tools:
            self._inputs[choice.index, part.index] = CustomInput()
        given = self._inputs.get((choice.index, part.index))
        if given is None:
            return self._chunk(choice.index, {"tool_calls": [encode_call_part(part)]})
        text = given.add(part.arguments)
        begun = encode_custom_call(part.id, part.name, text) if part.name else {"custom": {"input": text}}
        return self._chunk(choice.index, {"tool_calls": [{"index": part.index, **begun}]}) if text or part.name else ""

    def _end_inputs(self, choice: AnswerState) -> str:
        rests = {call: given.end() for (index, call), given in self._inputs.items() if index == choice.index}
        parts = [{"index": call, "custom": {"input": rest}} for call, rest in rests.items() if rest]
        return "".join(self._chunk(choice.index, {"tool_calls": [part]}) for part in parts)

    def _encode_runs(self, choice: AnswerState, text_run: TextRun) -> str:
        chunks, rest = [], text_run.text
        for text, count, drafted in text_run.runs:
            rest = rest.removeprefix(text)
            chunks.append(self._chunk(choice.index, {"content": text}, extra={"drafted": [drafted] * count}))
        return "".join(chunks) + (self._chunk(choice.index, {"content": rest}) if rest else "")

    def encode_choice_end(self, choice: AnswerState) -> str:
        end = self._chunk(choice.index, {}, finish_reason=choice.finish_reason, extra=encode_statistics(choice))
        return self._end_inputs(choice) + end

    def encode_end(self, choices: Sequence[AnswerState]) -> str:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": encode_usage(choices)}
        return (encode_event(chunk) if self._has_usage else "") + DONE

    def _choice(self, choice: AnswerState, delta: Delta) -> dict[str, object]:
        text, calls = delta.text, delta.calls
        message: dict[str, object] = {"role": "assistant", "content": text if text or not calls else None}
        message["refusal"] = None
        if reasoning := delta.reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [
                encode_custom_call(call.id, call.name, read_input(call.arguments))
                if call.name in self._custom_tools
                else encode_call(call)
                for call in calls
            ]
        return {
            "index": choice.index,
            "message": message,
            "logprobs": encode_logprobs(choice, delta.sampled),
            "finish_reason": choice.finish_reason,
        }

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, object],
        *,
        logprobs: Mapping[str, object] | None = None,
        finish_reason: str | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return encode_event({**self._head, "object": "chat.completion.chunk", "choices": [choice], **(extra or {})})


def encode_call(call: ToolCall) -> dict[str, object]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def encode_custom_call(id: str, name: str, text: str) -> dict[str, object]:
    return {"id": id, "type": "custom", "custom": {"name": name, "input": text}}


def encode_call_part(part: CallPart) -> dict[str, object]:
    if not part.name:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    return {"index": part.index, **encode_call(ToolCall(part.id, part.name, part.arguments))}


# ---- completion encoder: format answers for /v1/completions
class CompletionEncoder(AnswerEncoder):
    """Formats answers for /v1/completions."""

    stream_end = DONE

    def __init__(self, call_id: str, model: str, *, num_prompts: int = 1, has_usage: bool = False) -> None:
        self._num_prompts, self._has_usage = num_prompts, has_usage
        head = {"id": f"cmpl-{call_id}", "object": "text_completion"}
        self._head = {**head, "created": int(time.time()), "model": model}
        self._offsets: dict[int, int] = {}  # characters sent of each choice, for `text_offset` of logprobs

    def encode_whole(self, choices: Sequence[AnswerState]) -> Mapping[str, object]:
        return {
            **self._head,
            "choices": [self._choice(choice, choice.take_delta(), choice.finish_reason) for choice in choices],
            "usage": encode_usage(choices, num_prompts=self._num_prompts),
            **encode_statistics(*choices),
        }

    def encode_delta(self, choice: AnswerState, delta: Delta) -> str:
        return encode_event({**self._head, "choices": [self._choice(choice, delta, None)]})

    def encode_choice_end(self, choice: AnswerState) -> str:
        chunk = {**self._head, "choices": [self._choice(choice, Delta(), choice.finish_reason)]}
        return encode_event({**chunk, **encode_statistics(choice)})

    def encode_end(self, choices: Sequence[AnswerState]) -> str:
        chunk = {**self._head, "choices": [], "usage": encode_usage(choices, num_prompts=self._num_prompts)}
        return (encode_event(chunk) if self._has_usage else "") + DONE

    def _choice(self, choice: AnswerState, delta: Delta, reason: str | None) -> dict[str, object]:
        return {
            "index": choice.index,
            "text": delta.text,
            "logprobs": self._logprobs(choice, delta.sampled),
            "finish_reason": reason,
        }

    def _logprobs(self, choice: AnswerState, sampled: Sequence[Sampled]) -> dict[str, object] | None:
        if choice.params.logprobs is None:
            return None
        tokens, offsets = [decode_piece(one.piece) for one in sampled], []
        offset = self._offsets.get(choice.index, 0)
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        self._offsets[choice.index] = offset
        return {
            "tokens": tokens,
            "token_logprobs": [one.logprob for one in sampled],
            "top_logprobs": [{decode_piece(top.piece): top.logprob for top in one.top} for one in sampled],
            "text_offset": offsets,
        }

"""Format answers for /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import time
from abc import abstractmethod
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
    encode_prompt_progress,
    encode_statistics,
    encode_usage,
    read_input,
)
from eaglelocal.server.answer_state import AnswerState, Delta, DeltaPart, ReasoningRun, TextRun
from eaglelocal.server.request_reader import EngineCall


class OpenAIEncoder(AnswerEncoder):
    """The objects around the choices, whole or in a stream.

    heads  the first fields of a whole answer and of a chunk
    """

    stream_end = DONE

    def __init__(self, call: EngineCall, heads: tuple[Mapping[str, object], Mapping[str, object]]) -> None:
        self._num_prompts, self._has_usage, self.has_progress = call.num_prompts, call.has_usage, call.has_progress
        self._whole_head, self._chunk_head = heads

    def encode_whole(self, choices: Sequence[AnswerState]) -> Mapping[str, object]:
        return {
            **self._whole_head,
            "choices": [self._encode_choice(choice, choice.take_delta(), choice.finish_reason) for choice in choices],
            "usage": encode_usage(choices, num_prompts=self._num_prompts),
            **encode_statistics(*choices),
        }

    def encode_end(self, choices: Sequence[AnswerState]) -> str:
        chunk = {**self._chunk_head, "choices": [], "usage": encode_usage(choices, num_prompts=self._num_prompts)}
        return (encode_event(chunk) if self._has_usage else "") + DONE

    def _chunk(self, choice: Mapping[str, object], extra: Mapping[str, object] | None = None) -> str:
        return encode_event({**self._chunk_head, "choices": [choice], **(extra or {})})

    @abstractmethod
    def _encode_choice(self, choice: AnswerState, delta: Delta, reason: str | None) -> Mapping[str, object]:
        """Return a choice with its new parts, and the reason of its end."""


class ChatEncoder(OpenAIEncoder):
    """Formats answers for /v1/chat/completions."""

    def __init__(
        self, call: EngineCall, model: str, *, has_drafted_flags: bool = False, custom_tools: Collection[str] = ()
    ) -> None:
        """`custom_tools`: names of the tools whose calls carry a text."""
        head = {"id": f"chatcmpl-{call.requests[0].id}", "created": int(time.time()), "model": model}
        super().__init__(call, (head | {"object": "chat.completion"}, head | {"object": "chat.completion.chunk"}))
        self._has_drafted_flags, self._custom_tools = has_drafted_flags, custom_tools
        self._inputs: dict[tuple[int, int], CustomInput] = {}  # of calls being streamed, by choice and call

    def encode_start(self, choices: Sequence[AnswerState]) -> str:
        return "".join(self._delta(choice.index, {"role": "assistant", "content": ""}) for choice in choices)

    def encode_progress(self, choice: AnswerState) -> str:
        return self._delta(choice.index, {}, extra=encode_prompt_progress(choice))

    def encode_part(self, choice: AnswerState, part: DeltaPart) -> str:
        """Return a chunk for each reasoning, text and call: some clients read only one of them from a chunk."""
        match part:
            case ReasoningRun():
                flags = {"drafted": part.drafted} if self._has_drafted_flags else {}
                return self._delta(choice.index, {"reasoning_content": part.text}, extra=flags)
            case CallPart():
                return self._encode_call_part(choice, part)
        if not part.text and not part.sampled:
            return ""
        if self._has_drafted_flags and not part.sampled:
            return self._encode_runs(choice, part)
        return self._delta(choice.index, {"content": part.text}, logprobs=encode_logprobs(choice, part.sampled))

    def _encode_call_part(self, choice: AnswerState, part: CallPart) -> str:
        if part.name in self._custom_tools:
            self._inputs[choice.index, part.index] = CustomInput()
        given = self._inputs.get((choice.index, part.index))
        if given is None:
            return self._delta(choice.index, {"tool_calls": [encode_call_part(part)]})
        text = given.add(part.arguments)
        begun = encode_custom_call(part.id, part.name, text) if part.name else {"custom": {"input": text}}
        return self._delta(choice.index, {"tool_calls": [{"index": part.index, **begun}]}) if text or part.name else ""

    def _end_inputs(self, choice: AnswerState) -> str:
        rests = {call: given.end() for (index, call), given in self._inputs.items() if index == choice.index}
        parts = [{"index": call, "custom": {"input": rest}} for call, rest in rests.items() if rest]
        return "".join(self._delta(choice.index, {"tool_calls": [part]}) for part in parts)

    def _encode_runs(self, choice: AnswerState, text_run: TextRun) -> str:
        chunks, rest = [], text_run.text
        for text, count, drafted in text_run.runs:
            rest = rest.removeprefix(text)
            chunks.append(self._delta(choice.index, {"content": text}, extra={"drafted": [drafted] * count}))
        return "".join(chunks) + (self._delta(choice.index, {"content": rest}) if rest else "")

    def encode_choice_end(self, choice: AnswerState) -> str:
        end = self._delta(choice.index, {}, finish_reason=choice.finish_reason, extra=encode_statistics(choice))
        return self._end_inputs(choice) + end

    def _encode_choice(self, choice: AnswerState, delta: Delta, reason: str | None) -> Mapping[str, object]:
        text, calls = delta.text, delta.calls
        content = text if text or not calls else None
        message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
        if reasoning := delta.reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [
                encode_custom_call(call.id, call.name, read_input(call.arguments))
                if call.name in self._custom_tools
                else encode_call(call)
                for call in calls
            ]
        logprobs = encode_logprobs(choice, delta.sampled)
        return {"index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def _delta(
        self,
        index: int,
        delta: Mapping[str, object],
        *,
        logprobs: Mapping[str, object] | None = None,
        finish_reason: str | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._chunk(choice, extra)


def encode_call(call: ToolCall) -> dict[str, object]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def encode_custom_call(id: str, name: str, text: str) -> dict[str, object]:
    return {"id": id, "type": "custom", "custom": {"name": name, "input": text}}


def encode_call_part(part: CallPart) -> dict[str, object]:
    if not part.name:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    return {"index": part.index, **encode_call(ToolCall(part.id, part.name, part.arguments))}


class CompletionEncoder(OpenAIEncoder):
    """Formats answers for /v1/completions."""

    def __init__(self, call: EngineCall, model: str) -> None:
        head: dict[str, object] = {"id": f"cmpl-{call.requests[0].id}", "object": "text_completion"}
        head |= {"created": int(time.time()), "model": model}
        super().__init__(call, (head, head))
        self._offsets: dict[int, int] = {}  # characters sent of each choice, for `text_offset` of logprobs

    def encode_progress(self, choice: AnswerState) -> str:
        return self._chunk(self._encode_choice(choice, Delta(), None), encode_prompt_progress(choice))

    def encode_delta(self, choice: AnswerState, delta: Delta) -> str:
        return self._chunk(self._encode_choice(choice, delta, None))

    def encode_choice_end(self, choice: AnswerState) -> str:
        return self._chunk(self._encode_choice(choice, Delta(), choice.finish_reason), encode_statistics(choice))

    def _encode_choice(self, choice: AnswerState, delta: Delta, reason: str | None) -> Mapping[str, object]:
        logprobs = self._logprobs(choice, delta.sampled)
        return {"index": choice.index, "text": delta.text, "logprobs": logprobs, "finish_reason": reason}

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

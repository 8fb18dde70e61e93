"""Format answers for /v1/responses: items of reasoning, message and calls, each added, extended and done."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field

from eaglelocal.core.records import dataclass
from eaglelocal.core.tools import CallPart
from eaglelocal.server.answer_encoder import (
    DONE,
    AnswerEncoder,
    CustomInput,
    encode_named_event,
    encode_statistics,
    is_json_object,
)
from eaglelocal.server.answer_state import AnswerState, DeltaPart, ReasoningRun, TextRun
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.responses.schema import CustomTool, ResponsesBody, select_supported_tools

Event = dict[str, object]
CONTENT = {"reasoning": "reasoning_text", "message": "output_text"}


@dataclass(slots=True)
class OpenItem:
    """The reasoning or message item that is being filled."""

    kind: str  # reasoning, message
    id: str
    text: list[str] = field(default_factory=list)
    is_whole: bool = False  # a text has no recognizable end

    def part(self, text: str) -> Event:
        kind = CONTENT[self.kind]
        return {"type": kind, "text": text, **({"annotations": []} if kind == "output_text" else {})}

    def encode(self, status: str) -> Event:
        content = [] if status == "in_progress" else [self.part("".join(self.text))]
        item: Event = {"id": self.id, "type": self.kind, "status": status, "content": content}
        extra: Event = {"role": "assistant"} if self.kind == "message" else {"summary": []}
        return item | extra


@dataclass(slots=True)
class OpenCall:
    """The call item that is being filled, of a function or a custom tool."""

    id: str
    call_id: str
    name: str
    namespace: str
    custom: CustomInput | None = None  # the text in a custom tool's call
    arguments: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Return whether the arguments are complete: the answer may have been cut off."""
        return is_json_object("".join(self.arguments))

    @property
    def event(self) -> str:
        """Return the first words of the names of its events."""
        return "response.custom_tool_call_input" if self.custom else "response.function_call_arguments"

    def add(self, arguments: str) -> str:
        """Append a piece of the arguments. Return what it adds to the item."""
        self.arguments.append(arguments)
        return self.custom.add(arguments) if self.custom else arguments

    def content(self) -> Event:
        return {"input": self.custom.text} if self.custom else {"arguments": "".join(self.arguments)}

    def encode(self, status: str) -> Event:
        content = self.content()
        return {
            "id": self.id,
            "type": "custom_tool_call" if self.custom else "function_call",
            "call_id": self.call_id,
            "name": self.name,
            **({"namespace": self.namespace} if self.namespace else {}),
            **(dict.fromkeys(content, "") if status == "in_progress" else content),
            "status": status,
        }


class ResponsesEncoder(AnswerEncoder):
    """Formats answers for /v1/responses. The first choice is the only one."""

    def __init__(self, call_id: str, model: str, body: ResponsesBody) -> None:
        self._id, self._model, self._body = call_id, model, body
        self._functions = body.functions_by_name
        self._created_at = int(time.time())  # some clients accept integers only
        self._done: list[Event] = []  # completed items
        self._open: OpenItem | OpenCall | None = None
        self._number = 0  # of the next event
        self._sent: Event = {}  # the response as last sent: at the start of a stream, or whole

    @property
    def id(self) -> str:
        return f"resp_{self._id}"

    @property
    def is_sent(self) -> bool:
        """Return whether the client has received the response's id."""
        return bool(self._sent)

    def items(self) -> list[Event]:
        """Return the output so far; the last item may be incomplete."""
        return [*self._done, *([self._open.encode("incomplete")] if self._open else [])]

    def encode_whole(self, choices: Sequence[AnswerState]) -> Mapping[str, object]:
        choice = choices[0]
        self.encode_delta(choice, choice.take_delta())
        self._close(is_cut=choice.is_cut_off)
        self._sent = self._response(choice)
        return self._sent

    def encode_start(self, choices: Sequence[AnswerState]) -> str:
        response = self._sent = self._response(choices[0])
        names = ("response.created", "response.in_progress")
        return "".join(self._event(name, response=response) for name in names)

    def encode_part(self, choice: AnswerState, part: DeltaPart) -> str:
        match part:
            case ReasoningRun():
                return self._add("reasoning", part.text) if part.text else ""
            case TextRun():
                return self._add("message", part.text) if part.text else ""
        begun = self._close() + self._begin_call(part) if part.name else ""
        call = self._open
        return begun + self._extend_call(call, call.add(part.arguments)) if isinstance(call, OpenCall) else begun

    def encode_choice_end(self, choice: AnswerState) -> str:
        return self._close(is_cut=choice.is_cut_off)

    def encode_end(self, choices: Sequence[AnswerState]) -> str:
        response = self._response(choices[0])
        return self._event(f"response.{response['status']}", response=response)

    def encode_failure(self, problem: Problem) -> str:
        """Return an error event, which some clients raise, and a failed response, without which others would retry."""
        fields = {"code": problem.code or problem.type, "message": problem.message, "param": problem.parameter}
        error = self._event("error", **fields, error=problem.openai_body()["error"])
        code = "server_error" if problem.status >= 500 else problem.code or "invalid_prompt"  # as OpenAI's
        reason = {"code": code, "message": problem.message}
        failed = self._sent | {"status": "failed", "error": reason, "output": self.items()}
        return error + self._event("response.failed", response=failed) + DONE

    # ---- items
    def _add(self, kind: str, text: str) -> str:
        events = ""
        if not isinstance(self._open, OpenItem) or self._open.kind != kind:
            events = self._close()
            item = self._open = OpenItem(kind, f"{'rs' if kind == 'reasoning' else 'msg'}_{self._id}_{len(self._done)}")
            events += self._event(
                "response.output_item.added", output_index=len(self._done), item=item.encode("in_progress")
            )
            events += self._part_event("response.content_part.added", item, part=item.part(""))
        self._open.text.append(text)
        return events + self._part_event(f"response.{CONTENT[kind]}.delta", self._open, delta=text, logprobs=[])

    def _begin_call(self, part: CallPart) -> str:
        namespace, tool = self._functions.get(part.name, ("", None))
        name, custom = tool.name if tool else part.name, CustomInput() if isinstance(tool, CustomTool) else None
        id = f"{'ctc' if custom else 'fc'}_{self._id}_{len(self._done)}"
        call = self._open = OpenCall(id, part.id, name, namespace, custom)
        return self._event("response.output_item.added", output_index=len(self._done), item=call.encode("in_progress"))

    def _extend_call(self, call: OpenCall, text: str) -> str:
        return self._item_event(f"{call.event}.delta", call, delta=text) if text else ""

    def _close(self, *, is_cut: bool = False) -> str:
        item, self._open = self._open, None
        if item is None:
            return ""
        events = self._complete_text(item) if isinstance(item, OpenItem) else self._complete_call(item)
        done = item.encode("incomplete" if is_cut and not item.is_whole else "completed")
        events += self._event("response.output_item.done", output_index=len(self._done), item=done)
        self._done.append(done)
        return events

    def _complete_text(self, item: OpenItem) -> str:
        text = "".join(item.text)
        events = self._part_event(f"response.{CONTENT[item.kind]}.done", item, text=text, logprobs=[])
        return events + self._part_event("response.content_part.done", item, part=item.part(text))

    def _complete_call(self, call: OpenCall) -> str:
        rest = self._extend_call(call, call.custom.end()) if call.custom else ""
        name = {} if call.custom else {"name": call.name}
        return rest + self._item_event(f"{call.event}.done", call, **name, **call.content())

    def _part_event(self, name: str, item: OpenItem, /, **values: object) -> str:
        return self._item_event(name, item, content_index=0, **values)

    def _item_event(self, name: str, item: OpenItem | OpenCall, /, **values: object) -> str:
        return self._event(name, item_id=item.id, output_index=len(self._done), **values)

    def _event(self, name: str, /, **values: object) -> str:
        self._number += 1
        return encode_named_event({"type": name, "sequence_number": self._number - 1, **values})

    def _response(self, choice: AnswerState) -> Event:
        finished, body = choice.finished, self._body
        is_cut = choice.is_cut_off
        response: Event = {
            "id": self.id,
            "object": "response",
            "created_at": self._created_at,
            "status": "in_progress" if finished is None else "incomplete" if is_cut else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._model,
            "output": list(self._done),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "store": body.is_stored,
            "temperature": choice.params.temperature,
            "tool_choice": body.model_dump(include={"tool_choice"}, exclude_none=True).get("tool_choice", "auto"),
            "tools": [tool.model_dump() for tool in select_supported_tools(body.tools or ())],
            "top_p": choice.params.top_p,
            "usage": None,
        }
        if finished is not None:
            response |= {"usage": encode_usage(choice), **encode_statistics(choice)}
        return response


def encode_usage(choice: AnswerState) -> Event:
    return {
        "input_tokens": choice.prompt_tokens,
        "input_tokens_details": {"cached_tokens": choice.cached_tokens},
        "output_tokens": choice.num_tokens,
        "output_tokens_details": {"reasoning_tokens": choice.reasoning_tokens},
        "total_tokens": choice.prompt_tokens + choice.num_tokens,
    }

"""POST /v1/chat/completions, /v1/completions and GET /v1/models."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from starlette.responses import Response

from eaglelocal.core.adapters import adapter_objects
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.sampling import Sampled
from eaglelocal.server.answer_response import EVENT_STREAM, NOT_TRANSLATED, respond
from eaglelocal.server.answer_state import DONE, AnswerEncoder, AnswerState, Delta, encode_event
from eaglelocal.server.model_manager import ModelManager
from eaglelocal.server.openai.chat_encoder import ChatEncoder, decode_piece, finish_reason
from eaglelocal.server.openai.reply_schema import ChatReply, CompletionReply, ErrorReply, ModelCard, ModelList
from eaglelocal.server.openai.request_reader import read_chat, read_completion
from eaglelocal.server.openai.schema import ChatBody, CompletionBody
from eaglelocal.server.routing import RouteTable
from eaglelocal.server.server_state import ServerState
from eaglelocal.server.translation import FieldTranslation
from eaglelocal.server.usage import encode_statistics, encode_usage

routes = RouteTable("OpenAI", ErrorReply)


@routes.post("/v1/chat/completions", ChatBody, reply=ChatReply, stream=EVENT_STREAM)
async def chat_completions(body: ChatBody, server: ServerState, owner: str) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    call = read_chat(body, server.defaults, owner)
    name = server.models.names.resolve(call.model)
    encoder = ChatEncoder(
        call.requests[0].id,
        name,
        has_usage=call.has_usage,
        has_drafted_flags=bool(body.tell_drafted),
        custom_tools={tool.custom.name for tool in body.tools or () if tool.custom},
    )
    return respond(server, call, encoder)


@routes.post("/v1/completions", CompletionBody, reply=CompletionReply, stream=EVENT_STREAM)
async def completions(body: CompletionBody, server: ServerState, owner: str) -> Response:
    """Continue a text, without a chat template."""
    call = read_completion(body, server.defaults, owner)
    encoder = CompletionEncoder(
        call.requests[0].id,
        server.models.names.resolve(call.model),
        num_prompts=call.num_prompts,
        has_usage=call.has_usage,
    )
    # with several prompts, an error about the number of answers is about the prompts
    fields = FieldTranslation({"n": "prompt"}) if call.num_prompts > 1 else NOT_TRANSLATED
    return respond(server, call, encoder, fields)


@routes.add("HEAD", "/v1/models")
@routes.add("GET", "/v1/models/")  # otherwise it would match /v1/models/{name} with an empty name
@routes.add("GET", "/v1/models", reply=ModelList)
async def models(server: ServerState) -> ModelList:
    """List the available models, and which of them are loaded."""
    return ModelList(data=[model_card(server, name) for name in server.models.names.listed])


@routes.add("GET", "/v1/models/{name:path}", reply=ModelCard)
async def model(name: str, server: ServerState) -> ModelCard:
    return model_card(server, name if name in server.models.names.listed else server.models.names.resolve(name))


def model_card(server: ServerState, name: str) -> ModelCard:
    """Return the card of a model under one of its names. Raises Problem."""
    resolved = server.models.names.resolve(name)
    info, state = server.models.loaded_info(resolved), server.models.model_state(resolved)
    loaded = server.models.loaded_model(resolved)
    return ModelCard(
        id=name,
        created=int(server.started_at),
        loaded=state == "ready",
        state=state,
        max_model_len=None if info is None else info.n_ctx,
        draft=None if info is None else info.draft,
        adapters=adapter_objects(() if loaded is None else loaded.present_adapters),
        capabilities=list_capabilities(server.models, resolved, text=("completion",), vision="multimodal"),
    )


def list_capabilities(models: ModelManager, name: str, *, text: Sequence[str], vision: str) -> list[str]:
    """Return a model's capabilities in an API's terms; empty if not known.

    text  those of every text model
    vision  that of one that reads images
    """
    task = models.task(name)
    if task is None:
        return []
    return [*text, *([vision] if models.sees_images(name) else [])] if task is ModelTask.TEXT else [task.value]


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
            "choices": [self._choice(choice, choice.take_delta(), finish_reason(choice)) for choice in choices],
            "usage": encode_usage(choices, num_prompts=self._num_prompts),
            **encode_statistics(*choices),
        }

    def encode_delta(self, choice: AnswerState, delta: Delta) -> str:
        return encode_event({**self._head, "choices": [self._choice(choice, delta, None)]})

    def encode_choice_end(self, choice: AnswerState) -> str:
        chunk = {**self._head, "choices": [self._choice(choice, Delta(), finish_reason(choice))]}
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

"""POST /v1/chat/completions, /v1/completions and GET /v1/models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from eaglelocal.core.model_task import ModelTask
from eaglelocal.server.dependencies import ServerState
from eaglelocal.server.http_call import CHAT, conversation
from eaglelocal.server.model_manager import ModelManager
from eaglelocal.server.openai.chat_encoder import ChatEncoder
from eaglelocal.server.openai.completion_encoder import CompletionEncoder
from eaglelocal.server.openai.reply_schema import STREAMED, ChatReply, CompletionReply, ErrorReply, ModelCard, ModelList
from eaglelocal.server.openai.request_reader import chat_question, completion_question
from eaglelocal.server.openai.schema import ChatBody, CompletionBody
from eaglelocal.server.routing import BodyRoute
from eaglelocal.server.translation import Names

router = APIRouter(tags=["OpenAI"], route_class=BodyRoute)


def serving_of(request: Request) -> ServerState:
    found: ServerState = request.app.state.serving
    return found


def owner_of(request: Request) -> str:
    """Return the name of the request's API key."""
    return str(request.state.owner)


def is_operator(request: Request) -> bool:
    """Return whether the caller is an operator (see Access.operators)."""
    return bool(request.state.is_operator)


There = Annotated[ServerState, Depends(serving_of)]
Owner = Annotated[str, Depends(owner_of)]
Operator = Annotated[bool, Depends(is_operator)]


@router.post("/v1/chat/completions", response_model=ChatReply, responses=STREAMED)
async def chat_completions(body: ChatBody, serving: There, owner: Owner) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    question = chat_question(body, serving.defaults, owner)
    name = serving.models.name_of(question.model)
    teller = ChatEncoder(
        question.requests[0].id, name, has_usage=question.has_usage, tells_drafted=bool(body.tell_drafted)
    )
    return conversation(serving, question, teller)


@router.post("/v1/completions", response_model=CompletionReply, responses=STREAMED)
async def completions(body: CompletionBody, serving: There, owner: Owner) -> Response:
    """Go on with a text, without a chat template."""
    question = completion_question(body, serving.defaults, owner)
    teller = CompletionEncoder(
        question.requests[0].id,
        serving.models.name_of(question.model),
        num_prompts=question.num_prompts,
        has_usage=question.has_usage,
    )
    names = Names({"n": "prompt"}) if question.num_prompts > 1 else CHAT  # blames the number of prompts, not `n`
    return conversation(serving, question, teller, names)


@router.head("/v1/models", include_in_schema=False)
@router.get("/v1/models/", include_in_schema=False)  # otherwise it would match /v1/models/{name} with an empty name
@router.get("/v1/models")
async def models(serving: There) -> ModelList:
    """List the available models, and which of them are loaded."""
    return ModelList(data=[card_of(serving, name) for name in serving.models.listed])


@router.get("/v1/models/{name:path}", responses={404: {"model": ErrorReply}})
async def model(name: str, serving: There) -> ModelCard:
    return card_of(serving, name if name in serving.models.listed else serving.models.name_of(name))


def card_of(serving: ServerState, name: str) -> ModelCard:
    """Return the card of a model under one of its names. Raises Problem."""
    own = serving.models.name_of(name)
    info, state = serving.models.info_of(own), serving.models.state_of(own)
    return ModelCard(
        id=name,
        created=int(serving.started_at),
        loaded=state == "ready",
        state=state,
        max_model_len=None if info is None else info.n_ctx,
        draft=None if info is None else info.draft,
        capabilities=capabilities_of(serving.models, own),
    )


def capabilities_of(models: ModelManager, name: str) -> list[str]:
    """Return the capabilities in llama-server's terms; empty if not known."""
    task = models.task(name)
    if task is None:
        return []
    sight = ["multimodal"] if models.sees_images(name) else []
    return ["completion", *sight] if task is ModelTask.TEXT else [task.value]

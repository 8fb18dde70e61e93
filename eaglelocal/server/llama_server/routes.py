"""llama-server's POST /completion, /infill, /tokenize, /detokenize and /apply-template."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from eaglelocal.core.events import Prompted
from eaglelocal.core.request import ChatRequest, Mixed
from eaglelocal.server.dependencies import ServerState
from eaglelocal.server.http_call import HttpCall, JsonBody, conversation
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.llama_server.encoder import LlamaServerEncoder
from eaglelocal.server.llama_server.request_reader import completion_asked, infill_asked, parts_of, texts_in
from eaglelocal.server.llama_server.schema import (
    ContentReply,
    DetokenizeBody,
    InfillBody,
    LlamaAnswerFields,
    LlamaCompletionBody,
    LlamaReply,
    PromptReply,
    TemplateBody,
    TokenizeBody,
    TokensReply,
)
from eaglelocal.server.openai.reply_schema import STREAMED, ErrorReply
from eaglelocal.server.openai.request_reader import EngineCall, chat_question, check_size, new_id
from eaglelocal.server.openai.routes import Owner, There
from eaglelocal.server.routing import JsonRoute

router = APIRouter(tags=["llama-server"], route_class=JsonRoute)

NO_INFILL: dict[int | str, dict[str, Any]] = {501: {"model": ErrorReply, "description": "the model cannot fill in"}}


@router.post("/completions", response_model=LlamaReply | list[LlamaReply], responses=STREAMED)
@router.post("/completion", response_model=LlamaReply | list[LlamaReply], responses=STREAMED)
async def completion(body: LlamaCompletionBody, serving: There, owner: Owner) -> Response:
    """Go on with a text, in llama-server's own shape. To several prompts the answers are a list."""
    return answered(body, completion_asked(body, serving.defaults, owner), serving)


@router.post("/infill", response_model=LlamaReply | list[LlamaReply], responses=STREAMED | NO_INFILL)
async def infill(body: InfillBody, serving: There, owner: Owner) -> Response:
    """Fill a gap in code, as editors ask for it."""
    return answered(body, infill_asked(body, serving.defaults, owner), serving)


@router.post("/tokenize", response_model=TokensReply)
async def tokenize(body: TokenizeBody, serving: There, owner: Owner) -> Response:
    """The tokens of a text."""
    for name in ("prompt", "messages"):
        if body.content is None and getattr(body, name) is not None:
            raise Problem(400, "the text to be tokenized is called content here", parameter=name)
    if not body.content:
        return JSONResponse({"tokens": []})
    parts = parts_of(body.content)
    check_size(texts_in(parts), "content")
    mixed = Mixed(parts, add_special=bool(body.add_special), parse_special=body.parse_special is not False)
    request = ChatRequest(id=new_id(), mixed=mixed, owner=owner)
    return prompted(
        serving, body.model, request, lambda made: {"tokens": pieces(made) if body.with_pieces else made.tokens}
    )


@router.post("/detokenize", response_model=ContentReply)
async def detokenize(body: DetokenizeBody, serving: There, owner: Owner) -> Response:
    """The text of tokens."""
    if not body.tokens:
        return JSONResponse({"content": ""})
    request = ChatRequest(id=new_id(), tokens=tuple(body.tokens), owner=owner)
    return prompted(serving, body.model, request, lambda made: {"content": made.text})


@router.post("/apply-template", response_model=PromptReply)
async def apply_template(body: TemplateBody, serving: There, owner: Owner) -> Response:
    """A conversation as the model's chat template writes it, for /completion."""
    (request, *_) = chat_question(body, serving.defaults, owner).requests
    return prompted(serving, body.model, request, lambda made: {"prompt": made.text})


def answered(body: LlamaAnswerFields, question: EngineCall, serving: ServerState) -> Response:
    name = serving.models.name_of(question.model)
    teller = LlamaServerEncoder(
        name,
        lambda: serving.models.infos[name],
        fields=body.response_fields,
        is_streamed=question.is_streamed,
        tells_tokens=bool(body.return_tokens),
    )
    return conversation(serving, question, teller)


def prompted(
    serving: ServerState, model: str, request: ChatRequest, told: Callable[[Prompted], dict[str, object]]
) -> Response:
    """Return a response with the prompt as the model would receive it (`told` formats it); nothing is generated."""
    counted = dataclasses.replace(request, is_counted=True, tells_prompt=True)

    async def made() -> dict[str, object]:
        async with serving.ask(model, [counted]) as call:
            (choice,) = await call.complete()
            assert choice.prompted is not None
            return told(choice.prompted)

    return HttpCall(JsonBody(made), serving.limits)


def pieces(made: Prompted) -> list[dict[str, object]]:
    return [{"id": token, "piece": piece_of(raw)} for token, raw in zip(made.tokens, made.pieces, strict=True)]


def piece_of(raw: bytes) -> str | list[int]:
    """Return a token's text, or its bytes as a list if they are an incomplete UTF-8 sequence."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)

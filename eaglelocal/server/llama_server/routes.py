"""llama-server's POST /completion, /infill, /tokenize, /detokenize and /apply-template, its GET /props and /slots, and
/lora-adapters.

The latter show the loaded model and how many slots are busy, but no prompt, path or key.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from starlette.responses import JSONResponse, Response

from eaglelocal import __version__
from eaglelocal.core.adapters import AdapterFile, adapter_objects, make_mix
from eaglelocal.core.events import EngineInfo, Prompted
from eaglelocal.core.request import ChatRequest, Mixed
from eaglelocal.server.answer_response import EVENT_STREAM, respond, respond_once
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.http_errors import PERMISSION, Problem, unavailable
from eaglelocal.server.llama_server.encoder import LlamaServerEncoder, sampling_settings
from eaglelocal.server.llama_server.request_reader import list_texts, read_infill, read_llama_completion, read_parts
from eaglelocal.server.llama_server.schema import (
    AdaptersBody,
    AdaptersReply,
    ContentReply,
    DetokenizeBody,
    InfillBody,
    LlamaAnswerFields,
    LlamaCompletionBody,
    LlamaReply,
    LlamaServerAdapter,
    LlamaServerSlot,
    PromptReply,
    PropsReply,
    TemplateBody,
    TokenizeBody,
    TokensReply,
)
from eaglelocal.server.openai.reply_schema import ErrorReply
from eaglelocal.server.openai.request_reader import EngineCall, check_size, new_id, read_chat
from eaglelocal.server.request_states import WAITING
from eaglelocal.server.routing import RouteTable
from eaglelocal.server.server_state import ServerState

routes = RouteTable("llama-server", ErrorReply)


@routes.post("/completions", LlamaCompletionBody, reply=LlamaReply | list[LlamaReply], stream=EVENT_STREAM)
@routes.post("/completion", LlamaCompletionBody, reply=LlamaReply | list[LlamaReply], stream=EVENT_STREAM)
async def completion(body: LlamaCompletionBody, server: ServerState, owner: str) -> Response:
    """Continue a text, in llama-server's own format. Several prompts get a list of answers."""
    return respond_to(body, read_llama_completion(body, server.defaults, owner), server)


@routes.post("/infill", InfillBody, reply=LlamaReply | list[LlamaReply], stream=EVENT_STREAM, others={501: ErrorReply})
async def infill(body: InfillBody, server: ServerState, owner: str) -> Response:
    """Fill a gap in code, for editors. 501: the model has no tokens for that."""
    return respond_to(body, read_infill(body, server.defaults, owner), server)


@routes.post("/tokenize", TokenizeBody, reply=TokensReply)
async def tokenize(body: TokenizeBody, server: ServerState, owner: str) -> Response:
    """Return the tokens of a text."""
    for name in ("prompt", "messages"):
        if body.content is None and getattr(body, name) is not None:
            raise Problem(400, "the text to tokenize belongs in content", parameter=name)
    if not body.content:
        return JSONResponse({"tokens": []})
    parts = read_parts(body.content)
    check_size(list_texts(parts), "content")
    mixed = Mixed(parts, add_special=bool(body.add_special), parse_special=body.parse_special is not False)
    request = ChatRequest(id=new_id(), mixed=mixed, owner=owner)
    return respond_with_prompt(
        server,
        body.model,
        request,
        lambda prompt: {"tokens": list_pieces(prompt) if body.with_pieces else prompt.tokens},
    )


@routes.post("/detokenize", DetokenizeBody, reply=ContentReply)
async def detokenize(body: DetokenizeBody, server: ServerState, owner: str) -> Response:
    """Return the text of tokens."""
    if not body.tokens:
        return JSONResponse({"content": ""})
    request = ChatRequest(id=new_id(), tokens=tuple(body.tokens), owner=owner)
    return respond_with_prompt(server, body.model, request, lambda prompt: {"content": prompt.text})


@routes.post("/apply-template", TemplateBody, reply=PromptReply)
async def apply_template(body: TemplateBody, server: ServerState, owner: str) -> Response:
    """Return a conversation as the model's chat template writes it, for /completion."""
    (request, *_) = read_chat(body, server.defaults, owner).requests
    return respond_with_prompt(server, body.model, request, lambda prompt: {"prompt": prompt.text})


def loaded_info(server: ServerState, name: str) -> EngineInfo:
    info = server.models.latest_info(name)
    assert info is not None  # its answer has begun
    return info


def respond_to(body: LlamaAnswerFields, call: EngineCall, server: ServerState) -> Response:
    name = server.models.names.resolve(call.model)
    encoder = LlamaServerEncoder(
        name,
        lambda: loaded_info(server, name),
        fields=body.response_fields,
        is_streamed=call.is_streamed,
        has_tokens=bool(body.return_tokens),
    )
    return respond(server, call, encoder)


def respond_with_prompt(
    server: ServerState, model: str, request: ChatRequest, format_prompt: Callable[[Prompted], dict[str, object]]
) -> Response:
    """Return a response with the prompt as the model would receive it; nothing is generated."""
    count_request = dataclasses.replace(request, is_counted=True, tells_prompt=True)

    def make_reply(choice: AnswerState) -> dict[str, object]:
        assert choice.prompted is not None
        return format_prompt(choice.prompted)

    return respond_once(server, model, count_request, make_reply)


def list_pieces(prompt: Prompted) -> list[dict[str, object]]:
    return [{"id": token, "piece": decode_piece(raw)} for token, raw in zip(prompt.tokens, prompt.pieces, strict=True)]


def decode_piece(raw: bytes) -> str | list[int]:
    """Return a token's text, or its bytes as a list if they are an incomplete UTF-8 sequence."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


@routes.add("GET", "/props", reply=PropsReply)
async def props(server: ServerState, model: str = "") -> PropsReply:
    """Return a model that is or was loaded, with the default settings of requests."""
    name, info = find_model(server, model)
    adapters = find_adapters(server, name, info)
    lora = [{"id": number, "scale": file.scale} for number, file in enumerate(adapters)]
    params = sampling_settings(server.defaults, info) | {"lora": lora}
    return PropsReply(
        default_generation_settings={"params": params, "n_ctx": info.n_ctx},
        adapters=adapter_objects(adapters),
        total_slots=info.num_slots,
        model_alias=name,
        model_path=name,
        modalities={"vision": info.sees_images, "audio": False, "video": False},
        endpoint_slots=True,
        endpoint_props=False,
        endpoint_metrics=True,
        chat_template=info.template,
        bos_token=info.bos_text,
        eos_token=info.eos_text,
        build_info=f"eaglelocal {__version__} ({info.library})",
        is_sleeping=server.models.loaded_info(name) is None,
    )


@routes.add("GET", "/lora-adapters", reply=list[LlamaServerAdapter])
async def list_adapters(server: ServerState, model: str = "") -> Response:
    """List the LoRA adapters of a model, with the scales of requests that do not send `lora`."""
    name, info = find_model(server, model)
    adapters = [
        LlamaServerAdapter(id=number, path=file.path.name, scale=file.scale)
        for number, file in enumerate(find_adapters(server, name, info))
    ]
    return JSONResponse([adapter.model_dump() for adapter in adapters])


@routes.post("/lora-adapters", AdaptersBody, reply=AdaptersReply)
async def set_adapters(body: AdaptersBody, server: ServerState, is_operator: bool, model: str = "") -> AdaptersReply:
    """Set the scales of requests that do not send `lora`; adapters that are not named get 0."""
    if not is_operator:
        raise Problem(403, "only the operator may set the adapters of all requests", PERMISSION)
    name, info = find_model(server, model)
    loaded = server.models.loaded_model(name)
    if loaded is None:
        raise unavailable(f"{name} is not loaded")
    try:
        mix = make_mix([(each.id, each.scale) for each in body.root], len(info.adapters))
    except ValueError as error:
        raise Problem(400, str(error), parameter="id") from None
    await asyncio.to_thread(loaded.set_adapters, mix)
    return AdaptersReply(success=True)


@routes.add("GET", "/slots", reply=list[LlamaServerSlot])
async def slots(server: ServerState, model: str = "", fail_on_no_slot: str = "") -> Response:
    """List the slots. As many as are in use are shown as busy, the first ones."""
    name, info = find_model(server, model)
    states = server.name_active_states()
    num_busy = sum(
        states[choice.request.id] != WAITING for call, choice in server.active.values() if call.model == name
    )
    if fail_on_no_slot and num_busy >= info.num_slots:
        raise unavailable("no slot is free")
    has_draft = info.draft != "none"
    slots = [
        LlamaServerSlot(id=i, n_ctx=info.n_ctx, speculative=has_draft, is_processing=i < num_busy)
        for i in range(info.num_slots)
    ]
    return JSONResponse([slot.model_dump() for slot in slots])


def find_adapters(server: ServerState, name: str, info: EngineInfo) -> tuple[AdapterFile, ...]:
    """Return a model's LoRA adapters, with the scales of requests that do not send `lora`."""
    loaded = server.models.loaded_model(name)
    return info.adapters if loaded is None else loaded.present_adapters


def find_model(server: ServerState, requested: str) -> tuple[str, EngineInfo]:
    """Return a model and its info: the requested, else a loaded, else the default one. Raises Problem: 404 for an
    unknown model, 503 for one that was never loaded.
    """
    models = server.models
    name = models.current.name if models.current is not None and not requested else models.names.resolve(requested)
    info = models.latest_info(name)
    if info is None:
        absent = f"{name} is not loaded yet"
        raise unavailable(models.failure or absent, public=absent)
    return name, info

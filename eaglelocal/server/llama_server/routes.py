"""The routes of llama-server: /completion, /infill, /tokenize, /detokenize, /apply-template, /props, /slots, LoRA.

GET /props and /slots show the loaded model and how many slots are busy, but no prompt, path or key.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, RootModel
from starlette.responses import JSONResponse, Response

from eaglelocal import __version__
from eaglelocal.core.adapters import MAX_ADAPTERS, AdapterFile, adapter_objects, make_mix
from eaglelocal.core.events import EngineInfo, Prompted
from eaglelocal.core.request import ChatRequest, Mixed
from eaglelocal.core.sampling import Sampled, SamplingParams, TokenLogprob, fill_recommended
from eaglelocal.server.answer_encoder import AnswerEncoder, encode_event, encode_prompt_progress, encode_statistics
from eaglelocal.server.answer_response import EVENT_STREAM, respond, respond_once
from eaglelocal.server.answer_state import WAITING, AnswerState, Delta
from eaglelocal.server.http_errors import PERMISSION, Problem, unavailable
from eaglelocal.server.llama_server.request_reader import (
    NEUTRAL,
    InfillBody,
    LlamaAnswerFields,
    LlamaCompletionBody,
    MixedPrompt,
    list_texts,
    read_infill,
    read_llama_completion,
    read_parts,
)
from eaglelocal.server.model_manager import ModelManager
from eaglelocal.server.request_reader import EngineCall, check_size, new_id, read_chat
from eaglelocal.server.routing import RouteTable
from eaglelocal.server.schema import (
    AdapterScale,
    Body,
    ChatBody,
    ErrorReply,
    Name,
    ReplyModel,
    Text,
    Tokens,
)
from eaglelocal.server.server_state import ServerState


class TokenizeBody(Body):
    """POST /tokenize"""

    model: Name = ""
    content: Text | MixedPrompt | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    prompt: Any = None  # vLLM's names, refused if there is no content
    messages: Any = None


class DetokenizeBody(Body):
    """POST /detokenize"""

    model: Name = ""
    tokens: Tokens | None = None


class TemplateBody(ChatBody):
    """POST /apply-template"""


class LlamaReply(ReplyModel):
    """A completion, whole or with only the requested `response_fields`."""

    content: str | None = None
    generation_settings: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None


class TokensReply(ReplyModel):
    tokens: list[Any]


class ContentReply(ReplyModel):
    content: str


class PromptReply(ReplyModel):
    prompt: str


class PropsReply(ReplyModel):
    default_generation_settings: dict[str, Any]
    adapters: list[dict[str, Any]]  # LoRA adapters with their present scales
    total_slots: int
    model_alias: str
    model_path: str
    modalities: dict[str, bool]
    endpoint_slots: bool
    endpoint_props: bool
    endpoint_metrics: bool
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool


class AdaptersBody(RootModel[Annotated[list[AdapterScale], Field(max_length=MAX_ADAPTERS)]]):
    """POST /lora-adapters"""


class LlamaServerAdapter(ReplyModel):
    """A LoRA adapter; `scale` is used for requests without `lora`. Of its path only the file's name is shown."""

    id: int
    path: str
    scale: float


class AdaptersReply(ReplyModel):
    success: bool


class LlamaServerSlot(ReplyModel):
    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool


routes = RouteTable("llama-server", ErrorReply)


@routes.add("POST", "/completions", reply=LlamaReply | list[LlamaReply], stream=EVENT_STREAM)
@routes.add("POST", "/completion", reply=LlamaReply | list[LlamaReply], stream=EVENT_STREAM)
async def completion(body: LlamaCompletionBody, server: ServerState, owner: str) -> Response:
    """Continue a text, in llama-server's own format. Several prompts get a list of answers."""
    return respond_to(body, read_llama_completion(body, server.defaults, owner), server)


@routes.add("POST", "/infill", reply=LlamaReply | list[LlamaReply], stream=EVENT_STREAM, others={501: ErrorReply})
async def infill(body: InfillBody, server: ServerState, owner: str) -> Response:
    """Fill a gap in code, for editors. 501: the model has no tokens for that."""
    return respond_to(body, read_infill(body, server.defaults, owner), server)


@routes.add("POST", "/tokenize", reply=TokensReply)
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

    def make_reply(prompt: Prompted) -> dict[str, object]:
        return {"tokens": list_pieces(prompt) if body.with_pieces else prompt.tokens}

    return respond_with_prompt(server, body.model, request, make_reply)


@routes.add("POST", "/detokenize", reply=ContentReply)
async def detokenize(body: DetokenizeBody, server: ServerState, owner: str) -> Response:
    """Return the text of tokens."""
    if not body.tokens:
        return JSONResponse({"content": ""})
    request = ChatRequest(id=new_id(), tokens=tuple(body.tokens), owner=owner)
    return respond_with_prompt(server, body.model, request, lambda prompt: {"content": prompt.text})


@routes.add("POST", "/apply-template", reply=PromptReply)
async def apply_template(body: TemplateBody, server: ServerState, owner: str) -> Response:
    """Return a conversation rendered by the model's chat template, for /completion."""
    (request, *_) = read_chat(body, server.defaults, owner).requests
    return respond_with_prompt(server, body.model, request, lambda prompt: {"prompt": prompt.text})


def respond_to(body: LlamaAnswerFields, call: EngineCall, server: ServerState) -> Response:
    name = server.models.names.resolve(call.model)
    encoder = LlamaServerEncoder(
        name, server.models, call.is_streamed, body.response_fields, has_tokens=bool(body.return_tokens)
    )
    encoder.has_progress = call.has_progress
    return respond(server, call, encoder)


def respond_with_prompt(
    server: ServerState, model: str, request: ChatRequest, format_prompt: Callable[[Prompted], dict[str, object]]
) -> Response:
    """Return a response with the model's prompt; nothing is generated."""
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
    files = enumerate(find_adapters(server, name, info))
    return JSONResponse([{"id": number, "path": file.path.name, "scale": file.scale} for number, file in files])


@routes.add("POST", "/lora-adapters", reply=AdaptersReply)
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
    """List the slots. The first ones are shown as busy, as many as are in use."""
    name, info = find_model(server, model)
    states = server.name_active_states()
    own = [choice.request.id for call, choice in server.active.values() if call.model == name]
    num_busy = sum(states[request_id] != WAITING for request_id in own)
    if fail_on_no_slot and num_busy >= info.num_slots:
        raise unavailable("no slot is free")
    shared = {"n_ctx": info.n_ctx, "speculative": info.draft != "none"}
    return JSONResponse([{"id": i, **shared, "is_processing": i < num_busy} for i in range(info.num_slots)])


def find_adapters(server: ServerState, name: str, info: EngineInfo) -> tuple[AdapterFile, ...]:
    """Return a model's LoRA adapters, with the scales of requests that do not send `lora`."""
    loaded = server.models.loaded_model(name)
    return info.adapters if loaded is None else loaded.present_adapters


def find_model(server: ServerState, requested: str) -> tuple[str, EngineInfo]:
    """Find the requested model, else a loaded one, else the default, with its info. Raises Problem: 404 for an unknown
    model, 503 for one that was never loaded.
    """
    models = server.models
    name = models.current.name if models.current is not None and not requested else models.names.resolve(requested)
    info = models.latest_info(name)
    if info is None:
        absent = f"{name} is not loaded yet"
        raise unavailable(models.failure or absent, public=absent)
    return name, info


# ---- encoder: format answers for llama-server's /completion and /infill, with our `speculation` beside its `timings`
#
# Fields without a counterpart here get a neutral value: `id_slot` is -1 (any).
ANY_SLOT = -1
RANDOM_SEED = 2**32 - 1
SETTINGS = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty"),
    "frequency_penalty",
)


class LlamaServerEncoder(AnswerEncoder):
    """Formats answers for /completion and /infill."""

    def __init__(
        self, model: str, models: ModelManager, is_streamed: bool, fields: Sequence[str] | None, *, has_tokens: bool
    ) -> None:
        """`models` have the model's info, once it is loaded; of a complete answer only `fields` are sent."""
        self._model, self._models, self._fields = model, models, fields
        self._is_streamed, self._has_tokens = is_streamed, has_tokens or is_streamed
        self._num_sent: Counter[int] = Counter()  # tokens sent, by choice
        self._has_new_line: set[int] = set()  # choices

    def encode_whole(self, choices: Sequence[AnswerState]) -> object:
        replies = [self._encode_choice(choice) for choice in choices]
        return replies[0] if len(replies) == 1 else replies

    def _encode_choice(self, choice: AnswerState) -> dict[str, object]:
        delta = choice.take_delta()
        self._note_new_line(choice, delta)
        return self._select_fields(self._last_fields(choice, delta.text) | probabilities(delta.sampled))

    def encode_progress(self, choice: AnswerState) -> str:
        return self._encode_piece(choice, Delta(), encode_prompt_progress(choice))

    def encode_delta(self, choice: AnswerState, delta: Delta) -> str:
        self._note_new_line(choice, delta)
        return self._encode_piece(choice, delta, probabilities(delta.sampled))

    def _encode_piece(self, choice: AnswerState, delta: Delta, extra: Mapping[str, object]) -> str:
        fields = self._first_fields(choice, delta.text) | {
            "stop": False,
            "tokens_predicted": choice.num_tokens,
            "tokens_evaluated": choice.prompt_tokens,
        }
        return encode_event({**fields, **extra})

    def encode_choice_end(self, choice: AnswerState) -> str:
        return encode_event(self._select_fields(self._last_fields(choice, "")))

    def _note_new_line(self, choice: AnswerState, delta: Delta) -> None:
        if "\n" in delta.text:
            self._has_new_line.add(choice.index)

    def _first_fields(self, choice: AnswerState, content: str) -> dict[str, object]:
        first = self._num_sent[choice.index]
        self._num_sent[choice.index] = len(choice.tokens)
        tokens = choice.tokens[first:] if self._has_tokens else []
        return {"index": choice.index, "content": content, "tokens": tokens, "id_slot": ANY_SLOT}

    def _last_fields(self, choice: AnswerState, content: str) -> dict[str, object]:
        info, stopping_word = self._models.latest_info(self._model), choice.finished.stop if choice.finished else ""
        assert info is not None  # its answer has begun
        num_tokens = choice.prompt_tokens + choice.num_tokens
        return {
            **self._first_fields(choice, content),
            "stop": True,
            "model": self._model,
            "tokens_predicted": choice.num_tokens,
            "tokens_evaluated": choice.prompt_tokens,
            "generation_settings": sampling_settings(choice.params, info) | {"stream": self._is_streamed},
            "prompt": choice.prompted.text if choice.prompted else "",
            "has_new_line": choice.index in self._has_new_line,
            "truncated": choice.is_cut_off and num_tokens >= info.n_ctx,
            "stop_type": "limit" if choice.is_cut_off else "word" if stopping_word else "eos",
            "stopping_word": stopping_word,
            "tokens_cached": num_tokens - bool(choice.num_tokens),  # the last token was not decoded
            **encode_statistics(choice),
        }

    def _select_fields(self, reply: dict[str, object]) -> dict[str, object]:
        """Return the requested fields; a path such as `timings/prompt_n` is its own key, missing ones are left out."""
        if not self._fields:
            return reply
        found = ((path, find_value(reply, path.split("/"))) for path in self._fields)
        return {path: value for path, value in found if value is not MISSING}


MISSING = object()


def find_value(value: object, path: Sequence[str]) -> object:
    for name in path:
        value = value.get(name, MISSING) if isinstance(value, dict) else MISSING
    return value


def sampling_settings(params: SamplingParams, info: EngineInfo) -> dict[str, object]:
    """Return the sampling settings in llama.cpp's format. Samplers that do not exist here are left out."""
    params = fill_recommended(params, info.sampling)
    limit = -1 if params.max_tokens is None else params.max_tokens
    return {
        "n_ctx": info.n_ctx,
        "seed": RANDOM_SEED if params.seed is None else params.seed,
        **{name: getattr(params, name) for name in SETTINGS},
        "stop": list(params.stop),
        "max_tokens": limit,
        "n_predict": limit,
        "ignore_eos": params.ignore_eos,
        "logit_bias": [{"token": token, "bias": bias} for token, bias in params.logit_bias],
        "n_probs": params.logprobs or 0,
        "samplers": list(NEUTRAL),
    }


def probabilities(sampled: Sequence[Sampled]) -> dict[str, object]:
    if not sampled:
        return {}
    tokens = [token_fields(one) | {"top_logprobs": [token_fields(top) for top in one.top]} for one in sampled]
    return {"completion_probabilities": tokens}


def token_fields(one: Sampled | TokenLogprob) -> dict[str, Any]:
    text = one.piece.decode("utf-8", "ignore")
    return {"id": one.token, "token": text, "bytes": list(one.piece), "logprob": one.logprob}

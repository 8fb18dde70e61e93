"""llama-server's GET /props and /slots: the loaded model, and how many slots are busy. No prompt, path or key."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from eaglelocal import __version__
from eaglelocal.core.events import EngineInfo
from eaglelocal.server.dependencies import Server
from eaglelocal.server.http_errors import unavailable
from eaglelocal.server.llama_server.encoder import sampling_settings
from eaglelocal.server.llama_server.schema import LlamaServerSlot, PropsReply
from eaglelocal.server.server_state import ServerState

router = APIRouter(tags=["llama-server"])


@router.get("/props")
async def props(server: Server, model: str = "") -> PropsReply:
    """Return a model that is or was loaded, with the default settings of requests."""
    name, info = find_model(server, model)
    return PropsReply(
        default_generation_settings={"params": sampling_settings(server.defaults, info), "n_ctx": info.n_ctx},
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


@router.get("/slots", response_model=list[LlamaServerSlot])
async def slots(server: Server, model: str = "", fail_on_no_slot: str = "") -> Response:
    """List the slots. As many as are in use are shown as busy, the first ones."""
    name, info = find_model(server, model)
    calls = list(server.active.values())
    num_busy = sum(choice.started is not None for call, choice in calls if call.model == name)
    if fail_on_no_slot and num_busy >= info.num_slots:
        raise unavailable("no slot is free")
    has_draft = info.draft != "none"
    slots = [
        LlamaServerSlot(id=i, n_ctx=info.n_ctx, speculative=has_draft, is_processing=i < num_busy)
        for i in range(info.num_slots)
    ]
    return JSONResponse([slot.model_dump() for slot in slots])


def find_model(server: ServerState, requested: str) -> tuple[str, EngineInfo]:
    """Return a model and its info: the requested, else a loaded, else the default one. Raises Problem: 404 for an
    unknown model, 503 for one that was never loaded.
    """
    models = server.models
    name = models.current.name if models.current is not None and not requested else models.names.resolve(requested)
    info = models.latest_info(name)
    if info is None:
        raise unavailable(models.failure or f"{name} is not loaded yet")
    return name, info

"""llama-server's GET /props and /slots: the loaded model, and how many slots are busy. No prompt, path or key."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from eaglelocal import __version__
from eaglelocal.core.events import EngineInfo
from eaglelocal.server.dependencies import ServerState
from eaglelocal.server.http_errors import unavailable
from eaglelocal.server.llama_server.encoder import settings_of
from eaglelocal.server.llama_server.schema import PropsReply, Slot
from eaglelocal.server.openai.routes import There

router = APIRouter(tags=["llama-server"])


@router.get("/props")
async def props(serving: There, model: str = "") -> PropsReply:
    """Return a model that is or was loaded, with the default settings of requests."""
    name, info = model_in(serving, model)
    return PropsReply(
        default_generation_settings={"params": settings_of(serving.defaults, info), "n_ctx": info.n_ctx},
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
        is_sleeping=serving.models.info_of(name) is None,
    )


@router.get("/slots", response_model=list[Slot])
async def slots(serving: There, model: str = "", fail_on_no_slot: str = "") -> Response:
    """List the slots. The first ones are shown as busy, as many as are in use; not whose they are."""
    name, info = model_in(serving, model)
    calls = list(serving.active.values())
    num_busy = sum(choice.started is not None for call, choice in calls if call.model == name)
    if fail_on_no_slot and num_busy >= info.num_slots:
        raise unavailable("no slot is free")
    is_drafted = info.draft != "none"
    told = [
        Slot(id=i, n_ctx=info.n_ctx, speculative=is_drafted, is_processing=i < num_busy) for i in range(info.num_slots)
    ]
    return JSONResponse([slot.model_dump() for slot in told])


def model_in(serving: ServerState, asked: str) -> tuple[str, EngineInfo]:
    """Return a model and its info: the requested, else a loaded, else the default one. Raises Problem: 404 for an
    unknown model, 503 for one that was never loaded.
    """
    models = serving.models
    name = models.loaded.name if models.loaded is not None and not asked else models.name_of(asked)
    if name not in models.infos:
        raise unavailable(models.failure or f"{name} is not loaded yet")
    return name, models.infos[name]

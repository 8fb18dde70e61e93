"""POST /v1/requests/{id}/cancel and /v1/speculation: a monitor's commands.

Every owner may cancel their own requests; anything else is for operators (see Access.operators).
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from eaglelocal.core.request import parse_spec
from eaglelocal.server.http_errors import NOT_FOUND, PERMISSION, Problem
from eaglelocal.server.openai.reply_schema import CancelReply, SwitchReply
from eaglelocal.server.openai.routes import Operator, Owner, There
from eaglelocal.server.openai.schema import SwitchBody
from eaglelocal.server.routing import BodyRoute

router = APIRouter(tags=["Monitor"], route_class=BodyRoute)


@router.post("/v1/requests/{request_id:path}/cancel")
async def cancel(request_id: str, serving: There, owner: Owner, is_operator: Operator) -> CancelReply:
    """Cancel an answer, and all answers of the same call. Its caller gets an error after what was sent so far."""
    found = serving.active.get(request_id)
    if found is None:
        raise Problem(404, "no such request is running or waiting", NOT_FOUND, code="request_not_found")
    call, choice = found
    if choice.request.owner != owner and not is_operator:
        raise Problem(403, "this request is another key's", PERMISSION)
    call.cancel(cancelled())
    return CancelReply(id=request_id)


@router.post("/v1/speculation")
async def switch(body: SwitchBody, serving: There, is_operator: Operator) -> SwitchReply:
    """Set how to draft for requests that do not say it themselves, running ones included."""
    if not is_operator:
        raise Problem(403, "only the operator may switch drafting for everybody", PERMISSION)
    clients = [one.loaded.client for one in serving.models.residents]
    if not clients:
        raise Problem(503, "no model is loaded", code="model_not_loaded", headers={"Retry-After": "2"})
    snapshots = [await asyncio.to_thread(client.snapshot) for client in clients]
    if not any(snapshot.spec for snapshot in snapshots):
        raise Problem(400, "there is nothing to switch: the model was loaded without a draft", code="no_draft")
    spec = parse_spec(body.spec)
    serving.models.spec = spec
    for one in serving.models.residents:  # also models loaded meanwhile
        await asyncio.to_thread(one.loaded.client.set_spec, spec)
    return SwitchReply(spec=str(spec))


def cancelled() -> Problem:
    """Return the error for a cancelled answer, with a status on which clients do not retry."""
    return Problem(403, "the answer was cancelled at the server", PERMISSION, code="cancelled")

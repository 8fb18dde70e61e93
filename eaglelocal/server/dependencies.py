"""FastAPI dependencies: the server's state, and who sent a request.

They are coroutines, because FastAPI runs plain functions on a thread, which takes longer than all that they do.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from eaglelocal.server.server_state import ServerState


async def get_server_state(request: Request) -> ServerState:
    state: ServerState = request.app.state.server_state
    return state


async def get_owner(request: Request) -> str:
    """Return the name of the request's API key."""
    return str(request.state.owner)


async def get_is_operator(request: Request) -> bool:
    """Return whether the owner is an operator (see Access.operators)."""
    return bool(request.state.is_operator)


Server = Annotated[ServerState, Depends(get_server_state)]
Owner = Annotated[str, Depends(get_owner)]
IsOperator = Annotated[bool, Depends(get_is_operator)]

"""Share the connections among the owners of keys."""

from __future__ import annotations

from contextlib import ExitStack

from starlette.types import ASGIApp, Receive, Scope, Send

from eaglelocal.server.admission import OwnerPlaces
from eaglelocal.server.http_errors import RATE_LIMIT, Problem
from eaglelocal.server.middleware.api_key import OPEN_PATHS
from eaglelocal.server.middleware.refusal import refuse


class CallLimitMiddleware:
    """Limits the calls of each owner that are answered at once, so that no key takes the connections of the others.

    It comes behind BodyMiddleware: a connection that still sends its body makes room by itself (connections.py).
    """

    def __init__(self, app: ASGIApp, num_connections: int, *, is_shared: bool) -> None:
        self._app, self._places = app, OwnerPlaces(num_connections, is_shared=is_shared)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as held:
            if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
                try:
                    held.enter_context(self._places.hold(scope["state"]["owner"], self._problem))
                except Problem as problem:
                    await refuse(scope, send, problem)
                    return
            await self._app(scope, receive, send)

    def _problem(self, num_held: int) -> Problem:
        what = f"{num_held} requests are in progress, and there can be no more"
        if self._places.is_shared:  # without the number of connections that others leave
            what = f"this key has {num_held} requests in progress, and may have no more: the rest is for other keys"
        return Problem(429, what, RATE_LIMIT, code="too_many_requests", headers={"Retry-After": "2"})

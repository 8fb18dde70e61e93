"""Require an API key, where keys are used."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from eaglelocal.core.request import LOCAL
from eaglelocal.server.access import Access, find_key
from eaglelocal.server.http_errors import AUTHENTICATION, Problem
from eaglelocal.server.middleware.refusal import refuse
from eaglelocal.server.request_record import current_record

OPEN_PATHS = frozenset({"/health", "/v1/health"})


class ApiKeyMiddleware:
    """Requires a known key if keys are used; puts its name into `scope["state"]["owner"]`."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._keys, self._operators = app, access.keys, access.operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        owner = self._keys.find_owner(find_key(Headers(scope=scope))) if self._keys else LOCAL
        is_operator = current_record().is_operator = owner in self._operators
        scope.setdefault("state", {}).update(owner=owner or "", is_operator=is_operator)
        if owner is None and scope["path"] not in OPEN_PATHS:
            problem = Problem(
                401,
                "this server needs a valid API key: Authorization: Bearer KEY",
                AUTHENTICATION,
                code="invalid_api_key",
            )
            await refuse(scope, send, problem)
        else:
            await self._app(scope, receive, send)

"""Routes of a made-up table: what their functions are given, and what becomes of what they return or raise."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import httpx
import pytest
from doubles.running_server import directed, serving_of
from pydantic import BaseModel
from starlette.types import ASGIApp

from eaglelocal.core.request import LOCAL
from eaglelocal.errors import ResourceError
from eaglelocal.server.access import Access
from eaglelocal.server.middleware import ApiKeyMiddleware, BodyMiddleware
from eaglelocal.server.routing import ApiRouter, RouteTable
from eaglelocal.server.schema import Body, ErrorReply
from eaglelocal.server.server_state import ServerState

table = RouteTable("Made up", ErrorReply)


class Sum(Body):
    numbers: list[int]


class Total(BaseModel):
    total: float
    owner: str


@table.add("GET", "/echo/{name:path}/end")
async def echo(name: str, owner: str, is_operator: bool, server: ServerState, color: str = "red") -> dict[str, object]:
    return {"given": [name, owner, is_operator, color], "state": server.state, "infinite": -math.inf}


@table.add("POST", "/sum")
async def add_up(body: Sum, owner: str) -> Total:
    return Total(total=sum(body.numbers), owner=owner)


@table.add("DELETE", "/fails")
@table.add("GET", "/fails")
async def fail() -> dict[str, object]:
    raise RuntimeError("a secret")


@table.add("GET", "/full")
async def be_full() -> dict[str, object]:
    raise ResourceError("no memory is left")


def ask(method: str, path: str, **more: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        router = ApiRouter(table.routes, serving_of(directed(), load=lambda name: pytest.fail("a model is loaded")))
        app: ASGIApp = ApiKeyMiddleware(BodyMiddleware(router), Access())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.request(method, path, **more)

    return asyncio.run(send())


def test_a_function_is_given_what_it_names() -> None:
    assert ask("GET", "/echo/a/b/end").json()["given"] == ["a/b", LOCAL, True, "red"]
    assert ask("GET", "/echo/a/b/end?color=blue&colour=red").json()["given"] == ["a/b", LOCAL, True, "blue"]
    assert ask("GET", "/echo/a/b/end").json()["infinite"] is None
    assert ask("POST", "/sum", json={"numbers": [1, 2]}).content == b'{"total":3.0,"owner":"local"}'


def test_an_invalid_body_is_named() -> None:
    error = ask("POST", "/sum", json={"numbers": [1, "2"]}).json()["error"]
    assert (error["param"], error["type"]) == ("numbers.1", "invalid_request_error")
    assert ask("POST", "/sum").status_code == 400
    assert ask("POST", "/sum", content="numbers=1").status_code == 400


def test_an_unexpected_error_is_logged_and_not_shown_to_the_client(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "eaglelocal.server"):
        answer = ask("GET", "/fails")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a secret"]


def test_an_error_of_ours_has_its_status() -> None:
    assert ask("GET", "/full").status_code == 503
    assert ask("GET", "/nowhere").status_code == 404


def test_another_method_gets_the_list_of_allowed_ones() -> None:
    answer = ask("PUT", "/fails")
    assert (answer.status_code, set(answer.headers["allow"].split(", "))) == (405, {"GET", "DELETE"})


def test_a_slash_at_the_end_redirects() -> None:
    answer = ask("GET", "/full/?a=1")
    assert (answer.status_code, answer.headers["location"]) == (307, "http://localhost/full?a=1")

"""The chat page as the server sends it: to whom, with which headers, and what the file may hold. No browser needed."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest
from doubles.running_server import Server, directed, served

from eaglelocal.core.sampling import RANGES
from eaglelocal.server.access import Access, ApiKeys
from eaglelocal.server.chat_page import PAGE

HTML = PAGE.read_text(encoding="utf-8")
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
MAX_LINES, MAX_LINE_CHARS = 1000, 120


@pytest.mark.parametrize("accept", ["*/*", "application/json", ""])
def test_programs_get_the_greeting_of_ollama(server: Server, accept: str) -> None:
    reply = server.http.get("/", headers={"Accept": accept})
    assert (reply.text, reply.headers["vary"]) == ("Ollama is running", "Accept")


def test_browsers_get_the_page(server: Server) -> None:
    reply = server.http.get("/", headers=BROWSER)
    assert (reply.text, reply.headers["content-type"]) == (HTML, "text/html; charset=utf-8")
    head = server.http.head("/", headers=BROWSER)
    assert head.content == b"" and head.headers["content-length"] == reply.headers["content-length"]


def test_the_policy_admits_only_what_the_page_holds(server: Server) -> None:
    headers = server.http.get("/", headers=BROWSER).headers
    policy = dict(line.split(" ", 1) for line in headers["content-security-policy"].split("; "))
    for tag in ("script", "style"):
        (source,) = re.findall(f"<{tag}[^>]*>(.*?)</{tag}>", HTML, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert policy.pop(f"{tag}-src") == f"'sha256-{digest}'"
    assert policy == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert (headers["referrer-policy"], headers["x-content-type-options"]) == ("no-referrer", "nosniff")


def test_the_page_is_open_and_everything_behind_it_needs_the_key() -> None:
    with served(directed(access=Access(keys=ApiKeys((("anna", "a" * 20),))), loads=False)) as server:
        assert server.http.get("/", headers=BROWSER).status_code == 200
        assert server.http.post("/", headers=BROWSER).status_code == 401
        assert server.http.get("/").status_code == server.http.get("/v1/models", headers=BROWSER).status_code == 401


def test_the_page_obeys_the_rules_of_host_and_origin(server: Server) -> None:
    assert server.http.get("/", headers=BROWSER | {"Host": "evil.example"}).status_code == 421
    assert server.http.get("/", headers=BROWSER | {"Origin": "http://evil.example"}).status_code == 403
    own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    question = {"messages": [{"role": "user", "content": "hello"}]}
    assert server.http.post("/v1/chat/completions", headers=own, json=question).status_code == 200


def test_the_page_names_no_other_place() -> None:
    assert set(re.findall(r"\bhttps?://[\w.-]+|(?:src|href)=\"(?!#|data:)[^\"]*", HTML)) == {"http://www.w3.org"}


def test_the_page_makes_no_html_of_texts() -> None:
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc"
    assert re.findall(sinks, HTML) == []


@pytest.mark.parametrize("name", ["temperature", "top_p", "max_tokens"])
def test_the_limits_of_the_settings_are_those_of_the_server(name: str) -> None:
    found = re.search(rf'name="{name}" type="number" min="(\d+)" max="(\d+)"', HTML)
    assert found is not None
    low, high = RANGES[name]
    assert (float(found[1]), float(found[2])) == (max(low, float(name == "max_tokens")), high)


def test_the_page_stays_small() -> None:
    lines = HTML.splitlines()
    assert len(lines) < MAX_LINES
    assert [line for line in lines if len(line) > MAX_LINE_CHARS] == []

"""The monitor in a browser: who gets access, what they see, and what remains. Real sockets and screens."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import psutil
import pytest
from doubles.pages_server import Pages, serving, vllm_pages
from doubles.serve_process import free_port

from eaglelocal.cli.browser import serve_pages
from eaglelocal.cli.output import Output
from eaglelocal.errors import ResourceError
from eaglelocal.server import connections
from eaglelocal.server.access import Access, ApiKeys
from eaglelocal.server.listening_socket import bind_socket
from eaglelocal.settings import Settings
from eaglelocal.web import site as site_module
from eaglelocal.web.site import ScreenSite, UpstreamServer

pytestmark = pytest.mark.full

ANNA, BEN = "a-key-that-anna-has", "a-key-that-ben-has"
KEYED = Access(keys=ApiKeys((("anna", ANNA), ("ben", BEN))))
PATIENCE_S = 10.0


@contextlib.asynccontextmanager
async def opened(watched: UpstreamServer, access: Access) -> AsyncIterator[str]:
    """The address of a site."""
    listening = bind_socket("127.0.0.1", 0)
    async with ScreenSite(watched, access).open(listening):
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


Scenario = Callable[[aiohttp.ClientSession, str, Pages], Awaitable[None]]


def play(scenario: Scenario, access: Access | None = None, *, api_key: str | None = None) -> None:
    """In front of a recorded vLLM, which notes the keys with which it is asked."""

    async def run(pages: Pages) -> None:
        jar = aiohttp.CookieJar(unsafe=True)  # of addresses too
        async with (
            opened(UpstreamServer(url=pages.url, api_key=api_key), access or Access()) as url,
            aiohttp.ClientSession(cookie_jar=jar) as browser,
        ):
            await scenario(browser, url, pages)

    pages = vllm_pages()
    with serving(pages):
        asyncio.run(run(pages))


async def status(browser: aiohttp.ClientSession, url: str, **headers: str) -> int:
    async with browser.get(url, headers=headers, allow_redirects=False) as reply:
        return reply.status


async def handshake(browser: aiohttp.ClientSession, url: str, **headers: str) -> int:
    """The status with which a socket is refused, or 101."""
    try:
        async with browser.ws_connect(f"{url}/ws?width=80&height=24", headers=headers):
            return 101
    except aiohttp.WSServerHandshakeError as refusal:
        return refusal.status


async def shown(websocket: aiohttp.ClientWebSocketResponse, text: str) -> str:
    """What was drawn until that text had come."""
    drawn = ""
    async with asyncio.timeout(PATIENCE_S):
        async for message in websocket:
            assert message.type is aiohttp.WSMsgType.BINARY, message
            drawn += message.data.decode()
            if text in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn):
                return drawn
    raise AssertionError(f"{text!r} was not drawn:\n{drawn}")


async def closed(websocket: aiohttp.ClientWebSocketResponse) -> int | None:
    """The code with which it was closed."""
    async with asyncio.timeout(PATIENCE_S):
        while not websocket.closed:
            await websocket.receive()
    return websocket.close_code


def screens() -> list[psutil.Process]:
    """Of this program."""
    modules = {module for _, module in site_module.SCREENS.values()}
    return [child for child in psutil.Process().children() if modules & set(_command(child))]


async def remain(number: int) -> None:
    """So many screens, before long."""
    async with asyncio.timeout(PATIENCE_S):
        while len(screens()) != number:
            await asyncio.sleep(0.05)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


# ---- what is seen
def test_a_visitor_sees_the_monitor_and_its_keys_work() -> None:
    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        async with browser.ws_connect(f"{url}/ws?width=100&height=30", origin=url) as websocket:
            await shown(websocket, f"vLLM at {pages.url}")
            await websocket.send_str(json.dumps(["resize", {"width": 10**9, "height": 40}]))  # as wide as it gets
            await websocket.send_str(json.dumps(["focus"]))
            await websocket.send_str(json.dumps(["stdin", "l"]))
            await shown(websocket, "vLLM is ready")
            await websocket.send_str(json.dumps(["stdin", "/"]))
            await shown(websocket, "key, state, model or id")
            for half in ("\ud83e", "\udd85", "\udd85"):
                await websocket.send_str(json.dumps(["stdin", half]))
            await shown(websocket, "only: \U0001f985\ufffd")
            await websocket.send_str(json.dumps(["stdin", "\x1b"]))
            await asyncio.sleep(0.5)
            await websocket.send_str(json.dumps(["stdin", "q"]))
            await closed(websocket)
        await remain(0)

    play(scenario)


def test_the_names_of_keys_are_shown_before_the_first_click() -> None:
    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        async with browser.ws_connect(f"{url}/ws?width=100&height=30", origin=url) as websocket:
            drawn = await shown(websocket, "Pause")
            assert "Quit" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)
            await websocket.send_str(json.dumps(["blur"]))
            await websocket.send_str(json.dumps(["stdin", "/"]))
            await shown(websocket, "key, state, model or id")
            await websocket.send_str(json.dumps(["stdin", "vl"]))
            await shown(websocket, "only: vl")  # the field has kept the focus

    play(scenario)


def test_a_chat_is_beside_the_monitor() -> None:
    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        for path, name in (("/", "monitor"), ("/chat", "chat")):
            async with browser.get(url + path) as reply:
                text = await reply.text()
            assert re.findall(r'<a href="([^"]*)"( aria-current="page")?>', text)[:2] == [
                ("/", ' aria-current="page"' * (path == "/")),
                ("/chat", ' aria-current="page"' * (path == "/chat")),
            ]
            assert f'data-session-websocket-url="ws{url.removeprefix("http")}/ws{path.rstrip("/")}"' in text
            assert re.findall("<title>(.*)</title>", text) == [f"eaglelocal {name} {pages.url}"]
        async with browser.ws_connect(f"{url}/ws/chat?width=100&height=30", origin=url) as websocket:
            await shown(websocket, "Ask something")
            await websocket.send_str(json.dumps(["stdin", "/export x"]))
            await websocket.send_str(json.dumps(["stdin", "\r"]))
            await shown(websocket, "/export is not available in a browser")

    play(scenario)


def test_the_page_fits_a_narrow_window() -> None:
    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        async with browser.get(url) as reply:
            text = await reply.text()
        assert 'name="viewport" content="width=device-width' in text
        assert f'data-min-columns="{site_module.MIN_COLUMNS}"' in text
        async with browser.get(f"{url}/page.js") as reply:
            assert reply.content_type.endswith("javascript")
            script = await reply.text()
        assert "minColumns" in script and "fontSize" in script
        assert re.search(
            "#terminal {[^}]*width: auto", text
        )  # textual.js says 100vw, wider than what the margin leaves
        assert script.index("-first-byte") < script.index(".focus()")  # before, the socket is not open yet

    play(scenario)


def test_the_page_loads_nothing_from_elsewhere_and_says_so() -> None:
    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        async with browser.get(url, headers={"X-Forwarded-Proto": "https"}) as reply:
            text, headers = await reply.text(), reply.headers
        links = re.findall(r'(?:src|href|url)="([^"]*)"', text)
        assert sorted(links)[:2] == ["/", "/static/css/xterm.css"] or "/static/css/xterm.css" in links
        assert [link for link in links if "//" in link] == [f"wss{url.removeprefix('http')}/ws"]
        assert not re.search(r"<script(?! src=)|\bon[a-z]+=", text)  # what the policy would refuse
        for path in re.findall(r'="(/static/[^"]*)"', text):
            assert await status(browser, url + path) == 200, path
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "no-referrer"

    play(scenario)


# ---- who gets in
def test_other_hosts_and_origins_are_refused() -> None:
    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        port = url.rpartition(":")[2]
        for headers, expected in (
            ({"Host": f"evil.example:{port}"}, 421),
            ({"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"}, 421),  # rebound
            ({"Origin": "http://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": f"http://localhost:{port}"}, 403),  # another name is another page
            ({"Origin": "http://127.0.0.1:1"}, 403),
        ):
            assert await status(browser, url, **headers) == expected, headers
            assert await status(browser, f"{url}/static/js/textual.js", **headers) == expected, headers
            assert await handshake(browser, url, **headers) == expected, headers
        async with browser.get(url, headers={"Host": f"evil.example:{port}"}) as reply:
            assert "`--allowed-hosts evil.example`" in await reply.text()
        async with browser.get(url, headers={"Origin": "http://evil.example"}) as reply:
            assert "`--cors-origins http://evil.example`" in await reply.text()
        assert await handshake(browser, url, Origin=url) == 101
        assert await handshake(browser, url, Host=f"localhost:{port}", Origin=f"http://localhost:{port}") == 101

    play(scenario)


def test_a_key_makes_no_other_host_welcome() -> None:
    """The server's API may be asked under any name by who has a key. A browser has it in a cookie, so not here."""

    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        for path in ("/", f"/?key={ANNA}"):
            assert await status(browser, url + path, Host="evil.example") == 421

    play(scenario, KEYED)


def test_doubtful_keys_of_a_page_are_reported(tmp_path: Path) -> None:
    keys, stderr = tmp_path / "keys", io.StringIO()
    keys.write_text("anna: 1234\n")
    keys.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(web_port=taken.getsockname()[1], api_key_file=str(keys))
        with pytest.raises(ResourceError, match="is taken"):
            serve_pages("127.0.0.1:1", "", settings, Output(stdout=io.StringIO(), stderr=stderr, environ={}))
    assert stderr.getvalue().count("warning: the key") == 2
    assert "1234" not in stderr.getvalue()


def test_sockets_that_say_nothing_keep_no_visitor_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8 * site_module.CONNECTION_DIVISOR)
    monkeypatch.setattr(site_module, "HEAD_TIMEOUT_S", 2.0)

    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        port = int(url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
        assert await status(browser, url) == 200
        for reader, writer in silent:  # to make room, or after a time
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(PATIENCE_S):
                    assert await reader.read() == b""
            writer.close()
        assert await status(browser, url) == 200

    play(scenario)


def test_nothing_is_shown_without_a_key_where_there_are_keys() -> None:
    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        name = f"eaglelocal-monitor-{url.rpartition(':')[2]}"
        guesses: tuple[dict[str, str], ...] = (
            {},
            {"Cookie": f"{name}={ANNA}"},
            {"Cookie": f"{name}="},
            {"Authorization": f"Bearer {ANNA}"},
        )
        for headers in guesses:
            for path in ("/", "/static/js/textual.js", "/download/1", "/nothing"):
                assert await status(browser, url + path, **headers) == 401, (path, headers)
            assert await handshake(browser, url, **headers) == 401, headers
        for query in ("key=", "key=wrong", f"key={ANNA[:-1]}", f"key={ANNA}x", "key=%ff%00"):
            assert await status(browser, f"{url}/?{query}") == 401, query
        assert await status(browser, f"{url}/ws?key={ANNA}") == 401
        assert not pages.keys and screens() == []

    play(scenario, KEYED)


def test_a_key_is_said_once_and_then_a_cookie_that_is_no_key_opens() -> None:
    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        async with browser.get(f"{url}/?key={BEN}&fontsize=20", allow_redirects=False) as reply:
            assert (reply.status, reply.headers["Location"]) == (303, "/?fontsize=20")
            (cookie,) = reply.headers.getall("Set-Cookie")
        assert BEN not in cookie and ANNA not in cookie
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Max-Age" not in cookie
        assert await status(browser, url) == 200
        async with browser.ws_connect(f"{url}/ws", origin=url) as websocket:
            await shown(websocket, f"vLLM at {pages.url}")
        assert set(pages.keys) == {f"Bearer {BEN}"}  # the server decides what ben may do

    play(scenario, KEYED)


@pytest.mark.parametrize("path", ["/", "/chat"])
def test_every_page_takes_the_key(path: str) -> None:
    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        async with browser.get(url + path) as reply:
            assert reply.status == 401 and f'<form action="{path}">' in await reply.text()
        assert await status(browser, f"{url}{path}?key=wrong") == 401
        async with browser.get(f"{url}{path}?key={BEN}&fontsize=20", allow_redirects=False) as reply:
            assert (reply.status, reply.headers["Location"]) == (303, f"{path}?fontsize=20")
        assert await status(browser, url + path) == 200

    play(scenario, KEYED)


def test_a_key_leads_to_no_other_address() -> None:
    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        for path in ("//evil.example/", "/nothing", "/static/js/textual.js"):
            assert await status(browser, f"{url}{path}?key={ANNA}") == 401
        async with browser.get(f"{url}/nothing") as reply:
            assert '<form action="/">' in await reply.text()

    play(scenario, KEYED)


def test_a_page_with_a_key_of_its_own_asks_the_server_with_the_server_s() -> None:
    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        assert await status(browser, f"{url}/?key={ANNA}") == 303
        async with browser.ws_connect(f"{url}/ws") as websocket:
            await shown(websocket, "vLLM at")
        assert set(pages.keys) == {"Bearer the-key-of-the-server"}

    play(scenario, KEYED, api_key="the-key-of-the-server")


# ---- what stays
def test_only_so_many_screens_are_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "MAX_VISITORS", 1)

    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        async with browser.ws_connect(f"{url}/ws") as websocket:
            await shown(websocket, "vLLM at")
            assert await handshake(browser, url) == 503
        async with asyncio.timeout(PATIENCE_S):  # its place is given back a moment after its process is gone
            while await handshake(browser, url) == 503:
                await asyncio.sleep(0.05)

    play(scenario)


@pytest.mark.parametrize(
    "nonsense",
    [
        "{}",
        "[",
        "[]",
        "[" * 100_000,
        '["resize", {"width": 1e999, "height": 1}]',
        '["resize", {"width": "x"}]',
        '["stdin", 3]',
        '["resize"]',
    ],
)
def test_what_no_page_of_ours_says_ends_that_screen_alone(nonsense: str) -> None:
    async def scenario(browser: aiohttp.ClientSession, url: str, pages: Pages) -> None:
        async with browser.ws_connect(f"{url}/ws") as other, browser.ws_connect(f"{url}/ws") as websocket:
            await shown(websocket, "vLLM at")
            await websocket.send_str(nonsense)
            assert await closed(websocket) == aiohttp.WSCloseCode.PROTOCOL_ERROR
            await shown(other, "vLLM at")
            await remain(1)

    play(scenario)


def test_screens_end_with_the_site() -> None:
    async def run(url: str) -> None:
        async with aiohttp.ClientSession() as browser:
            async with opened(UpstreamServer(url=url), Access()) as site:
                websocket = await browser.ws_connect(f"{site}/ws")
                await shown(websocket, "vLLM at")
                assert len(screens()) == 1
            await closed(websocket)
        assert screens() == []

    with serving(vllm_pages()) as pages:
        asyncio.run(run(pages.url))


# ---- as a command
@contextlib.contextmanager
def top_web(*arguments: str, **environ: str):  # type: ignore[no-untyped-def]
    port = free_port()
    command = [sys.executable, "-m", "eaglelocal", "top", *arguments, "--web", "--web-port", str(port)]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environ})
    assert program.stderr is not None
    try:
        yield program, f"http://127.0.0.1:{port}", program.stderr.readline().decode().strip()
    finally:
        if program.poll() is None:
            program.kill()
        program.communicate()


def test_top_web_is_a_page_until_it_is_stopped() -> None:
    async def look(url: str) -> None:
        async with aiohttp.ClientSession() as browser, browser.ws_connect(f"{url}/ws") as websocket:
            await shown(websocket, "vLLM at")

    with serving(vllm_pages()) as pages, top_web(pages.url) as (program, url, said):
        assert said == f"monitor and chat for browsers: {url}/"
        asyncio.run(look(url))
        program.send_signal(signal.SIGINT)
        out, rest = program.communicate(timeout=PATIENCE_S)
        assert (program.returncode, out, rest) == (0, b"", b"")


def test_a_screen_ends_when_its_program_is_killed() -> None:
    async def look(program: subprocess.Popen[bytes], url: str) -> list[psutil.Process]:
        async with aiohttp.ClientSession() as browser, browser.ws_connect(f"{url}/ws") as websocket:
            await shown(websocket, "vLLM at")
            children = psutil.Process(program.pid).children()
            program.kill()
            await closed(websocket)
        return children

    with serving(vllm_pages()) as pages, top_web(pages.url) as (program, url, _):
        children = asyncio.run(look(program, url))
        assert len(children) == 1
        _, alive = psutil.wait_procs(children, PATIENCE_S)
        assert alive == []


def test_a_key_in_the_environment_is_wanted_by_the_page_too() -> None:
    async def look(url: str) -> None:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
            assert await status(browser, url) == 401
            assert await status(browser, f"{url}/?key={ANNA}") == 303
            assert await status(browser, url) == 200

    with serving(vllm_pages()) as pages, top_web(pages.url, EAGLELOCAL_API_KEY=ANNA) as (_, url, said):
        assert said.endswith("/?key=KEY, with one of its keys")
        asyncio.run(look(url))


BLOCKED = "import sys; sys.modules['textual_serve'] = None; from eaglelocal.cli.main import main; sys.exit(main())"


@pytest.mark.parametrize(
    ("program", "arguments", "code", "said"),
    [
        (("-m", "eaglelocal"), ("--web", "--host", "0.0.0.0"), 2, "can be reached by others, and there is no key"),
        (("-m", "eaglelocal"), ("--web-port", "1"), 2, "hint: eaglelocal top http://127.0.0.1:9 --web-port 1 --web"),
        (("-m", "eaglelocal"), ("--web", "--web-port", "TAKEN"), 1, "top http://127.0.0.1:9 --web --web-port "),
        (("-c", BLOCKED), ("--web",), 2, 'pip install "eaglelocal[web]"'),
    ],
)
def test_what_goes_wrong_has_a_hint(program: tuple[str, ...], arguments: tuple[str, ...], code: int, said: str) -> None:
    with bind_socket("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        given = [port if each == "TAKEN" else each for each in arguments]
        command = [sys.executable, *program, "top", "http://127.0.0.1:9", *given]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr

"""`serve --web`: the real server and the page of its monitor, in one process."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import aiohttp
import httpx
import pytest
from doubles.serve_process import free_port, serve

pytestmark = pytest.mark.full

ANNA, BEN = "a-key-that-anna-has", "a-key-that-ben-has"
PATIENCE_S = 30.0


async def drawn(websocket: aiohttp.ClientWebSocketResponse, *texts: str) -> str:
    """Wait until all of that was drawn. Return everything that was drawn."""
    seen = ""
    async with asyncio.timeout(PATIENCE_S):
        async for message in websocket:
            seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", message.data.decode())
            if all(text in seen for text in texts):
                return seen
    raise AssertionError(f"{texts} were not drawn:\n{seen}")


async def visit(url: str, server_url: str) -> None:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
        async with browser.get(url) as page:
            assert page.status == 401
        async with browser.get(f"{url}/?key={BEN}") as page:
            assert page.status == 200 and BEN not in str(page.url)
        async with browser.ws_connect(f"{url}/ws?width=100&height=30", origin=url) as websocket:
            seen = await drawn(websocket, f"eaglelocal at {server_url}")
            for said in (["focus"], ["stdin", "d"]):
                await websocket.send_str(json.dumps(said))
            seen += await drawn(websocket, "cannot be controlled from here")  # ben is one of several
            assert "answered" not in seen  # by their number, ben would know what anna asks


def test_a_visitor_sees_the_server_with_a_key_and_may_do_what_the_key_may(tmp_path: Path) -> None:
    keys, log, port = tmp_path / "keys", tmp_path / "log", free_port()
    with open(os.open(keys, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(f"anna: {ANNA}\nben: {BEN}\n")
    with serve("--target", "demo", "--web", "--web-port", str(port), "--api-key-file", str(keys), log=log) as server:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        headers = {"Authorization": f"Bearer {ANNA}"}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200
        asyncio.run(visit(f"http://127.0.0.1:{port}", server.url))
    said = log.read_text()
    assert f"monitor and chat for browsers: http://127.0.0.1:{port}/?key=KEY" in said
    assert "Traceback" not in said and ANNA not in said and BEN not in said
    assert server.process.returncode == 0

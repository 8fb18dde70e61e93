"""The chat page for browsers, chat_page.html, with the headers that keep what models write from doing anything.

The policy admits the page's own script and style by their hashes, requests to this server, and pictures that the page
holds itself. Trusted Types keep the script from making HTML of a text.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

from eaglelocal.server.access import SAFE_METHODS

PAGE = Path(__file__).with_name("chat_page.html")
POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def asks_for_page(scope: Scope) -> bool:
    """Return whether a browser opens the page. Everybody may, because it holds nothing of anybody: it asks for the key.

    Programs get Ollama's greeting at the same path.
    """
    is_reading = scope["path"] == "/" and scope["method"] in SAFE_METHODS
    return is_reading and "text/html" in Headers(scope=scope).get("accept", "")


def make_page_response() -> Response:
    html, policy = read_page()
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
    return HTMLResponse(html, headers=headers)


@cache
def read_page() -> tuple[str, str]:
    """Return the page and its Content-Security-Policy."""
    html = PAGE.read_text(encoding="utf-8")
    return html, POLICY.format(script=hash_inline(html, "script"), style=hash_inline(html, "style"))


def hash_inline(html: str, tag: str) -> str:
    """Return the hash by which a policy admits the script or style in a page."""
    text = html.partition(f"<{tag}")[2].partition(">")[2].partition(f"</{tag}>")[0]
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

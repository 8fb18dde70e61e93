"""Monitor and chat in a browser (--web), of an eaglelocal server or any other one: their address and who may open it.

The server's rule of access applies: loopback needs no key, any other address does, and a configured key is
always required.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress

from eaglelocal.cli.output import Output
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import UsageError
from eaglelocal.server.access import Access, ApiKeys
from eaglelocal.settings import Settings

AsyncTask = Callable[[], Coroutine[None, None, None]]


@dataclass(frozen=True, slots=True)
class PageAddress:
    """A bound address of pages, which serves none yet. `new_key`: a generated key, which the message shows."""

    listening: socket.socket
    access: Access
    output: Output
    new_key: str = ""

    @property
    def urls(self) -> list[str]:
        """The page's address from this machine, and from its network if every address is listened on."""
        from eaglelocal.cli.serve_log import find_lan_url, make_url

        host, port = self.listening.getsockname()[:2]
        return [make_url(host, port), *filter(None, [find_lan_url(host, port)])]

    def run_with(self, server_url: str, task: AsyncTask) -> AsyncTask:
        """Return a coroutine function that runs `task`, and serves the server's pages at the same time.

        Each visitor's screen asks the server with the visitor's own key.
        """

        async def both() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(task())  # first: a screen takes the messages of show() into its log
                group.create_task(self.show(server_url))

        return both

    async def show(self, server_url: str, *, api_key: str | None = None) -> None:
        """Serve the monitor of a server, and a chat with it, until cancelled.

        api_key  key with which every visitor's screen asks the server; None: the visitor's own
        """
        from eaglelocal.web.site import ScreenSite, UpstreamServer

        site = ScreenSite(UpstreamServer(url=server_url, api_key=api_key), self.access)
        key = f"?key={self.new_key or 'KEY, with one of its keys'}" if self.access.keys else ""
        async with site.open(self.listening):
            addresses = ", in your network: ".join(f"{url}/{key}" for url in self.urls)
            self.output.message(f"monitor and chat for browsers: {addresses}")
            await asyncio.Event().wait()


def bind_page(settings: Settings, access: Access, output: Output, *, new_key: str = "") -> PageAddress:
    """Bind the address of the pages. Raises UsageError without textual-serve, ResourceError if the port is taken."""
    from eaglelocal.server.listening_socket import bind_socket

    try:
        import eaglelocal.web.site  # noqa: F401
    except ImportError as error:
        hint = 'pip install "eaglelocal[web]"'
        raise UsageError(f"--web needs {error.name}, which is not installed", hint=hint) from error
    return PageAddress(bind_socket(settings.host, settings.web_port, flag="--web-port"), access, output, new_key)


def serve_pages(url: str, api_key: str, settings: Settings, output: Output) -> None:
    """Serve monitor and chat of the server at `url` until Ctrl-C.

    If that server is asked with a key and no key is configured for the page, the page gets a generated one, so that
    its visitors need a key too.
    """
    from eaglelocal.client.http_connection import KeepAliveConnection
    from eaglelocal.server.access import Access, check_bind, key_warnings, parse_host_names, read_keys
    from eaglelocal.tui.display_options import check_display_options, make_display_options

    check_display_options(make_display_options(settings))
    watched_url = KeepAliveConnection(url).url
    key_file = expand_path(settings.api_key_file) if settings.api_key_file else None
    keys = read_keys(key_file, os.environ)
    check_bind(settings.host, keys)
    for warning in key_warnings(key_file, keys):
        output.message(f"warning: {warning}")
    new_key = "" if keys or not api_key else secrets.token_urlsafe(24)
    if new_key:
        keys = ApiKeys((("this page", new_key),))
    names = parse_host_names((*settings.allowed_hosts, settings.host))
    page = bind_page(settings, Access(host=settings.host, keys=keys, names=names), output, new_key=new_key)
    asyncio.run(serve_until_stopped(page, watched_url, api_key))


async def serve_until_stopped(page: PageAddress, url: str, api_key: str) -> None:
    """Serve the page until Ctrl-C, SIGTERM or a closed terminal, and return normally then."""
    from eaglelocal.server.run_server import ending_signals

    shown = asyncio.create_task(page.show(url, api_key=api_key))
    loop = asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, shown.cancel)
    with suppress(asyncio.CancelledError):
        await shown

"""--web: the monitor in a browser, beside a server of ours or of any other one. Who may look, and under which address.

The rule is the server's: loopback needs no key, any other address does, and where there is a key it is wanted.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eaglelocal.cli.output import Output
from eaglelocal.errors import UsageError
from eaglelocal.server.access import Access, Keys
from eaglelocal.settings import Settings

Work = Callable[[], Coroutine[None, None, None]]


@dataclass(frozen=True, slots=True)
class Page:
    """An address that is listened on, where nothing is shown yet. `new_key`: one that nobody knows yet."""

    listening: socket.socket
    access: Access
    output: Output
    new_key: str = ""

    @property
    def url(self) -> str:
        from eaglelocal.cli.serve_log import url_of

        host, port = self.listening.getsockname()[:2]
        return url_of(host, port)

    @property
    def _query(self) -> str:
        if not self.access.keys:
            return ""
        return f"?key={self.new_key}" if self.new_key else "?key=KEY, with one of its keys"

    def beside(self, server_url: str, other: Work) -> Work:
        """Show that server, which each visitor asks with a key of their own, while something else goes on."""

        async def both() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(other())  # first: where it is a screen, what is said next goes to its log
                group.create_task(self.show(server_url))

        return both

    async def show(self, server_url: str, *, api_key: str | None = None) -> None:
        """Until it is cancelled. api_key: with which all visitors' screens ask; None: with the visitor's own."""
        from eaglelocal.web.site import MonitorSite, Watched

        site = MonitorSite(Watched(url=server_url, api_key=api_key), self.access)
        async with site.open(self.listening):
            self.output.message(f"monitor for browsers: {self.url}/{self._query}")
            await asyncio.Event().wait()


def bound_page(settings: Settings, access: Access, output: Output, *, new_key: str = "") -> Page:
    """Raises UsageError where textual-serve is missing, ResourceError where the port is taken."""
    from eaglelocal.server.run import bound

    try:
        import eaglelocal.web.site  # noqa: F401
    except ImportError as error:
        hint = 'pip install "eaglelocal[web]" (in a checkout: pip install -e ".[web]")'
        raise UsageError(f"--web needs {error.name}, which is not installed", hint=hint) from error
    return Page(bound(settings.host, settings.web_port, flag="--web-port"), access, output, new_key)


def watch_in_browser(url: str, api_key: str, settings: Settings, output: Output) -> None:
    """Until Ctrl-C. Where the watched server wants a key and none was given for the page, the page gets a new one."""
    from eaglelocal.client.servers.connection import Connection
    from eaglelocal.server.access import Access, check_bind, key_warnings, names_of, read_keys
    from eaglelocal.tui.keys import check_look
    from eaglelocal.tui.look import look_of

    check_look(look_of(settings))
    watched_url = Connection(url).url
    key_file = Path(settings.api_key_file).expanduser() if settings.api_key_file else None
    keys = read_keys(key_file, os.environ)
    check_bind(settings.host, keys)
    for warning in key_warnings(key_file, keys):
        output.message(f"warning: {warning}")
    new_key = "" if keys or not api_key else secrets.token_urlsafe(24)
    if new_key:
        keys = Keys((("this page", new_key),))
    names = names_of((*settings.allowed_hosts, settings.host))
    page = bound_page(settings, Access(host=settings.host, keys=keys, names=names), output, new_key=new_key)
    asyncio.run(until_stopped(page, watched_url, api_key))


async def until_stopped(page: Page, url: str, api_key: str) -> None:
    """Ctrl-C, SIGTERM and a closed terminal are the end, and no failure."""
    from eaglelocal.server.run import ending_signals

    shown = asyncio.create_task(page.show(url, api_key=api_key))
    loop = asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, shown.cancel)
    with suppress(asyncio.CancelledError):
        await shown

"""Loads the hub's client, and reports the environment variables that it or its HTTP library cannot use.

Addresses and headers are checked here, because a bad one would look like a hub that does not answer, and its error
could show a password. Everything else is judged by the client, in its own words. Opens no connection.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import ssl
import sys
import warnings
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from eaglelocal.errors import UsageError

Environ = Mapping[str, str]

ENDPOINT, ORIGIN = "HF_ENDPOINT", "HF_HUB_USER_AGENT_ORIGIN"
PROXY_SCHEMES = ("http", "https", "all")  # the client uses all that are set, whatever the hub's scheme
HUB, PROXY = ("http", "https"), ("http", "https", "socks5", "socks5h")  # schemes of their addresses
MAX_SHOWN_CHARS = 80


def prepare_client(environ: Environ = os.environ, *, connects: bool = True) -> None:
    """Load the hub's client without its output.

    connects  True if a hub will be asked; otherwise only settings that prevent the import are reported

    Raises UsageError with the variables that may be at fault.
    """
    check_settings(environ, connects=connects)
    with _silence_import():
        try:
            importlib.import_module("huggingface_hub.constants")
            if connects:
                ssl.create_default_context()  # it opens SSLKEYLOGFILE
                importlib.import_module("huggingface_hub").get_session()  # it reads proxies, and sends nothing
            token = _read_token() if connects else ""
        except Exception as problem:  # the library's, caused by another setting: no hub was asked
            raise _make_setting_error(problem, environ) from problem
    if not _is_header(token):
        what = "the hub's token has a character that is not allowed in an HTTP header"
        raise UsageError(what, hint="hf auth login, or unset HF_TOKEN")


def check_settings(environ: Environ, *, connects: bool = True) -> None:
    """Check addresses and headers without loading anything. Raises UsageError with the variable and its value."""
    if ENDPOINT in environ:
        _check_address(ENDPOINT, environ[ENDPOINT], "the address of a hub", HUB)
    if not connects:
        return
    if "*" not in [host.strip() for host in find_proxy_variable(environ, "no")[1].split(",")]:
        for scheme in PROXY_SCHEMES:
            name, value = find_proxy_variable(environ, scheme)
            if value:
                _check_address(name, value if "://" in value else f"http://{value}", "the address of a proxy", PROXY)
    if not _is_header(environ.get(ORIGIN, "")):
        raise UsageError(f"{ORIGIN} has a character that is not allowed in an HTTP header", hint=f"unset {ORIGIN}")


def _check_address(name: str, value: str, what: str, schemes: tuple[str, ...]) -> None:
    """Raise UsageError with the value, without its password, which could also stand in a library's words about it."""
    try:
        parts = urlsplit(value)
        is_address = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0  # a bad port raises
    except ValueError:
        is_address = False
    if not is_address or " " in value or not value.isprintable():
        shown = mask_password(value)[:MAX_SHOWN_CHARS]
        raise UsageError(f"{name} is {shown!r}, which is not {what}", hint=f"unset {name}")


@contextlib.contextmanager
def _silence_import() -> Iterator[None]:
    """Silence the client, which warns of variables without effect and prints why it cannot be imported."""
    unread, disabled = io.StringIO(), logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(unread), contextlib.redirect_stderr(unread):
        warnings.simplefilter("ignore")
        logging.disable()
        try:
            yield
        finally:
            logging.disable(disabled)
    for handler in logging.getLogger("huggingface_hub").handlers:  # created just now: its later logs must be shown
        if isinstance(handler, logging.StreamHandler) and handler.stream is unread:
            handler.setStream(sys.stderr)


def _read_token() -> str:
    """Return the token of the environment or of the file of `hf auth login`; empty if there is none."""
    from huggingface_hub import get_token

    try:
        return get_token() or ""
    except UnicodeDecodeError as problem:  # a file in another encoding
        return problem.object.decode(errors="replace")


def _make_setting_error(problem: Exception, environ: Environ) -> UsageError:
    names = [name for name in environ if name.startswith(("HF_", "HUGGING", "SSL")) or name.lower().endswith("_proxy")]
    named = [name for name in names if environ[name] and environ[name] in str(problem)]
    what = str(problem).strip().split("\n")[0]
    hint = f"check {', '.join(sorted(named or names))}" if names else "pip install --upgrade huggingface_hub"
    text = f"the hub's client cannot be used with this environment: {what or type(problem).__name__}"
    return UsageError(text, hint=hint)


def _is_header(value: str) -> bool:
    return value.isascii() and value.isprintable()


def find_proxy_variable(environ: Environ, scheme: str) -> tuple[str, str]:
    """Return name and value of the variable that counts: the lower-case one if it is set, even if empty."""
    lower, upper = f"{scheme}_proxy", f"{scheme.upper()}_PROXY"
    name = lower if lower in environ else upper
    return name, environ.get(name, "")


def mask_password(address: str) -> str:
    """Return the address without user name and password."""
    head, at, host = address.rpartition("@")
    scheme, sign, _ = head.partition("://")
    return f"{scheme if sign else ''}{sign}***@{host}" if at else address

"""Loads the hub's client, and reports the environment variables that it or its HTTP library cannot use.

Errors that the client raises while loading are reported in its words. Only two kinds of settings are checked here:
those that would look like a hub that does not answer and be retried in vain, and those that would show a password or
token. A cache that is no folder is reported by the download, which cannot write there.
Opens no connection.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import ipaddress
import logging
import os
import ssl
import sys
import warnings
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from eaglelocal.errors import UsageError

Environ = Mapping[str, str]

ENDPOINT = "HF_ENDPOINT"
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
HEADERS = ("HF_HUB_USER_AGENT_ORIGIN",)
PROXY_SCHEMES = ("http", "https", "all")  # the client uses all that are set, whatever the hub's scheme
PROXY_KINDS = ("http", "https", "socks5", "socks5h")
SOCKS_PACKAGE = "socksio"
TRANSFER, VERBOSITY = "HF_HUB_ENABLE_HF_TRANSFER", "HF_HUB_VERBOSITY"
LEVELS = ("debug", "info", "warning", "error", "critical")
MAX_SHOWN_CHARS = 80


def prepare_client(environ: Environ = os.environ, *, connects: bool = True) -> None:
    """Check the client's settings, then load it without its output.

    connects  True if a hub will be asked; otherwise only settings that prevent the import are reported

    Raises UsageError with the variable and its value.
    """
    check_settings(environ, connects=connects)
    with _silence_import():
        try:
            import huggingface_hub.constants

            if connects:
                ssl.create_default_context()  # it opens SSLKEYLOGFILE
                huggingface_hub.get_session()  # it reads these variables; nothing is sent yet
            token = _read_token() if connects else ""
        except Exception as problem:  # the library's, caused by another setting: no hub was asked
            raise _make_setting_error(problem, environ) from problem
    if not _is_header(token):
        what = "the hub's token has a character that is not allowed in an HTTP header"
        raise UsageError(what, hint="hf auth login")


def check_settings(environ: Environ, *, connects: bool = True) -> None:
    """Run the same checks without loading anything. Raises UsageError."""
    check_endpoint(environ)
    if connects:
        check_proxies(environ)
        check_certificates(environ)
        check_headers(environ)


def list_unused_settings(environ: Environ = os.environ) -> list[str]:
    """Return a line for each variable that is set and has no effect; the client's own warnings are not shown."""
    found = []
    if environ.get(TRANSFER, "").upper() in ("1", "ON", "YES", "TRUE"):
        found.append(f"{TRANSFER} does nothing: the hub's client no longer uses hf_transfer")
    level = environ.get(VERBOSITY, "")
    if level and level not in LEVELS:
        found.append(f"{VERBOSITY} is {_quote(level)} and does nothing: use one of {', '.join(LEVELS)}")
    return found


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
    what = str(problem).strip().split("\n")[0] or type(problem).__name__
    named = [name for name in names if environ[name] and environ[name] in what]
    hint = f"check {', '.join(sorted(named or names))}" if names else "pip install --upgrade huggingface_hub"
    return UsageError(f"the hub's client cannot be used with this environment: {what}", hint=hint)


# ---- values that prevent the import
def check_endpoint(environ: Environ) -> None:
    value = environ.get(ENDPOINT)
    if value is None:
        return
    if not value:
        raise UsageError(f"{ENDPOINT} is set and empty", hint=f"unset {ENDPOINT}")
    why = _find_address_problem(value, ("http", "https"))
    if why:
        mended = _add_scheme(value)
        what = f"{ENDPOINT} is {_quote(mask_password(value))}, which is not the address of a hub: {why}"
        raise UsageError(what, hint=f"export {ENDPOINT}={mended}" if mended else f"unset {ENDPOINT}")


def _add_scheme(value: str) -> str:
    """Return the address with the missing scheme; empty if more than that is wrong, or it holds a password."""
    address = f"https://{value}"
    if "://" in value or "@" in value or _find_address_problem(address):
        return ""
    return f"http://{value}" if _is_loopback(urlsplit(address).hostname or "") else address


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


# ---- values that prevent a connection
def check_proxies(environ: Environ) -> None:
    if "*" in [host.strip() for host in find_proxy_variable(environ, "no")[1].split(",")]:
        return
    for scheme in PROXY_SCHEMES:
        name, value = find_proxy_variable(environ, scheme)
        if value:
            _check_proxy(name, value)


def find_proxy_variable(environ: Environ, scheme: str) -> tuple[str, str]:
    """Return name and value of the variable that counts: the lower-case one if it is set, even if empty."""
    lower, upper = f"{scheme}_proxy", f"{scheme.upper()}_PROXY"
    name = lower if lower in environ else upper
    return name, environ.get(name, "")


def _check_proxy(name: str, value: str) -> None:
    why = _find_address_problem(value if "://" in value else f"http://{value}", PROXY_KINDS)
    if why:
        what = f"{name} is {_quote(mask_password(value))}, which is not the address of a proxy: {why}"
        raise UsageError(what, hint=f"unset {name}")
    if value.lower().startswith("socks") and importlib.util.find_spec(SOCKS_PACKAGE) is None:
        what = f"{name} is {_quote(mask_password(value))}, and a SOCKS proxy needs the package {SOCKS_PACKAGE}"
        raise UsageError(what, hint=f"pip install {SOCKS_PACKAGE}")


def check_certificates(environ: Environ) -> None:
    """Check SSL_CERT_DIR, which counts only if SSL_CERT_FILE is not set. Python accepts a missing folder."""
    folders = environ.get("SSL_CERT_DIR")
    if folders and not environ.get("SSL_CERT_FILE") and not any(map(os.path.isdir, folders.split(os.pathsep))):
        raise UsageError(f"SSL_CERT_DIR is {_quote(folders)}, which is not a folder", hint="unset SSL_CERT_DIR")


def check_headers(environ: Environ) -> None:
    """Check the values that the client sends in headers. A token is never shown."""
    for name in (*TOKENS, *HEADERS):
        value = environ.get(name, "").strip().replace("\r", "").replace("\n", "")
        if not _is_header(value):
            shown = "" if name in TOKENS else f" is {_quote(value)}, which"
            what = f"{name}{shown} has a character that is not allowed in an HTTP header"
            raise UsageError(what, hint=f"unset {name}")


def _is_header(value: str) -> bool:
    return value.isascii() and value.isprintable()


# ---- addresses
def _find_address_problem(value: str, schemes: tuple[str, ...] = ("http", "https")) -> str:
    """Return why the HTTP library cannot use the address; empty if it can."""
    if not value.isprintable() or " " in value:
        return "it contains a space or a control character"
    if "://" not in value:
        return f"it does not begin with {' or '.join(f'{scheme}://' for scheme in schemes)}"
    try:
        parts = urlsplit(value)
        if parts.scheme.lower() not in schemes:
            return f"{parts.scheme}:// is not one of {', '.join(f'{scheme}://' for scheme in schemes)}"
        if not parts.hostname:
            return "it has no host"
        _ = parts.port  # raises ValueError if it is not a port
        return ""
    except ValueError as problem:
        if "@" in value:  # the message may hold a piece of the password
            return "it cannot be split into its parts; in a password write %2F for /, %3A for : and %40 for @"
        return str(problem)[:1].lower() + str(problem)[1:]


def mask_password(address: str) -> str:
    """Return the address without user name and password."""
    head, at, host = address.rpartition("@")
    scheme, sign, _ = head.partition("://")
    return f"{scheme if sign else ''}{sign}***@{host}" if at else address


def _quote(value: str) -> str:
    return repr(value if len(value) <= MAX_SHOWN_CHARS else f"{value[:MAX_SHOWN_CHARS]}...")

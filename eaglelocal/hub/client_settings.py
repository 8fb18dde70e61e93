"""Checks of the environment variables that the hub's client and its HTTP library read, before either is loaded.

A value that they cannot use is reported here. Otherwise it would raise an exception of theirs on import, or look like
a hub that does not answer and be retried in vain. Opens no connection.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import io
import ipaddress
import logging
import os
import ssl
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from eaglelocal import locations
from eaglelocal.core.own_files import read_regular
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import UsageError

Environ = Mapping[str, str]

ENDPOINT = "HF_ENDPOINT"
TIMEOUTS = {"HF_HUB_ETAG_TIMEOUT": 10, "HF_HUB_DOWNLOAD_TIMEOUT": 10}  # seconds, for the hint
MAX_TIMEOUT_S = 86_400
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
HEADERS = ("HF_HUB_USER_AGENT_ORIGIN",)
PROXY_SCHEMES = ("http", "https", "all")  # the client uses all that are set, whatever the hub's scheme
PROXY_KINDS = ("http", "https", "socks5", "socks5h")
SOCKS_PACKAGE = "socksio"
KEY_LOG = "SSLKEYLOGFILE"
TRANSFER, VERBOSITY = "HF_HUB_ENABLE_HF_TRANSFER", "HF_HUB_VERBOSITY"
LEVELS = ("debug", "info", "warning", "error", "critical")
MAX_SHOWN_CHARS = 80


def prepare_client(environ: Environ = os.environ, *, connects: bool = True) -> None:
    """Check what the client reads, then load it without its output.

    connects  True if a hub will be asked; otherwise only variables that can prevent the import are checked

    Raises UsageError with the variable and its value.
    """
    check_settings(environ, connects=connects)
    with _silence_import():
        try:
            import huggingface_hub.constants

            if connects:
                huggingface_hub.get_session()  # it reads these variables; nothing is sent yet
        except Exception as problem:  # the library's, caused by another setting: no hub was asked
            raise _make_setting_error(problem, environ) from problem


def check_settings(environ: Environ, *, connects: bool = True) -> None:
    """Run the same checks without loading anything. Raises UsageError."""
    for check in (*IMPORT_CHECKS, *(CONNECTION_CHECKS if connects else ())):
        check(environ)


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
    for handler in logging.getLogger("huggingface_hub").handlers:  # made just now: its later logs must be shown
        if isinstance(handler, logging.StreamHandler) and handler.stream is unread:
            handler.setStream(sys.stderr)


def _make_setting_error(problem: Exception, environ: Environ) -> UsageError:
    names = [name for name in environ if name.startswith(("HF_", "HUGGING", "SSL")) or name.lower().endswith("_proxy")]
    what = str(problem).strip().split("\n")[0] or type(problem).__name__
    hint = f"check {', '.join(sorted(names))}" if names else "pip install --upgrade huggingface_hub"
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
        hint = f"export {ENDPOINT}={mended}" if mended else f"unset {ENDPOINT}"
        raise UsageError(
            f"{ENDPOINT} is {_quote(mask_password(value))}, which is not the address of a hub: {why}", hint=hint
        )


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


def check_timeouts(environ: Environ) -> None:
    """Check the timeouts. The client takes whole numbers; 0 means its default."""
    for name, usual in TIMEOUTS.items():
        value = environ.get(name)
        if value is not None and not _is_timeout(value):
            what = f"{name} is {_quote(value)}, not a whole number of seconds up to {MAX_TIMEOUT_S}"
            raise UsageError(what, hint=f"export {name}={_parse_digits(value) or usual}")


def _is_timeout(value: str) -> bool:
    try:
        return 0 <= int(value) <= MAX_TIMEOUT_S
    except ValueError:
        return False


def _parse_digits(value: str) -> str:
    """Return `30` for `30s`; empty if it does not begin with a valid number."""
    digits = value.strip().split(".")[0].rstrip("sec ")
    return digits if digits.isdecimal() and _is_timeout(digits) else ""


# ---- values that prevent a connection
def check_proxies(environ: Environ) -> None:
    if "*" in [host.strip() for host in find_proxy_variable(environ, "no")[1].split(",")]:
        return
    for scheme in PROXY_SCHEMES:
        name, value = find_proxy_variable(environ, scheme)
        if value:
            _check_proxy(name, value)


def find_proxy_variable(environ: Environ, scheme: str) -> tuple[str, str]:
    """Return name and value of the variable that counts: the lower-case one if it is set, even if it is empty."""
    lower, upper = f"{scheme}_proxy", f"{scheme.upper()}_PROXY"
    name = lower if lower in environ else upper
    return name, environ.get(name, "")


def _check_proxy(name: str, value: str) -> None:
    why = _find_address_problem(value if "://" in value else f"http://{value}", PROXY_KINDS)
    if why:
        hint = f"unset {name}"
        raise UsageError(
            f"{name} is {_quote(mask_password(value))}, which is not the address of a proxy: {why}", hint=hint
        )
    if value.lower().startswith("socks") and importlib.util.find_spec(SOCKS_PACKAGE) is None:
        what = f"{name} is {_quote(mask_password(value))}, and a SOCKS proxy needs the package {SOCKS_PACKAGE}"
        raise UsageError(what, hint=f"pip install {SOCKS_PACKAGE}")


def check_key_log(environ: Environ) -> None:
    """Check SSLKEYLOGFILE, which Python opens whenever it reads certificates. It is not created here."""
    path = environ.get(KEY_LOG)
    if not path:
        return
    try:
        _check_appendable(path)
    except (OSError, ValueError) as problem:
        what = problem.strerror if isinstance(problem, OSError) else str(problem)
        message = f"{KEY_LOG} is {_quote(path)}, which cannot be written: {what}"
        raise UsageError(message, hint=f"unset {KEY_LOG}") from problem


def _check_appendable(path: str) -> None:
    """Raise OSError if it is a folder, a pipe without a reader, or in a folder that cannot be written."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))
    except FileNotFoundError:
        folder = os.path.dirname(os.path.realpath(path))
        os.stat(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None


def check_certificates(environ: Environ) -> None:
    """Check the certificates. SSL_CERT_DIR counts only if SSL_CERT_FILE is not set."""
    if file := environ.get("SSL_CERT_FILE"):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
        except (OSError, ValueError) as problem:
            what = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
            message = f"SSL_CERT_FILE is {_quote(file)}, from which no certificates can be read: {what}"
            raise UsageError(message, hint="unset SSL_CERT_FILE") from problem
        return
    folders = environ.get("SSL_CERT_DIR")
    if folders and not any(Path(folder).is_dir() for folder in folders.split(os.pathsep)):
        raise UsageError(f"SSL_CERT_DIR is {_quote(folders)}, which is not a folder", hint="unset SSL_CERT_DIR")


def check_token(environ: Environ) -> None:
    """Check the values that the client sends in headers. A token is never shown."""
    for name in TOKENS:
        if environ.get(name):
            _check_header(name, environ[name].strip().replace("\r", "").replace("\n", ""), "")
            break
    else:
        _check_token_file(environ)
    for name in HEADERS:
        _check_header(name, environ.get(name, ""), f" {_quote(environ.get(name, ''))}")


def _check_header(name: str, value: str, shown: str) -> None:
    if value and not (value.isascii() and value.isprintable()):
        message = f"{name}{shown and f' is{shown}, which'} has a character that is not allowed in an HTTP header"
        raise UsageError(message, hint=f"unset {name}" if name.isidentifier() else "hf auth login")


def _check_token_file(environ: Environ) -> None:
    path, name = (
        locations.hub_token_file(environ),
        _find_set_variable(environ, "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME"),
    )
    try:
        token = read_regular(path).decode().strip()
    except FileNotFoundError:
        return  # nobody has logged in
    except UnicodeDecodeError as problem:
        raise UsageError(f"{path} does not hold a token", hint="hf auth login") from problem
    except OSError as problem:
        what = f"{name} is {_quote(environ[name])}, and " if name else ""
        message = f"{what}the token in {path} cannot be read: {problem.strerror}"
        raise UsageError(message, hint=f"unset {name}" if name else f"ls -l {quote_path(path)}") from problem
    _check_header(str(path), token.replace("\r", "").replace("\n", ""), "")


def check_folders(environ: Environ) -> None:
    """Check that the cache is a folder, or can become one."""
    path = locations.hub_cache_dir(environ).absolute()
    existing = next(place for place in (path, *path.parents) if os.path.lexists(place))
    if os.path.isdir(existing):
        return
    name = _find_set_variable(environ, "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
    what = f"{name} is {_quote(environ[name])}, and " if name else ""
    problem = "is not a folder" if os.path.exists(existing) else "is a link that leads nowhere"
    raise UsageError(
        f"{what}{existing} {problem}", hint=f"unset {name}" if name else f"mv {quote_path(existing)} elsewhere"
    )


def _find_set_variable(environ: Environ, *names: str) -> str:
    """Return the first of these variables that is set; empty if none is."""
    return next((name for name in names if environ.get(name)), "")


# ---- addresses
def _find_address_problem(value: str, schemes: tuple[str, ...] = ("http", "https")) -> str:
    """Return why the HTTP library cannot use the address; empty if it can."""
    if not value.isprintable() or " " in value:
        return "it contains a space or a control character"
    if "://" not in value:
        return f"it does not begin with {' or '.join(f'{scheme}://' for scheme in schemes)}"
    try:
        parts = urlsplit(value)
        return _find_parts_problem(parts, schemes)
    except ValueError as problem:
        if "@" in value:  # the message may hold a piece of the password
            return "it cannot be split into its parts; in a password write %2F for /, %3A for : and %40 for @"
        return str(problem)[:1].lower() + str(problem)[1:]


def _find_parts_problem(parts: SplitResult, schemes: tuple[str, ...]) -> str:
    if parts.scheme.lower() not in schemes:
        return f"{parts.scheme}:// is not one of {', '.join(f'{scheme}://' for scheme in schemes)}"
    if not parts.hostname:
        return "it has no host"
    _ = parts.port  # raises ValueError if it is not a port
    return ""


def mask_password(address: str) -> str:
    """Return the address without user name and password."""
    head, at, host = address.rpartition("@")
    scheme, sign, _ = head.partition("://")
    return f"{scheme if sign else ''}{sign}***@{host}" if at else address


def _quote(value: str) -> str:
    return repr(value if len(value) <= MAX_SHOWN_CHARS else f"{value[:MAX_SHOWN_CHARS]}...")


IMPORT_CHECKS: tuple[Callable[[Environ], None], ...] = (check_endpoint, check_timeouts)
CONNECTION_CHECKS: tuple[Callable[[Environ], None], ...] = (
    check_proxies,
    check_key_log,
    check_certificates,
    check_token,
    check_folders,
)

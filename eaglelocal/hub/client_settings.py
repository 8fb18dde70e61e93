"""Loads the hub's client, and reports in its own words which setting of this machine it cannot use.

Addresses, proxies, timeouts and certificates are judged by the client and its HTTP library. Only headers are looked at
here: a bad one would look like a hub that does not answer. Opens no connection.
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

from eaglelocal.errors import UsageError

Environ = Mapping[str, str]

ENDPOINT = "HF_ENDPOINT"


def prepare_client(environ: Environ = os.environ, *, connects: bool = True) -> None:
    """Load the hub's client without its output.

    connects  True if a hub will be asked; otherwise only settings that prevent the import are reported

    Raises UsageError with the variables that may be at fault.
    """
    with _silence_import():
        try:
            importlib.import_module("huggingface_hub.constants")
            if connects:
                _make_request()
            token = _read_token() if connects else ""
        except Exception as problem:  # the library's, caused by another setting: no hub was asked
            raise _make_setting_error(problem, environ) from problem
    if not (token.isascii() and token.isprintable()):
        what = "the hub's token has a character that is not allowed in an HTTP header"
        raise UsageError(what, hint="hf auth login, or unset HF_TOKEN")


def _make_request() -> None:
    """Make a request, and send nothing. Raises the client's errors, and ValueError for what is no address of a hub."""
    import huggingface_hub
    from huggingface_hub import constants

    ssl.create_default_context()  # it opens SSLKEYLOGFILE
    url = huggingface_hub.get_session().build_request("GET", constants.ENDPOINT).url
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"{ENDPOINT}={constants.ENDPOINT} is not the address of a hub")


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
    has_password = any("@" in environ[name] for name in names)
    what = "" if has_password else str(problem).strip().split("\n")[0]
    hint = f"check {', '.join(sorted(named or names))}" if names else "pip install --upgrade huggingface_hub"
    text = f"the hub's client cannot be used with this environment: {what or type(problem).__name__}"
    return UsageError(text, hint=hint)


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

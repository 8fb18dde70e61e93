"""Errors of talking to a hub: which ones pass by themselves, and what helps against the others.

Knows the hub client's exceptions, with any HTTP library below it. Opens no connection.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

from huggingface_hub import constants, errors, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from eaglelocal.errors import DownloadError, EagleLocalError, UsageError
from eaglelocal.hub.client_settings import masked, proxy_variable

# The base of all errors of the HTTP library below the hub client, which has changed libraries before.
HttpError: type[Exception] = HfHubHTTPError.__bases__[0]
# of getting a token by HF_OIDC_RESOURCE, which older clients do not know
TokenError: type[Exception] = getattr(errors, "OIDCError", HfHubHTTPError)
# ValueError, KeyError and TypeError: an answer that no hub gives
PROBLEMS = (HttpError, OSError, ValueError, KeyError, TypeError, TokenError)
LONGEST_WAIT_S = 60.0
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
_PASSWORD = re.compile(r"://[^/@\s]+@")
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_TELLING = (401, 403, 404)
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_UNUSABLE = frozenset({"UnsupportedProtocol", "LocalProtocolError"})  # of the HTTP library: nothing was sent

Result = TypeVar("Result")


def _nothing(why: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A retry policy: how often and how long to wait for errors that may pass; `on_wait` gets the reason."""

    waits_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    sleep: Callable[[float], None] = field(default=time.sleep)
    on_wait: Callable[[str], None] = field(default=_nothing)

    def wait(self, problem: Exception, attempt: int) -> bool:
        """Return whether to try again, after waiting. `attempt` counts from 0."""
        if attempt >= len(self.waits_s) or not passes(problem):
            return False
        wait_s = max(self.waits_s[attempt], wanted_wait_s(problem))
        if wait_s > LONGEST_WAIT_S:
            return False
        self.on_wait(f"{brief(problem)}; trying again in {wait_s:.0f} s")
        self.sleep(wait_s)
        return True


def patiently(call: Callable[[], Result], *, repo: str, patience: RetryPolicy) -> Result:
    """Return the call's result, retrying while its errors may pass. Raises what explained() returns."""
    attempt = 0
    while True:
        try:
            return call()
        except PROBLEMS as problem:
            if not patience.wait(problem, attempt):
                raise explained(problem, repo) from problem
            attempt += 1


def passes(problem: Exception) -> bool:
    """Return whether the same request may succeed a little later."""
    status = status_of(problem)
    if status is not None:
        return status in _PASSING
    if isinstance(problem, OfflineModeIsEnabled) or type(problem).__name__ in _UNUSABLE or _is_distrust(problem):
        return False
    return isinstance(problem, HttpError | OSError)


def _is_distrust(problem: BaseException) -> bool:
    """Return whether this machine does not trust the hub's certificate."""
    return any(
        isinstance(one, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(one)
        for one in _causes(problem)
    )


def _causes(problem: BaseException | None) -> Iterator[BaseException]:
    while problem is not None:
        yield problem
        problem = problem.__cause__


def status_of(problem: Exception) -> int | None:
    return problem.response.status_code if isinstance(problem, HfHubHTTPError) else None


def wanted_wait_s(problem: Exception) -> float:
    """Return the seconds that the hub asks to wait (Retry-After); 0 where it does not say."""
    if not isinstance(problem, HfHubHTTPError):
        return 0.0
    told = problem.response.headers.get("Retry-After", "")
    return float(told) if told.isdecimal() else 0.0


def brief(problem: Exception) -> str:
    """Describe the error in a few words."""
    status = status_of(problem)
    if status == 429:
        return "the hub asks for fewer requests"
    if status is not None:
        return f"the hub answered with an error ({status})"
    what = _PASSWORD.sub("://***@", _ERRNO.sub("", str(problem).strip().split("\n")[0]))
    return f"the connection to {host()}{_by_proxy(os.environ)} failed: {what or type(problem).__name__}"


def _by_proxy(environ: Mapping[str, str]) -> str:
    """Return the variable that sends the connection through a proxy, which may be at fault; empty: none does."""
    parts = urlsplit(constants.ENDPOINT)
    if proxy_bypass(host()):
        return ""
    named = (proxy_variable(environ, scheme) for scheme in (parts.scheme, "all"))
    return next((f" through {name}={masked(value)}" for name, value in named if value), "")


def explained(problem: Exception, repo: str) -> EagleLocalError:
    """Return the error for a person, with what can be done about it."""
    if isinstance(problem, EagleLocalError):
        return problem
    if isinstance(problem, OfflineModeIsEnabled):
        name = next((name for name in _OFFLINE if os.environ.get(name)), _OFFLINE[0])
        return DownloadError(f"nothing can be fetched: {name} is set", hint=f"unset {name}")
    if isinstance(problem, HFValidationError):
        return UsageError(f"{repo!r} is no name of a repository", hint="names are USER/REPO")
    if isinstance(problem, HfHubHTTPError):
        return _refused(problem, repo)
    if isinstance(problem, TokenError):
        what = str(problem).strip().split("\n")[0].rstrip(".")
        return UsageError(f"no token can be had by HF_OIDC_RESOURCE: {what}", hint="unset HF_OIDC_RESOURCE")
    if _is_distrust(problem):
        return DownloadError(brief(problem), hint="export SSL_CERT_FILE=/the/certificates/of/your/network.pem")
    if isinstance(problem, HttpError | OSError):
        proxy = "the proxy and " if _by_proxy(os.environ) else ""
        return DownloadError(brief(problem), hint=f"check {proxy}the connection; the same command goes on from there")
    return DownloadError(f"{host()} does not answer as a hub does", hint="check HF_ENDPOINT, or sign in to the network")


def _refused(problem: HfHubHTTPError, repo: str) -> EagleLocalError:
    status = problem.response.status_code
    if isinstance(problem, GatedRepoError):
        return gated(repo)
    if isinstance(problem, RemoteEntryNotFoundError | RevisionNotFoundError):
        return DownloadError(f"{repo} no longer has the file that was asked for", hint=f"eaglelocal pull {repo}")
    if isinstance(problem, RepositoryNotFoundError):
        private = "if it is private, set HF_TOKEN" if not get_token() else "if it is private, your token cannot see it"
        return DownloadError(f"there is no repository {repo} at {host()}", hint=f"check the name; {private}")
    if status == 429:
        wait_s = wanted_wait_s(problem)
        when = f"in {wait_s:.0f} s" if wait_s else "later"
        who = "" if get_token() else "; with HF_TOKEN set the limits are higher"
        return DownloadError("the hub asks for fewer requests (429)", hint=f"try again {when}{who}")
    if status in _TELLING:
        return _unwelcome(status, repo)
    return DownloadError(f"{brief(problem)}, again and again", hint="try again later")


def _unwelcome(status: int, repo: str) -> EagleLocalError:
    if status == 401:
        what = "the hub does not know your token" if get_token() else f"{repo} needs a token"
        return DownloadError(f"{what} (401)", hint=f"get one at {_address()}/settings/tokens and set HF_TOKEN")
    if status == 403:
        return DownloadError(
            f"your account may not read {repo} (403)" if get_token() else f"{repo} cannot be read by everyone (403)",
            hint=f"ask for access at {page(repo)}, with a token that may read repositories in HF_TOKEN",
        )
    return DownloadError(f"{host()} has no such file or repository: {repo} (404)", hint="check the name")


def gated(repo: str) -> EagleLocalError:
    """Return the error for a repository whose licence must be accepted by a person first."""
    if get_token():
        return DownloadError(
            f"{repo} is gated, and your token has no access to it", hint=f"accept its licence at {page(repo)}"
        )
    return DownloadError(
        f"{repo} is gated: its licence must be accepted first",
        hint=f"accept it at {page(repo)}, then set HF_TOKEN to a token from {_address()}/settings/tokens",
    )


def page(repo: str) -> str:
    return f"{_address()}/{repo}"


def _address() -> str:
    """Return the hub's address without the name and the password that may stand before its host."""
    parts = urlsplit(constants.ENDPOINT)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def host() -> str:
    return urlsplit(_address()).netloc or _address()


def is_missing(error: EagleLocalError) -> bool:
    """Return whether the repository is not there, or not for this person; another may do instead."""
    return isinstance(error.__cause__, RepositoryNotFoundError)

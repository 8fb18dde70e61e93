"""What can go wrong between here and a hub: which troubles pass by themselves, and what helps against the others.

Knows the hub client's exceptions, whatever HTTP library it is built on. Opens no connection.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

from huggingface_hub import constants, get_token
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

# The base of all that the HTTP library below the hub client raises: it has changed libraries before.
HttpError: type[Exception] = HfHubHTTPError.__bases__[0]
PROBLEMS = (HttpError, OSError, ValueError, KeyError, TypeError)  # the last three: an answer that is none of a hub
LONGEST_WAIT_S = 60.0
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_TELLING = (401, 403, 404)

Result = TypeVar("Result")


def _nothing(why: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long to wait for troubles that may pass; `on_wait` is told why."""

    waits_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    sleep: Callable[[float], None] = field(default=time.sleep)
    on_wait: Callable[[str], None] = field(default=_nothing)

    def wait(self, problem: Exception, attempt: int) -> bool:
        """Whether to try again, after the wait is over. `attempt` counts from 0."""
        if attempt >= len(self.waits_s) or not passes(problem):
            return False
        wait_s = max(self.waits_s[attempt], wanted_wait_s(problem))
        if wait_s > LONGEST_WAIT_S:
            return False
        self.on_wait(f"{brief(problem)}; trying again in {wait_s:.0f} s")
        self.sleep(wait_s)
        return True


def patiently(call: Callable[[], Result], *, repo: str, patience: Patience) -> Result:
    """What the call gives, tried again while its troubles may pass. Raises what explained() says."""
    attempt = 0
    while True:
        try:
            return call()
        except PROBLEMS as problem:
            if not patience.wait(problem, attempt):
                raise explained(problem, repo) from problem
            attempt += 1


def passes(problem: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    status = status_of(problem)
    if status is not None:
        return status in _PASSING
    return isinstance(problem, HttpError | OSError) and not isinstance(problem, OfflineModeIsEnabled)


def status_of(problem: Exception) -> int | None:
    return problem.response.status_code if isinstance(problem, HfHubHTTPError) else None


def wanted_wait_s(problem: Exception) -> float:
    """How long the hub asks to wait; 0 where it does not say."""
    if not isinstance(problem, HfHubHTTPError):
        return 0.0
    told = problem.response.headers.get("Retry-After", "")
    return float(told) if told.isdecimal() else 0.0


def brief(problem: Exception) -> str:
    """The trouble in a few words."""
    status = status_of(problem)
    if status == 429:
        return "the hub asks for fewer requests"
    if status is not None:
        return f"the hub answered with an error ({status})"
    what = _ERRNO.sub("", str(problem).strip().split("\n")[0])
    return f"the connection to {host()} failed: {what or type(problem).__name__}"


def explained(problem: Exception, repo: str) -> EagleLocalError:
    """The trouble for a person, with what can be done about it."""
    if isinstance(problem, EagleLocalError):
        return problem
    if isinstance(problem, OfflineModeIsEnabled):
        return DownloadError("nothing can be fetched: HF_HUB_OFFLINE is set", hint="unset HF_HUB_OFFLINE")
    if isinstance(problem, HFValidationError):
        return UsageError(f"{repo!r} is no name of a repository", hint="names are USER/REPO")
    if isinstance(problem, HfHubHTTPError):
        return _refused(problem, repo)
    if isinstance(problem, HttpError | OSError):
        return DownloadError(brief(problem), hint="check the connection; the same command goes on from there")
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
        return DownloadError(f"{what} (401)", hint=f"get one at {constants.ENDPOINT}/settings/tokens and set HF_TOKEN")
    if status == 403:
        return DownloadError(
            f"your account may not read {repo} (403)" if get_token() else f"{repo} cannot be read by everyone (403)",
            hint=f"ask for access at {page(repo)}, with a token that may read repositories in HF_TOKEN",
        )
    return DownloadError(f"{host()} has no such file or repository: {repo} (404)", hint="check the name")


def gated(repo: str) -> EagleLocalError:
    """A repository whose licence must be accepted by a person first."""
    if get_token():
        return DownloadError(
            f"{repo} is gated, and your token has no access to it", hint=f"accept its licence at {page(repo)}"
        )
    return DownloadError(
        f"{repo} is gated: its licence must be accepted first",
        hint=f"accept it at {page(repo)}, then set HF_TOKEN to a token from {constants.ENDPOINT}/settings/tokens",
    )


def page(repo: str) -> str:
    return f"{constants.ENDPOINT}/{repo}"


def host() -> str:
    return urlsplit(constants.ENDPOINT).netloc or constants.ENDPOINT


def disk_trouble(problem: OSError, path: str) -> str:
    """Why bytes could not be written."""
    if problem.errno == errno.ENOSPC:
        return f"the disk of {path} is full"
    return f"cannot write {path}: {problem.strerror or problem}"


def is_missing(error: EagleLocalError) -> bool:
    """Whether it tells of a repository that is not there, or not for this person; another may do instead."""
    return isinstance(error.__cause__, RepositoryNotFoundError)

"""Requests to a hub: the list of a repository's files, and their bytes. The only file that sends requests to a hub.

Uses the hub's own client, which reads HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, proxies and certificates. Every answer is
for one commit, so that files fetched one after the other belong together.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

from huggingface_hub import HfApi, constants, errors, get_session, get_token, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, disable_progress_bars, hf_raise_for_status, logging

from eaglelocal import __version__
from eaglelocal.catalog.reference import GGUF_SUFFIX
from eaglelocal.core.records import dataclass
from eaglelocal.errors import DownloadError, EagleLocalError, UsageError
from eaglelocal.hub.client_settings import find_proxy_variable, mask_password
from eaglelocal.hub.repo_builds import RepoBuild, group_builds

CHUNK_BYTES = 1 << 17
MAX_ANSWER_BYTES = 20 << 30  # storage behind hubs refuses answers of more than 50 GB
MAX_SHOWN_NAME = 80
_AGENT = "eaglelocal"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a commit. `etag` identifies its bytes: a SHA-256, or for small files without LFS git's SHA-1."""

    name: str
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class RemoteRepo:
    """A repository at one commit, as a hub describes it."""

    id: str
    commit: str
    is_gated: bool
    licence: str  # its short name; empty if not stated
    files: tuple[RemoteFile, ...]

    @property
    def builds(self) -> tuple[RepoBuild, ...]:
        return group_builds(file.name for file in self.files)

    @property
    def page(self) -> str:
        return make_page_url(self.id)

    def list_files(self, build: RepoBuild) -> tuple[RemoteFile, ...]:
        by_name = {file.name: file for file in self.files}
        return tuple(by_name[name] for name in build.names)


@dataclass(frozen=True, slots=True)
class Stream:
    """A file's bytes from `start` to `end`, as they are received."""

    start: int
    end: int
    chunks: Iterator[bytes]


def silence_client() -> None:
    """Keep the hub's client from writing to stderr what we report ourselves."""
    disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)


def fetch_repo(repo: str, retries: RetryPolicy) -> RemoteRepo:
    """Return a hub's description of a repository. Raises DownloadError, or UsageError on an impossible name."""
    return call_with_retries(lambda: _fetch_repo(repo), repo=repo, retries=retries)


def _fetch_repo(repo: str) -> RemoteRepo:
    info = _make_api().model_info(repo, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    files, unchecked = [], []
    for sibling in info.siblings or ():
        etag = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
        if sibling.size is not None and etag:
            files.append(RemoteFile(sibling.rfilename, sibling.size, etag))
        else:
            unchecked.append(sibling.rfilename)
    if unchecked and (not files or any(name.endswith(GGUF_SUFFIX) for name in unchecked)):
        what = f"{find_host()} lists {format_name(unchecked[0])} of {repo} without its size or hash"
        raise DownloadError(
            f"{what}: a download could not be checked", hint="unset HF_ENDPOINT, or name another mirror"
        )
    if not _COMMIT.fullmatch(info.sha or "") or not all(_ETAG.fullmatch(file.etag) for file in files):
        raise ValueError("not the names of a hub, and unsafe as paths")
    for file in files:
        if problem := find_name_problem(file.name):
            what = f"{find_host()} lists a file of {repo} whose name {problem}: {format_name(file.name)}"
            raise DownloadError(what, hint="choose another repository; nothing was fetched")
    licences = [tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")]
    return RemoteRepo(repo, str(info.sha), bool(info.gated), next(iter(licences), ""), tuple(files))


def find_name_problem(name: str) -> str:
    """Return why a file of this name must not be written to the cache; empty if it may. Hubs are not trusted."""
    if {"", ".", ".."} & set(name.split("/")) or "\\" in name:
        return "leads out of the repository"
    if not name.isprintable():  # control characters, line ends, lone surrogates
        return "contains a character that cannot be shown"
    return ""


def format_name(name: str) -> str:
    """Return an untrusted name as it is shown: on one line, and shortened in the middle if it is long."""
    plain = name if name.isprintable() else ascii(name)[1:-1]
    return plain if len(plain) <= MAX_SHOWN_NAME else f"{plain[: MAX_SHOWN_NAME - 20]}...{plain[-17:]}"


def fetch_commit(repo: str, revision: str | None, retries: RetryPolicy) -> str:
    """Return the commit that a branch, tag or commit of a repository names; None: of its main branch.

    Raises DownloadError, also if there is no such revision, or UsageError on an impossible name.
    """

    def ask() -> str:
        try:
            info = _make_api().model_info(repo, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        except RevisionNotFoundError as error:
            raise DownloadError(f"{repo} has no revision {revision!r} at {find_host()}") from error
        if not is_commit(info.sha or ""):
            raise ValueError("no commit of a hub")
        return str(info.sha)

    return call_with_retries(ask, repo=repo, retries=retries)


def is_commit(revision: str) -> bool:
    return _COMMIT.fullmatch(revision) is not None


def check_access(repo: RemoteRepo, file: RemoteFile, retries: RetryPolicy) -> None:
    """Raise DownloadError if the file may not be read: a gated repository's list is public, its files are not."""

    def ask() -> None:
        _make_api().get_hf_file_metadata(url=_make_file_url(repo, file), timeout=constants.HF_HUB_ETAG_TIMEOUT)

    call_with_retries(ask, repo=repo.id, retries=retries)


@contextmanager
def open_stream(repo: RemoteRepo, file: RemoteFile, start: int) -> Iterator[Stream]:
    """Request a file's bytes from `start`, at most MAX_ANSWER_BYTES; all of them if the server ignores ranges.

    Raises the client's errors.
    """
    headers = build_hf_headers(library_name=_AGENT, library_version=__version__)
    headers["Accept-Encoding"] = "identity"  # to count and hash the file's own bytes
    end = min(file.size_bytes, start + MAX_ANSWER_BYTES)
    if start or end < file.size_bytes:
        headers["Range"] = f"bytes={start}-{end - 1}"
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", _make_file_url(repo, file), headers=headers, timeout=timeout) as response:
        if response.status_code >= 400:
            response.read()  # for the reason in the error
        hf_raise_for_status(response)
        content_range = response.headers.get("Content-Range", "")
        if response.status_code == 206 and not content_range.startswith(f"bytes {start}-"):
            raise OSError(f"requested the bytes from {start}, got {content_range or 'others'}")
        is_part = response.status_code == 206
        chunks = response.iter_bytes(CHUNK_BYTES)
        yield Stream(start, end, chunks) if is_part else Stream(0, file.size_bytes, chunks)


def _make_api() -> HfApi:
    return HfApi(library_name=_AGENT, library_version=__version__)


def _make_file_url(repo: RemoteRepo, file: RemoteFile) -> str:
    return hf_hub_url(repo.id, file.name, revision=repo.commit)


# ---- hub errors: errors of requests to a hub: which are worth a retry, and the hint for each of the others.
# HttpError is the base class of the HTTP library's errors: the hub client has changed libraries before.
HttpError: type[Exception] = HfHubHTTPError.__bases__[0]
# The client cannot get a token by HF_OIDC_RESOURCE; older clients have no such error.
TokenError: type[Exception] = getattr(errors, "OIDCError", HfHubHTTPError)
# ValueError, KeyError and TypeError come from an answer that is not a hub's
CLIENT_ERRORS = (HttpError, TokenError, OSError, ValueError, KeyError, TypeError)
LONGEST_WAIT_S = 60.0
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
_PASSWORD = re.compile(r"://[^/@\s]+@")
_TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_UNSENT_ERRORS = frozenset({"UnsupportedProtocol", "LocalProtocolError"})  # of the HTTP library: nothing was sent

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number and length of waits after errors that may pass; `on_wait` gets the reason."""

    waits_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    sleep: Callable[[float], None] = field(default=time.sleep)
    on_wait: Callable[[str], None] = field(default=lambda why: None)

    def wait(self, problem: Exception, attempt: int) -> bool:
        """Return whether to try again, after waiting. `attempt` counts from 0."""
        if attempt >= len(self.waits_s) or not is_transient(problem):
            return False
        wait_s = max(self.waits_s[attempt], read_retry_after_s(problem))
        if wait_s > LONGEST_WAIT_S:
            return False
        self.on_wait(f"{summarize_error(problem)}; trying again in {wait_s:.0f} s")
        self.sleep(wait_s)
        return True


def call_with_retries(call: Callable[[], Result], *, repo: str, retries: RetryPolicy) -> Result:
    """Return the call's result; retry while its errors may pass. Raises the result of explain_error."""
    attempt = 0
    while True:
        try:
            return call()
        except CLIENT_ERRORS as problem:
            if not retries.wait(problem, attempt):
                raise explain_error(problem, repo) from problem
            attempt += 1


def is_transient(problem: Exception) -> bool:
    """Return whether the same request may succeed after a wait."""
    status = find_status(problem)
    if status is not None:
        return status in _TRANSIENT_STATUSES
    is_lasting = isinstance(problem, OfflineModeIsEnabled) or type(problem).__name__ in _UNSENT_ERRORS
    return isinstance(problem, HttpError | OSError) and not is_lasting and not _is_certificate_error(problem)


def _is_certificate_error(problem: BaseException | None) -> bool:
    while problem is not None:
        if isinstance(problem, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(problem):
            return True
        problem = problem.__cause__
    return False


def find_status(problem: Exception) -> int | None:
    return problem.response.status_code if isinstance(problem, HfHubHTTPError) else None


def read_retry_after_s(problem: Exception) -> float:
    """Return the seconds in the hub's Retry-After header; 0 without one."""
    if not isinstance(problem, HfHubHTTPError):
        return 0.0
    seconds = problem.response.headers.get("Retry-After", "")
    return float(seconds) if seconds.isdecimal() else 0.0


def summarize_error(problem: Exception) -> str:
    """Describe the error in a few words."""
    status = find_status(problem)
    if status == 429:
        return "the hub received too many requests"
    if status is not None:
        return f"the hub answered with an error ({status})"
    what = _PASSWORD.sub("://***@", _ERRNO.sub("", str(problem).strip().split("\n")[0]))
    return f"the connection to {find_host()}{_describe_proxy(os.environ)} failed: {what or type(problem).__name__}"


def _describe_proxy(environ: Mapping[str, str]) -> str:
    """Name the proxy variable, in case the proxy is at fault; empty if there is no proxy."""
    parts = urlsplit(constants.ENDPOINT)
    if proxy_bypass(find_host()):
        return ""
    variables = (find_proxy_variable(environ, scheme) for scheme in (parts.scheme, "all"))
    return next((f" through {name}={mask_password(value)}" for name, value in variables if value), "")


def explain_error(problem: Exception, repo: str) -> EagleLocalError:
    """Return the error that is shown to the user, with a hint."""
    if isinstance(problem, EagleLocalError):
        return problem
    if isinstance(problem, OfflineModeIsEnabled):
        name = next((name for name in _OFFLINE if os.environ.get(name)), _OFFLINE[0])
        return DownloadError(f"nothing can be fetched: {name} is set", hint=f"unset {name}")
    if isinstance(problem, HFValidationError):
        return UsageError(f"{repo!r} is not the name of a repository", hint="use USER/REPO")
    if isinstance(problem, HfHubHTTPError):
        return _explain_refusal(problem, repo)
    if _is_certificate_error(problem):
        return DownloadError(
            summarize_error(problem), hint="export SSL_CERT_FILE=/path/to/your/network's/certificates.pem"
        )
    if isinstance(problem, HttpError | OSError):
        proxy = "the proxy and " if _describe_proxy(os.environ) else ""
        return DownloadError(
            summarize_error(problem), hint=f"check {proxy}the connection; the same command resumes the download"
        )
    return DownloadError(
        f"{find_host()} does not answer as a hub does", hint="check HF_ENDPOINT, and sign in if the network asks for it"
    )


def _explain_refusal(problem: HfHubHTTPError, repo: str) -> EagleLocalError:
    if isinstance(problem, RemoteEntryNotFoundError | RevisionNotFoundError):
        return DownloadError(f"{repo} no longer has the requested file", hint=f"eaglelocal pull {repo}")
    if isinstance(problem, GatedRepoError):
        return make_gated_error(repo)
    has_token = bool(get_token())
    if isinstance(problem, RepositoryNotFoundError):
        private = "if it is private, your token cannot see it" if has_token else "if it is private, set HF_TOKEN"
        return DownloadError(f"there is no repository {repo} at {find_host()}", hint=f"check the name; {private}")
    match problem.response.status_code:
        case 401:
            what = "the hub does not accept your token" if has_token else f"{repo} needs a token"
            return DownloadError(
                f"{what} (401)", hint=f"get a token at {_find_hub_url()}/settings/tokens and set HF_TOKEN"
            )
        case 403:
            what = f"your account may not read {repo} (403)" if has_token else f"{repo} is not public (403)"
            hint = f"ask for access at {make_page_url(repo)}, with a token that may read repositories in HF_TOKEN"
            return DownloadError(what, hint=hint)
        case 404:
            return DownloadError(f"{find_host()} has no such file or repository: {repo} (404)", hint="check the name")
        case 429:
            wait_s = read_retry_after_s(problem)
            when = f"in {wait_s:.0f} s" if wait_s else "later"
            who = "" if has_token else "; with HF_TOKEN set, the limit is higher"
            return DownloadError("the hub received too many requests (429)", hint=f"try again {when}{who}")
    return DownloadError(f"{summarize_error(problem)}, also after retries", hint="try again later")


def make_gated_error(repo: str) -> EagleLocalError:
    """Return the error for a repository whose license must be accepted first."""
    page, tokens_page = make_page_url(repo), f"{_find_hub_url()}/settings/tokens"
    if get_token():
        what = f"{repo} is gated, and your token has no access to it"
        return DownloadError(what, hint=f"accept its license at {page}")
    what = f"{repo} is gated: its license must be accepted first"
    return DownloadError(what, hint=f"accept it at {page}, then set HF_TOKEN to a token from {tokens_page}")


def make_page_url(repo: str) -> str:
    return f"{_find_hub_url()}/{repo}"


def _find_hub_url() -> str:
    """Return the hub's address without user name and password."""
    parts = urlsplit(constants.ENDPOINT)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def find_host() -> str:
    return urlsplit(_find_hub_url()).netloc or _find_hub_url()


def is_repo_missing(error: EagleLocalError) -> bool:
    """Return whether the repository does not exist or is hidden from this user, so that another one may be tried."""
    return isinstance(error.__cause__, RepositoryNotFoundError)

"""Requests to a hub: the list of a repository's files, and their bytes. The only file that sends requests to a hub.

Uses the hub's own client, which reads HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, proxies and certificates. Every answer is
for one commit, so that files fetched one after the other belong together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from huggingface_hub import HfApi, constants, get_session, hf_hub_url
from huggingface_hub.errors import RevisionNotFoundError
from huggingface_hub.utils import build_hf_headers, disable_progress_bars, hf_raise_for_status, logging

from eaglelocal import __version__
from eaglelocal.catalog.reference import GGUF_SUFFIX
from eaglelocal.core.records import dataclass
from eaglelocal.errors import DownloadError
from eaglelocal.hub.hub_errors import RetryPolicy, call_with_retries, find_host, make_page_url
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
    """Stop the hub's client from writing to stderr what we report ourselves."""
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
    return RemoteRepo(repo, str(info.sha), bool(info.gated), _find_license(info.tags or ()), tuple(files))


def find_name_problem(name: str) -> str:
    """Return why a file of this name must not be written to the cache; empty if it may. A hub is not trusted."""
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

    Raises DownloadError, also where there is no such revision, or UsageError on an impossible name.
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

    Raises what the client raises.
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


def _find_license(tags: Iterable[str]) -> str:
    return next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), "")

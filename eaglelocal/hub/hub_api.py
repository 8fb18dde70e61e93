"""Access to a repository on a hub: its list of files, and their bytes. The only file that asks a hub anything.

Uses the hub's own client, which reads HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, proxies and certificates. Every answer is
for one commit, so that files which are fetched one after the other belong together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from huggingface_hub import HfApi, constants, get_session, hf_hub_url
from huggingface_hub.utils import build_hf_headers, disable_progress_bars, hf_raise_for_status, logging

from eaglelocal import __version__
from eaglelocal.errors import DownloadError
from eaglelocal.hub.hub_errors import RetryPolicy, host, page, patiently
from eaglelocal.hub.repo_builds import RepoBuild, builds_of

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
    licence: str  # its short name; empty where it is not stated
    files: tuple[RemoteFile, ...]

    @property
    def builds(self) -> tuple[RepoBuild, ...]:
        return builds_of(file.name for file in self.files)

    @property
    def page(self) -> str:
        return page(self.id)

    def files_of(self, build: RepoBuild) -> tuple[RemoteFile, ...]:
        by_name = {file.name: file for file in self.files}
        return tuple(by_name[name] for name in build.names)


@dataclass(frozen=True, slots=True)
class Stream:
    """A file's bytes from `start` up to `end`, as they are received."""

    start: int
    end: int
    chunks: Iterator[bytes]


def silence_client() -> None:
    """Keep the hub's client from writing to stderr what we report ourselves."""
    disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)


def look_up(repo: str, patience: RetryPolicy) -> RemoteRepo:
    """Return a hub's description of a repository. Raises DownloadError, or UsageError on an impossible name."""
    return patiently(lambda: _look_up(repo), repo=repo, patience=patience)


def _look_up(repo: str) -> RemoteRepo:
    info = _api().model_info(repo, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    files = []
    for sibling in info.siblings or ():
        etag = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
        if sibling.size is not None and etag:
            files.append(RemoteFile(sibling.rfilename, sibling.size, etag))
    if not _COMMIT.fullmatch(info.sha or "") or not all(_ETAG.fullmatch(file.etag) for file in files):
        raise ValueError("names that no hub gives: they would be paths here")
    for file in files:
        if problem := name_problem(file.name):
            what = f"{host()} lists a file of {repo} whose name {problem}: {shown_name(file.name)}"
            raise DownloadError(what, hint="choose another repository; nothing was fetched")
    return RemoteRepo(repo, str(info.sha), bool(info.gated), _licence(info.tags or ()), tuple(files))


def name_problem(name: str) -> str:
    """Return why a name must not become a file's name in the cache, as a hub may be anybody's; empty if it may."""
    if {"", ".", ".."} & set(name.split("/")) or "\\" in name:
        return "leads out of the repository"
    if not name.isprintable():  # control characters, line ends, lone surrogates
        return "has a character that cannot be shown"
    return ""


def shown_name(name: str) -> str:
    """Return an untrusted name for a sentence: on one line, and cut in its middle where it is long."""
    plain = name if name.isprintable() else ascii(name)[1:-1]
    return plain if len(plain) <= MAX_SHOWN_NAME else f"{plain[: MAX_SHOWN_NAME - 20]}...{plain[-17:]}"


def check_access(repo: RemoteRepo, file: RemoteFile, patience: RetryPolicy) -> None:
    """Raise DownloadError where the file may not be read: a gated repository's list is public, its files are not."""

    def ask() -> None:
        _api().get_hf_file_metadata(url=_url(repo, file), timeout=constants.HF_HUB_ETAG_TIMEOUT)

    patiently(ask, repo=repo.id, patience=patience)


@contextmanager
def opened(repo: RemoteRepo, file: RemoteFile, start: int) -> Iterator[Stream]:
    """Open a file's bytes from `start` on, at most MAX_ANSWER_BYTES; all from 0 where the server ignores ranges.

    Raises what the client raises.
    """
    headers = build_hf_headers(library_name=_AGENT, library_version=__version__)
    headers["Accept-Encoding"] = "identity"  # to count and hash the file's own bytes
    end = min(file.size_bytes, start + MAX_ANSWER_BYTES)
    if start or end < file.size_bytes:
        headers["Range"] = f"bytes={start}-{end - 1}"
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", _url(repo, file), headers=headers, timeout=timeout) as response:
        if response.status_code >= 400:
            response.read()  # for the reason in the error
        hf_raise_for_status(response)
        told = response.headers.get("Content-Range", "")
        if response.status_code == 206 and not told.startswith(f"bytes {start}-"):
            raise OSError(f"asked for the bytes from {start} on, got {told or 'others'}")
        is_part = response.status_code == 206
        chunks = response.iter_bytes(CHUNK_BYTES)
        yield Stream(start, end, chunks) if is_part else Stream(0, file.size_bytes, chunks)


def _api() -> HfApi:
    return HfApi(library_name=_AGENT, library_version=__version__)


def _url(repo: RemoteRepo, file: RemoteFile) -> str:
    return hf_hub_url(repo.id, file.name, revision=repo.commit)


def _licence(tags: Iterable[str]) -> str:
    return next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), "")

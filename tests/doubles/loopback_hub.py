"""A model hub on the loopback interface, as the hub's own client expects it, with every fault that a hub can have.

Two servers: the hub (model information, tree, paths-info, HEAD and GET of `resolve`, redirects) and the storage it
redirects to, on another port, so that a token which follows the redirect is noticed. One thread a connection.

Also a program: `python -m doubles.loopback_hub --slow 2` serves the embedded guide as someone/guide-GGUF until Ctrl-C.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "a1b2c3d4" * 5
CHUNK_BYTES = 1 << 16


@dataclass(slots=True)
class HubFile:
    """A file of a repository. The announced hash may differ from that of the content."""

    content: bytes
    promised_sha256: str = ""
    is_lfs: bool = True

    @property
    def etag(self) -> str:
        if self.promised_sha256:
            return self.promised_sha256
        if self.is_lfs:
            return hashlib.sha256(self.content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()


@dataclass(slots=True)
class HubRepo:
    files: dict[str, HubFile]
    commit: str = COMMIT
    gated: str | bool = False
    is_private: bool = False
    licence: str = "mit"

    def readable_with(self, token: str, hub: LoopbackHub) -> bool:
        return not (self.gated or self.is_private) or (token != "" and token == hub.token)


@dataclass(slots=True)
class Faults:
    """The faults of the hub: a status is (code, times), -1 times is for ever."""

    info: tuple[int, int] = (0, 0)  # of the model information
    resolve: tuple[int, int] = (0, 0)
    storage: tuple[int, int] = (0, 0)
    drops: list[int] = field(default_factory=list)  # bytes after which successive answers of the storage break off
    ignores_ranges: bool = False
    retry_after: str = ""
    slow_s: float = 0.0  # before each chunk
    omits_sizes: bool = False  # and hashes, as some mirrors do
    is_no_hub: bool = False  # a login page, as in hotels
    hangs: threading.Event | None = None  # the storage says nothing until it is set

    def status(self, name: str) -> int:
        """Return the status to answer with now; 0: no fault."""
        code, times = getattr(self, name)
        if times == 0:
            return 0
        setattr(self, name, (code, times - 1 if times > 0 else times))
        return int(code)


@dataclass(slots=True)
class Asked:
    """A request that the hub received."""

    method: str
    path: str
    range: str
    token: str


@dataclass(slots=True)
class LoopbackHub:
    repos: dict[str, HubRepo]
    token: str = "hf_good"
    bad_tokens: frozenset[str] = frozenset({"hf_bad"})
    faults: Faults = field(default_factory=Faults)
    asked: list[Asked] = field(default_factory=list)
    sent_bytes: int = 0
    url: str = ""
    storage_url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def asked_of_storage(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.path.startswith("/storage/")]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: LoopbackHub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer()

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    @property
    def token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def _note(self) -> None:
        with self.hub.lock:
            self.hub.asked.append(Asked(self.command, self.path, self.headers.get("Range") or "", self.token))

    def _answer(self) -> None:
        raise NotImplementedError

    def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str = "", message: str = "") -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message, "Retry-After": self.hub.faults.retry_after}
        body = json.dumps({"error": message or code or "an error"}).encode()
        self.reply(status, body, {name: value for name, value in headers.items() if value})


class HubHandler(_Handler):
    """The answers of huggingface.co."""

    def _answer(self) -> None:
        self._note()
        path = unquote(urlsplit(self.path).path)
        if self.hub.faults.is_no_hub:
            return self.reply(200, b"<html>sign in to the network</html>", {"Content-Type": "text/html"})
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            return self._api("/".join(parts[2:4]), parts[4:])
        if len(parts) > 4 and parts[2] == "resolve":
            return self._resolve("/".join(parts[:2]), "/".join(parts[4:]))
        return self.refuse(404, "", "no such page")

    def _repo(self, name: str) -> HubRepo | None:
        """The repository, if this caller may know of it; else the refusal is sent."""
        repo = self.hub.repos.get(name)
        if self.token in self.hub.bad_tokens:
            self.refuse(401, "", "Invalid credentials in Authorization header")
            return None
        if repo is None or (repo.is_private and not repo.readable_with(self.token, self.hub)):
            self.refuse(404 if self.token else 401, "RepoNotFound", "Repository not found")
            return None
        return repo

    def _api(self, name: str, rest: list[str]) -> None:
        status = self.hub.faults.status("info")
        if status:
            return self.refuse(status)
        repo = self._repo(name)
        if repo is None:
            return None
        if rest[:1] == ["revision"] and rest[1] not in ("main", repo.commit):
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {rest[1]}")
        if rest[:1] == ["tree"] or rest[:1] == ["paths-info"]:
            body: object = [self._entry(path, file) for path, file in repo.files.items()]
        else:
            body = self._info(name, repo)
        return self.reply(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _info(self, name: str, repo: HubRepo) -> dict[str, object]:
        siblings = [{"rfilename": path, **self._sized(file)} for path, file in repo.files.items()]
        return {
            "_id": "1",
            "id": name,
            "modelId": name,
            "sha": repo.commit,
            "private": repo.is_private,
            "gated": repo.gated,
            "tags": ["gguf", f"license:{repo.licence}"],
            "siblings": siblings,
        }

    def _sized(self, file: HubFile) -> dict[str, object]:
        if self.hub.faults.omits_sizes:
            return {}
        size = len(file.content)
        lfs = {"lfs": {"sha256": file.etag, "size": size, "pointerSize": 134}} if file.is_lfs else {}
        return {"size": size, "blobId": "0" * 40 if file.is_lfs else file.etag, **lfs}

    def _entry(self, path: str, file: HubFile) -> dict[str, object]:
        lfs = {"lfs": {"oid": file.etag, "size": len(file.content), "pointerSize": 134}} if file.is_lfs else {}
        return {"type": "file", "path": path, "oid": "0" * 40, "size": len(file.content), **lfs}

    def _resolve(self, name: str, path: str) -> None:
        status = self.hub.faults.status("resolve")
        if status:
            return self.refuse(status)
        repo = self._repo(name)
        if repo is None:
            return None
        if not repo.readable_with(self.token, self.hub):
            return self.refuse(403 if self.token else 401, "GatedRepo", "Access to this repository is restricted")
        file = repo.files.get(path)
        if file is None:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        common = {"X-Repo-Commit": repo.commit, "ETag": f'"{file.etag}"'}
        if not file.is_lfs:
            return self.reply(200, file.content, common)
        linked = {"X-Linked-Size": str(len(file.content)), "X-Linked-Etag": f'"{file.etag}"'}
        location = {"Location": f"{self.hub.storage_url}/storage/{name}/{path}"}
        return self.reply(302, b"", {**common, **linked, **location})


class StorageHandler(_Handler):
    """The answers of its storage: bytes, in ranges."""

    def _answer(self) -> None:
        self._note()
        if self.hub.faults.hangs is not None:
            self.hub.faults.hangs.wait(60)
        status = self.hub.faults.status("storage")
        if status:
            return self.refuse(status)
        user, repo, *path = unquote(self.path.removeprefix("/storage/")).split("/")
        content = self.hub.repos[f"{user}/{repo}"].files["/".join(path)].content
        start, end = self._wanted(len(content))
        if start >= len(content) > 0 and start:
            return self.reply(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        is_part = (start, end) != (0, len(content))
        headers = {"Content-Length": str(end - start), "Accept-Ranges": "bytes", "ETag": '"storage"'}
        if is_part:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        self.reply(206 if is_part else 200, b"", headers)
        return self._send(content[start:end]) if self.command == "GET" else None

    def _wanted(self, size: int) -> tuple[int, int]:
        """First byte, and the one behind the last."""
        requested = self.headers.get("Range") or ""
        if self.hub.faults.ignores_ranges or not requested:
            return 0, size
        first, last = requested.removeprefix("bytes=").split("-")
        return int(first), min(size, int(last) + 1) if last else size

    def _send(self, content: bytes) -> None:
        with self.hub.lock:
            limit = self.hub.faults.drops.pop(0) if self.hub.faults.drops else len(content)
        for begin in range(0, min(limit, len(content)), CHUNK_BYTES):
            time.sleep(self.hub.faults.slow_s)
            chunk = content[begin : min(begin + CHUNK_BYTES, limit)]
            self._count(len(chunk))  # before the client can have it and look at the count
            try:
                self.wfile.write(chunk)
            except OSError:  # the client has gone
                self._count(-len(chunk))
                self.close_connection = True
                return
        if limit < len(content):
            self.close_connection = True

    def _count(self, num_bytes: int) -> None:
        with self.hub.lock:
            self.hub.sent_bytes += num_bytes


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect, which the tests do on purpose."""


@contextmanager
def serving(hub: LoopbackHub) -> Iterator[LoopbackHub]:
    """Run the hub at `hub.url` until the block ends."""
    servers = [
        _Server(("127.0.0.1", 0), type("Bound", (handler,), {"hub": hub})) for handler in (HubHandler, StorageHandler)
    ]
    hub.url, hub.storage_url = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def guide_repo(profiles: Path) -> dict[str, HubRepo]:
    """Return the repositories of the embedded guide and its head, as a hub would have them."""
    target = (profiles / "demo" / "guide-target.gguf").read_bytes()
    head = (profiles / "demo" / "guide-head.gguf").read_bytes()
    guide = HubRepo({"guide-BF16.gguf": HubFile(target), "README.md": HubFile(b"# guide\n", is_lfs=False)})
    return {
        "someone/guide-GGUF": guide,
        "someone/guide-EAGLE3-GGUF": HubRepo({"guide-EAGLE3-BF16.gguf": HubFile(head)}),
        "someone/gated-GGUF": HubRepo(dict(guide.files), gated="manual", licence="llama3.1"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profiles", type=Path, default=Path(__file__).parents[2] / "profiles")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds for the target to arrive")
    requested = parser.parse_args()
    hub = LoopbackHub(guide_repo(requested.profiles))
    size = len(hub.repos["someone/guide-GGUF"].files["guide-BF16.gguf"].content)
    hub.faults.slow_s = requested.slow * CHUNK_BYTES / size
    with serving(hub):
        print(f"export HF_ENDPOINT={hub.url}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            sys.exit(0)


if __name__ == "__main__":
    main()

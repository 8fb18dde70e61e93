"""Decide who may send requests: API keys, the Host header, origins. Pure decisions; the middlewares apply them.

Loopback alone is no trust boundary: any web page can make a browser send requests there, under a rebound host name.
So Host is checked first, unless only unguessable keys are accepted, and requests from a foreign page are refused, not
merely left unreadable to it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import shlex
import socket
import stat
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from eaglelocal import locations
from eaglelocal.core.atomic_file import PRIVATE, make_folder
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import LOCAL
from eaglelocal.core.terminal_text import FaultInLine, read_text_file
from eaglelocal.errors import UsageError

KEY_VARIABLE = "EAGLELOCAL_API_KEY"
MIN_KEY_CHARS = 16
LEARN = "learn"  # after a key in a key file
THIS_MACHINE = "this machine"  # owner of requests with the key from the state folder
ENVIRONMENT = "environment"  # owner of requests with the key of that variable
OWN_NAMES = (LOCAL, THIS_MACHINE, ENVIRONMENT)
# names of this machine in a container; they cannot be rebound, because .internal is reserved and in no public DNS
NAMES_IN_CONTAINERS = frozenset({"host.docker.internal", "host.containers.internal"})
# null: files and sandboxed pages; *: any host, for schemes whose hosts are random, such as an editor's webviews
ORIGIN = re.compile(r"null|file://|https?://[^\s,/?#*]+|(?!https?:)[a-z][a-z0-9+.-]*://(\*|[^\s,/?#*]+)")
HOST = re.compile(r"(\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?))(:(?P<port>[0-9]{0,5}))?")
MAX_PORT = 65535
WORD = re.compile(r"[A-Za-z0-9_-]{1,32}")
MAX_QUOTED_CHARS = 253
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")  # a page of another site may send them: they change nothing


def find_by_secret(secret: str, known: Iterable[tuple[str, str]]) -> str | None:
    """Return a secret's value, or None. Compares with all secrets in full, so that timing reveals nothing."""
    given, found = secret.encode("utf-8", "surrogateescape"), None
    for one, value in known:
        if hmac.compare_digest(given, one.encode()):
            found = value
    return found


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The API keys by name; without any, every request belongs to `local`."""

    by_name: tuple[tuple[str, str], ...] = ()
    learning: frozenset[str] = frozenset()  # names whose answers may be learned from

    def __bool__(self) -> bool:
        return bool(self.by_name)

    @property
    def is_shared(self) -> bool:
        """Return whether there are several owners, who share the server's capacity."""
        return len(self.by_name) > 1

    def find_owner(self, key: str) -> str | None:
        """Return the name of a key, None if it is unknown."""
        return find_by_secret(key, ((known, name) for name, known in self.by_name))

    @property
    def learning_owners(self) -> frozenset[str]:
        """Return the owners from whose answers `--learn` may learn; without keys, the user who started the server."""
        return self.learning | {THIS_MACHINE} if self else frozenset({LOCAL})

    @property
    def names_on_disk(self) -> tuple[tuple[str, str], ...]:
        """Map each owner to a digest of their key, which names them on disk (see core.plan.Owners).

        The key of this machine's chat changes at each start, and no other owner can have its name.
        """
        listed = [(name, key) for name, key in self.by_name if name != THIS_MACHINE]
        return tuple((name, hashlib.blake2b(key.encode(), digest_size=16).hexdigest()) for name, key in listed)

    @property
    def short_names(self) -> tuple[str, ...]:
        """Return the names of keys that are short enough to be guessed."""
        return tuple(name for name, key in self.by_name if len(key) < MIN_KEY_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The rules for admitting requests.

    host     the address that is listened on
    names    more host names of this server
    origins  allowed CORS origins, such as http://localhost:3000 or vscode-webview://*; "*" is not among them
    """

    host: str = "127.0.0.1"
    keys: ApiKeys = ApiKeys()
    names: frozenset[str] = frozenset()
    origins: tuple[str, ...] = ()

    @property
    def operators(self) -> frozenset[str]:
        """The owners who may also control the server: this machine's user, and the holder of the only other key."""
        named = {name for name, _ in self.keys.by_name} - {THIS_MACHINE}
        return frozenset({LOCAL, THIS_MACHINE} | (named if len(named) == 1 else set()))

    @property
    def checks_host(self) -> bool:
        """Return whether to check Host: a page under a rebound name has no key, but could guess a short one."""
        return not self.keys or bool(self.keys.short_names)

    def admits_host(self, header: str) -> bool:
        """Return whether a Host header names this server. IP addresses always do: only names can be rebound."""
        name = host_name(header)
        return name is not None and (is_address(name) or name in self.names or is_own_name(name))

    def admits_origin(self, origin: str, host: str) -> bool:
        """Return whether pages of an origin may send requests: our own pages, and the listed origins."""
        of_scheme = re.sub("://.*", "://*", origin)
        return not {origin, of_scheme}.isdisjoint(self.origins) or origin in (f"http://{host}", f"https://{host}")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(host: str, keys: ApiKeys) -> None:
    """Check the address to listen on. Raises UsageError if others can reach it and no key, or a short one, is set."""
    if is_loopback(host):
        return
    if not keys:
        raise UsageError(
            f"--host {host} can be reached by others, and there is no key",
            hint=f"--api-key-file {shlex.quote(str(locations.config_dir() / 'keys'))}",  # created with a key
        )
    if keys.short_names:
        raise UsageError(
            f"--host {host} can be reached by others, and the key {keys.short_names[0]!r} is too short",
            hint=f"use at least {MIN_KEY_CHARS} characters; `--api-key-file FILE` writes a random key into a new file",
        )


def key_warnings(path: Path | None, keys: ApiKeys) -> list[str]:
    """Return warnings about short keys and a key file that others can read, to be shown by the caller."""
    found = [
        f"the key {name!r} has fewer than {MIN_KEY_CHARS} characters, and can be guessed" for name in keys.short_names
    ]
    if path is not None and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        found.append(f"the key file {path} can be read by others: chmod 600 {shlex.quote(str(path))}")
    return found


def read_keys(path: Path | None, environ: Mapping[str, str]) -> ApiKeys:
    """Return the keys of the file and of the environment. A missing file is created with one new key."""
    found = ApiKeys()
    if path is not None:
        if not path.exists():
            write_key(path)
        found = read_key_file(path)
    if environ.get(KEY_VARIABLE):
        key = check_key(environ[KEY_VARIABLE], KEY_VARIABLE)
        if (name := found.find_owner(key)) is not None:
            raise UsageError(
                f"{KEY_VARIABLE} has the key of {name!r} in {path}: its answers would belong to only one of the two",
                hint=f"unset {KEY_VARIABLE}",
            )
        found = replace(found, by_name=(*found.by_name, (ENVIRONMENT, key)))
    return found


def add_chat_key(keys: ApiKeys) -> tuple[ApiKeys, str]:
    """Return the keys plus a new one for `chat` on this machine, and that key; "" if no keys are used."""
    if not keys:
        return keys, ""
    own = secrets.token_urlsafe(24)
    return replace(keys, by_name=(*keys.by_name, (THIS_MACHINE, own))), own


def write_key(path: Path) -> None:
    """Create a key file with one random key, readable by its owner only. Raises UsageError."""
    try:
        if path.parent == locations.config_dir():  # any other that is missing is perhaps misspelled
            make_folder(path.parent, PRIVATE)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(f"default: {secrets.token_urlsafe(24)}\n")
    except FileExistsError:
        raise UsageError(f"the key file {path} is a link to a file that does not exist") from None
    except OSError as error:
        raise UsageError(f"the key file {path} cannot be written: {error.strerror}") from error


def read_key_file(path: Path) -> ApiKeys:
    """Read lines of `name: key` or a key alone; empty lines and # comments are skipped. Raises UsageError.

    The word `learn` after a key allows `--learn` to learn from its answers.
    """
    try:
        lines = read_text_file(path).splitlines()
    except OSError as error:
        raise UsageError(f"the key file {path} cannot be read: {error.strerror}") from error
    except FaultInLine as error:
        raise UsageError(f"the key file {path} cannot be read: line {error.line}: {error}") from error
    found: dict[str, str] = {}
    learning = set()
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        place = f"{path}:{number}"
        name, key = split_key_line(line, place)
        name = name or f"key {len(found) + 1}"
        if key.endswith(f" {LEARN}"):
            key = key.removesuffix(LEARN).rstrip()
            learning.add(name)
        if name in OWN_NAMES:
            raise UsageError(f"{place}: the name {name!r} is reserved")
        if name in found:
            raise UsageError(f"{place}: the name {name!r} occurs twice")
        check_key(key, place)
        if (other := find_by_secret(key, ((known, name) for name, known in found.items()))) is not None:
            raise UsageError(
                f"{place}: {other!r} and {name!r} have the same key: one person's answers would count as the other's",
                hint="give each name a key of its own, such as `openssl rand -hex 24` writes, or remove one of them",
            )
        found[name] = key
    if not found:
        raise UsageError(f"the key file {path} contains no key", hint="add a line `name: key`, or name a new file")
    return ApiKeys(tuple(found.items()), frozenset(learning))


def split_key_line(line: str, place: str) -> tuple[str, str]:
    """Split `name: key`; the name is "" without a colon. Raises UsageError if the colon may belong to the key."""
    name, colon, key = line.partition(":")
    if not colon:
        return "", line
    if key and not key[0].isspace() and not WORD.fullmatch(name):
        hint = "write `name: key`, with a space; a key with a colon needs a name"
        raise UsageError(f"{place}: it is unclear whether the colon is part of the key", hint=hint)
    return name.rstrip(), key.lstrip()


def check_key(key: str, place: str) -> str:
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"{place}: a key consists of printable ASCII characters without spaces")
    return key


def find_key(headers: Mapping[str, str]) -> str:
    """Return the key from `Authorization: Bearer KEY` or `x-api-key` (Anthropic's clients); "" if there is none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def host_name(header: str) -> str | None:
    """Return the host of a Host header, in lower case and without the port; None for an invalid header.

    >>> host_name("LOCALHOST:8421"), host_name("[::1]:80"), host_name("nas.home.")
    ('localhost', '::1', 'nas.home')
    >>> host_name("[localhost"), host_name("user@localhost"), host_name("localhost:99999")
    (None, None, None)
    """
    found = HOST.fullmatch(header.strip().lower())
    if found is None or int(found["port"] or 0) > MAX_PORT:
        return None
    if found["address"] is None:
        return found["name"].removesuffix(".")
    return found["address"] if is_address(found["address"]) else None


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_own_name(name: str) -> bool:
    own = socket.gethostname().lower()
    short = own.partition(".")[0]
    ours = ("localhost", own, short, f"{short}.local")
    return name in ours or name in NAMES_IN_CONTAINERS or name.endswith(".localhost")


def host_refusal(header: str) -> str:
    name = host_name(header)
    if name is None:
        found = f"the Host {header[:MAX_QUOTED_CHARS]!r} is not a host name"
        return found if header else "the request has no Host header"
    name = name[:MAX_QUOTED_CHARS]
    return f"this server does not answer to the Host {name!r}; `--allowed-hosts {shlex.quote(name)}` admits it"


def parse_origins(origins: Iterable[str]) -> tuple[str, ...]:
    """Return the origins in the form that browsers send. Raises UsageError for an impossible origin."""
    found = tuple(re.sub("(?<!:/)/$", "", origin) for origin in origins)
    for origin in found:
        if not ORIGIN.fullmatch(origin):
            hint = "list origins one by one, without a path: http://localhost:3000,https://chat.example; "
            more = "* works only for schemes other than http: vscode-webview://*"
            raise UsageError(f"--cors-origins: {origin!r} is not the origin of a page", hint=hint + more)
    return found


def origin_refusal(origin: str) -> str:
    origin = origin[:MAX_QUOTED_CHARS]
    scheme, separator, host = origin.partition("://")
    refusal = (
        f"pages of the origin {origin!r} may not send requests; `--cors-origins {shlex.quote(origin)}` admits them"
    )
    if not separator or not host or scheme in ("http", "https"):
        return refusal
    return f"{refusal}, or {shlex.quote(f'{scheme}://*')} where it changes"


def parse_host_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.strip().lower().rstrip(".") for name in names if name.strip())

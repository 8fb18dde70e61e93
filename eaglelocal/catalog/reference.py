"""The syntax of model references, and the only parser of it.

    demo, demo@SIZE[:TYPE], demo@native   the embedded model; `embedded` means demo
    qwen3-8b[:Q5_K_M]                     an entry of the catalog
    user/repo[:Q4_K_M]                    a repository of a hub
    user/repo:dir/x.gguf                  one file of it, where several have the same quantization
    hf.co/user/repo[:Q4_K_M]              the same, as Ollama and a browser write it, with or without https://
    ./x.gguf, /x, ~/x, x.gguf             a file; any existing path counts as one
    REF@1b:q4_k_m, REF@drop10, REF@q2_k   a model derived from the model of REF, which must not be derived itself

Does not check whether the entry, the repository or the file exists, except for the last rule.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import UsageError

GGUF_SUFFIX = ".gguf"
REFERENCE_FORMS = (
    "`demo`, `demo@SIZE[:TYPE]` such as `demo@1b:bf16`, a catalog entry such as `qwen3-8b:Q5_K_M`, "
    "`user/repo:Q4_K_M`, the path of a .gguf file, or `x.gguf@1b`, which is made of it"
)
REPO_PREFIX = "models--"  # of folders in the hub's cache
_QUANT = r"(:(?P<quant>[A-Za-z0-9][A-Za-z0-9_.-]{0,39}))?"
_PROFILE = re.compile(rf"(?P<id>[A-Za-z0-9][A-Za-z0-9._-]{{0,95}}){_QUANT}")
_REPO = re.compile(rf"(?P<user>[A-Za-z0-9][A-Za-z0-9._-]{{0,95}})/(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{{0,95}}){_QUANT}")
_REPO_FILE = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*):(?P<file>[^:]{1,250}\.gguf)", re.ASCII)
_HUB = re.compile(r"(https?://)?(www\.)?(hf\.co|huggingface\.co)/", re.IGNORECASE)
_PAGE = re.compile(r"(?P<name>[^/]+/[^/]+)/(?:tree/[^/]+/?|(?:blob|resolve)/[^/]+/(?P<file>[^?]+)(?:\?.*)?)")
_TYPE = r"(ud-)?(i?q|tq|mxfp|nvfp)\d\w*|b?fp?\d\w*"
_TAG = re.compile(  # as Ollama tags models: 8b, e4b, 135m, 8b-instruct-q4_K_M
    rf"(?P<size>e?\d+(\.\d+)?[bm]|\d+x\d+b)(-(?!{_TYPE})[\w.]+)*(-(?P<type>{_TYPE}))?", re.IGNORECASE
)
_LATEST = "latest"
DEMO = "demo"  # the name under which the embedded model is shown
EMBEDDED_NAMES = (DEMO, "embedded")
_DERIVED = re.compile(r"(?P<source>.+)@(?P<recipe>\w[\w.]*(:\w*)?)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """The embedded model, as written; hub/inflation/inflate.py parses what follows the `@`."""

    text: str


@dataclass(frozen=True, slots=True)
class Profile:
    """An entry of the catalog. `quant` is as written; None: the planner chooses one."""

    id: str
    quant: str | None = None


@dataclass(frozen=True, slots=True)
class Repo:
    """A repository of a hub."""

    name: str  # user/repo
    quant: str | None = None  # or the name of a file


def folder_name(repo: str) -> str:
    """Return the name of a repository's folder in the hub's cache: `models--user--repo`."""
    return REPO_PREFIX + repo.replace("/", "--")


@dataclass(frozen=True, slots=True)
class File:
    """A file on disk. `name`: the name by which it was found, if not by its path."""

    path: Path
    name: str = field(default="", compare=False)


OnDisk = Profile | Repo | File


@dataclass(frozen=True, slots=True)
class DerivedModel:
    """A model made of another one. `recipe`: as written; hub/derived_models.py parses it."""

    source: OnDisk
    recipe: str


Reference = EmbeddedModel | OnDisk | DerivedModel


def parse_reference(text: str, *, exists: Callable[[str], bool] = os.path.exists) -> Reference:
    """Parse a reference; `exists` returns whether a path exists. Raises UsageError if it has none of the forms."""
    name, at, size = text.partition("@")
    if name in EMBEDDED_NAMES:
        return EmbeddedModel(f"{DEMO}{at}{size}")
    if (hub := _HUB.match(text)) is not None and not exists(text):
        text = _read_page(text[hub.end() :])
    if parts := split_derived(text, exists=exists):
        return make_derived(parse_reference(parts[0], exists=exists), parts[1])
    named = _REPO_FILE.fullmatch(text)
    if named is not None and not exists(text):
        return Repo(named["name"], named["file"])
    if text.endswith(GGUF_SUFFIX) or text.startswith(("/", "./", "../", "~")) or exists(text):
        return File(expand_path(text))
    repo = _REPO.fullmatch(text)
    if repo is not None:
        return Repo(f"{repo['user']}/{repo['name']}", repo["quant"])
    profile = _PROFILE.fullmatch(re.sub(r"\s+", "-", text.strip()))  # people write `qwen3.8 27b`
    if profile is not None:
        return Profile(profile["id"], profile["quant"])
    if text.endswith(":") and (name := text.rstrip(":")):
        raise UsageError(f"{text!r} lacks a quantization behind the colon", hint=f"`{name}` or `{name}:Q4_K_M`")
    raise UsageError(f"cannot read the reference {text!r}", hint=f"use {REFERENCE_FORMS}")


def split_entry(id: str, tag: str | None) -> tuple[str, str]:
    """Split a name into the entry that was probably meant and the rest.

    >>> split_entry("qwen3", "8b"), split_entry("qwen3-8x", "Q4_K_M")  # the first as Ollama writes it
    (('qwen3-8b', ''), ('qwen3-8x', ':Q4_K_M'))
    >>> split_entry("llama3.1", "8b-instruct-q4_K_M"), split_entry("llama3.1", "latest")
    (('llama3.1-8b', ':q4_K_M'), ('llama3.1', ''))
    """
    if tag and (parts := _TAG.fullmatch(tag)) is not None:
        return f"{id}-{parts['size']}".lower(), f":{parts['type']}" if parts["type"] else ""
    return id, f":{tag}" if tag and tag != _LATEST else ""


def is_ollama_tag(tag: str | None) -> bool:
    """Return whether the part after a model's name is a tag of Ollama's, not a quantization."""
    return bool(tag) and re.fullmatch(_TYPE, tag or "", re.IGNORECASE) is None


def _read_page(path: str) -> str:
    """Return the reference to the repository or file that a page of the hub shows."""
    page = _PAGE.fullmatch(path)
    if page is None:
        return path
    return f"{page['name']}:{page['file']}" if page["file"] else page["name"]


def split_derived(text: str, *, exists: Callable[[str], bool] = os.path.exists) -> tuple[str, str] | None:
    """Return the two sides of the last `@` of a reference to a derived model; None for other references."""
    parsed = _DERIVED.fullmatch(text)
    if parsed is None or parsed["source"] in EMBEDDED_NAMES or text.endswith(GGUF_SUFFIX) or exists(text):
        return None
    return parsed["source"], parsed["recipe"]


def make_derived(source: Reference, recipe: str) -> DerivedModel:
    """Return the reference to a model derived from `source`. Raises UsageError if that is derived itself."""
    if isinstance(source, DerivedModel | EmbeddedModel):
        raise UsageError("a model is made of a file, not of a model that is made itself", hint="use a single `@`")
    return DerivedModel(source, recipe)

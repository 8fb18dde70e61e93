"""Listing and removing models of the hub's cache, in the layouts that the hub's client writes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from doubles.hub_models import model_bytes
from huggingface_hub import scan_cache_dir

from eaglelocal import locations
from eaglelocal.hub.hub_cache import find_repo_partials, list_models, list_repos, repo_folder
from eaglelocal.hub.removal import plan_file_removal, plan_removal, remove

REPO = "someone/tiny-GGUF"
OLD, NEW = "a" * 40, "b" * 40


@dataclass
class CacheFolder:
    """A cache in the making."""

    path: Path
    links: bool = True

    def file(self, name: str, content: bytes, *, repo: str = REPO, commit: str = OLD, blob: str = "") -> Path:
        folder = repo_folder(self.path, repo)
        pointer = folder / "snapshots" / commit / name
        pointer.parent.mkdir(parents=True, exist_ok=True)
        if not self.links:
            pointer.write_bytes(content)
            return pointer
        bytes_at = folder / "blobs" / (blob or f"{hash(content) & 0xFFFFFFFF:064x}")
        bytes_at.parent.mkdir(exist_ok=True)
        bytes_at.write_bytes(content)
        pointer.symlink_to(os.path.relpath(bytes_at, pointer.parent))
        return pointer

    def ref(self, commit: str, *, repo: str = REPO) -> None:
        ref = repo_folder(self.path, repo) / "refs" / "main"
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit)

    def partial(self, content: bytes, *, repo: str = REPO, name: str = "c" * 64) -> Path:
        path = repo_folder(self.path, repo) / "blobs" / f"{name}.incomplete"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def removed(self, reference: str) -> int:
        """Remove what the reference names; the bytes that this was said to free."""
        models = [model for model in list_models(self.path) if model.reference == reference]
        removal = plan_removal(self.path, models)
        remove(removal)
        return removal.freed_bytes

    def check(self) -> list[str]:
        """The repositories that the hub's client sees; it must not find anything damaged."""
        scanned = scan_cache_dir(self.path)
        assert not scanned.warnings
        return sorted(repo.repo_id for repo in scanned.repos)


@pytest.fixture(params=[True, False], ids=["links", "no links"])
def cache(tmp_path: Path, request: pytest.FixtureRequest) -> CacheFolder:
    return CacheFolder(tmp_path, links=request.param)


VARIABLES = (
    {},
    {"HF_HOME": "/models/hf"},
    {"HF_HUB_CACHE": "/models/hub"},
    {"HUGGINGFACE_HUB_CACHE": "/old/hub"},
    {"HF_HUB_CACHE": "/new/hub", "HUGGINGFACE_HUB_CACHE": "/old/hub", "HF_HOME": "/home"},
    {"XDG_CACHE_HOME": "/cache"},
    {"HF_HOME": "~/hf"},
    {"HF_HUB_CACHE": "$HOME/there"},
)


@pytest.mark.parametrize("variables", VARIABLES, ids=lambda v: " ".join(v) or "none")
def test_the_cache_is_where_the_hubs_client_has_it(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    theirs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert str(locations.hub_cache_dir()) == theirs.stdout.strip()


def test_models_are_listed_once_and_by_reference(cache: CacheFolder) -> None:
    cache.file("tiny-Q8_0.gguf", b"8" * 80)
    cache.file("tiny-Q4_K_M.gguf", b"4" * 40)
    cache.file("config.json", b"{}")
    cache.file("other-F16.gguf", b"16", repo="org/other")
    cache.file("tiny-Q8_0.gguf", b"8" * 81, commit=NEW)
    cache.ref(NEW)
    found = {model.reference: model for model in list_models(cache.path)}
    assert sorted(found) == ["org/other:F16", f"{REPO}:Q4_K_M", f"{REPO}:Q8_0"]
    assert (found[f"{REPO}:Q8_0"].size_bytes, found[f"{REPO}:Q8_0"].commit) == (81, NEW)
    assert found[f"{REPO}:Q4_K_M"].commit == OLD  # main does not have it (any more)


def test_an_incomplete_snapshot_is_not_a_model(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path)
    cache.file("big-Q8_0-00001-of-00002.gguf", b"1")
    pointer = cache.file("gone-Q8_0.gguf", b"2")
    pointer.resolve().unlink()  # a link to nothing
    cache.partial(b"some")
    cache.partial(b"", name="d" * 64)
    assert list_models(tmp_path) == []
    assert [partial.size_bytes for partial in find_repo_partials(tmp_path, REPO)] == [4]
    assert list_repos(tmp_path) == [REPO]


def test_an_empty_or_missing_cache_has_nothing(tmp_path: Path) -> None:
    assert list_models(tmp_path) == [] and list_models(tmp_path / "no") == []


def test_what_is_removed_is_gone_and_the_rest_is_sound(cache: CacheFolder) -> None:
    cache.file("tiny-Q8_0.gguf", b"8" * 80)
    kept = cache.file("tiny-Q4_K_M.gguf", b"4" * 40)
    cache.ref(OLD)
    assert cache.removed(f"{REPO}:Q8_0") == 80
    assert [model.reference for model in list_models(cache.path)] == [f"{REPO}:Q4_K_M"]
    assert kept.read_bytes() == b"4" * 40
    assert cache.check() == [REPO]
    assert cache.removed(f"{REPO}:Q4_K_M") == 40
    assert cache.check() == [] and not repo_folder(cache.path, REPO).exists()


def test_every_revision_loses_it(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path)
    cache.file("tiny-Q8_0.gguf", b"8" * 80, commit=OLD)
    cache.file("tiny-Q8_0.gguf", b"8" * 90, commit=NEW)
    cache.file("README.md", b"read me", commit=OLD)
    cache.ref(NEW)
    removal = plan_removal(tmp_path, list_models(tmp_path))
    assert removal.freed_bytes == 170
    assert removal.revisions == ("bbbbbbb (main)", "aaaaaaa")
    remove(removal)
    assert list_models(tmp_path) == []
    assert cache.check() == [REPO]  # somebody's README is still there
    assert not (repo_folder(tmp_path, REPO) / "refs" / "main").exists()


def test_bytes_that_another_name_uses_stay(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path)
    cache.file("tiny-Q8_0.gguf", b"8" * 80, blob="e" * 64)
    other = cache.file("renamed.gguf", b"8" * 80, commit=NEW, blob="e" * 64)
    models = [model for model in list_models(tmp_path) if model.reference.endswith("Q8_0")]
    removal = plan_removal(tmp_path, models)
    assert removal.freed_bytes == 0
    assert list(removal.kept.values()) == [("renamed.gguf in bbbbbbb",)]
    remove(removal)
    assert other.read_bytes() == b"8" * 80 and cache.check() == [REPO]


def test_a_file_elsewhere_that_a_person_linked_to_stays(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "hub")
    link = cache.file("tiny-Q8_0.gguf", b"8" * 80)
    precious = tmp_path / "precious.gguf"
    precious.write_bytes(b"8" * 80)
    link.unlink()
    link.symlink_to(precious)
    removal = plan_removal(tmp_path / "hub", list_models(tmp_path / "hub"))
    assert precious not in removal.paths and removal.freed_bytes == 0
    remove(removal)
    assert precious.exists() and not link.is_symlink()


def test_an_unfinished_download_keeps_its_snapshot(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path)
    link = cache.file("tiny-Q8_0.gguf", b"8" * 80)
    cache.partial(b"half")
    remove(plan_removal(tmp_path, list_models(tmp_path)))
    assert not link.exists() and link.parent.is_dir()


def test_an_unfinished_download_is_freed(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path)
    path = cache.partial(b"half")
    removal = plan_removal(tmp_path, [], find_repo_partials(tmp_path, REPO))
    assert removal.freed_bytes == 4
    remove(removal)
    assert not path.exists() and list_repos(tmp_path) == []


def test_a_model_leaves_an_unfinished_download_alone(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path)
    cache.file("tiny-Q8_0.gguf", b"8" * 80)
    path = cache.partial(b"half")
    cache.removed(f"{REPO}:Q8_0")
    assert path.read_bytes() == b"half"


def test_files_outside_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "demo.gguf"
    path.write_bytes(model_bytes())
    removal = plan_file_removal("demo", [path])
    assert removal.freed_bytes == len(model_bytes())
    remove(removal)
    assert not path.exists()

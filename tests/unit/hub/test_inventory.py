"""What is on disk, as it is listed: generated models by their names, files by their headers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doubles.hub_models import model_bytes

from eaglelocal import locations
from eaglelocal.cli.deletion import find_removal
from eaglelocal.errors import ModelFileError, UsageError
from eaglelocal.hub.hub_cache import HubReference, find_cached
from eaglelocal.hub.inventory import describe_file, list_all_models, list_embedded, list_imported, list_inflated
from eaglelocal.hub.model_details import describe_model
from eaglelocal.hub.pull_plan import find_pulled_draft, remember_draft
from eaglelocal.hub.removal import remove
from eaglelocal.hub.target_resolver import demo_sources, find_demo


@pytest.fixture(autouse=True)
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def write_generated(reference: str, *, outdated: bool = False) -> Path:
    """Files of the names that inflation gives, with little in them."""
    folder = locations.generated_models_dir()
    paths = find_demo(reference)
    place = paths.target
    if outdated:
        place = folder / f"{paths.target.stem[:-12]}{'0' * 12}.gguf"
    folder.mkdir(parents=True, exist_ok=True)
    place.write_bytes(model_bytes())
    place.with_name(f"{place.stem}-head.gguf").write_bytes(model_bytes())
    return place


def write_cached(repo: str, name: str, content: bytes = b"") -> Path:
    path = locations.hub_cache_dir() / f"models--{repo.replace('/', '--')}" / "snapshots" / ("a" * 40) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content or model_bytes())
    return path


def test_generated_models_are_found_under_their_references() -> None:
    for reference in ("demo", "demo@1b:q4_0", "demo@1.5b", "demo@700m:q8_0"):
        write_generated(reference)
    found = {entry.reference: entry for entry in list_inflated()}
    assert sorted(found) == ["demo", "demo@1.5b:bf16", "demo@1b:q4_0", "demo@700m:q8_0"]
    assert {entry.size_bytes for entry in found.values()} == {2 * len(model_bytes())}
    assert not any(entry.is_outdated for entry in found.values())


def test_unfinished_and_foreign_files_are_not_listed() -> None:
    place = write_generated("demo@1b")
    place.with_name(f"{place.stem}-head.gguf").unlink()
    (place.parent / "mine.gguf").write_bytes(model_bytes())
    (place.parent / f"{place.name}.partial").write_bytes(b"")
    assert list_inflated() == []


def test_a_model_of_an_older_version_is_reported_and_removed_with_the_present_one() -> None:
    now, old = write_generated("demo@1b"), write_generated("demo@1b", outdated=True)
    assert {entry.path: entry.is_outdated for entry in list_inflated()} == {now: False, old: True}
    assert describe_model("demo@1b").paths == (now,)
    removal = find_removal("demo@1B:BF16")
    assert removal.freed_bytes == 4 * len(model_bytes())
    remove(removal)
    assert list_inflated() == []


def test_the_embedded_model_is_always_there() -> None:
    (entry,) = list_embedded()
    assert (entry.reference, entry.description.architecture, entry.description.context) == (
        "demo@native",
        "llama",
        2048,
    )


def test_a_damaged_file_is_a_line_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x-Q4_0.gguf"
    path.write_bytes(model_bytes()[:300])
    about = describe_file(path)
    assert about.problem and about.quant == "Q4_0"
    with pytest.raises(ModelFileError):
        describe_model(str(path))


def test_the_memory_of_a_model_is_that_of_its_shape() -> None:
    look = describe_model("demo@native")
    assert look.cache_bytes(2048) == 2 * 6 * 2048 * 256 * 2  # keys and values, layers, tokens, width, f16
    assert look.own_head is not None


def reference(text: str, *repos: str, quant: str | None = None, size: int | None = None) -> HubReference:
    return HubReference(text, repos, quant, size)


def test_a_reference_finds_the_first_repository_that_has_it() -> None:
    write_cached("a/x", "x-Q4_K_M.gguf")
    wanted = write_cached("b/x", "x-Q8_0.gguf")
    cache = locations.hub_cache_dir()
    assert find_cached(cache, reference("x:q8_0", "a/x", "b/x", quant="q8_0")).path == wanted
    assert find_cached(cache, reference("x", "a/x", "b/x")).reference == "a/x:Q4_K_M"


def test_what_is_not_there_is_reported_with_the_command_that_fetches_it() -> None:
    write_cached("some/model-GGUF", "m-Q8_0.gguf")
    cache = locations.hub_cache_dir()
    with pytest.raises(ModelFileError, match="some/model-GGUF:Q4_0 is not on disk") as missing:
        find_cached(cache, reference("some/model-GGUF:Q4_0", "some/model-GGUF", quant="Q4_0", size=4_700_000_000))
    assert missing.value.message.endswith("is not on disk (4.70 GB to download); on disk: some/model-GGUF:Q8_0")
    assert missing.value.hint == "eaglelocal pull some/model-GGUF:Q4_0"
    with pytest.raises(ModelFileError) as missing:
        find_cached(cache, reference("some/modle-GGUF", "some/modle-GGUF"))
    assert missing.value.message == "some/modle-GGUF is not on disk; on disk: some/model-GGUF"


def test_the_draft_that_was_fetched_with_a_target_is_remembered(tmp_path: Path) -> None:
    file, cache = tmp_path / "state" / "pulled.json", locations.hub_cache_dir()
    head = write_cached("a/head", "head-BF16.gguf")
    assert find_pulled_draft(file, cache, "a/x") is None
    remember_draft(file, target_repo="a/x", draft_repo="a/head", draft_tag="BF16")
    remember_draft(file, target_repo="a/y", draft_repo="a/gone", draft_tag="Q8_0")
    assert find_pulled_draft(file, cache, "a/x") == head
    assert find_pulled_draft(file, cache, "a/y") is None
    assert find_pulled_draft(file, cache, "") is None


@pytest.mark.parametrize("content", ["", "[]", "{", json.dumps({"a/x": 7})])
def test_a_file_that_cannot_be_read_remembers_nothing(tmp_path: Path, content: str) -> None:
    file = tmp_path / "pulled.json"
    file.write_text(content)
    assert find_pulled_draft(file, locations.hub_cache_dir(), "a/x") is None
    remember_draft(file, target_repo="a/x", draft_repo="a/head", draft_tag="BF16")
    assert find_pulled_draft(file, locations.hub_cache_dir(), "a/x") is None
    head = write_cached("a/head", "head-BF16.gguf")
    assert find_pulled_draft(file, locations.hub_cache_dir(), "a/x") == head


def test_imported_heads_are_listed_and_removed_other_files_are_not(tmp_path: Path) -> None:
    assert list_imported() == []
    head = locations.heads_dir() / "0123456789abcdef" / "somebody-f16.gguf"
    head.parent.mkdir(parents=True)
    head.write_bytes(demo_sources()[1].read_bytes())
    (entry,) = list_imported()
    assert entry in list_all_models(locations.hub_cache_dir())
    assert (entry.reference, entry.description.kind) == (str(head), "head")
    assert describe_model(entry.reference).about.kind == "head"
    removal = find_removal(entry.reference)
    assert removal.freed_bytes == entry.size_bytes
    remove(removal)
    assert list_imported() == [] and not head.exists()
    foreign = tmp_path / "mine.gguf"
    foreign.write_bytes(model_bytes())
    with pytest.raises(UsageError, match="was not written by eaglelocal"):
        find_removal(str(foreign))
    with pytest.raises(ModelFileError, match="does not exist"):
        find_removal(str(head))

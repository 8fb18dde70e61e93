"""References to models of a hub, and the catalog entries that they match."""

from __future__ import annotations

import pytest

from eaglelocal.catalog.catalog import Catalog, load_catalog
from eaglelocal.catalog.draft_entries import find_unsupported_reason
from eaglelocal.catalog.reference import File, Repo, parse_reference
from eaglelocal.errors import UsageError
from eaglelocal.hub.hub_cache import find_nearest_repo, resolve_hub_reference
from eaglelocal.hub.pull_plan import plan_pull


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def test_a_repository_is_meant_as_it_is_written() -> None:
    want = plan_pull("some/repo:Q8_0")
    assert want is not None and want.draft is None
    assert (want.target.repos, want.target.quant, want.target.text) == (("some/repo",), "Q8_0", "some/repo:Q8_0")


def test_an_entry_brings_its_repositories_and_the_first_head_that_can_run() -> None:
    want = plan_pull("qwen3-8b:q5_k_m")
    assert want is not None and want.draft is not None
    assert want.target.repos[0] == "Qwen/Qwen3-8B-GGUF" and len(want.target.repos) == 3
    assert want.target.size_bytes == 5_798_205_850
    assert want.draft.repos == ("AngelSlim/Qwen3-8B_eagle3",)
    assert not want.draft_is_asked_for


def test_a_repository_of_the_catalogue_has_its_draft_too() -> None:
    want = plan_pull("qwen/qwen3-8b-gguf")
    assert want is not None and want.draft is not None
    assert want.draft.repos == ("AngelSlim/Qwen3-8B_eagle3",)


@pytest.mark.parametrize(("target", "advice"), [("qwen3-next-80b", "recurrent state"), ("qwen2.5-7b", "")])
def test_without_a_head_that_can_run_nothing_is_fetched_to_draft(target: str, advice: str) -> None:
    want = plan_pull(target)
    assert want is not None and want.draft is None
    assert advice in want.advice and want.advice


def test_every_draft_of_the_catalogue_that_can_run_can_be_asked_for(catalog: Catalog) -> None:
    asked = 0
    for target in catalog.targets.values():
        want = plan_pull(target.id)
        assert want is not None
        asked += want.draft is not None
        for entry in catalog.drafts_for(target):
            if entry.repo and not find_unsupported_reason(entry, target.outline):
                chosen = plan_pull(target.id, draft=entry.id)
                if entry.is_in_target:
                    assert chosen is not None and chosen.draft is None and chosen.target.repos[0] == entry.gguf_repo
                    continue
                assert chosen is not None and chosen.draft is not None and chosen.draft_is_asked_for
                assert chosen.draft.repos[0] in (entry.repo, entry.gguf_repo)
    assert asked > 10


def test_models_that_draft_for_themselves() -> None:
    """A file with the layer is enough; where another repository gives it, what else drafts is fetched."""
    auto, asked = plan_pull("qwen3.5-9b"), plan_pull("qwen3.5-9b", draft="mtp")
    assert auto is not None and asked is not None
    assert auto.layer_repo == auto.target.repos[0] == "unsloth/Qwen3.5-9B-MTP-GGUF"
    assert auto.draft is not None and "Eagle3" in auto.draft.text and not auto.layer_is_asked_for
    assert (asked.draft, asked.layer_is_asked_for) == (None, True)
    beside = plan_pull("unsloth/qwen3.5-4b-mtp-gguf")
    assert beside is not None and beside.layer_repo and beside.draft is None
    plain = plan_pull("unsloth/Qwen3.5-4B-GGUF")
    assert plain is not None and not plain.layer_repo
    assert plain.advice == "no draft: the files of unsloth/Qwen3.5-4B-MTP-GGUF have an MTP layer that drafts"
    gemma = plan_pull("gemma-4-12b", draft="mtp")
    eagle = plan_pull("qwen3-8b")
    assert eagle is not None and eagle.draft is not None and not eagle.advice  # its head may be missing from the hub
    assert gemma is not None and gemma.draft is not None and gemma.draft_is_asked_for and not gemma.layer_is_asked_for
    with pytest.raises(UsageError, match=r"mtp-qwen3\.5-4b is a layer of qwen3\.5-4b"):
        plan_pull("qwen3-8b", draft="mtp-qwen3.5-4b")
    with pytest.raises(UsageError, match=r"is a layer in the files of unsloth/Qwen3\.5-4B-MTP-GGUF"):
        resolve_hub_reference("mtp-qwen3.5-4b")


def test_a_target_of_the_catalogue_can_draft_for_another() -> None:
    want = plan_pull("qwen3-32b", draft="qwen3-0.6b:Q8_0")
    assert want is not None and want.draft is not None
    assert want.draft.quant == "Q8_0" and want.draft.drafts


def test_quantizations_are_said_once() -> None:
    want = plan_pull("qwen3-8b", quant="Q8_0")
    assert want is not None and want.target.quant == "Q8_0"
    assert plan_pull("qwen3-8b:q8_0", quant="Q8_0") is not None
    with pytest.raises(UsageError, match="two quantizations"):
        plan_pull("qwen3-8b:Q4_K_M", quant="Q8_0")


def test_the_embedded_model_needs_no_hub() -> None:
    assert plan_pull("demo") is None and plan_pull("demo@1b:q4_0") is None


@pytest.mark.parametrize("text", ["./x.gguf", "demo", "qwen3-8x"])
def test_what_is_no_model_of_a_hub(text: str) -> None:
    with pytest.raises(UsageError):
        resolve_hub_reference(text)


def test_a_file_of_a_repository_can_be_named() -> None:
    assert parse_reference("a/b:dir/x-Q8_0.gguf") == Repo("a/b", "dir/x-Q8_0.gguf")
    assert isinstance(parse_reference("a/b:x.gguf", exists=lambda text: True), File)
    assert isinstance(parse_reference("a/b/x.gguf"), File)


def test_a_mistyped_repository_has_a_neighbour() -> None:
    assert find_nearest_repo("Qwen/Qwen3-8B-GUF") == "Qwen/Qwen3-8B-GGUF"
    assert find_nearest_repo("nobody/nothing") is None

"""Drafts as they are described for vLLM: a head of another target is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import IncompatibleError, ResourceError
from eaglelocal.hub.heads.export_folder import read_eagle_head
from eaglelocal.hub.target_resolver import demo_sources
from eaglelocal.planning.machine_spec import DeviceSpec, make_known_spec
from eaglelocal.planning.options import make_catalog_options
from eaglelocal.preparation.vllm.exports import make_speculative_config
from eaglelocal.preparation.vllm.find_pair import DraftSearch, GivenSources, check_head_serves, compare_vocab
from eaglelocal.preparation.vllm.served_pair import (
    DRAFT_MODEL,
    ServedPair,
    VllmDraft,
    VllmTarget,
    WeightsPin,
)

CATALOG = load_catalog()
INFO = read_eagle_head(demo_sources()[1])


def target(id: str = "qwen3-8b", repo: str = "Qwen/Qwen3-8B") -> VllmTarget:
    option = next(make_catalog_options(CATALOG.targets[id], CATALOG))
    return VllmTarget(id=id, pin=WeightsPin(repo, "0" * 40), model=option.model, max_context=4096)


@pytest.mark.parametrize(
    ("n_embd", "n_vocab", "verifier"),
    [(4096, 151_936, ""), (4096, 151_936, "Qwen/Qwen3-8B"), (4096, 151_936, "/data/checkpoints/any")],
)
def test_a_head_of_the_target_is_taken(n_embd: int, n_vocab: int, verifier: str) -> None:
    head = replace(INFO, target_hidden_size=n_embd, n_vocab=n_vocab)
    check_head_serves(head, verifier, target())
    check_head_serves(head, verifier, target(repo="unsloth/Qwen3-8B"))


@pytest.mark.parametrize(
    ("n_embd", "n_vocab", "verifier", "message"),
    [
        (2560, 151_936, "", "hidden states of 2560"),
        (4096, 151_935, "", "drafts 151935 tokens"),
        (4096, 151_936, "Qwen/Qwen3-14B", "drafts for Qwen/Qwen3-14B, not for Qwen/Qwen3-8B"),
    ],
)
def test_a_head_of_another_target_is_refused(n_embd: int, n_vocab: int, verifier: str, message: str) -> None:
    head = replace(INFO, target_hidden_size=n_embd, n_vocab=n_vocab)
    with pytest.raises(IncompatibleError, match=message):
        check_head_serves(head, verifier, target())


@pytest.mark.parametrize(
    ("most_bytes", "most_tokens", "method"), [(1 << 40, 64, "peagle"), (0, 64, "ngram"), (0, 0, None)]
)
def test_auto_takes_a_draft_that_fits(most_bytes: int, most_tokens: int, method: str | None) -> None:
    def find_device(pair: ServedPair) -> DeviceSpec:
        draft = pair.draft
        if draft is not None and (draft.num_bytes > most_bytes or draft.most > most_tokens):
            raise ResourceError("no memory")
        return make_known_spec(CATALOG.machine("h100-sxm")).gpus[0]

    entry = CATALOG.targets["qwen3-8b"]
    options = replace(RunOptions(), target="qwen3-8b", draft="auto")
    draft = DraftSearch(options, GivenSources(), CATALOG, entry, target(), find_device).choose()
    assert (draft.method if draft else None) == method


@pytest.mark.parametrize(
    ("id", "repo", "is_shared"),
    [
        ("qwen3-8b", "Qwen/Qwen3-0.6B", True),
        ("qwen2.5-7b", "Qwen/Qwen3-0.6B", False),  # 152064 and 151936 tokens
        ("qwen2.5-7b", "somebody/draft", False),  # of unknown size
    ],
)
def test_a_model_maps_its_tokens_where_the_vocabulary_may_have_another_size(
    id: str, repo: str, is_shared: bool
) -> None:
    draft = VllmDraft(id="draft", method=DRAFT_MODEL, most=5, pin=WeightsPin(repo, "0" * 40))
    found, notes = compare_vocab(draft, target(id), CATALOG)
    assert found.shares_vocab == is_shared and bool(notes) != is_shared
    config = make_speculative_config(found, ((1, 4, 5),), 1)
    assert config.get("use_heterogeneous_vocab", False) != is_shared


@pytest.mark.parametrize(
    ("config", "is_shared"),
    [
        ('{"vocab_size": 151936}', True),
        ('{"vocab_size": 151643}', False),
        ("{}", False),
        ("no JSON", False),
        ("", False),
    ],
)
def test_a_folder_says_how_many_tokens_its_model_has(config: str, is_shared: bool, tmp_path: Path) -> None:
    if config:
        (tmp_path / "config.json").write_text(config)
    draft = VllmDraft(id="draft", method=DRAFT_MODEL, most=5, pin=WeightsPin(str(tmp_path)))
    found, notes = compare_vocab(draft, target("qwen3-8b"), CATALOG)
    assert found.shares_vocab == is_shared and bool(notes) != is_shared

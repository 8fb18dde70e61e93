"""The value of --speculative-config for every method, against the fields of vLLM 0.32."""

from __future__ import annotations

import pytest

from eaglelocal.preparation.vllm.exports import SCHEDULE, make_speculative_config
from eaglelocal.preparation.vllm.served_pair import METHODS, REPO_METHODS, VllmDraft, WeightsPin

COMMIT = "0123456789abcdef" * 2 + "01234567"
RANGES = ((1, 4, 5), (5, 16, 3), (17, 256, 0))
# fields of SpeculativeConfig in vllm/config/speculative.py of vLLM 0.32
FIELDS = {
    *("method", "model", "revision", "num_speculative_tokens", "draft_tensor_parallel_size", "parallel_drafting"),
    *("prompt_lookup_min", "prompt_lookup_max", SCHEDULE, "draft_sample_method", "enable_adaptive_verification"),
    *("suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor"),
    "suffix_decoding_min_token_prob",
}


def draft(method: str) -> VllmDraft:
    return VllmDraft(id="draft", method=method, most=7, pin=WeightsPin("some/draft", COMMIT))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_its_fields_and_no_others(method: str) -> None:
    config = make_speculative_config(draft(method), RANGES, 1)
    assert set(config) <= FIELDS
    assert config["method"] == ("eagle3" if method == "peagle" else method)
    assert config["num_speculative_tokens"] == 5
    assert config.get("parallel_drafting") is (True if method == "peagle" else None)
    if method not in ("suffix", "dspark"):
        assert config[SCHEDULE] == [[1, 4, 5], [5, 16, 3], [17, 256, 0]]


@pytest.mark.parametrize("method", REPO_METHODS)
def test_a_draft_is_pinned_and_lies_on_one_card_unless_it_is_a_model(method: str) -> None:
    config = make_speculative_config(draft(method), RANGES, 2)
    assert (config["model"], config["revision"]) == ("some/draft", COMMIT)
    assert config["draft_tensor_parallel_size"] == (2 if method == "draft_model" else 1)


def test_layers_in_the_target_have_no_model() -> None:
    assert "model" not in make_speculative_config(VllmDraft(id="mtp", method="mtp", most=4), RANGES, 2)

"""Write the value of --speculative-config as vLLM 0.32 reads it. Pure.

The method is always stated: vLLM guesses a missing one from the name of the folder, and may fail at the first request.
What a head needs besides (EAGLE-3.1's flags, mask tokens) vLLM reads from the head's own configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from eaglelocal.planning.vllm.draft_schedule import Range
from eaglelocal.planning.vllm.served_pair import DRAFT_MODEL, DSPARK, EAGLE3, NGRAM, PEAGLE, SUFFIX, VllmDraft

SCHEDULE = "num_speculative_tokens_per_batch_size"
SUFFIX_TOKENS = 32  # the longest draft of a suffix tree, vLLM's own default
# keys of a method besides model, revision and lengths
METHOD_KEYS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        PEAGLE: {"parallel_drafting": True},
        NGRAM: {"prompt_lookup_min": 2, "prompt_lookup_max": 5},
        SUFFIX: {
            "suffix_decoding_max_tree_depth": 24,
            "suffix_decoding_max_cached_requests": 10000,
            "suffix_decoding_max_spec_factor": 1.0,
            "suffix_decoding_min_token_prob": 0.1,
        },
        DSPARK: {"draft_sample_method": "probabilistic", "enable_adaptive_verification": True},
    }
)


def make_speculative_config(draft: VllmDraft, schedule: Sequence[Range], num_cards: int) -> dict[str, object]:
    """Return the configuration of a draft.

    schedule   draft lengths by number of sequences; the longest is the draft's
    num_cards  of the target: a draft model is split over as many, a head lies on one
    """
    config: dict[str, object] = {"method": EAGLE3 if draft.method == PEAGLE else draft.method}
    if draft.pin is not None:
        config["model"] = draft.pin.repo
        if draft.pin.revision:
            config["revision"] = draft.pin.revision
        if num_cards > 1:
            config["draft_tensor_parallel_size"] = num_cards if draft.method == DRAFT_MODEL else 1
    if not draft.shares_vocab:  # vLLM refuses a model with another size unless it may map the tokens
        config["use_heterogeneous_vocab"] = True
    config["num_speculative_tokens"] = max(length for _, _, length in schedule)
    if draft.method not in (SUFFIX, DSPARK):  # those choose the length of each draft themselves
        config[SCHEDULE] = [list(each) for each in schedule]
    return {**config, **METHOD_KEYS.get(draft.method, {})}

"""Plans for each machine of a table of recommendations: none that does not fit, none worse, and true reasons."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from doubles.catalog_plans import (
    GIB,
    catalog,
    check_fits,
    chosen_of,
    every_option,
    machine_named,
    option,
    planned,
    score_of,
)

from eaglelocal.core.run_options import PLANNED_KV_TYPES, RunOptions
from eaglelocal.memory.budget import RAM
from eaglelocal.planning.candidate import GOALS, Candidate, Rejected
from eaglelocal.planning.candidate_evaluation import CacheSetup, CandidateEvaluator
from eaglelocal.planning.options import DraftOption
from eaglelocal.planning.plan_search import CONTEXTS, search_plan

pytestmark = pytest.mark.full


# ---- the table: machine, target, quantization, draft, tokens, cache, sum in GiB
@dataclass(frozen=True)
class Row:
    machine: str
    target: str
    quant: str
    draft: str | None
    ctx: int
    kv_type: str
    gib: float

    @property
    def id(self) -> str:
        return f"{self.machine}-{self.target}-{self.quant}"


ROWS = [
    Row("cuda-8gb", "qwen3-8b", "Q4_K_M", "e3-qwen3-8b-angelslim", 8192, "q8_0", 5.82),
    Row("cuda-8gb", "qwen3-4b", "Q6_K", "e3-qwen3-4b-angelslim", 16384, "q8_0", 4.99),
    Row("cuda-12gb", "qwen3-8b", "Q6_K", "e3-qwen3-8b-angelslim", 16384, "q8_0", 7.90),
    Row("cuda-12gb", "qwen3-14b", "Q4_K_M", "e3-qwen3-14b-angelslim", 8192, "q8_0", 9.71),
    Row("cuda-12gb", "llama-3.1-8b", "Q6_K", "e3-llama31-8b-specforge", 16384, "q8_0", 7.61),
    Row("cuda-16gb", "qwen3-14b", "Q5_K_M", "e3-qwen3-14b-angelslim", 16384, "q8_0", 11.72),
    Row("cuda-16gb", "gpt-oss-20b", "MXFP4", "e3-gpt-oss-20b-redhat", 32768, "f16", 12.34),
    Row("rtx-3090", "qwen3-32b", "Q4_K_M", "e3-qwen3-32b-angelslim", 16384, "q8_0", 21.37),
    Row("rtx-4090", "qwen3.6-27b", "Q4_K_M", "mtp-qwen3.6-27b", 65536, "q8_0", 18.82),
    Row("rtx-4090", "gemma-4-31b", "IQ4_XS", "e3-gemma4-31b-redhat", 16384, "q8_0", 17.89),
    Row("rtx-5090", "qwen3.6-27b", "Q6_K", "mtp-qwen3.6-27b", 65536, "f16", 25.77),
    Row("rtx-5090", "qwen3-32b", "Q5_K_M", "e3-qwen3-32b-angelslim", 32768, "q8_0", 26.67),
    Row("a6000", "llama-3.3-70b", "Q4_K_M", "e3-llama33-70b-yuhuili", 16384, "q8_0", 44.57),
    Row("a6000", "qwen3.6-27b", "Q8_0", "mtp-qwen3.6-27b", 131072, "f16", 35.53),
    Row("2x-rtx-3090", "llama-3.3-70b", "IQ4_XS", "e3-llama33-70b-yuhuili", 16384, "q8_0", 40.52),
    Row("2x-rtx-3090", "qwen3.6-27b", "Q8_0", "mtp-qwen3.6-27b", 65536, "f16", 31.76),
    Row("m2-16gb", "qwen3-8b", "Q4_K_M", "e3-qwen3-8b-angelslim", 8192, "f16", 6.67),
    Row("m2-max-32gb", "qwen3-14b", "Q6_K", "e3-qwen3-14b-angelslim", 16384, "f16", 14.89),
    Row("m2-max-32gb", "gpt-oss-20b", "MXFP4", None, 32768, "f16", 12.46),
    Row("m2-max-64gb", "qwen3-32b", "Q6_K", "e3-qwen3-32b-angelslim", 16384, "f16", 30.26),
    Row("m2-max-64gb", "qwen3.6-27b", "Q6_K", "mtp-qwen3.6-27b", 65536, "f16", 26.60),
    Row("m3-max-128gb", "gpt-oss-120b", "MXFP4", "e3-gpt-oss-120b-lmsys", 65536, "f16", 62.22),
    Row("m3-max-128gb", "llama-3.3-70b", "Q6_K", "e3-llama33-70b-yuhuili", 16384, "f16", 61.77),
    Row("cpu-16gb", "qwen3-4b", "Q4_K_M", "ngram", 8192, "f16", 3.74),
    Row("cpu-16gb", "qwen3-8b", "Q4_K_M", "plain-qwen3-0.6b", 8192, "f16", 7.72),
    Row("cpu-32gb", "qwen3-30b-a3b", "Q4_K_M", "ngram", 16384, "f16", 19.12),
    Row("cpu-32gb", "qwen3-14b", "Q4_K_M", "plain-qwen3-0.6b", 8192, "f16", 11.54),
]
ids = [row.id for row in ROWS]


def draft_of(row: Row) -> DraftOption:
    """The row's draft; where it has none, what needs no model."""
    ways = option(row.target, row.quant).drafts
    return next((each for each in ways if each.id == row.draft), ways[-1])


def row_score(row: Row, *, swa_full: bool) -> float | None:
    """As the row would run, by the goal's own score; None where that does not fit."""
    chosen, evaluator = (
        option(row.target, row.quant),
        CandidateEvaluator(machine_named(row.machine), RunOptions()),
    )
    n_ctx = min(row.ctx, max(CONTEXTS))  # more is tried only if it is asked for
    setup = CacheSetup(n_ctx=n_ctx, kv_type=row.kv_type, swa_full=swa_full)
    if not evaluator.estimate_memory(chosen, draft_of(row), setup).fits:
        return None
    return score_of(evaluator, chosen, draft_of(row), setup)


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_the_plan_for_each_machine_fits_and_is_no_worse_than_the_row(row: Row) -> None:
    """With the row's own draft, context and cache."""
    outcome = planned(row.machine)
    check_fits(outcome)
    scores = [each for windows in (True, False) if (each := row_score(row, swa_full=windows)) is not None]
    assert scores, "the table says that it fits"
    assert chosen_of(outcome).score >= max(scores) - 1e-9


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_where_the_plan_differs_the_row_is_among_the_rejected_with_a_true_reason(row: Row) -> None:
    outcome = planned(row.machine)
    chosen, rows = chosen_of(outcome), option(row.target, row.quant)
    found = [each for each in outcome.rejected if each.option is rows and each.candidate is not None]
    ours = [each for each in found if each.draft in (row.draft, "ngram", "none")]
    assert chosen.option is rows or ours
    for each in found:
        check_true(each, chosen)


def check_true(rejected: Rejected, best: Candidate) -> None:
    """What the reason claims, against the figures of both ways."""
    candidate, reason = rejected.candidate, rejected.reason
    assert candidate is not None
    slower, claims = candidate.prediction.spec_tok_s < best.prediction.spec_tok_s, 0
    larger = candidate.option.quality_b > best.option.quality_b
    facts = {
        "lower quality": not larger and candidate.option.answers_b < best.option.answers_b,
        "smaller": not larger,
        "older": candidate.option.age.years < best.option.age.years,
        "slower": slower,
        "(though": not slower or larger,
        "less context": candidate.setup.n_ctx < best.setup.n_ctx,
        "a cache of": PLANNED_KV_TYPES.index(candidate.setup.kv_type) > PLANNED_KV_TYPES.index(best.setup.kv_type),
        "keeps windows only": not candidate.setup.swa_full and best.setup.swa_full,
        "does not fit the GPU whole": not candidate.offload.is_whole and best.offload.is_whole,
        "is not confirmed": candidate.option.is_unseen and not best.option.is_unseen,
        "predicted not to pay": candidate.prediction.num_draft_tokens == 0 and candidate.draft.shape is not None,
        "as good as": candidate.score == pytest.approx(best.score, abs=0.05),
        "to use": not candidate.memory.fits,
        "by name only": bool(candidate.option.by_name),
        "at best": candidate.is_bound,
    }
    for words, is_so in facts.items():
        if words in reason:
            claims += 1
            assert is_so, f"{rejected.option.reference} with {rejected.draft}: {reason}"
    assert claims, reason
    if candidate.is_bound and any(words in reason for words in ("tokens/s", "less context")):
        assert "at best" in reason, "it was not weighed"


@pytest.mark.parametrize("machine", ["m1-16gb", "m1-ultra-128gb", "cuda-8gb", "rtx-3090", "2x-rtx-3090", "cpu-16gb"])
@pytest.mark.parametrize("goal", sorted(GOALS))
def test_reasons_are_true(machine: str, goal: str) -> None:
    outcome = planned(machine, goal)
    for each in outcome.rejected:
        if each.candidate is not None:
            check_true(each, chosen_of(outcome))


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_memory_of_each_row_as_its_table_sums_it(row: Row) -> None:
    """Without the process and drivers, which the table leaves to its budget; of an MTP row without its draft."""
    chosen = option(row.target, row.quant)
    candidate = draft_of(row)
    windows = not chosen.shape.has_windows
    evaluator = CandidateEvaluator(machine_named(row.machine), RunOptions())
    memory = evaluator.estimate_memory(
        chosen, candidate, CacheSetup(n_ctx=row.ctx, kv_type=row.kv_type, swa_full=windows)
    )
    device = memory.loads[-1].device if memory.loads[1:] else RAM
    counted = [each for each in memory.buffers if each.kind != "runtime" and (device == RAM or each.device != RAM)]
    used = sum(each.num_bytes for each in counted)
    assert used / GIB == pytest.approx(row.gib, rel=0.10)


def test_a_runnable_row_that_is_tight_fits_as_the_table_says() -> None:
    """Rows with little room left: the arithmetic must neither refuse what works nor take what does not."""
    for row in ROWS:
        if row.draft is None or row.draft.startswith("mtp-"):
            continue
        chosen = option(row.target, row.quant)
        candidate = next(each for each in chosen.drafts if each.id == row.draft)
        setup = CacheSetup(n_ctx=row.ctx, kv_type=row.kv_type, swa_full=not chosen.shape.has_windows)
        evaluator = CandidateEvaluator(machine_named(row.machine), RunOptions())
        assert evaluator.estimate_memory(chosen, candidate, setup).fits, row.id


# ---- what people who know such machines would say, late in 2026
@pytest.mark.parametrize(
    ("machine", "goal", "targets"),
    [
        ("cuda-8gb", "balanced", {"qwen3.5-9b"}),
        ("rtx-4060", "balanced", {"qwen3.5-9b"}),
        ("rtx-3060", "balanced", {"gemma-4-12b"}),
        ("cuda-12gb", "balanced", {"gemma-4-12b"}),
        ("cuda-16gb", "balanced", {"qwen3.8-27b"}),
        ("rtx-5080", "balanced", {"qwen3.8-27b"}),
        ("cuda-24gb", "balanced", {"qwen3.8-27b", "gemma-4-31b"}),
        ("rtx-3090", "balanced", {"qwen3.8-27b", "gemma-4-31b"}),
        ("rtx-4090", "quality", {"qwen3.8-27b", "gemma-4-31b"}),
        ("rtx-5090", "balanced", {"qwen3.8-27b", "gemma-4-31b"}),
        ("rtx-5070-ti", "balanced", {"qwen3.8-27b"}),
        ("a6000", "balanced", {"qwen3.8-27b"}),
        ("2x-rtx-3090", "balanced", {"qwen3.8-27b", "gemma-4-31b"}),
        ("2x-rtx-3090", "quality", {"qwen3.8-27b", "gemma-4-31b"}),
        ("rtx-pro-6000", "balanced", {"qwen3.5-122b-a10b", "qwen3.8-27b", "gpt-oss-120b"}),
        ("cpu-16gb", "balanced", {"gemma-4-e4b", "qwen3.5-4b", "qwen3.5-9b"}),
        ("cpu-32gb", "balanced", {"qwen3.6-35b-a3b"}),
        ("cpu-64gb", "balanced", {"qwen3.6-35b-a3b"}),
        ("m1-8gb", "balanced", {"gemma-4-e4b", "qwen3.5-4b"}),
        ("m2-16gb", "balanced", {"gemma-4-e4b", "qwen3.5-9b"}),  # at 25 or at 17 tokens/s
        ("m4-24gb", "balanced", {"gemma-4-26b-a4b", "qwen3.6-35b-a3b"}),
        ("m4-32gb", "balanced", {"qwen3.6-35b-a3b"}),
        ("m3-pro-36gb", "balanced", {"qwen3.6-35b-a3b"}),  # dense models of this size think at 10 tokens/s there
        ("m4-pro-24gb", "balanced", {"gemma-4-26b-a4b", "qwen3.6-35b-a3b"}),
        ("m4-pro-48gb", "balanced", {"qwen3.6-35b-a3b"}),
        ("m2-max-32gb", "balanced", {"qwen3.8-27b", "gemma-4-31b"}),
        ("m3-ultra-96gb", "balanced", {"qwen3.5-122b-a10b", "gpt-oss-120b"}),
        ("m2-max-32gb", "speed", {"qwen3.6-35b-a3b", "gemma-4-26b-a4b"}),
        ("strix-halo-128gb", "balanced", {"qwen3.5-122b-a10b", "gpt-oss-120b"}),
        ("dgx-spark", "balanced", {"qwen3.5-122b-a10b", "gpt-oss-120b"}),
    ],
)
def test_what_is_recommended(machine: str, goal: str, targets: set[str]) -> None:
    candidate = chosen_of(planned(machine, goal))
    assert candidate.option.target in targets
    assert candidate.offload.is_whole  # no user would leave layers of these on the host


@pytest.mark.slow
@pytest.mark.parametrize("goal", sorted(GOALS))
def test_nothing_of_2024_is_recommended_anywhere(goal: str) -> None:
    for machine in catalog().machines:
        candidate = chosen_of(planned(machine, goal))
        assert candidate.option.age.released >= "2025-04", f"{machine}: {candidate.option.reference}"


def test_a_model_that_is_offered_by_name_only_is_taken_by_name() -> None:
    named = {target.id for target in catalog().targets.values() if target.by_name}
    assert "qwen3-coder-30b-a3b" in named
    for machine in ("rtx-4060", "rtx-3090", "m2-16gb", "m4-32gb", "cpu-16gb", "cpu-32gb"):
        assert chosen_of(planned(machine)).option.target not in named
    reasons = [each.reason for each in planned("cpu-32gb").rejected if each.option.target == "qwen3-coder-30b-a3b"]
    assert any("offered by name only, made for code" in reason for reason in reasons)
    coder = tuple(each for each in every_option() if each.target == "qwen3-coder-30b-a3b")
    outcome = search_plan(coder, machine_named("rtx-3090"), RunOptions(goal="balanced"))
    assert chosen_of(outcome).option.target == "qwen3-coder-30b-a3b"

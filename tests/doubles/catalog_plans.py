"""Options and machines of the catalog for tests of the planner, and a second check that its choice fits."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from eaglelocal.catalog.catalog import Catalog, load_catalog
from eaglelocal.core.run_options import RunOptions
from eaglelocal.memory.budget import RAM, device_load, subtract_margins
from eaglelocal.memory.estimate import estimate
from eaglelocal.memory.placement import WHOLE, Offload
from eaglelocal.planning.candidate import GOALS, Candidate, compute_terms
from eaglelocal.planning.candidate_evaluation import CacheSetup, CandidateEvaluator
from eaglelocal.planning.machine_spec import DeviceSpec, MachineSpec, make_known_spec
from eaglelocal.planning.options import DraftOption, ModelOption, make_catalog_options
from eaglelocal.planning.plan_search import SearchOutcome, search_plan

GIB = 2**30
SOME = ("qwen3-0.6b", "qwen3-8b", "qwen3-30b-a3b", "qwen3.6-27b", "gemma-4-31b", "llama-3.3-70b")


@cache
def catalog() -> Catalog:
    return load_catalog(user_folder=Path("/nonexistent"))


@cache
def every_option() -> tuple[ModelOption, ...]:
    return tuple(option for target in catalog().targets.values() for option in make_catalog_options(target, catalog()))


def option(target: str, quant: str) -> ModelOption:
    return next(each for each in every_option() if (each.target, each.quant) == (target, quant))


def machine_named(name: str) -> MachineSpec:
    return make_known_spec(catalog().machine(name))


@cache
def planned(machine: str, goal: str = "balanced") -> SearchOutcome:
    return search_plan(every_option(), machine_named(machine), RunOptions(goal=goal))


def check_fits(outcome: SearchOutcome) -> None:
    """Assert that the chosen plan fits, by the arithmetic of memory alone."""
    assert outcome.chosen is not None
    candidate = outcome.chosen
    evaluator = CandidateEvaluator(outcome.machine, outcome.options)
    settled = evaluator.make_sizing_plan(candidate.option, candidate.draft, candidate.setup, candidate.offload)
    free_memory = subtract_margins(outcome.machine.free_memory)
    buffers = estimate(settled, candidate.option.shape, candidate.draft.shape, free_memory)
    for room in free_memory:
        assert device_load(room, buffers, free_memory).missing_bytes <= 0, room
    assert outcome.chosen.memory.sum.total_bytes <= outcome.chosen.memory.budget_bytes


def chosen_of(outcome: SearchOutcome) -> Candidate:
    assert outcome.chosen is not None
    return outcome.chosen


def score_of(
    evaluator: CandidateEvaluator, chosen: ModelOption, draft: DraftOption, setup: CacheSetup, offload: Offload = WHOLE
) -> float:
    tok_s = evaluator.predict(chosen, draft, offload).spec_tok_s
    return sum(compute_terms(GOALS["balanced"], chosen, setup, offload, tok_s).values())


@cache
def some_options() -> tuple[ModelOption, ...]:
    quants = ("Q4_K_M", "Q8_0")
    return tuple(each for each in every_option() if each.target in SOME and each.quant in quants)


def machine_of(ram_gib: float, gpus_gib: tuple[float, ...]) -> MachineSpec:
    cards = tuple(
        DeviceSpec(
            name=f"CUDA{index}",
            label="card",
            kind="cuda",
            total_bytes=int(free * GIB),
            free_bytes=int(free * GIB),
            bytes_s=500e9,
            flops=40e12,
        )
        for index, free in enumerate(gpus_gib)
    )
    ram = int(ram_gib * GIB)
    host = DeviceSpec(name=RAM, label="RAM", kind="cpu", total_bytes=ram, free_bytes=ram, bytes_s=40e9, flops=100e9)
    return MachineSpec(name="random", host=host, gpus=cards)
